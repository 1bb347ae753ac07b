"""summary.csv and log.txt as train.py leaves them, put in order and into tables."""

import csv
import importlib.util
import math
import subprocess
import sys

import pytest


@pytest.fixture
def update_summary(patched_timm):
    """timm's own writer."""
    spec = importlib.util.spec_from_file_location("timm_summary", patched_timm / "timm/utils/summary.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.update_summary


@pytest.fixture
def write(update_summary):
    """write(folder, first, last, top1): as a train.py does that trains these epochs, with top1 + epoch in each."""

    def write(folder, first, last, top1):
        folder.mkdir(parents=True, exist_ok=True)
        for epoch in range(first, last + 1):
            evaluation = {"loss": 1.0, "top1": top1 + epoch, "top5": 99.0, "entropy_mean": 2.0, "entropy_min": 1.5}
            begins = epoch == first
            update_summary(epoch, {"loss": 2.0}, evaluation, str(folder / "summary.csv"), lr=0.1, write_header=begins)
        return folder

    return write


def test_resumed_summary_has_one_header_and_each_epoch_once(recipe, write, tmp_path):
    """Killed in epoch 3 after its row and before its checkpoint: train.py writes a header and the row again."""
    summary = tmp_path / "summary.csv"
    write(tmp_path, 0, 3, top1=10)
    write(tmp_path, 3, 5, top1=50)
    assert summary.read_text().count("epoch,") == 2
    recipe.results.tidy_summary(summary)
    rows = list(csv.DictReader(summary.open()))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2, 3, 4, 5] and summary.read_text().count("epoch,") == 1
    assert [float(row["eval_top1"]) for row in rows] == [10, 11, 12, 53, 54, 55]
    before = summary.read_bytes()
    recipe.results.tidy_summary(summary)
    assert summary.read_bytes() == before and recipe.results.epochs_done(tmp_path) == 6


def test_line_cut_short_is_left_out(recipe, write, tmp_path):
    summary = tmp_path / "summary.csv"
    write(tmp_path, 0, 2, top1=10)
    summary.write_text(summary.read_text().rstrip()[:-30])
    assert recipe.results.epochs_done(tmp_path) == 2
    recipe.results.tidy_summary(summary)
    write(tmp_path, 2, 3, top1=10)
    assert recipe.results.epochs_done(tmp_path) == 4


def test_accuracies_are_those_after_the_wanted_epochs(recipe, write, tmp_path):
    folder = write(tmp_path / "cifar10-seed42", 0, 5, top1=10)
    header, line = recipe.results.accuracy_lines([folder], epochs=3)
    assert line.split() == ["cifar10-seed42", "3", "12.00", "99.00", "12.00", "1.5000"]
    ends = [(header.index("top-1") + 5, line.index("12.00") + 5), (header.index("best") + 4, line.rindex("12.00") + 5)]
    assert all(above == below for above, below in ends)
    assert recipe.results.accuracy_lines([folder])[1].split()[1:3] == ["6", "15.00"]
    (tmp_path / "none").mkdir()
    assert recipe.results.accuracy_lines([tmp_path / "none"])[1].split() == ["none", "-"]


def test_best_epoch_beside_the_last(recipe, write, tmp_path):
    for epoch, top1 in enumerate((10.0, 29.0, 18.0)):
        write(tmp_path, epoch, epoch, top1)
    assert recipe.results.accuracy_lines([tmp_path])[1].split()[1:] == ["3", "20.00", "99.00", "30.00", "1.5000"]


def test_a_run_that_train_py_did_not_validate_has_no_accuracy(recipe, tmp_path):
    (tmp_path / "summary.csv").write_text("epoch,train_loss,lr\n0,2.0,0.1\n")
    assert recipe.results.accuracy_lines([tmp_path])[1].split() == [tmp_path.name, "-"]


def test_mean_over_seeds(recipe, write, tmp_path):
    top1s = {1: 93.0, 2: 94.0, 3: 95.0}  # standard deviation 1
    folders = [write(tmp_path / f"cifar10-aug-seed{seed}", 0, 0, top1) for seed, top1 in top1s.items()]
    last = recipe.results.accuracy_lines(folders)[-1]
    assert last.split() == f"cifar10-aug, 3 seeds 1 94.00 ± {1.96 / math.sqrt(3):.2f} 99.00 ± 0.00".split()
    write(folders[0], 1, 1, 93.0)
    assert len(recipe.results.accuracy_lines(folders)) == 4  # after different epochs there is no mean


PAPER = [(74.75, 0.38), (75.44, 0.37), (76.93, 0.36), (92.04, 0.23), (93.37, 0.21)]  # tab:main_results_vision


@pytest.mark.parametrize("accuracy, printed", PAPER)
def test_intervals_on_imagenet_are_the_papers(recipe, write, tmp_path, accuracy, printed):
    """To the second digit, which the paper seems to cut off now and then."""
    folder = write(tmp_path / "imagenet-seed42", 0, 0, accuracy)
    margin = float(recipe.results.accuracy_lines([folder])[1].split()[4])
    assert abs(margin - printed) <= 0.0101


# As train.py prints them: the first of an epoch, one later, and one of the validation.
LINES = (
    "Train: {epoch} [   0/195 (  1%)]  Loss: 7.07 (7.07)  Time: 9.382s,   27.29/s  (9.382s,   27.29/s)"
    "  LR: 1.000e-05  Data: 0.057 (0.057)\n"
    "Train: {epoch} [ 150/195 ( 77%)]  Loss: 6.07 (6.07)  Time: 0.150s, 1706.67/s  ({seconds:.3f}s, {rate:>7.2f}/s)"
    "  LR: 1.000e-05  Data: 0.057 (0.057)  Entropy: 6.884 (min 6.8584)\n"
    "Test: [   9/9]  Time: 0.104 (0.117)  Loss:   6.908 ( 6.908)  Acc@1:  10.000 ( 10.000)  Acc@5:  50.000 ( 50.000)\n"
)


def write_log(folder, *steps):
    """steps: epoch and seconds, for batches of 256 images."""
    folder.mkdir(exist_ok=True)
    lines = [LINES.format(epoch=epoch, seconds=seconds, rate=256 / seconds) for epoch, seconds in steps]
    (folder / "log.txt").write_text("cuDNN says something\n" + "".join(lines))
    return folder


def test_time_is_compared_without_the_first_epoch(recipe, tmp_path):
    baseline = write_log(tmp_path / "base", (0, 9.0), (1, 0.2), (2, 0.3))
    with_era = write_log(tmp_path / "base-era", (0, 1.0), (1, 0.22), (2, 0.33))
    lines = recipe.results.time_lines([tmp_path / "none", with_era, baseline])
    assert [line.split() for line in lines[1:]] == [
        ["none", "-"],
        ["base", "2", "0.250", "1024.0", "1.000"],
        ["base-era", "2", "0.275", "930.9", "1.100"],
    ]


def test_repeated_epoch_counts_once(recipe, tmp_path):
    write_log(tmp_path, (0, 1.0), (1, 9.0), (1, 2.0))
    assert recipe.results.speeds(tmp_path / "log.txt") == {0: (1.0, 256.0), 1: (2.0, 128.0)}


def results_py(checkout, *args):
    command = [sys.executable, checkout / "recipes/era/results.py", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def test_table_of_a_folder_has_the_timed_runs_too(patched_timm, write, tmp_path):
    """Their ratio is to the run without ERA, whose name is the later one."""
    write(tmp_path / "cifar10-seed42", 0, 1, top1=90)
    for name, seconds in (("cifar10-aug-era0.6-seed42", 0.3), ("cifar10-aug-seed42", 0.2)):
        write_log(write(tmp_path / "time" / name, 0, 0, top1=10), (0, seconds))
    result = results_py(patched_timm, tmp_path)
    accuracies, times = ([line.split() for line in table.splitlines()] for table in result.stdout.split("\n\n"))
    assert [words[0] for words in accuracies] == ["run", "cifar10-seed42"]
    expected = [("cifar10-aug-seed42", "1.000"), ("cifar10-aug-era0.6-seed42", "1.500")]
    assert [(words[0], words[-1]) for words in times[1:]] == expected
