"""train.csv and log.txt as train.py leaves them, read and put into tables."""

import statistics
import subprocess
import sys
import zipfile

import pytest


@pytest.fixture
def run_folder(tmp_path):
    """run_folder(name, total, returns, seconds): returns at step 100, 200, ...; with a whole final model."""

    def write(name, total=301, returns=(1.0, 2.0, 3.0), seconds=0.5, model="whole"):
        folder = tmp_path / name
        (folder / "models").mkdir(parents=True)
        rows = [f"{100 * (number + 1)},{10 + 100 * seconds * number},{value}" for number, value in enumerate(returns)]
        (folder / "train.csv").write_text("\n".join(["global_step,seconds,eval_avg_return", *rows]) + "\n")
        (folder / "log.txt").write_text(
            f"BaseArgs(csv_path='train.csv', total_timesteps={total}, eval_interval=100)\n  0%| | 0/{total}"
        )
        if model == "whole":
            with zipfile.ZipFile(folder / "models/x_final.pt", "w") as archive:
                archive.writestr("data", b"1")
        elif model:
            (folder / "models/x_final.pt").write_bytes(model)
        return folder

    return write


@pytest.mark.parametrize(
    "given, finished",
    [
        ({"total": 301}, True),
        ({"total": 400}, True),
        ({"total": 401}, False),
        ({"model": b"PK\x03\x04 and no end"}, False),
        ({"model": None}, False),
    ],
)
def test_finished_is_a_whole_model_and_the_last_step(recipe, run_folder, given, finished):
    assert recipe.results.is_finished(run_folder("a", **given)) == finished


def test_line_cut_short_is_left_out(recipe, run_folder):
    folder = run_folder("a")
    (folder / "train.csv").write_text((folder / "train.csv").read_text() + "400,")
    assert recipe.results.steps_done(folder) == 300 and recipe.results.last_return(folder) == 3.0


def test_mean_and_spread_of_the_finished_seeds(recipe, run_folder):
    values = (10.0, 14.0, 30.0)
    name = "h1hand-walk-v0-fastsac_era-tanh-seed"
    folders = [run_folder(f"{name}{seed}", returns=(0.0, 0.0, value)) for seed, value in enumerate(values)]
    folders += [run_folder("h1hand-walk-v0-fasttd3-seed1"), run_folder("h1hand-walk-v0-fasttd3-seed2", total=5000)]
    _, first, second, last = recipe.results.return_lines(folders)
    assert first.split() == ["h1hand-walk-v0", "fasttd3", "1", "301", "3.00", "-"]
    spread = f"{statistics.stdev(values):.2f}"
    assert second.split() == ["h1hand-walk-v0", "fastsac_era-tanh", "3", "301", "18.00", spread]
    assert last == "Not finished and left out: h1hand-walk-v0-fasttd3-seed2 (300 of 5000 steps)"


def test_time_is_that_between_the_rows(recipe, run_folder):
    """Not from the start: the first row comes after compilation."""
    agents = {"fastsac_era": 0.065, "fasttd3": 0.05, "fasttd3-no_delay": 0.0625}
    folders = [run_folder(f"h1hand-run-v0-{name}-seed1", seconds=seconds) for name, seconds in agents.items()]
    assert [line.split()[1:] for line in recipe.results.time_lines(folders)[1:]] == [
        ["fasttd3", "1", "50.00", "1.000"],
        ["fasttd3-no_delay", "1", "62.50", "1.250"],
        ["fastsac_era", "1", "65.00", "1.300"],
    ]


def test_tables_of_a_folder(patched_fasttd3, run_folder, tmp_path):
    command = [sys.executable, patched_fasttd3 / "recipes/era/results.py", tmp_path]
    run_folder("h1hand-run-v0-fasttd3-seed1")
    run_folder("time/h1hand-run-v0-fasttd3-seed1")
    returns, times = subprocess.run(command, capture_output=True, text=True, timeout=900).stdout.split("\n\n")
    assert returns.splitlines()[1].split()[-2:] == ["3.00", "-"]
    assert times.splitlines()[1].split()[-2:] == ["500.00", "1.000"]


def test_newest_whole_checkpoint(recipe, run_folder):
    models = run_folder("a") / "models"
    for step in (900, 1000):
        (models / f"Gym-Reacher-v4__fasttd3__1_{step}.pt").write_bytes((models / "x_final.pt").read_bytes())
    (models / "Gym-Reacher-v4__fasttd3__1_1100.pt").write_bytes(b"PK\x03\x04 and no end")
    assert recipe.training.newest_checkpoint(models.parent).name == "Gym-Reacher-v4__fasttd3__1_1000.pt"
