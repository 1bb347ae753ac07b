# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""A run of the vision rivals, in an environment with torch-uncertainty."""

import json

import numpy
import pytest
from scipy import optimize, special

from demo.vision import measures
from rivals import records, vision


@pytest.fixture(scope="module")
def vision_run():
    pytest.importorskip("torch_uncertainty", reason="needs the environment of requirements/rivals-vision.txt")
    import torch

    from rivals import vision_run

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vision, "EPOCHS", 2)
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
    model = vision_run.train("era", 0.6, 101, *sets["train"])
    images, targets = (part[:200] for part in sets["heldout"])
    plain = timm.create_model("test_resnet", num_classes=10)
    plain.load_state_dict(model.state_dict())
    off, on = vision_run.predict(model, images)
    expected, _ = vision_run.predict(plain, images)
    assert torch.equal(off, expected) and not torch.equal(off, on) and off.dtype == torch.float64
    torch.testing.assert_close(on, EntropyRegularizingActivation(10, 0.6)(expected))
    found = {row["variant"]: row for row in vision_run.evaluate(model, "era", 0.6, {"heldout": (images, targets)})}
    assert found["off"]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(expected, targets).item())
    assert found["plain"]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(on, targets).item())
    for variant, logits in {"scaled": on, "off_scaled": off}.items():
        by = found[variant]["temperature"]
        assert by == vision_run.temperature(logits, targets) != 1
        assert found[variant]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(logits / by, targets).item())


def test_uniform_mixing_keeps_the_floor(vision_run):
    import torch

    floor = float(vision.METHODS["uniform_mixing"][2])
    logits = torch.randn(200, 10, generator=torch.Generator().manual_seed(0)) * torch.logspace(-1, 4, 200)[:, None]
    logits.requires_grad_()
    mixed = vision_run.UniformMixing(floor)(logits)
    plain, found = special.softmax(logits.detach().double().numpy(), -1), mixed.detach().double().exp().numpy()
    before, after = special.entr(plain).sum(-1), special.entr(found).sum(-1)
    is_below = before < floor
    assert 50 < is_below.sum() < 150 and after.min() > floor - 1e-6
    numpy.testing.assert_allclose(found[~is_below], plain[~is_below], rtol=1e-5, atol=1e-30)
    shares = (numpy.log(10) - floor) / (numpy.log(10) - before[is_below, None])
    numpy.testing.assert_allclose(found[is_below], shares * plain[is_below] + (1 - shares) / 10, rtol=1e-4)
    mixed[:, 3].sum().backward()
    assert torch.isfinite(logits.grad).all() and logits.grad.any()


def test_uniform_mixing_is_trained_and_evaluated_at_the_output(vision_run):
    import torch

    floor = float(vision.METHODS["uniform_mixing"][3])
    images, targets = vision_run.image_sets()["train"]
    model = vision_run.train("uniform_mixing", floor, 101, images, targets)
    assert not torch.equal(model.fc.weight, vision_run.train("baseline", 0.01, 101, images, targets).fc.weight)
    rows = {
        row["variant"]: row
        for row in vision_run.evaluate(model, "uniform_mixing", floor, {"heldout": (images, targets)})
    }
    assert set(rows) == {"plain", "scaled", "off", "off_scaled"}
    assert rows["plain"]["entropy_min"] >= floor - 1e-6
    logits, mixed = vision_run.predict(model, images, vision_run.UniformMixing(floor))
    assert rows["off"]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(logits, targets).item())
    assert rows["plain"]["nll"] == pytest.approx(torch.nn.functional.cross_entropy(mixed, targets).item())


def test_the_norm_of_the_logits_does_not_count_for_logit_norm(vision_run):
    import torch

    logits = torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(50) % 10
    z = logits.double().numpy()
    scaled = z / numpy.sqrt((z**2).sum(-1, keepdims=True)) / 0.04
    expected = (special.logsumexp(scaled, -1) - scaled[range(50), targets]).mean()
    for factor in (1, 7):
        loss = vision_run.LogitNormLoss(0.04)(factor * logits, targets)
        assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_same_seed_gives_the_same_numbers(vision_run, tmp_path):
    written = {}
    for name, seed in {"one": "101", "same": "101", "other": "102"}.items():
        (tmp_path / name).mkdir()
        words = ["--method", "focal", "--setting", "2", "--seed", seed]
        vision_run.run(vision_run.parse_arguments(words), tmp_path / name)
        written[name] = (tmp_path / name / "measures.csv").read_text()
    assert written["one"] == written["same"] != written["other"]
    record = json.loads((tmp_path / "one/run.json").read_text())
    assert record["finished"] and record["versions"]["torch-uncertainty"] and record["cpu_seconds"] > 0
    table = records.gather(tmp_path)["vision/measures"]
    assert len(table) == 3 * 2 * 4 and set(table.temperature[table.variant == "plain"]) == {1}
    with pytest.raises(SystemExit, match="one holds a finished run. Start this one in another folder"):
        vision_run.run(vision_run.parse_arguments(words), tmp_path / "one")


def test_a_setting_that_is_not_listed_is_refused(vision_run, capsys):
    with pytest.raises(SystemExit):
        vision_run.parse_arguments(["--method", "era", "--setting", "7", "--seed", "1"])
    assert "--setting 7: era has 0, 0.15, 0.3, 0.6, 0.9." in capsys.readouterr().err
