"""`reproduce.py run`: a `make` that only writes down how it was called stands for the trainings; the checkouts are real ones."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest

from ledger import commands, record

PARTS = (
    "engine",
    "ledger",
    "overlays",
    "patches",
    "requirements",
    "apply.py",
    "upstreams.json",
    "experiments.toml",
    "Makefile",
)
RUN = """
import sys
from ledger import execute, experiments
from ledger.errors import LedgerError
id, *options = sys.argv[1:]
execute.SECONDS_OF_SILENCE = execute.POLL_SECONDS = 0.2
seeds = [int(word) for word in options if word.isdigit()]
ledger = experiments.load()
try:
    sys.exit(execute.run(ledger, ledger.find(id), seeds or None, *(name in options for name in ("--dry-run", "--slurm", "--modified"))))
except LedgerError as error:
    sys.exit(f"refused: {error}")
"""
# What `make test` or the user's shell may have set for a run.
OURS = {*record.KEPT, *(name for names in commands.REFUSED.values() for name in names), "CHECK_ONLY", "DRY_RUN"}
# Writes its call to $CALLS, then does what $STUB says.
STUB = f"""#!{sys.executable}
import json, os, subprocess, sys, time
names = ("SEED", "CKPTS_DIR", "STAGE1_CKPT", "ARGS", "TASKS", "AGENT", "SLURM", "PYTHON")
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:], {{name: os.environ[name] for name in names if os.environ.get(name)}}, os.getcwd()]) + "\\n")
exec(os.environ.get("STUB", ""))
"""


@pytest.fixture(scope="session")
def unpacked(project_root, tmp_path_factory):
    """The project as an archive unpacks it, without a git repository."""
    folder = tmp_path_factory.mktemp("project")
    for name in PARTS:
        (shutil.copytree if (project_root / name).is_dir() else shutil.copy2)(project_root / name, folder / name)
    return folder


@pytest.fixture
def bench(unpacked, patched_timm, tmp_path):
    class Bench:
        project = unpacked
        output = tmp_path / "runs"
        calls_file = tmp_path / "calls"
        environment = {
            **{name: value for name, value in os.environ.items() if name not in OURS},
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"), "OUTPUT": str(output), "PYTHON": sys.executable,
            "CHECKOUTS": str(patched_timm.parent), "RAY_DATA_HOME": str(tmp_path / "data"),
        }  # fmt: skip

        def start(self, *words, before=(), **given):
            command = [*before, sys.executable, "-c", RUN, *words]
            return subprocess.Popen(
                command,
                cwd=self.project,
                env={**self.environment, **given},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        def run(self, *words, code=0, **given):
            process = self.start(*words, **given)
            out, err = process.communicate(timeout=900)
            assert process.returncode == code and "Traceback" not in err, out + err
            return out, err

        def records(self, base=output):
            return [json.loads(file.read_text()) for file in sorted((base / "records").glob("*.json"))]

        @property
        def calls(self):
            return (
                [json.loads(line) for line in self.calls_file.read_text().splitlines()]
                if self.calls_file.exists()
                else []
            )

        def wait_for(self, count=1):
            until = time.monotonic() + 900
            while len(self.calls) < count:
                assert time.monotonic() < until
                time.sleep(0.05)

    (tmp_path / "bin").mkdir()
    for name in ("make", "sbatch"):
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    yield Bench()
    for process in psutil.process_iter():
        try:
            if process.environ().get("CALLS") == str(tmp_path / "calls"):
                process.kill()
        except psutil.Error:
            continue


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_finished_run_and_its_record(bench, patched_timm):
    out, _ = bench.run(
        "cifar10", "42", "43", STUB="print('epoch 1'); print('epoch 2', file=sys.stderr)", GPUS="2", SECRET_TOKEN="hush"
    )
    assert bench.calls == [["make", "vision-cifar10", {"SEED": "42 43", "PYTHON": sys.executable}, str(bench.project)]]
    (record,) = bench.records()
    expected = {
        "format": 1,
        "run": "vision-cifar10",
        "experiments": ["cifar10"],
        "command": "make vision-cifar10",
        "seeds": [42, 43],
        "state": "finished",
        "exit_code": 0,
        "modified": False,
    }
    assert {name: record[name] for name in expected} == expected
    assert record["folders"] == ["cifar10-seed42", "cifar10-seed43"] and record["start"] <= record["end"]
    assert record["variables"] == {
        "CHECKOUTS": str(patched_timm.parent),
        "GPUS": "2",
        "OUTPUT": str(bench.output),
        "PYTHON": sys.executable,
        "SEED": "42 43",
    } | {"RAY_DATA_HOME": bench.environment["RAY_DATA_HOME"]}
    assert record["repository"] == {"commit": None, "changed": []}
    state = record["checkouts"]["timm"]
    assert (state["state"], state["version"], state["commit"]) == (
        "applied",
        "v1.0.20",
        git(patched_timm, "rev-parse", "HEAD"),
    )
    assert record["versions"]["python"].startswith("3.") and record["versions"]["torch"].startswith("2.6.0")
    assert record["hardware"]["cores"] >= 1 and record["hardware"]["memory"] >= 1 and record["hardware"]["cpu"]
    text = json.dumps(record)
    assert "hush" not in text and os.uname().nodename not in text and "log_tail" not in record
    (log,) = (bench.output / "records").glob("*.log")
    assert sorted(log.read_text().splitlines()) == ["epoch 1", "epoch 2"] and all(
        line in out for line in ("epoch 1", "epoch 2")
    )
    assert sorted(file.suffix for file in (bench.output / "records").iterdir()) == [".json", ".lock", ".log"]


def test_a_failure_ends_the_sequence_and_keeps_the_end_of_the_log(bench):
    _, err = bench.run(
        "cifar10-gain", code=1, STUB="print(*range(50), sep='\\n'); print('\\x1b[31m10 %\\r20 %\\x1b[0m'); sys.exit(3)"
    )
    assert [call[1] for call in bench.calls] == ["vision-cifar10-era"]
    (record,) = bench.records()
    assert (record["state"], record["exit_code"], record["experiments"]) == ("failed", 3, ["cifar10-era"])
    assert record["log_tail"] == [*map(str, range(32, 50)), "10 %", "20 %"]
    assert "ended with exit code 3. 1 more were not started." in err and ".log" in err


def test_without_make_it_is_said(bench, tmp_path):
    (tmp_path / "bin/make").unlink()
    (tmp_path / "bin/git").symlink_to(shutil.which("git"))
    _, err = bench.run("cifar10", code=1, PATH=f"{tmp_path}/bin")
    assert (
        "refused: make cannot be started: No such file or directory" in err and bench.records()[0]["state"] == "failed"
    )


SLEEPS = "subprocess.Popen(['sleep', '60'], start_new_session=True); print('at work', flush=True); time.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_reaches_all_that_was_started(bench, number):
    process = bench.start("cifar10-gain", STUB=SLEEPS)
    assert any("at work" in line for line in process.stdout)
    process.send_signal(number)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 128 + number and f"Stopped by {number.name}" in err and "Traceback" not in err
    (record,) = bench.records()
    assert (
        record["state"] == "interrupted"
        and record["end"]
        and record["exit_code"] not in (0, None)
        and "at work" in record["log_tail"]
    )
    assert len(bench.calls) == 1
    assert [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("CALLS") == str(bench.calls_file)
    ] == []


def test_who_does_not_end_is_ended_by_force(bench):
    stubborn = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('at work', flush=True); time.sleep(60)"
    )
    process = bench.start("cifar10", STUB=stubborn)
    assert any("at work" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    assert "Once more ends it by force" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=900)
    assert (
        process.returncode == 130
        and bench.records()[0]["state"] == "interrupted"
        and bench.records()[0]["exit_code"] == 137
    )


def test_killed_and_begun_again(bench):
    """After kill -9 the record has no end; while what it started goes on, there is no second start; the same command then goes on."""
    process = bench.start("cifar10", STUB="time.sleep(60)")
    bench.wait_for()
    process.kill()
    process.wait()
    _, err = bench.run("cifar10", code=1)
    assert "is at work for" in err and "Nothing was started" in err
    bench.run("cifar10-era")  # another run in the same folder
    (stub,) = [
        other
        for other in psutil.process_iter(["environ"])
        if (other.info["environ"] or {}).get("STUB") == "time.sleep(60)"
    ]
    stub.kill()
    until = time.monotonic() + 900
    while stub.is_running() and stub.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
    bench.run("cifar10")
    killed, other, again = bench.records()
    assert (killed["end"], killed["exit_code"], killed["state"]) == (None, None, "running")
    assert again["command"] == killed["command"] and again["state"] == other["state"] == "finished"
    assert [call[1] for call in bench.calls] == ["vision-cifar10", "vision-cifar10-era", "vision-cifar10"]


def test_what_is_not_the_overlay_is_refused_or_marked(bench, patched_timm, tmp_path):
    checkouts = tmp_path / "checkouts"
    _, err = bench.run("cifar10", code=1, CHECKOUTS=str(checkouts))
    assert f"{checkouts}/timm has no overlay yet. Run `make apply`" in err
    shutil.copytree(patched_timm, checkouts / "timm", symlinks=True)
    (checkouts / "timm/timm/layers/era.py").write_text("mine = 1\n")
    _, err = bench.run("cifar10", code=1, CHECKOUTS=str(checkouts))
    assert "has changes of yours: timm/layers/era.py" in err and "--modified" in err and bench.calls == []
    bench.run("cifar10", "--modified", CHECKOUTS=str(checkouts))
    git(checkouts / "timm", "commit", "-qam", "mine")
    _, err = bench.run("cifar10", code=1, CHECKOUTS=str(checkouts))
    commit = git(checkouts / "timm", "rev-parse", "HEAD")
    assert f"timm/layers/era.py, commit {commit[:12]}" in err
    bench.run("cifar10", "--modified", CHECKOUTS=str(checkouts))
    first, second = bench.records()
    assert (
        first["modified"]
        and first["checkouts"]["timm"]["files"] == ["timm/layers/era.py"]
        and first["checkouts"]["timm"]["commits"] == []
    )
    assert second["modified"] and second["checkouts"]["timm"]["commits"] == [commit]


def test_changes_of_this_repository(bench, unpacked, tmp_path):
    bench.project = tmp_path / "clone"
    shutil.copytree(unpacked, bench.project, ignore=shutil.ignore_patterns("__pycache__"))
    (bench.project / ".gitignore").write_text("__pycache__/\n")
    git(bench.project, "init", "-q")
    git(bench.project, "add", "-A")
    git(bench.project, "commit", "-qm", "all")
    (bench.project / "my notes.txt").touch()
    bench.run("cifar10")
    (
        bench.project / "overlays/verl/verl/utils/more.py"
    ).touch()  # of another upstream: what is applied to timm stays the same
    _, err = bench.run("cifar10", code=1)
    assert "this repository differs from its commit: overlays/verl/verl/utils/more.py" in err
    bench.run("cifar10", "--modified")
    before, after = bench.records()
    assert (
        before["repository"] == {"commit": git(bench.project, "rev-parse", "HEAD"), "changed": ["my notes.txt"]}
        and not before["modified"]
    )
    assert after["modified"] and after["repository"]["changed"] == ["my notes.txt", "overlays/verl/verl/utils/more.py"]


def test_an_archive_in_another_repository_has_no_commit(bench, unpacked, tmp_path):
    git(tmp_path, "init", "-q")
    bench.project = tmp_path / "archive"
    shutil.copytree(unpacked, bench.project)
    bench.run("cifar10")
    assert bench.records()[0]["repository"]["commit"] is None


def test_records_that_cannot_be_written(bench):
    bench.output.write_text("a file\n")
    _, err = bench.run("cifar10", code=1)
    assert "refused:" in err and "cannot be written" in err and "Nothing was started" in err and bench.calls == []


def test_a_full_disk_does_not_end_a_training(bench):
    """A limit on the size of files stands for it."""
    stub = "print('x' * 20000, 'the end')"
    process = bench.start("cifar10", STUB=stub, before=("bash", "-c", 'ulimit -f 8; exec "$@"', "-"))
    out, err = process.communicate(timeout=900)
    assert (
        process.returncode == 0
        and "the end" in out
        and "cannot be written any more (File too large); the run goes on" in err
    )
    assert bench.records()[0]["state"] == "finished"


def test_on_a_terminal_progress_stays_on_its_line(bench):
    stub = "print(sys.stdout.isatty(), os.get_terminal_size().columns, end='\\r'); print('done')"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 77))
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "cifar10"],
        cwd=bench.project,
        env={**bench.environment, "STUB": stub},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 4096)
        except OSError:
            break
    assert process.wait() == 0 and b"True 77\rdone\r\n" in seen
    assert next((bench.output / "records").glob("*.log")).read_bytes() == b"True 77\rdone\n"


def test_a_reader_that_goes_away_does_not_end_a_training(bench):
    process = bench.start(
        "cifar10-gain", STUB="print('first', flush=True); time.sleep(0.5); print('second', flush=True)"
    )
    assert any("first" in line for line in process.stdout)
    process.stdout.close()
    assert process.wait(30) == 0 and process.stderr.read() == ""
    assert [record["state"] for record in bench.records()] == ["finished", "finished"]
    assert all(log.read_text() == "first\nsecond\n" for log in (bench.output / "records").glob("*.log"))


def test_a_dry_run_is_what_would_be_run(bench, patched_verl, tmp_path):
    """Pasted into a shell, without a checkout, it calls the same."""
    given = {
        "CHECKOUTS": f"{tmp_path}/none",
        "RAY_DATA_HOME": f"{tmp_path}/my 'data'",
        "ARGS": "trainer.logger='[console]'",
    }
    out, _ = bench.run("main-era", "--dry-run", "1", **given)
    assert bench.calls == [] and not (tmp_path / "my 'data'").exists() and not bench.output.exists()
    subprocess.run(["bash", "-ec", out], env={**bench.environment, **given}, check=True)
    printed = bench.calls
    bench.calls_file.unlink()
    bench.run("main-era", "1", **given | {"CHECKOUTS": str(patched_verl.parent)})
    assert bench.calls == printed and len(printed) == 3
    assert (
        printed[1][-2]["STAGE1_CKPT"]
        == f"{tmp_path}/my 'data'/ckpts/ERA/era_stage1_qwen2.5_math_7b-seed1/global_step_600"
    )
    base = tmp_path / "my 'data'"
    assert [record["run"] for record in bench.records(base / "ckpts/ERA")] == ["llm-stage1", "llm-stage2"] and len(
        bench.records(base / "eval")
    ) == 1


def test_slurm(bench, patched_verl, tmp_path):
    given = {
        "CHECKOUTS": str(patched_verl.parent),
        "STUB": "print(len(open(os.environ['CALLS']).readlines()) + 100, end=';here\\n')",
    }
    bench.run("main-era", "--slurm", **given)
    (_, *first, variables, folder), (_, *second, _, _) = bench.calls
    assert first == [
        "--parsable",
        "recipe/era/slurm_ray.sbatch",
        "run_era_stage1_qwen2.5_math_7b.sh",
    ] and folder == str(patched_verl)
    assert second == [
        "--dependency=afterok:101",
        "--parsable",
        "recipe/era/slurm_ray.sbatch",
        "run_era_stage2_qwen2.5_math_7b.sh",
    ]
    base = tmp_path / "data/ckpts/ERA"
    stage1, stage2 = bench.records(base)
    assert (
        (stage1["state"], stage1["job"], stage1["exit_code"]) == ("submitted", "101", None)
        and stage2["job"] == "102"
        and stage2["hardware"] == {}
    )
    out, _ = bench.run("main-era", "--slurm", "--dry-run", **given)
    bench.calls_file.unlink()
    subprocess.run(["bash", "-ec", out], env={**bench.environment, **given}, check=True)
    assert [call[1:-2] for call in bench.calls] == [first, [second[1], second[0], *second[2:]]]
    done = base / "era_stage1_qwen2.5_math_7b"
    (done / "global_step_600").mkdir(parents=True)
    (done / "latest_checkpointed_iteration.txt").write_text("600")
    bench.calls_file.unlink()
    out, _ = bench.run("main-era", "--slurm", **given)
    assert f"{done}/global_step_600 is there: this run is finished" in out and [call[1:-2] for call in bench.calls] == [
        second[1:]
    ]


def test_a_slurm_array_of_the_control_runs(bench, patched_fasttd3):
    given = {"CHECKOUTS": str(patched_fasttd3.parent)}
    bench.run("hb-fasttd3/h1hand-run-v0", "--slurm", STUB="print('Submitted batch job 7')", **given)
    bench.run("hb-fasttd3/h1hand-run-v0", "--slurm", STUB="print('all finished, mean 700')", **given)
    assert bench.calls[0][1:-1] == [
        "control-humanoidbench",
        {"TASKS": "h1hand-run-v0", "AGENT": "fasttd3", "SLURM": "1", "PYTHON": sys.executable},
    ]
    first, second = bench.records()
    assert (first["state"], first["job"]) == ("submitted", "7") and (second["state"], second["exit_code"]) == (
        "finished",
        0,
    )


def test_the_check_alone_leaves_no_record(bench):
    bench.run("cifar10-gain", code=1, CHECK_ONLY="1", STUB="sys.exit(sys.argv[1].endswith('era'))")
    assert len(bench.calls) == 2 and not bench.output.exists()
