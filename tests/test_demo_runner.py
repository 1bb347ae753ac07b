"""What the three demos share: arguments, checks before the start, processes, reuse of finished runs, tables."""

import contextlib
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import psutil
import pytest
import scipy.stats
from demo_helpers import ROOT, run

from demo.control import __main__ as control
from demo.control import training as control_training
from demo.llm import __main__ as llm
from demo.llm import training as llm_training
from demo.runner import command, environment, processes, results, tables
from demo.runner.errors import DemoError
from demo.runner.progress import Line
from demo.runner.training import Training, train
from demo.vision import __main__ as vision
from demo.vision import training as vision_training

KEY = {"code": "1", "versions": {"python": "3.11", "torch": "2.6.0"}}


# Arguments and checks


@pytest.mark.parametrize(
    "demo, arguments, says",
    [
        (llm, ["--steps", "0"], "--steps: expected a whole number from 1 to 2147483647, got '0'"),
        (llm, ["--seed", "٣"], "from 0 to 2147483647, got '٣'"),
        (llm, ["--task", "addition"], "chain-biased"),
        (vision, ["--seeds"], "expected at least one argument"),
        (vision, ["--seeds", "1", "x"], "--seeds: expected a whole number from 0 to 2147483647, got 'x'"),
        (vision, ["--seeds", "2", "1", "2"], "--seeds: 2 given twice; each seed once"),
        (vision, ["--min-entropy", "high"], "--min-entropy"),
        (control, ["--steps", "250"], "--steps: expected a multiple of 100, got 250"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(demo, arguments, says, capsys):
    with pytest.raises(SystemExit) as exit:
        demo.parse(arguments)
    assert exit.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "module, upstream, file",
    [
        ("demo.llm", "verl", "verl/trainer/main_ppo.py"),
        ("demo.vision", "timm", "timm/__init__.py"),
        ("demo.control", "fasttd3", "fast_td3/train.py"),
    ],
)
def test_checkout_without_the_overlay_is_one_clear_error(module, upstream, file, tmp_path):
    """And the user's PYTHONPATH, with an argparse.py that cannot be imported, does not reach the command."""
    result = run(module, "--checkout", tmp_path, "--out", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.strip().partition(": ")[2] == (
        f"{tmp_path} is not {upstream} with the ERA overlay: no {file} there. Run: python apply.py apply {upstream}"
    )


def needs(**changes):
    default = {"target": "demo", "packages": (), "megabytes": 1, "upstream": "verl", "files": ()}
    return command.Needs(**default | changes)


def test_full_disk_and_missing_packages_are_found_beforehand(tmp_path, monkeypatch):
    with pytest.raises(DemoError, match="lacks no_such_package.*requirements/cpu.txt"):
        command.check(needs(packages=("json", "no_such_package")), tmp_path, tmp_path)
    monkeypatch.setattr(command.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1e6}))
    with pytest.raises(DemoError, match="1 MB free on this disk, 300 MB needed"):
        command.check(needs(megabytes=300), tmp_path, tmp_path / "out")


def test_second_demo_in_the_same_folder_is_refused(tmp_path):
    with command.only_one(tmp_path), pytest.raises(DemoError, match="another demo is writing"):
        with command.only_one(tmp_path):
            pass
    with command.only_one(tmp_path):
        pass


# Finished runs


def test_finished_runs_are_reused_only_with_the_same_key(tmp_path):
    assert results.finished(tmp_path / "nothing", KEY) is None
    info = results.finish(tmp_path, KEY, seconds=1.5)
    assert results.finished(tmp_path, KEY) == info == {"key": KEY, "seconds": 1.5}
    assert results.finished(tmp_path, {**KEY, "code": "2"}) is None
    (tmp_path / results.INFO_FILE).write_text('{"key": "ke')
    assert results.finished(tmp_path, KEY) is None


def test_message_says_what_differs_and_that_the_old_run_is_kept(tmp_path, capsys):
    def said(key):
        results.reusable(tmp_path, key, "verl", Line("runs"), "ERA, seed 1: ", "15 epochs")
        return capsys.readouterr().out

    assert said(KEY) == ""
    results.finish(tmp_path, KEY)
    assert said(KEY) == f"runs     ERA, seed 1: 15 epochs, reused from {tmp_path}\n"
    newer = {"code": "2", "versions": {"python": "3.12", "torch": "2.6.0"}}
    assert said(newer) == (
        f"runs     ERA, seed 1: {tmp_path} differs in python (3.11 then, 3.12 now), the demo's or verl's code: "
        "training again, and keeping it until the new one is finished\n"
    )
    results.finish(tmp_path, "a digest of everything")  # as the first demos wrote it
    assert "differs in the demo's or verl's code" in said(KEY)


def test_key_follows_files_packages_and_python_but_not_its_patch_releases(tmp_path, monkeypatch):
    file = tmp_path / "a.py"

    def key(text="x = 1", python="3.11.7", torch="2.6.0"):
        file.write_text(text)
        monkeypatch.setattr(results.platform, "python_version_tuple", lambda: tuple(python.split(".")))
        monkeypatch.setattr(results.metadata, "version", {"torch": torch}.get)
        return results.key_of([file], ["torch"])

    assert key() == key(python="3.11.9")
    others = [key(), key(text="x = 2"), key(python="3.12.7"), key(torch="2.7.0")]
    assert all(one != other for i, one in enumerate(others) for other in others[:i])


@pytest.mark.parametrize(
    "training, files",
    [
        (llm_training, ["verl/utils/era.py"]),
        (vision_training, ["timm/__init__.py", "train.py", "timm/layers/era.py"]),
        (control_training, ["fast_td3/era_training.py", "fast_td3/environments/gymnasium_env.py", "fast_td3/train.py"]),
    ],
)
def test_key_follows_the_code_of_the_checkout_alone(training, files, tmp_path):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x = 1\n")
    before = training.key(tmp_path)
    (tmp_path / "README.md").touch()
    assert training.key(tmp_path) == before
    (tmp_path / files[-1]).write_text("x = 2\n")
    assert training.key(tmp_path) != before


# Training processes


def training(folder, code, seen, length=2):
    file = results.unfinished(folder) / "rows.csv"
    return Training(
        label=folder.name,
        folder=folder,
        command=[sys.executable, "-c", code],
        environment=dict(os.environ),
        rows=processes.new_rows(file),
        length=length,
        unit="rows",
        on_look=lambda pid, rows: seen.extend(rows),
        complete=lambda: {"done": file.exists()},
    )


def test_trainings_run_in_their_folders_and_leave_them_complete(tmp_path):
    code = "open('rows.csv', 'w').write('step,loss\\n1,0.5\\n2,0.25\\n')"
    seen = {name: [] for name in ("one", "other")}
    train([training(tmp_path / name, code, rows) for name, rows in seen.items()], KEY)
    assert seen["one"] == seen["other"] == [{"step": "1", "loss": "0.5"}, {"step": "2", "loss": "0.25"}]
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]
    info = results.finished(tmp_path / "one", KEY)
    assert info["done"] and info["seconds"] > 0 and info["machine"]["versions"]["torch"] == "2.6.0"


@pytest.mark.parametrize("code", ["raise ImportError('broken')", "print('broken'); raise SystemExit"])
def test_failed_training_shows_its_log_keeps_the_old_result_and_ends_the_others(code, tmp_path):
    old = results.finish(results.empty(tmp_path / "era"), KEY)
    endless = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', '../pid'); time.sleep(900)"
    waiting = "import os, time\nwhile not os.path.exists('../pid'): time.sleep(0.1)\n"
    with pytest.raises(DemoError) as error:
        train(
            [training(tmp_path / "other", endless, []), training(tmp_path / "era", waiting + code, [])], {"code": "2"}
        )
    exit_code = 0 if "SystemExit" in code else 1
    assert str(error.value).startswith(f"the era run ended with exit code {exit_code} after 0 of 2 rows.")
    assert "broken" in str(error.value) and str(tmp_path / "era.new/log.txt") in str(error.value)
    assert results.finished(tmp_path / "era", KEY) == old
    assert not (tmp_path / "era.new" / results.INFO_FILE).exists() and not (tmp_path / "other").exists()
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_half_written_line_is_left_for_later(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = processes.new_lines(file)
    assert next(lines) == []
    file.write_text("one\ntw")
    assert next(lines) == ["one"]
    file.write_text("one\ntwo\n")
    assert next(lines) == ["two"]
    assert next(lines) == []


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


# Tables


def test_interval_is_that_of_the_paired_t_test():
    before, after = [96.1, 97.0, 96.4, 95.9], [96.6, 96.9, 97.1, 96.0]
    expected = scipy.stats.ttest_rel(after, before).confidence_interval(0.95)
    assert tables.interval([b - a for a, b in zip(before, after)]) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    "differences, says",
    [
        ([1.0, -1.0, 0.0], "no effect can be told from the spread over 3 seeds"),
        ([0.0, 0.0], "no effect can be told from the spread over 2 seeds"),
        ([5.0, 4.9, 6.1], "more than the spread over 3 seeds explains"),
        ([-5.0, -4.9, -6.1], "more than the spread over 3 seeds explains"),
    ],
)
def test_differences_are_compared_with_the_spread(differences, says):
    sentence = tables.compared(differences, "+.2f", " points", "effect")
    assert says in sentence and sentence.startswith(f"{statistics.mean(differences):+.2f} points on average (")


def test_table_has_mean_and_range_of_the_seeds():
    columns = {
        "ERA": {"return": [1.0, 2.0], "delta": [0.5, -0.0001]},
        "FastTD3": {"return": [4, 6], "delta": [None] * 2},
    }
    assert tables.table(columns, lambda label: int(label == "delta"), "In nats.").splitlines() == [
        "                     ERA     FastTD3",
        "return        2 (1 to 2)  5 (4 to 6)",
        "delta   0.2 (0.0 to 0.5)           -",
        "Mean (smallest to largest) over 2 seeds. In nats.",
    ]
    one = tables.table({"ERA": {"return": [1.0]}}, lambda label: 2, "In nats.")
    assert one.splitlines()[1:] == ["return  1.00", "One seed. In nats."]
