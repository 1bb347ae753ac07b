"""`reproduce.py run`: a `make` that writes down how it was called stands for the trainings; the checkouts are real."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ledger import commands, run_record

PARTS = """demo engine era ledger overlays patches requirements rivals apply.py reproduce.py upstreams.json
experiments.toml Makefile"""
# What `make test` or the user's shell may have set for a run.
OURS = {*run_record.KEPT, *(name for names in commands.REFUSED.values() for name in names), "CHECK_ONLY", "DRY_RUN"}
# Writes its call to $CALLS, then does what $STUB says.
STUB = f"""#!{sys.executable}
import json, os, subprocess, sys, time
names = ("SEED", "CKPTS_DIR", "STAGE1_CKPT", "ARGS", "TASKS", "AGENT", "SLURM", "PYTHON")
variables = {{name: os.environ[name] for name in names if os.environ.get(name)}}
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:], variables, os.getcwd()]) + "\\n")
exec(os.environ.get("STUB", ""))
"""


@pytest.fixture(scope="session")
def unpacked(project_root, tmp_path_factory):
    """The project as an archive unpacks it, without a git repository."""
    folder = tmp_path_factory.mktemp("project")
    for name in PARTS.split():
        (shutil.copytree if (project_root / name).is_dir() else shutil.copy2)(project_root / name, folder / name)
    return folder


class Bench:
    """The unpacked project with stubs for make and sbatch."""

    def __init__(self, project, checkouts, folder):
        self.project, self.output, self.calls_file = project, folder / "runs", folder / "calls"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in OURS},
            "PATH": f"{folder}/bin:{os.environ['PATH']}", "CALLS": str(self.calls_file), "OUTPUT": str(self.output),
            "PYTHON": sys.executable, "CHECKOUTS": str(checkouts), "RAY_DATA_HOME": str(folder / "data"),
        }  # fmt: skip
        (folder / "bin").mkdir()
        for name in ("make", "sbatch"):
            (folder / "bin" / name).write_text(STUB)
            (folder / "bin" / name).chmod(0o755)

    def start(self, *words, **given):
        command = [sys.executable, self.project / "reproduce.py", "run", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.project, env={**self.environment, **given}, **pipes)

    def run(self, *words, code=0, **given):
        process = self.start(*words, **given)
        out, err = process.communicate(timeout=900)
        assert process.returncode == code and "Traceback" not in err, out + err
        return out, err

    def records(self, base=None):
        files = sorted(((base or self.output) / "records").glob("*.json"))
        return [json.loads(file.read_text()) for file in files]

    @property
    def calls(self):
        text = self.calls_file.read_text() if self.calls_file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def started(self):
        """The processes that its stubs have left."""
        found = psutil.process_iter(["environ"])
        return [one for one in found if (one.info["environ"] or {}).get("CALLS") == str(self.calls_file)]


@pytest.fixture
def bench(unpacked, patched_timm, tmp_path):
    made = Bench(unpacked, patched_timm.parent, tmp_path)
    yield made
    for process in made.started():
        process.kill()


def git(folder, *words):
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_finished_run_and_its_record(bench, patched_timm):
    stub = "print('epoch 1'); print('epoch 2', file=sys.stderr)"
    out, _ = bench.run("cifar10", "--seeds", "42", "43", STUB=stub, GPUS="2", SECRET_TOKEN="hush")
    assert bench.calls == [["make", "vision-cifar10", {"SEED": "42 43", "PYTHON": sys.executable}, str(bench.project)]]
    (record,) = bench.records()
    expected = {
        "format": 1, "run": "vision-cifar10", "experiments": ["cifar10"], "command": "make vision-cifar10",
        "seeds": [42, 43], "folders": ["cifar10-seed42", "cifar10-seed43"], "state": "finished", "exit_code": 0,
        "modified": False, "repository": {"commit": None, "changed": []},
    }  # fmt: skip
    assert {name: record[name] for name in expected} == expected and record["start"] <= record["end"]
    kept = ("CHECKOUTS", "OUTPUT", "PYTHON", "RAY_DATA_HOME")
    variables = {name: bench.environment[name] for name in kept}
    assert record["variables"] == {**variables, "GPUS": "2", "SEED": "42 43"}
    state, commit = record["checkouts"]["timm"], git(patched_timm, "rev-parse", "HEAD")
    assert (state["state"], state["version"], state["commit"]) == ("applied", "v1.0.20", commit)
    assert record["versions"]["python"].startswith("3.") and record["versions"]["torch"].startswith("2.6.0")
    assert record["hardware"]["cores"] >= 1 and record["hardware"]["memory"] >= 1 and record["hardware"]["cpu"]
    text = json.dumps(record)
    assert "hush" not in text and os.uname().nodename not in text and "log_tail" not in record
    (log,) = (bench.output / "records").glob("*.log")
    assert sorted(log.read_text().splitlines()) == ["epoch 1", "epoch 2"]
    assert {"epoch 1", "epoch 2"} <= set(out.splitlines())
    assert sorted(file.suffix for file in (bench.output / "records").iterdir()) == [".json", ".lock", ".log"]


def test_a_failure_ends_the_sequence_and_keeps_the_end_of_the_log(bench):
    stub = "print(*range(50), sep='\\n'); print('\\x1b[31m10 %\\r20 %\\x1b[0m'); sys.exit(3)"
    begins = "os.makedirs(os.environ['OUTPUT'] + '/cifar10-era0.6-seed42'); "
    _, err = bench.run("cifar10-gain", code=1, STUB=begins + stub)
    assert [call[1] for call in bench.calls] == ["vision-cifar10-era"]
    (record,) = bench.records()
    assert (record["state"], record["exit_code"], record["experiments"]) == ("failed", 3, ["cifar10-era"])
    assert record["log_tail"] == [*map(str, range(32, 50)), "10 %", "20 %"]
    assert "ended with exit code 3. 1 more were not started. Its output: " in err and ".log" in err


def test_what_refuses_to_start_leaves_its_log_alone(bench):
    _, err = bench.run("cifar10", code=1, STUB="sys.exit('no GPUs')")
    assert "It left no results, so it does not count as a run." in err and bench.records() == []
    (log,) = (bench.output / "records").glob("*.log")
    assert log.read_text() == "no GPUs\n" and str(log) in err


def test_without_make_it_says_so(bench, tmp_path):
    (tmp_path / "bin/make").unlink()
    (tmp_path / "bin/git").symlink_to(shutil.which("git"))
    _, err = bench.run("cifar10", code=2, PATH=f"{tmp_path}/bin")
    assert "make cannot be started: No such file or directory" in err and bench.records() == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_stopping_reaches_what_was_started(bench, number):
    process = bench.start("cifar10-gain", STUB="subprocess.run(['bash', '-c', 'echo training; sleep 900'])")
    assert any("training" in line for line in process.stdout)
    process.send_signal(number)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 128 + number and f"Stopped by {number.name}" in err and "Traceback" not in err
    (record,) = bench.records()
    assert record["state"] == "interrupted" and record["end"] and record["exit_code"] not in (0, None)
    assert "training" in record["log_tail"] and len(bench.calls) == 1
    for one in bench.started():  # they have the signal, and may not be gone yet
        one.wait(900)


@pytest.mark.slow
def test_what_does_not_end_is_ended_by_force(bench):
    stub = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('training'); time.sleep(900)"
    process = bench.start("cifar10", STUB=stub)
    assert any("training" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    assert "Once more ends it by force" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=900)
    (record,) = bench.records()
    assert (process.returncode, record["state"], record["exit_code"]) == (130, "interrupted", 137)


@pytest.mark.slow
def test_killed_and_started_again(bench):
    """After kill -9 the record has no end; while what it started continues, a second start is refused."""
    process = bench.start("cifar10", STUB="print('training'); time.sleep(900)")
    assert any("training" in line for line in process.stdout)
    process.kill()
    process.wait()
    _, err = bench.run("cifar10", code=2)
    assert "is already running for" in err and "Nothing was started" in err
    bench.run("cifar10-era")  # another run in the same folder
    (stub,) = bench.started()
    stub.kill()
    while stub.is_running() and stub.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)
    bench.run("cifar10")
    killed, other, again = bench.records()
    assert (killed["end"], killed["exit_code"], killed["state"]) == (None, None, "running")
    assert again["command"] == killed["command"] and again["state"] == other["state"] == "finished"
    assert [call[1] for call in bench.calls] == ["vision-cifar10", "vision-cifar10-era", "vision-cifar10"]


def test_what_is_not_the_overlay_is_refused_or_marked(bench, patched_timm, tmp_path):
    checkouts = tmp_path / "checkouts"
    given = {"CHECKOUTS": str(checkouts)}
    _, err = bench.run("cifar10", code=2, **given)
    assert f"{checkouts}/timm has no overlay yet. Run `make apply`" in err
    shutil.copytree(patched_timm, checkouts / "timm", symlinks=True)
    (checkouts / "timm/timm/layers/era.py").write_text("mine = 1\n")
    _, err = bench.run("cifar10", code=2, **given)
    assert "has changes of yours: timm/layers/era.py" in err and "--modified" in err and bench.calls == []
    bench.run("cifar10", "--modified", **given)
    git(checkouts / "timm", "commit", "-qam", "mine")
    commit = git(checkouts / "timm", "rev-parse", "HEAD")
    _, err = bench.run("cifar10", code=2, **given)
    assert f"timm/layers/era.py, commit {commit[:12]}" in err
    bench.run("cifar10", "--modified", **given)
    first, second = bench.records()
    assert first["modified"] and first["checkouts"]["timm"]["files"] == ["timm/layers/era.py"]
    assert first["checkouts"]["timm"]["commits"] == []
    assert second["modified"] and second["checkouts"]["timm"]["commits"] == [commit]


@pytest.mark.slow
def test_changes_of_this_repository(bench, unpacked, tmp_path):
    bench.project = tmp_path / "clone"
    shutil.copytree(unpacked, bench.project, ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "-q")  # around an archive: not its repository
    bench.run("cifar10")
    (bench.project / ".gitignore").write_text("__pycache__/\n")
    git(bench.project, "init", "-q")
    git(bench.project, "add", "-A")
    git(bench.project, "commit", "-qm", "all")
    commit = git(bench.project, "rev-parse", "HEAD")
    (bench.project / "my notes.txt").touch()
    bench.run("cifar10")
    (bench.project / "overlays/verl/verl/utils/more.py").touch()  # of another upstream: timm's checkout stays the same
    _, err = bench.run("cifar10", code=2)
    assert "this repository differs from its commit: overlays/verl/verl/utils/more.py" in err
    bench.run("cifar10", "--modified")
    archive, before, after = bench.records()
    assert archive["repository"]["commit"] is None
    assert before["repository"] == {"commit": commit, "changed": ["my notes.txt"]} and not before["modified"]
    assert after["modified"] and after["repository"]["changed"] == ["my notes.txt", "overlays/verl/verl/utils/more.py"]


def test_records_that_cannot_be_written(bench):
    bench.output.write_text("a file\n")
    _, err = bench.run("cifar10", code=2)
    assert "cannot be written" in err and "Nothing was started" in err and bench.calls == []


def test_a_reader_that_goes_away_does_not_end_a_training(bench):
    process = bench.start("cifar10-gain", STUB="print('first'); time.sleep(0.5); print('second')")
    assert any("first" in line for line in process.stdout)
    process.stdout.close()
    assert process.wait(900) == 0 and process.stderr.read() == ""
    assert [record["state"] for record in bench.records()] == ["finished", "finished"]
    assert all(log.read_text() == "first\nsecond\n" for log in (bench.output / "records").glob("*.log"))


def test_a_dry_run_is_what_would_be_run(bench, patched_verl, tmp_path):
    """Pasted into a shell, without a checkout, it calls the same."""
    base = tmp_path / "my 'data'"
    given = {"RAY_DATA_HOME": str(base), "ARGS": "trainer.logger='[console]'"}
    no_checkouts = {**given, "CHECKOUTS": f"{tmp_path}/none"}
    out, _ = bench.run("main-era", "--dry-run", "--seeds", "1", **no_checkouts)
    assert bench.calls == [] and not base.exists() and not bench.output.exists()
    subprocess.run(["bash", "-ec", out], env={**bench.environment, **no_checkouts}, check=True)
    printed = bench.calls
    bench.calls_file.unlink()
    bench.run("main-era", "--seeds", "1", **given, CHECKOUTS=str(patched_verl.parent))
    assert bench.calls == printed and len(printed) == 3
    assert printed[1][-2]["STAGE1_CKPT"] == f"{base}/ckpts/ERA/era_stage1_qwen2.5_math_7b-seed1/global_step_600"
    assert [record["run"] for record in bench.records(base / "ckpts/ERA")] == ["llm-stage1", "llm-stage2"]
    assert len(bench.records(base / "eval")) == 1


def test_slurm(bench, patched_verl, tmp_path):
    stub = "print(len(open(os.environ['CALLS']).readlines()) + 100, end=';here\\n')"
    given = {"CHECKOUTS": str(patched_verl.parent), "STUB": stub}
    bench.run("main-era", "--slurm", **given)
    (_, *first, _, folder), (_, *second, _, _) = bench.calls
    submit = ["--parsable", "recipe/era/slurm_ray.sbatch"]
    assert first == [*submit, "run_era_stage1_qwen2.5_math_7b.sh"] and folder == str(patched_verl)
    assert second == ["--dependency=afterok:101", *submit, "run_era_stage2_qwen2.5_math_7b.sh"]
    base = tmp_path / "data/ckpts/ERA"
    stage1, stage2 = bench.records(base)
    assert (stage1["state"], stage1["job"], stage1["exit_code"]) == ("submitted", "101", None)
    assert stage2["job"] == "102" and stage2["hardware"] == {}
    out, _ = bench.run("main-era", "--slurm", "--dry-run", **given)
    bench.calls_file.unlink()
    subprocess.run(["bash", "-ec", out], env={**bench.environment, **given}, check=True)
    assert [call[1:-2] for call in bench.calls] == [first, [second[1], second[0], *second[2:]]]
    done = base / "era_stage1_qwen2.5_math_7b"
    (done / "global_step_600").mkdir(parents=True)
    (done / "latest_checkpointed_iteration.txt").write_text("600")
    bench.calls_file.unlink()
    out, _ = bench.run("main-era", "--slurm", **given)
    assert f"{done}/global_step_600 is there: this run is finished" in out
    assert [call[1:-2] for call in bench.calls] == [second[1:]]


def test_a_slurm_array_of_the_control_runs(bench, patched_fasttd3):
    given = {"CHECKOUTS": str(patched_fasttd3.parent)}
    for output in ("Submitted batch job 7", "all finished, mean 700"):
        bench.run("hb-fasttd3/h1hand-run-v0", "--slurm", STUB=f"print({output!r})", **given)
    chosen = {"TASKS": "h1hand-run-v0", "AGENT": "fasttd3", "SLURM": "1", "PYTHON": sys.executable}
    assert bench.calls[0][1:-1] == ["control-humanoidbench", chosen]
    first, second = bench.records()
    assert (first["state"], first["job"], second["state"], second["exit_code"]) == ("submitted", "7", "finished", 0)


def test_the_check_alone_leaves_no_record(bench):
    bench.run("cifar10-gain", code=1, CHECK_ONLY="1", STUB="sys.exit(sys.argv[1].endswith('era'))")
    assert len(bench.calls) == 2 and not bench.output.exists()
