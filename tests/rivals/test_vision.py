"""The vision rivals: the rule and the tables on rows made by hand; a run, in an environment with torch-uncertainty."""

import json
import math

import numpy
import pytest
from scipy import optimize, stats

from demo.vision import measures
from rivals import vision

FRESH = (11, 12, 13)
ERA_OFF = ("era", "off")


def rows_of(nll) -> list[dict]:
    """A row per arm, setting, seed and set, with nll(arm, setting, seed, images) and other measures made from it."""
    rows = []
    for method, variant in vision.ARMS:
        for setting in vision.METHODS[method]:
            for seed in (1, 2, *FRESH):
                for images in (vision.HELD_OUT, vision.TEST, *vision.SHIFTS):
                    value = nll((method, variant), setting, seed, images)
                    known = {"method": method, "variant": variant, "setting": setting, "seed": seed, "set": images}
                    rows.append({**known, "temperature": 1.0, "nll": value, "ece": 10 * value, "top1": 100 - value})
    return rows


def test_an_arm_gets_the_setting_with_the_smallest_held_out_nll_of_the_tuning_seeds():
    best = {("focal", "plain"): "1.5", ("focal", "scaled"): "5", ERA_OFF: "0.9"}

    def nll(arm, setting, seed, images):
        if seed in FRESH or images != vision.HELD_OUT:  # neither may count
            return 0.0 if setting == "2" else 1.0
        if arm == ("focal", "plain"):
            return {"1.5": (0.3, 0.3), "3": (0.1, 0.6), "1": (math.nan, 0.0)}.get(setting, (0.4, 0.4))[seed - 1]
        return 0.2 if setting == best.get(arm) else 0.5

    chosen = vision.choose(rows_of(nll), (1, 2))
    assert chosen == {arm: best.get(arm, next(iter(vision.METHODS[arm[0]]))) for arm in vision.ARMS}


def test_tables_and_picture(tmp_path):
    shifts = {11: 0.01, 12: 0.02, 13: 0.06}

    def nll(arm, setting, seed, images):
        value = 0.1 * list(vision.SHIFTS).index(images) if images in vision.SHIFTS else 0.5
        return value + (shifts.get(seed, 0) if arm == ERA_OFF else 0.2 if arm[0] == "focal" else 0)

    rows = rows_of(nll)
    chosen = vision.choose(rows, (1, 2))
    assert "| ERA, off | **0: 0.5000** | 0.15: 0.5000 |" in vision.tuning_table(rows, chosen, (1, 2))
    assert "| ERA, off | 0 | 1.00 | 99.47 (99.44 to 99.49) | 5.30 (5.10 to 5.60) | 0.530 " in vision.table(
        rows, chosen, FRESH
    )
    found = vision.differences_table(rows, chosen, FRESH)
    low, high = stats.ttest_1samp(list(shifts.values()), 0).confidence_interval()
    assert low < 0 and found.count(f"| +0.030 ({low:+.3f} to {high:+.3f}) |") == 2
    assert found.count("**+0.200 (+0.200 to +0.200)**") == 4 and "| baseline, scaled |" not in found
    vision.picture(rows, chosen, FRESH, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


@pytest.fixture(scope="module")
def vision_run():
    pytest.importorskip("torch_uncertainty", reason="needs the environment of requirements/rivals-vision.txt")
    import torch

    from rivals import vision_run

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vision, "EPOCHS", 2)
        patch.setattr(vision_run, "EVALUATED_EVERY", 1)
        patch.setattr(vision, "SHIFTS", {name: vision.SHIFTS[name] for name in ("Snow-1", "GaussianNoise-2")})
        yield vision_run


def test_measures_and_temperature_are_those_of_fp64(vision_run):
    import torch

    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(500, 10, generator=generator, dtype=torch.float64)
    targets = torch.where(torch.rand(500, generator=generator) < 0.6, logits.argmax(-1), 3)
    found = vision_run.measures(logits, targets)
    expected = measures.measures(logits.numpy(), logits.numpy(), targets.numpy())
    names = {"top1": "top-1, %", "ece": "ECE, %", "nll": "NLL, nats", "entropy_min": "smallest entropy, nats"}
    for name, label in names.items():
        assert found[name] == pytest.approx(expected[label], rel=1e-5), name

    def nll(temperature):
        return measures.measures(logits.numpy() / temperature, logits.numpy(), targets.numpy())["NLL, nats"]

    best = optimize.minimize_scalar(nll, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-8}).x
    assert best > 1.5 and vision_run.temperature(logits, targets) == pytest.approx(best, rel=1e-3)


def test_no_image_is_in_two_parts(vision_run):
    sets = vision_run.image_sets()
    assert {name: len(targets) for name, (_, targets) in sets.items()} == {"train": 100, "heldout": 700, "test": 797}
    assert set(numpy.bincount(sets["train"][1])) == {10}
    parts = [{image.numpy().tobytes() for image in images} for images, _ in sets.values()]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 1597


def test_off_is_the_same_weights(vision_run):
    import timm
    import torch

    from era.discrete import EntropyRegularizingActivation

    sets = vision_run.image_sets()
    model, rows = vision_run.train("era", 0.6, 101, sets)
    images, targets = (part[:200] for part in sets["heldout"])
    plain = timm.create_model("test_resnet", num_classes=10)
    plain.load_state_dict(model.state_dict())
    off, on = vision_run.predict(model, images)
    expected, _ = vision_run.predict(plain, images)
    assert torch.equal(off, expected) and not torch.equal(off, on) and off.dtype == torch.float64
    torch.testing.assert_close(on, EntropyRegularizingActivation(10, 0.6)(expected))
    assert [row["global_step"] for row in rows] == [1, 2]
    found = {row["variant"]: row for row in vision_run.evaluate(model, "era", {"heldout": (images, targets)})}
    assert found["off"]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(expected, targets).item())
    assert found["plain"]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(on, targets).item())
    for variant, logits in {"scaled": on, "off_scaled": off}.items():
        by = found[variant]["temperature"]
        assert by == vision_run.temperature(logits, targets) != 1
        assert found[variant]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(logits / by, targets).item())


def test_the_same_seed_gives_the_same_numbers(vision_run, tmp_path):
    written = {}
    for name, seed in {"one": "101", "same": "101", "other": "102"}.items():
        (tmp_path / name).mkdir()
        words = ["--method", "focal", "--setting", "2", "--seed", seed]
        vision_run.run(vision_run.parse_arguments(words), tmp_path / name)
        written[name] = [(tmp_path / name / file).read_text() for file in ("train.csv", "measures.csv")]
    assert written["one"] == written["same"] and written["one"][0] != written["other"][0]
    record = json.loads((tmp_path / "one/run.json").read_text())
    assert record["finished"] and record["versions"]["torch-uncertainty"] and record["cpu_seconds"] > 0
    rows = vision.read(tmp_path / "one")
    assert len(rows) == 2 * 4 and vision.values(
        rows, ("focal", "plain"), "2", vision.SHIFTED, "temperature", [101]
    ) == [1]
    with pytest.raises(SystemExit, match="one holds a finished run. Start this one in another folder"):
        vision_run.run(vision_run.parse_arguments(words), tmp_path / "one")


def test_a_setting_that_is_not_listed_is_refused(vision_run, capsys):
    with pytest.raises(SystemExit):
        vision_run.parse_arguments(["--method", "era", "--setting", "7", "--seed", "1"])
    assert "--setting 7: era has 0, 0.15, 0.3, 0.6, 0.9." in capsys.readouterr().err
