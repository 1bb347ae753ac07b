"""make demo-vision: its measures, data, statements and arguments, and short runs as a user starts them on the real patched timm."""

import csv
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time

import numpy
import psutil
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.llm import run as runs
from demo.runner.errors import DemoError
from demo.vision import __main__ as cli
from demo.vision import data, measures, report, training
from demo.vision.settings import CLASSES, Run

EPOCHS = 2
MARK = "ERA_DEMO_VISION_TEST"  # environment variable by which processes are found again, whoever their parent is


@pytest.fixture(scope="module")
def package(patched_timm, tmp_path_factory):
    """What timm's source package gives: the library without train.py."""
    folder = tmp_path_factory.mktemp("package") / "timm"
    folder.mkdir()
    (folder / "timm").symlink_to(patched_timm / "timm")
    return folder


def command(checkout, out, *arguments):
    return [sys.executable, "-m", "demo.vision", "--checkout", str(checkout), "--out", str(out), *map(str, arguments)]


def demo(checkout, out, *arguments):
    """PYTHONPATH names a torch that is none: the demo must not look there."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(runs.ROOT / "tests/stray")}
    return subprocess.run(
        command(checkout, out, *arguments), cwd=runs.ROOT, env=environment, capture_output=True, text=True, timeout=900
    )


# Measures


def softmax(row):
    shifted = [math.exp(z - max(row)) for z in row]
    return [one / sum(shifted) for one in shifted]


def plain_ece(logits, targets, bins=15):
    """From the definition, image by image, with no array: sum over bins of |right - confidence| summed, over all images."""
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
    assert found["top-1, %"] == pytest.approx(
        100 * sum(map(int.__eq__, targets.tolist(), probabilities.argmax(axis=1).tolist())) / images
    )
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
    """Those do not tie where ERA's do."""
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
            assert len(list((images / part / str(digit)).iterdir())) == pytest.approx(
                count * (digits.target == digit).mean(), abs=1
            )
        for file in files:
            assert digits.target[int(file.stem)] == int(file.parent.name)
    with Image.open(file) as image:
        assert image.size == (32, 32) and image.mode == "RGB"
        small = numpy.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX)) / 255 * 16
    assert numpy.abs(small - digits.images[int(file.stem)]).mean() < 1


def test_interrupted_images_leave_nothing_that_counts(tmp_path, monkeypatch):
    from PIL import Image

    save, saved = Image.Image.save, []

    def interrupted(self, file):
        save(self, file)
        saved.append(file)
        if len(saved) == 50:
            raise KeyboardInterrupt

    folder = tmp_path / data.FOLDER
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Image.Image, "save", interrupted)
        data.write(folder)
    assert not folder.exists()
    data.write(folder)
    assert len(list(folder.glob("*/*/*.png"))) == 1000 and os.listdir(tmp_path) == [data.FOLDER]
    monkeypatch.setattr(Image.Image, "save", None)
    data.write(folder)  # they are there


# What is said of the results


def results(
    accuracy=((0.9, 0.9), (0.9, 0.9), (0.9, 0.9)), smallest=1.0, without=0.1, floor=0.9825, trained=2.0, scale=0.25
):
    """Pairs of runs with these shares of right answers (baseline, ERA) and smallest entropies; ERA's logits are scale x raw."""
    setting = {
        "num_classes": 10,
        "min_entropy": 0.6,
        "tau": 4.0,
        "inverse": "approx",
        "floor": floor,
        "max_probability": 0.788,
    }
    made = []
    for seed, shares in enumerate(accuracy, start=1):
        for h0, share, entropy in zip((None, 0.6), shares, (without, smallest)):
            targets = numpy.zeros(1000, int)
            raw = numpy.zeros((1000, 10), numpy.float32)
            raw[: round(1000 * share), 0] = raw[round(1000 * share) :, 1] = 3.0
            era = None if h0 is None else raw * scale
            row = {
                "epoch": 1,
                "train_entropy_min": trained,
                "eval_entropy_min": entropy,
                "eval_entropy_mean": 2.0,
                "eval_top1": 100 * share,
            }
            run = Run(h0, seed, 1)
            info = {"seconds": 9.0, "flags": run.flags(), "script": "train.py", "machine": {}}
            made.append(
                report.Result(run, [row], measures.Predictions(raw, era, targets, setting if h0 else None), info)
            )
    return made


def test_a_floor_that_held_and_one_that_did_not():
    assert "0.9825 nats, held in 3 of 3 ERA runs" in report.findings(results())[0]
    assert "the baseline's went down to 0.1000" in report.findings(results())[0]
    assert "nothing had to be held" in report.findings(results(without=1.1))[0]
    broken = report.findings(results(smallest=0.982))[0]
    assert (
        "did NOT hold in 3 of 3 ERA runs (ERA, seed 1; ERA, seed 2; ERA, seed 3): the smallest entropy was 0.9820"
        in broken
    )
    assert "held in 3" in report.findings(results(smallest=0.9825 - 5e-7))[0]  # rounding


@pytest.mark.parametrize("broken", [{"smallest": 0.9}, {"trained": 0.9}, {"scale": 5.0}])
def test_the_floor_counts_in_training_validation_and_evaluation(broken):
    assert "did NOT hold in 3 of 3" in report.findings(results(**broken))[0]


@pytest.mark.parametrize(
    "pairs, says",
    [
        ([(0.95, 0.96), (0.96, 0.95), (0.95, 0.95)], "no effect can be told from the spread over 3 seeds"),
        ([(0.90, 0.95), (0.91, 0.959), (0.92, 0.971)], "more than the spread over 3 seeds explains"),
        ([(0.95, 0.90), (0.96, 0.911), (0.97, 0.919)], "more than the spread over 3 seeds explains"),
        ([(0.90, 0.95)], "one seed, which says nothing about the spread"),
        ([(0.95, 0.95), (0.96, 0.96)], "no effect can be told from the spread over 2 seeds"),
    ],
)
def test_accuracy_is_compared_with_the_spread(pairs, says):
    sentence = report.findings(results(pairs))[1]
    assert says in sentence
    assert f"{100 * statistics.mean(era - base for base, era in pairs):+.2f} points" in sentence


def test_interval_is_that_of_the_paired_t_test():
    before, after = [96.1, 97.0, 96.4, 95.9], [96.6, 96.9, 97.1, 96.0]
    expected = scipy.stats.ttest_rel(after, before).confidence_interval(0.95)
    assert report.interval([b - a for a, b in zip(before, after)]) == pytest.approx((expected.low, expected.high))


def test_calibration_names_the_side_and_what_the_largest_probability_allows():
    sentence = report.findings(results())[2]
    confidence = {scale: 100 / (1 + 9 * math.exp(-scale)) for scale in (3, 0.75)}
    assert f"baseline (under-confident by {90 - confidence[3]:.1f} points)" in sentence
    assert f"{90 - confidence[0.75]:.1f} %" in sentence and "an ECE below 11.2 % is impossible" in sentence
    assert "an ECE below 16.2 % is impossible" in report.findings(results([(0.9, 0.95)] * 3))[2]
    low = report.findings(results([(0.2, 0.2)] * 3))[2]
    assert f"baseline (over-confident by {confidence[3] - 20:.1f} points)" in low and "impossible" not in low


def test_table_has_mean_and_ends_of_the_seeds():
    lines = report.table(results([(0.90, 0.95), (0.92, 0.95), (0.91, 0.95)])).splitlines()
    assert lines[1].split("  ")[0] == "top-1, %"
    assert "91.00 (90.00 to 92.00)" in lines[1] and lines[1].count("95.00 (95.00 to 95.00)") == 2
    assert lines[-1].startswith("Mean (smallest to largest) over 3 seeds.")
    assert "to" not in report.table(results([(0.9, 0.9)])).splitlines()[1].replace("top-1", "")


# Arguments and failures


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--seeds", "1", "x"], "--seeds: expected a whole number from 0 to 2147483647, got 'x'"),
        (["--seeds", "-1"], "expected"),
        (["--seeds"], "expected at least one argument"),
        (["--seeds", "2", "1", "2"], "--seeds: 2 given twice"),
        (["--epochs", "0"], "--epochs: expected a whole number from 1 to 2147483647, got '0'"),
        (["--min-entropy", "high"], "--min-entropy"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(arguments, says, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.parse(arguments)
    assert exit.value.code == 2
    assert says in capsys.readouterr().err


def test_checkout_without_the_overlay_is_one_clear_error(tmp_path):
    result = demo(tmp_path / "timm", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.strip() == (
        f"demo: {tmp_path / 'timm'} is not timm with the ERA overlay: no timm/__init__.py there. Run: python apply.py apply timm"
    )


def test_infeasible_min_entropy_is_refused_at_the_start(patched_timm, tmp_path):
    result = demo(patched_timm, tmp_path / "out", "--min-entropy", "-0.06")
    assert result.returncode == 1 and result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert (
        line.startswith("demo: --min-entropy: ERA: min_entropy=-0.06 is not feasible")
        and "strictly between -0.0597 and 2.2429 nats" in line
    )
    assert not (tmp_path / "out/data").exists()


def test_failed_training_shows_the_end_of_its_log_and_keeps_what_was_there(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "train.py").write_text("raise ImportError('this timm is broken')\n")
    run = Run(0.6, 1, EPOCHS)
    old = runs.finish(runs.fresh(tmp_path / run.folder), {"code": "old"})
    with pytest.raises(DemoError) as error:
        training.train([run], broken, tmp_path, {"code": "new"}, lambda run, row: None)
    assert "the ERA, seed 1 run ended with exit code 1 after 0 of 2 epochs" in str(error.value)
    assert "this timm is broken" in str(error.value) and str(tmp_path / f"{run.folder}.new/log.txt") in str(error.value)
    assert runs.finished(tmp_path / run.folder, {"code": "old"}) == old
    assert not (tmp_path / f"{run.folder}.new" / runs.INFO_FILE).exists()


def test_key_follows_the_checkout_and_the_script_that_trains(tmp_path):
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm/__init__.py").touch()
    keys = [training.key(tmp_path)]
    for file in ("train.py", "timm/era.py"):
        (tmp_path / file).write_text("x = 1\n")
        keys.append(training.key(tmp_path))
    assert keys[0] != keys[1] != keys[2] and training.key(tmp_path) == keys[2]


def test_runs_with_other_settings_have_folders_of_their_own():
    made = [Run(None, 1, 15), Run(0.6, 1, 15), Run(0.61, 1, 15), Run(0.6, 2, 15), Run(0.6, 1, 16)]
    assert len({run.folder for run in made}) == len(made)


# Runs


@pytest.fixture(scope="module")
def by_loop(package, tmp_path_factory):
    """Output and folder of a demo without train.py."""
    out = tmp_path_factory.mktemp("by loop")
    result = demo(package, out, "--seeds", 1, "--epochs", EPOCHS)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, out


@pytest.fixture(scope="module")
def by_script(timm_scripts, tmp_path_factory):
    """Output and folder of a demo with the real train.py."""
    out = tmp_path_factory.mktemp("a folder, with odd = characters")
    result = demo(timm_scripts, out, "--seeds", 1, "--epochs", EPOCHS)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, out


def summary(out, h0):
    with (out / Run(h0, 1, EPOCHS).folder / training.SUMMARY_FILE).open(newline="") as file:
        return list(csv.DictReader(file))


def check_evaluation(out):
    """The checkpoint was evaluated as the training did in its last epoch, and ERA off is another model with the same top-1."""
    recorded = json.loads((out / "summary.json").read_text())
    found = {row["model"]: row for row in recorded["runs"]}
    assert list(found) == ["baseline", "ERA", "ERA off at evaluation"]
    for h0, name in ((None, "baseline"), (0.6, "ERA")):
        last = summary(out, h0)[-1]
        same = {
            "top-1, %": "top1",
            "smallest entropy, nats": "entropy_min",
            "mean entropy, nats": "entropy_mean",
            "NLL, nats": "loss",
        }
        for ours, theirs in same.items():
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
    assert {file.name for file in out.iterdir()} == {
        ".lock",
        "data",
        "entropy.png",
        "runs.csv",
        "summary.json",
        Run(None, 1, EPOCHS).folder,
        Run(0.6, 1, EPOCHS).folder,
    }


def test_runs_without_train_py_says_so(by_loop):
    output, out = by_loop
    recorded = check_evaluation(out)
    assert "has no train.py: it was made from timm's source package" in output
    assert recorded["script"] == "loop.py" and "not by timm's train.py" in recorded["findings"][-1]


def test_loop_trains_as_train_py_does(by_script, by_loop):
    for h0 in (None, 0.6):
        script, loop = (summary(out, h0) for _, out in (by_script, by_loop))
        assert len(script) == len(loop) == EPOCHS
        for one, other in zip(script, loop):
            assert {name: float(one[name]) for name in other} == pytest.approx(
                {name: float(value) for name, value in other.items()}, rel=1e-3
            )


def test_second_start_reuses_the_runs(by_loop, package):
    output, out = by_loop
    again = demo(package, out, "--seeds", 1, "--epochs", EPOCHS)
    assert again.returncode == 0 and again.stdout.count("reused from") == 2
    assert again.stdout.split("\n\n")[1:] == output.split("\n\n")[1:]


def processes_of(mark):
    """Of the demo with this mark in its environment, orphans included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_stopping_the_demo_leaves_no_process_and_no_half_run(patched_timm, tmp_path):
    process = subprocess.Popen(
        command(patched_timm, tmp_path / "out", "--seeds", 1, "--epochs", 500),
        cwd=runs.ROOT,
        env={**os.environ, MARK: str(tmp_path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 900
    while sum("demo.vision.child" in line for line in processes_of(str(tmp_path))) < 2 + 1:  # and a loader's worker
        assert process.poll() is None and time.monotonic() < deadline, "the training did not start"
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 128 + signal.SIGINT
    assert errors.strip() == "demo: stopped by SIGINT; finished runs are kept"
    assert processes_of(str(tmp_path)) == []
    made = [folder.name for folder in (tmp_path / "out").glob("*epochs500*")]
    assert made and all(name.endswith(".new") for name in made)
    assert not [*(tmp_path / "out").glob("*epochs500*/run.json")]


def test_training_ends_with_a_demo_that_was_killed(tmp_path):
    """As its loaders' workers do. The pipe to its stdin closes when the demo dies, in whatever way."""
    script, pid = tmp_path / "train.py", tmp_path / "pid"
    script.write_text(
        "import pathlib, subprocess, time\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(subprocess.Popen(['sleep', '100']).pid))\n"
        "time.sleep(100)\n"
    )
    line, environment = (
        [sys.executable, "-m", "demo.vision.child", str(script)],
        {**os.environ, "PYTHONPATH": str(runs.ROOT)},
    )
    with runs.process_group(line, environment, None) as process:
        deadline = time.monotonic() + 900
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        worker = psutil.Process(int(pid.read_text()))
        process.stdin.close()
        assert process.wait(timeout=900) == -signal.SIGKILL
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
