# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the demos share: arguments, child processes, finished runs, tables."""

import contextlib
import os
import signal
import sys
import time

import pandas
import psutil
import pytest
from demo_helpers import ROOT, run

from demo.control import __main__ as control
from demo.llm import __main__ as llm
from demo.runner import tables
from demo.runner.training import Training, csv_rows, environment, run_json, train
from demo.vision import __main__ as vision
from recipes.processes import process_group


@pytest.mark.parametrize(
    "demo, arguments, says",
    [
        (llm, ["--steps", "0"], "--steps: expected 1 or more, got 0"),
        (vision, ["--seeds", "1", "-1"], "--seeds: expected 0 to 4294967295, got -1"),
        (control, ["--steps", "250"], "--steps: expected a multiple of 100, got 250"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(demo, arguments, says, capsys):
    with pytest.raises(SystemExit) as exit:
        demo.parse(arguments)
    assert exit.value.code == 2
    assert says in capsys.readouterr().err


def test_checkout_without_the_upstream_is_one_clear_error(tmp_path):
    result = run("demo.vision", "--checkout", tmp_path, "--out", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.strip() == f"demo: {tmp_path} has no timm/__init__.py. Run: python3 apply.py apply timm"


def training(folder, code):
    return Training(
        label=folder.name,
        folder=folder,
        command=[sys.executable, "-c", code],
        environment=dict(os.environ),
        rows=lambda: csv_rows(folder / "steps.csv"),
        length=2,
        show=lambda rows: f"loss {rows['loss'].iloc[-1]}",
        record={"host": "trl", "commit": "0123456789", "modified": True, "total_steps": 2},
    )


def test_a_training_says_where_it_is_where_no_terminal_shows_a_bar(tmp_path, capsys):
    code = "import time\nfor row in ('step,loss\\n1,0.5\\n', '2,0.25\\n'):\n"
    code += "    open('steps.csv', 'a').write(row); time.sleep(1.5)"
    train([training(tmp_path / "one", code)])
    first, last = capsys.readouterr().out.splitlines()
    assert first == "one: 1 of 2, loss 0.5" and last.endswith(" s, loss 0.25")


def test_trainings_leave_their_folders_finished_and_are_reused(tmp_path, capsys):
    code = "open('steps.csv', 'w').write('step,loss\\n1,0.5\\n2,0.25\\n')"

    def both(fresh):
        train([training(tmp_path / name, code) for name in ("one", "other")], fresh)
        return capsys.readouterr().out.splitlines()

    said = both(fresh=False)
    assert any(line.startswith("one: ") and line.endswith(" s, loss 0.25") for line in said)
    record = run_json.read(tmp_path / "one")
    assert record["finished"] and record["seconds"] > 0
    trained = f"trained on {record['ended'][:10]} at commit 0123456 with changes"
    assert both(fresh=False) == [f"{name}: reused, {trained}" for name in ("one", "other")]
    assert not any("reused" in line for line in both(fresh=True))
    run_json.write(tmp_path / "one", {**record, "host": "verl 0.9.1"})
    assert len([line for line in both(fresh=False) if "reused" in line]) == 1
    (tmp_path / "other/steps.csv").write_text("step,loss\n1,0.5\n")  # as an interrupted copy leaves it
    said = both(fresh=False)
    lacks = "trained again, because the finished run in"
    assert f"other: {lacks} {tmp_path / 'other'} steps.csv has 1 of 2 steps" in said
    assert len([line for line in said if "reused" in line]) == 1
    assert len([line for line in both(fresh=False) if "reused" in line]) == 2


@pytest.mark.parametrize("code", ["raise ImportError('broken')", "print('broken'); raise SystemExit"])
def test_failed_training_shows_its_log_and_ends_the_others(code, tmp_path):
    endless = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', '../pid'); time.sleep(900)"
    waiting = "import os, time\nwhile not os.path.exists('../pid'): time.sleep(0.1)\n"
    with pytest.raises(SystemExit, match=r"(?s)era ended with exit code [01] after 0 of 2 rows.*log\.txt.*broken"):
        train([training(tmp_path / "other", endless), training(tmp_path / "era", waiting + code)])
    assert not run_json.read(tmp_path / "era") and not run_json.read(tmp_path / "other")
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_training_ends_with_a_demo_that_was_killed(tmp_path):
    """With the workers of its loaders: the pipe to its stdin closes when the demo dies, in whatever way."""
    script, pid = tmp_path / "train.py", tmp_path / "pid"
    script.write_text(
        "import pathlib, subprocess, time\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(subprocess.Popen(['sleep', '900']).pid))\n"
        "time.sleep(900)\n"
    )
    line = [sys.executable, "-m", "recipes.processes", str(script)]
    with process_group(line, environment(ROOT), None) as process:
        deadline = time.monotonic() + 900
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        worker = psutil.Process(int(pid.read_text()))
        process.stdin.close()
        assert process.wait(timeout=900) == -signal.SIGKILL
        with contextlib.suppress(psutil.NoSuchProcess):
            while worker.status() != psutil.STATUS_ZOMBIE:  # it was killed too, but may still be ending
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_table_has_each_seed_and_their_mean():
    runs = pandas.DataFrame(
        {"name": ["ERA", "TD3"] * 2, "seed": [1, 1, 2, 2], "return": [1.0, 4, 2, 7], "delta": [-0.001, None] * 2}
    )
    lines = tables.rows_and_means(runs, {"return": 1, "delta": 2}).splitlines()
    assert [line.split() for line in lines[-2:]] == [["ERA", "mean", "1.5", "0.00"], ["TD3", "mean", "5.5", "-"]]
    assert len(lines) == 7 and "mean" not in tables.rows_and_means(runs[:2], {"return": 1, "delta": 2})
