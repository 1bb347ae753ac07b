"""The CSV file of a run's curves."""

import csv
import os
from types import SimpleNamespace

import pytest
import torch


def rows(path) -> list:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def steps(path) -> list:
    return [int(row["global_step"]) for row in rows(path)]


@pytest.fixture
def start(modules, tmp_path, monkeypatch):
    """start(global_step): a RunLog of the run "task__train__1" in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def make(global_step=0, rank=0, csv_path=None):
        return modules.run_log.RunLog(
            SimpleNamespace(csv_path=csv_path, num_envs=4), "task__train__1", global_step, rank
        )

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
    assert float(second["seconds"]) >= float(first["seconds"]) >= 0


@pytest.mark.parametrize("cut", ["3", "300", "300,1200,"])
def test_a_line_cut_short_is_left_out(start, cut):
    log = start()
    log.write(100, 1.0, {"qf_loss": 7})
    with open(log.path, "a") as file:
        file.write(cut)  # as a kill leaves it, or a full disk
    resumed = start(global_step=400)
    resumed.write(400, 1.0, {})
    assert steps(resumed.path) == [100, 400]


def test_the_curves_of_an_earlier_overlay_are_continued(start, tmp_path):
    (tmp_path / "earlier.csv").write_text("global_step,seconds,min_std\n100,9.0,0.5\n")
    log = start(global_step=200, csv_path="earlier.csv")
    log.write(200, 1.0, {"min_std": 0.25, "clipped_states": 0.5})
    assert [(row["min_std"], row["clipped_states"]) for row in rows(log.path)] == [("0.5", ""), ("0.25", "0.5")]


def test_the_clock_of_a_resumed_run_continues(start):
    log = start()
    log.began -= 50
    log.write(100, 1.0, {})
    resumed = start(global_step=101)
    resumed.write(200, 1.0, {})
    assert [float(row["seconds"]) >= 50 for row in rows(resumed.path)] == [True, True]


def test_a_run_from_the_start_keeps_earlier_files(start, tmp_path):
    for number in range(3):
        start().write(100 + number, 1.0, {})
    assert {path.name: steps(path) for path in (tmp_path / "logs").iterdir()} == {
        "task__train__1.csv": [102],
        "task__train__1.1.csv": [100],
        "task__train__1.2.csv": [101],
    }


def test_other_ranks_write_and_print_nothing(start, tmp_path, capsys):
    log = start(rank=1)
    log.write(100, 1.0, {"eval_avg_return": 1.0, "eval_avg_length": 1.0})
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == ""


def test_a_path_that_cannot_be_written_is_refused(start, tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # as /dev/null would be replaced by a file
    for path in ("file/curves.csv", "folder", "pipe"):
        with pytest.raises(SystemExit) as end:
            start(csv_path=path)
        assert end.value.code == 2
        message = capsys.readouterr().err
        assert path in message and "--csv_path" in message
    assert (tmp_path / "file").read_text() == "kept" and (tmp_path / "folder").is_dir()


def test_a_file_of_something_else_is_not_continued(start, tmp_path, capsys):
    (tmp_path / "results.csv").write_text("task,score\nwalk,3\n")
    with pytest.raises(SystemExit) as end:
        start(global_step=200, csv_path="results.csv")
    assert end.value.code == 2 and "results.csv" in capsys.readouterr().err
    assert (tmp_path / "results.csv").read_text() == "task,score\nwalk,3\n"
