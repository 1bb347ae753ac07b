# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the three demos share: arguments, processes, finished runs, tables."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pandas
import psutil
import pytest
from demo_helpers import ROOT, run

from demo.control import __main__ as control
from demo.llm import __main__ as llm
from demo.runner import command, environment, processes, tables
from demo.runner.errors import DemoError
from demo.runner.training import Training, run_json, train
from demo.vision import __main__ as vision


@pytest.mark.parametrize(
    "demo, arguments, says",
    [
        (llm, ["--steps", "0"], "--steps: expected a whole number from 1 to 2147483647, got '0'"),
        (llm, ["--seed", "٣"], "from 0 to 2147483647, got '٣'"),
        (llm, ["--task", "addition"], "chain-biased"),
        (vision, ["--seeds", "1", "x"], "--seeds: expected a whole number from 0 to 2147483647, got 'x'"),
        (control, ["--steps", "250"], "--steps: expected a multiple of 100, got 250"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(demo, arguments, says, capsys):
    with pytest.raises(SystemExit) as exit:
        demo.parse(arguments)
    assert exit.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "demo, upstream, file",
    [
        ("llm", "verl", "verl/trainer/main_ppo.py"),
        ("vision", "timm", "timm/__init__.py"),
        ("control", "fasttd3", "fast_td3/train.py"),
    ],
)
def test_checkout_without_the_overlay_is_one_clear_error(demo, upstream, file, tmp_path):
    result = run(f"demo.{demo}", "--checkout", tmp_path, "--out", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.strip() == (
        f"demo: {tmp_path} is not {upstream} with the ERA overlay: no {file} there. "
        f"Run: python3 apply.py apply {upstream}"
    )


def test_second_demo_in_the_same_folder_is_refused(tmp_path):
    with command.only_one(tmp_path), pytest.raises(DemoError, match="another demo is writing"):
        with command.only_one(tmp_path):
            pass
    with command.only_one(tmp_path):
        pass


def training(folder, code, seen, length=2):
    return Training(
        label=folder.name,
        folder=folder,
        command=[sys.executable, "-c", code],
        environment=dict(os.environ),
        rows=processes.new_rows(folder / "rows.csv"),
        length=length,
        unit="rows",
        show=lambda row: f"loss {row['loss']}",
        record={"commit": "0123456789", "modified": True},
        on_rows=seen.extend,
    )


def test_trainings_leave_their_folders_finished_and_are_reused(tmp_path, capsys):
    code = "open('rows.csv', 'w').write('step,loss\\n1,0.5\\n2,0.25\\n')"
    seen = {name: [] for name in ("one", "other")}

    def both(fresh):
        train([training(tmp_path / name, code, rows) for name, rows in seen.items()], fresh)
        return capsys.readouterr().out.splitlines()

    said = both(fresh=False)
    assert seen["one"] == seen["other"] == [{"step": "1", "loss": "0.5"}, {"step": "2", "loss": "0.25"}]
    assert any(line.startswith("one: 2 rows in ") and line.endswith(" s, loss 0.25") for line in said)
    record = run_json.read(tmp_path / "one")
    assert record["finished"] and record["seconds"] > 0 and record["peak_memory_bytes"] > 1e6
    day = record["ended"][:10]
    said = f"trained on {day} at commit 0123456 with changes"
    assert both(fresh=False) == [f"{name}: reused, {said}" for name in seen]
    assert len(both(fresh=True)) == 2 and len(seen["one"]) == 4


@pytest.mark.parametrize("code", ["raise ImportError('broken')", "print('broken'); raise SystemExit"])
def test_failed_training_shows_its_log_and_ends_the_others(code, tmp_path):
    endless = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', '../pid'); time.sleep(900)"
    waiting = "import os, time\nwhile not os.path.exists('../pid'): time.sleep(0.1)\n"
    with pytest.raises(DemoError) as error:
        train([training(tmp_path / "other", endless, []), training(tmp_path / "era", waiting + code, [])])
    exit_code = 0 if "SystemExit" in code else 1
    assert str(error.value).startswith(f"the era run ended with exit code {exit_code} after 0 of 2 rows.")
    assert "broken" in str(error.value) and str(tmp_path / "era/log.txt") in str(error.value)
    assert not run_json.read(tmp_path / "era") and not run_json.read(tmp_path / "other")
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_half_written_line_is_left_for_later(tmp_path):
    file = tmp_path / "rows.csv"
    rows = processes.new_rows(file)
    assert next(rows) == []
    file.write_text('"top-1, %"\n0.5\n0.')
    assert next(rows) == [{"top-1, %": "0.5"}]
    file.write_text('"top-1, %"\n0.5\n0.25\n')
    assert next(rows) == [{"top-1, %": "0.25"}]
    assert next(rows) == []


def test_training_ends_with_a_demo_that_was_killed(tmp_path):
    """With the workers of its loaders: the pipe to its stdin closes when the demo dies, in whatever way."""
    script, pid = tmp_path / "train.py", tmp_path / "pid"
    script.write_text(
        "import pathlib, subprocess, time\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(subprocess.Popen(['sleep', '900']).pid))\n"
        "time.sleep(900)\n"
    )
    line = [sys.executable, "-m", "demo.runner.child", str(script)]
    with processes.process_group(line, {**os.environ, "PYTHONPATH": str(ROOT)}, None) as process:
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


def test_python_settings_of_the_user_do_not_reach_a_training():
    mine = {"HOME": "/home/me", "PYTHONPATH": "/stray", "PYTHONHOME": "/stray", "PYTHONSTARTUP": "/stray"}
    assert environment.cleaned(mine, Path("/a"), Path("/b")) == {"HOME": "/home/me", "PYTHONPATH": f"/a{os.pathsep}/b"}


def test_table_has_each_seed_and_their_mean():
    runs = pandas.DataFrame(
        {"name": ["ERA", "TD3"] * 2, "seed": [1, 1, 2, 2], "return": [1.0, 4, 2, 7], "delta": [-0.001, None] * 2}
    )
    lines = tables.rows_and_means(runs, {"return": 1, "delta": 2}).splitlines()
    assert [line.split() for line in lines] == [
        ["seed", "return", "delta"],
        ["ERA", "1", "1.0", "0.00"],
        ["ERA", "2", "2.0", "0.00"],
        ["ERA", "mean", "1.5", "0.00"],
        ["TD3", "1", "4.0", "-"],
        ["TD3", "2", "7.0", "-"],
        ["TD3", "mean", "5.5", "-"],
    ]
    assert "mean" not in tables.rows_and_means(runs[:2], {"return": 1, "delta": 2})
