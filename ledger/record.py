"""What a run leaves beside its results: which code, which machine, when, and how it ended."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from ledger.commands import Step, checkouts, made_environment
from ledger.errors import LedgerError
from ledger.experiments import ROOT

FORMAT = 1
FOLDER = "records"
# Variables of the user's that a record keeps, where they are set. None of them is a secret.
KEPT = (
    "ARGS", "CHECKOUTS", "CUDA_VISIBLE_DEVICES", "DATA", "DATA_DIR", "DOWNLOAD", "EPOCHS", "EVAL", "GPUS", "GPUS_PER_NODE", "GPUS_PER_RUN", "LOGGER",
    "MODEL_PATH", "NNODES", "OUTPUT", "PYTHON", "RAY_ADDRESS", "RAY_DATA_HOME", "RESUME", "STEPS", "TEST_FILE", "TRAIN_FILE", "WANDB",
)  # fmt: skip
MAKES_RUNS = ("overlays", "patches", "upstreams.json")  # of this repository: what goes into a checkout
PACKAGES = (
    "torch",
    "vllm",
    "ray",
    "transformers",
    "flash-attn",
    "tensordict",
    "torchvision",
    "gymnasium",
    "mujoco",
    "numpy",
)
CPU_PYTHON = ROOT / ".venv/cpu/bin/python"
SECONDS_TO_ASK = 60  # a Python or nvidia-smi


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Record:
    """The file FOLDER/<start>-<run>.json of a step's base, written whole each time; the log lies beside it."""

    def __init__(self, step: Step, content: Mapping):
        began = datetime.now(timezone.utc)
        self.content = {
            "format": FORMAT,
            **content,
            "start": began.isoformat(timespec="seconds"),
            "end": None,
            "exit_code": None,
        }
        name = f"{began:%Y%m%dT%H%M%S.%f}Z-{step.run.id}"
        self.file, self.log = (records(step) / f"{name}.{kind}" for kind in ("json", "log"))
        self.log.touch(exist_ok=False)
        self.write()

    def write(self) -> None:
        beside = self.file.with_name(f".{self.file.name}.new")
        beside.write_text(json.dumps(self.content, indent=1) + "\n")
        beside.replace(self.file)

    def end(self, **content) -> None:
        self.content |= {"end": now(), **content}
        self.write()


def records(step: Step) -> Path:
    return step.base / FOLDER


@contextlib.contextmanager
def alone(step: Step) -> Iterator[int]:
    """One start of a step at a time. What it starts inherits the lock's file, and so keeps the lock where this process is killed."""
    folder = records(step)
    chosen = hashlib.sha256(json.dumps([step.command, step.folders]).encode()).hexdigest()[:8]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{step.run.id}-{chosen}.lock").open("w")
    except OSError as error:
        what = f"{error.filename or folder} cannot be written ({error.strerror})"
        raise LedgerError(f"{what}, and the record of this run lies there. Nothing was started.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"{shlex.join(step.command)} is at work for {step.base} already. Wait for it, or end it (after a kill -9 of reproduce.py what it "
                "started may go on for a while). Nothing was started."
            ) from None
        yield lock.fileno()


def content(step: Step, environment: Mapping[str, str], repository: Mapping, states: Mapping[str, Mapping]) -> dict:
    """All that is known of a run before it starts. The command is as `make` is called; variables: of the environment."""
    kept = {name: environment[name] for name in KEPT if environment.get(name)}
    return {
        "run": step.run.id,
        "experiments": list(step.experiments),
        "command": shlex.join(step.command),
        "variables": {**kept, **step.variables},
        "seeds": list(step.seeds),
        "folders": list(step.folders),
        "state": "running",
        "modified": is_modified(step, repository, states),
        "repository": repository,
        "checkouts": states,
        "versions": versions(step, environment),
        "hardware": {} if step.submits else hardware(),
    }


# The code


def repository_state() -> dict:
    """Of this project. commit: None for a tree that is no git repository, such as an unpacked archive."""
    top = _ask("git", "-C", str(ROOT), "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != ROOT:
        return {"commit": None, "changed": []}
    status = _ask("git", "-C", str(ROOT), "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all") or ""
    head = _ask("git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD")
    return {
        "commit": head.strip() if head else None,
        "changed": sorted(line[3:] for line in status.split("\0") if line),
    }


def overlay_changes(repository: Mapping) -> list[str]:
    return [path for path in repository["changed"] if path.split("/")[0] in MAKES_RUNS]


def checkout_states(step: Step, environment: Mapping[str, str]) -> dict[str, dict]:
    """As `apply.py status` has them, without untracked files. control needs HumanoidBench too, where it has it."""
    names = [step.upstream, *(["humanoid-bench"] if step.kind == "control" else [])]
    command = [
        sys.executable,
        str(ROOT / "apply.py"),
        "status",
        *names,
        "--json",
        "--checkouts",
        str(checkouts(environment)),
    ]
    answer = subprocess.run(command, capture_output=True, text=True)
    try:
        found = json.loads(answer.stdout)
    except ValueError:
        raise LedgerError(
            f"the state of {checkouts(environment)} cannot be told: {answer.stderr.strip()} Nothing was started."
        ) from None
    keys = ("state", "version", "source", "commit", "files", "commits", "note")
    return {
        name: {key: found[name][key] for key in keys}
        for name in names
        if name == step.upstream or found[name]["state"] != "absent"
    }


def is_modified(step: Step, repository: Mapping, states: Mapping[str, Mapping]) -> bool:
    """A stale checkout has another overlay than this repository; a demo brings it up to date first."""
    modified = ("modified",) if step.kind == "demo" else ("modified", "stale")
    return bool(overlay_changes(repository)) or any(state["state"] in modified for state in states.values())


# The machine


def training_python(step: Step, environment: Mapping[str, str]) -> str | None:
    """The Makefile's choice; None where it is yet to make the environment."""
    if step.kind == "demo":
        return str(CPU_PYTHON) if CPU_PYTHON.is_file() else None
    active = shutil.which("python3")
    if environment.get("PYTHON"):
        return shutil.which(environment["PYTHON"])
    if (
        active
        and subprocess.run(
            [active, ROOT / "requirements/check_gpu_environment.py", step.upstream], capture_output=True
        ).returncode
        == 0
    ):
        return active
    made = made_environment(step.upstream)
    return str(made / "bin/python") if made else None


def versions(step: Step, environment: Mapping[str, str]) -> dict[str, str]:
    """Of the environment that trains, {} where it cannot be asked."""
    python = training_python(step, {**environment, **step.variables})
    code = (
        "import json, platform, sys\nfrom importlib import metadata\nfound = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n    try:\n        found[name] = metadata.version(name)\n    except metadata.PackageNotFoundError:\n        pass\n"
        "print(json.dumps(found))"
    )
    answer = _ask(python, "-c", code, *PACKAGES) if python else None
    try:
        return json.loads(answer or "{}")
    except ValueError:
        return {}


def hardware() -> dict:
    """Of this machine. memory: GB. The name of the machine is not part of it."""
    gpus = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "gpus": [line.strip() for line in (gpus or "").splitlines() if line.strip()],
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": cores,
        "memory": round(memory / 1e9),
    }


def _ask(*command: str) -> str | None:
    """What a command prints, None where there is none or it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_ASK)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
