"""The CSV file of a run's curves."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


def rows(path) -> list:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def start(modules, tmp_path, monkeypatch):
    """start(global_step): a RunLog of the run "task__train__1" in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def make(global_step=0, rank=0):
        args = SimpleNamespace(csv_path=None, num_envs=4)
        return modules.run_log.RunLog(args, "task__train__1", global_step, rank)

    return make


def test_rows_hold_what_wandb_gets(start, tmp_path, capsys):
    log = start()
    log.write(100, 12.345678, {"actor_loss": torch.tensor(-1.25), "qf_loss": 2.0, "render_video": object()})
    log.write(200, 10.0, {"eval_avg_return": -3.5, "eval_avg_length": 25.0, "delta": torch.tensor(0.123456789)})
    assert "step 200: return -3.5, length 25" in capsys.readouterr().out
    first, second = rows(tmp_path / "logs/task__train__1.csv")
    expected = {"global_step": "100", "frame": "400", "speed": "12.35", "actor_loss": "-1.25", "qf_loss": "2"}
    assert expected.items() <= first.items()
    assert first["eval_avg_return"] == "" and "render_video" not in first
    assert (second["eval_avg_return"], second["eval_avg_length"], second["delta"]) == ("-3.5", "25", "0.123457")


def test_a_resumed_run_appends_and_its_clock_continues(start):
    log = start()
    log.began -= 50
    log.write(100, 1.0, {})
    start(global_step=100).write(100, 1.0, {})
    assert [(row["global_step"], float(row["seconds"]) >= 50) for row in rows(log.path)] == [("100", True)] * 2
    start().write(300, 1.0, {})  # a run from the start begins the file, and the earlier one stays
    assert [row["global_step"] for row in rows(log.path)] == ["300"]
    (earlier,) = Path(log.path).parent.glob("*.csv.*")
    assert [row["global_step"] for row in rows(earlier)] == ["100", "100"]


def test_other_ranks_write_and_print_nothing(start, tmp_path, capsys):
    log = start(rank=1)
    log.write(100, 1.0, {"eval_avg_return": 1.0, "eval_avg_length": 1.0})
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == ""
