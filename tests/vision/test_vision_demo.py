"""`python -m demo.vision`: its measures, data and findings, and short runs on the real patched timm."""

import csv
import json
import math
import statistics

import numpy
import pytest
import scipy.stats
import torch
from demo_helpers import run
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.vision import data, measures, report, training
from demo.vision.settings import CLASSES, Run

EPOCHS = 1


# Measures


def softmax(row):
    shifted = [math.exp(z - max(row)) for z in row]
    return [one / sum(shifted) for one in shifted]


def plain_ece(logits, targets, bins=15):
    """From the definition, without arrays: the sum over bins of |sum of (right - confidence)|, over all images."""
    total = 0.0
    for k in range(bins):
        right = confidence = 0.0
        for row, target in zip(logits, targets):
            probabilities = softmax(row)
            top = max(probabilities)
            if k / bins < top <= (k + 1) / bins:
                right += probabilities.index(top) == target
                confidence += top
        total += abs(right - confidence)
    return total / len(targets)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(2, 12), st.floats(0.1, 30))
def test_measures_agree_with_independent_computations(seed, images, classes, scale):
    generator = numpy.random.default_rng(seed)
    logits = (scale * generator.standard_normal((images, classes))).astype(numpy.float32)
    targets = generator.integers(0, classes, images)
    found = measures.measures(logits, logits, targets)
    probabilities = numpy.array([softmax(row) for row in logits.tolist()])
    entropies = scipy.stats.entropy(probabilities, axis=1)
    cross_entropy = torch.nn.functional.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(targets))
    assert found["ECE, %"] == pytest.approx(100 * plain_ece(logits.tolist(), targets), abs=1e-9)
    assert found["NLL, nats"] == pytest.approx(cross_entropy.item(), abs=1e-9)
    right = [row.index(max(row)) == target for row, target in zip(probabilities.tolist(), targets.tolist())]
    assert found["top-1, %"] == pytest.approx(100 * sum(right) / images)
    assert found["smallest entropy, nats"] == pytest.approx(entropies.min(), abs=1e-9)
    assert found["mean entropy, nats"] == pytest.approx(entropies.mean(), abs=1e-9)
    assert found["mean confidence, %"] == pytest.approx(100 * probabilities.max(axis=1).mean())


def test_calibration_error_by_hand():
    """Two bins: 3 images at 0.9 of which 1 is right, 1 at 0.5 that is right."""
    bins = measures.reliability(numpy.array([0.9, 0.5, 0.9, 0.9]), numpy.array([True, True, False, False]))
    assert [one["share"] for one in bins] == [0.25, 0.75]
    assert measures.calibration_error(bins) == pytest.approx(0.25 * 0.5 + 0.75 * (0.9 - 1 / 3))


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    edges = numpy.arange(1, 16) / 15
    assert len(measures.reliability(edges, numpy.ones(15, bool))) == 15
    assert len(measures.reliability(numpy.array([2 / 15, numpy.nextafter(2 / 15, 1)]), numpy.ones(2, bool))) == 2


def test_certain_predictions_have_entropy_0():
    found = measures.measures(numpy.array([[1e4, 0, 0]], numpy.float32), numpy.array([[1.0, 0, 0]]), numpy.array([0]))
    assert found["smallest entropy, nats"] == found["ECE, %"] == found["NLL, nats"] == 0


def test_the_predicted_class_is_that_of_the_logits_before_era():
    """Those have no ties where ERA's have."""
    found = measures.measures(numpy.array([[-1, -1, -9]], numpy.float32), numpy.array([[1.0, 2, 0]]), numpy.array([1]))
    assert found["top-1, %"] == 100


# Data


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / data.FOLDER
    data.write(folder)
    return folder


def test_images_are_the_digits_split_by_class(images):
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    seen = set()
    for part, count in data.COUNTS.items():
        files = list((images / part).glob("*/*.png"))
        numbers = {int(file.stem) for file in files}
        assert len(files) == len(numbers) == count and not seen & numbers
        seen |= numbers
        for digit in range(CLASSES):
            share = count * (digits.target == digit).mean()
            assert len(list((images / part / str(digit)).iterdir())) == pytest.approx(share, abs=1)
        for file in files:
            assert digits.target[int(file.stem)] == int(file.parent.name)
    with Image.open(file) as image:
        assert image.size == (32, 32) and image.mode == "RGB"
        small = numpy.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX)) / 255 * 16
    assert numpy.abs(small - digits.images[int(file.stem)]).mean() < 1


def test_images_are_made_once(images, monkeypatch):
    assert sorted(file.name for file in images.parent.iterdir()) == [data.FOLDER]
    monkeypatch.setattr("PIL.Image.Image.save", None)
    data.write(images)


# What is said of the results


SETTING = {"min_entropy": 0.6, "floor": 0.9825, "max_probability": 0.788}


def results(accuracy=((0.9, 0.9),) * 3, smallest=1.0, without=0.1, trained=2.0, scale=0.25):
    """Pairs of runs: shares of right answers (baseline, ERA), smallest entropies. ERA's logits are scale x raw."""
    made = []
    for seed, shares in enumerate(accuracy, start=1):
        for h0, share, entropy in zip((None, 0.6), shares, (without, smallest)):
            run = Run(h0, seed, 1)
            raw = numpy.zeros((1000, 10), numpy.float32)
            raw[: round(1000 * share), 0] = raw[round(1000 * share) :, 1] = 3.0
            era, setting = (raw * scale, SETTING) if h0 else (None, None)
            predictions = measures.Predictions(raw, era, numpy.zeros(1000, int), setting)
            row = {"epoch": 1, "train_entropy_min": trained, "eval_entropy_min": entropy, "eval_top1": 100 * share}
            info = {"seconds": 9.0, "flags": run.flags(), "script": "train.py", "machine": {}}
            made.append(report.Result(run, [row], predictions, info))
    return made


def test_a_floor_that_held_and_one_that_did_not():
    assert "0.9825 nats, held in 3 of 3 ERA runs" in report.findings(results())[0]
    assert "the baseline's went down to 0.1000" in report.findings(results())[0]
    assert "nothing had to be held" in report.findings(results(without=1.1))[0]
    broken = report.findings(results(smallest=0.982))[0]
    runs = "3 of 3 ERA runs (ERA, seed 1; ERA, seed 2; ERA, seed 3)"
    assert f"did NOT hold in {runs}: the smallest entropy was 0.9820" in broken
    assert "held in 3" in report.findings(results(smallest=0.9825 - 5e-7))[0]  # rounding


@pytest.mark.parametrize("broken", [{"smallest": 0.9}, {"trained": 0.9}, {"scale": 5.0}])
def test_the_floor_counts_in_training_validation_and_evaluation(broken):
    assert "did NOT hold in 3 of 3" in report.findings(results(**broken))[0]


@pytest.mark.parametrize(
    "pairs, says",
    [
        ([(0.90, 0.95), (0.91, 0.959), (0.92, 0.971)], "more than the spread over 3 seeds explains"),
        ([(0.90, 0.95)], "one seed, which says nothing about the spread"),
    ],
)
def test_accuracy_is_compared_over_the_seeds(pairs, says):
    sentence = report.findings(results(pairs))[1]
    assert says in sentence
    assert f"{100 * statistics.mean(era - base for base, era in pairs):+.2f} points" in sentence


def test_calibration_names_the_side_and_what_the_largest_probability_allows():
    sentence = report.findings(results())[2]
    confidence = {scale: 100 / (1 + 9 * math.exp(-scale)) for scale in (3, 0.75)}
    assert f"baseline (under-confident by {90 - confidence[3]:.1f} points)" in sentence
    assert f"{90 - confidence[0.75]:.1f} %" in sentence and "an ECE below 11.2 % is impossible" in sentence
    assert "an ECE below 16.2 % is impossible" in report.findings(results([(0.9, 0.95)] * 3))[2]
    low = report.findings(results([(0.2, 0.2)] * 3))[2]
    assert f"baseline (over-confident by {confidence[3] - 20:.1f} points)" in low and "impossible" not in low


def test_table_has_a_column_per_way_of_evaluating():
    lines = report.table(results([(0.90, 0.95), (0.92, 0.95), (0.91, 0.95)])).splitlines()
    assert lines[0].split("  ")[-1] == "ERA off at evaluation" and not any("training" in line for line in lines)
    assert lines[1].startswith("top-1, %") and "91.00 (90.00 to 92.00)" in lines[1]
    assert lines[1].count("95.00 (95.00 to 95.00)") == 2
    assert lines[-1] == "Mean (smallest to largest) over 3 seeds. Both ERA columns are the same weights."


# Runs


def demo(checkout, out, *arguments):
    return run("demo.vision", "--checkout", checkout, "--out", out, "--seeds", 1, "--epochs", EPOCHS, *arguments)


def test_infeasible_min_entropy_is_refused_at_the_start(patched_timm, tmp_path):
    result = demo(patched_timm, tmp_path / "out", "--min-entropy", "-0.06")
    assert result.returncode == 1 and result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("demo: --min-entropy: ERA: min_entropy=-0.06 is not feasible")
    assert "strictly between -0.0597 and 2.2429 nats" in line
    assert not (tmp_path / "out/data").exists()


def test_runs_with_other_settings_have_folders_of_their_own():
    made = [Run(None, 1, 15), Run(0.6, 1, 15), Run(0.61, 1, 15), Run(0.6, 2, 15), Run(0.6, 1, 16)]
    assert len({run.folder for run in made}) == len(made)


@pytest.fixture(scope="module")
def by_script(timm_scripts, tmp_path_factory):
    """Output and folder of a demo with the real train.py."""
    out = tmp_path_factory.mktemp("a folder, with odd = characters")
    result = demo(timm_scripts, out)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, out


def summary(out, h0):
    with (out / Run(h0, 1, EPOCHS).folder / training.SUMMARY_FILE).open(newline="") as file:
        return list(csv.DictReader(file))


def check_evaluation(out):
    """The evaluation agrees with the training's last epoch; ERA off is another model with the same top-1."""
    recorded = json.loads((out / "summary.json").read_text())
    found = {row["model"]: row for row in recorded["runs"]}
    assert list(found) == ["baseline", "ERA", "ERA off at evaluation"]
    same = {"top-1, %": "top1", "smallest entropy, nats": "entropy_min", "mean entropy, nats": "entropy_mean"}
    for h0, name in ((None, "baseline"), (0.6, "ERA")):
        last = summary(out, h0)[-1]
        for ours, theirs in {**same, "NLL, nats": "loss"}.items():
            assert found[name][ours] == pytest.approx(float(last[f"eval_{theirs}"]), rel=1e-5), (name, ours)
    assert found["ERA"]["top-1, %"] == found["ERA off at evaluation"]["top-1, %"]
    assert found["ERA"]["smallest entropy, nats"] > recorded["setting"]["floor"]
    assert found["ERA"]["mean entropy, nats"] > found["ERA off at evaluation"]["mean entropy, nats"]
    assert recorded["setting"]["floor"] == pytest.approx(0.9825, abs=1e-4)
    return recorded


def test_runs_of_the_real_script(by_script):
    output, out = by_script
    recorded = check_evaluation(out)
    assert recorded["script"] == "train.py" and "timm's own train.py" in output and "loop" not in output
    assert all(sentence in " ".join(output.split()) for sentence in recorded["findings"])
    assert (out / "entropy.png").read_bytes().startswith(b"\x89PNG")
    folders = {Run(h0, 1, EPOCHS).folder for h0 in (None, 0.6)}
    files = {".lock", "data", "entropy.png", "runs.csv", "summary.json"}
    assert {file.name for file in out.iterdir()} == files | folders
    names = {file.name for folder in folders for file in (out / folder).iterdir()}
    assert names == {"last.pth.tar", "log.txt", "run.json", "summary.csv"}


@pytest.mark.slow
def test_without_train_py_the_loop_trains_alike_says_so_and_is_reused(by_script, patched_timm, tmp_path):
    """The checkout has what timm's source package has: the library without train.py."""
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm/timm").symlink_to(patched_timm / "timm")
    out = tmp_path / "out"
    result = demo(tmp_path / "timm", out)
    assert result.returncode == 0, result.stdout + result.stderr
    recorded = check_evaluation(out)
    assert "has no train.py: it was made from timm's source package" in result.stdout
    assert recorded["script"] == "loop.py" and "not by timm's train.py" in recorded["findings"][-1]
    for h0 in (None, 0.6):
        script, loop = (
            [{name: float(value) for name, value in row.items()} for row in summary(folder, h0)]
            for folder in (by_script[1], out)
        )
        assert len(script) == len(loop) == EPOCHS
        for one, other in zip(script, loop):
            assert {name: one[name] for name in other} == pytest.approx(other, rel=1e-3)
    again = demo(tmp_path / "timm", out)
    assert again.returncode == 0 and again.stdout.count("reused from") == 2
    assert again.stdout.split("\n\n")[1:] == result.stdout.split("\n\n")[1:]
