"""The record that `reproduce.py run` leaves beside the results of a command: code, machine, times, and how it ended."""

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
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from ledger.commands import Step, checkouts, gpu_environment
from ledger.errors import LedgerError
from ledger.ledger import CONTROL_HOSTS, ROOT
from ledger.results import Problem

FORMAT = 1
FOLDER = "records"
RUNNING, SUBMITTED, FINISHED, FAILED, INTERRUPTED = "running", "submitted", "finished", "failed", "interrupted"
# The user's variables that a record keeps, where they are set. None of them is a secret.
KEPT = (
    "ARGS", "CHECKOUTS", "CUDA_VISIBLE_DEVICES", "DATA", "DATA_DIR", "DOWNLOAD", "EPOCHS", "EVAL", "GPUS",
    "GPUS_PER_NODE", "GPUS_PER_RUN", "JOBS", "LOGGER", "MODEL_PATH", "NNODES", "OUTPUT", "PYTHON", "RAY_ADDRESS",
    "RAY_DATA_HOME", "RESUME", "STEPS", "TEST_FILE", "TRAIN_FILE", "WANDB",
)  # fmt: skip
OVERLAY_SOURCES = ("era", "overlays", "patches", "recipes", "upstreams.json")  # of this repository: what trains
PACKAGES = (
    "torch", "vllm", "ray", "transformers", "flash-attn", "tensordict", "torchvision", "gymnasium", "mujoco", "numpy",
)  # fmt: skip
CPU_PYTHON = ROOT / ".venv/cpu/bin/python"
SECONDS_TO_ASK = 60  # a Python or nvidia-smi
_VERSIONS = """
import json, platform, sys
from importlib import metadata
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def folder_of(step: Step) -> Path:
    return step.base / FOLDER


class RunRecord:
    """The file records/<start>-<run>.json of a step, rewritten as a whole each time; the log is beside it."""

    def __init__(self, step: Step, content: Mapping):
        began = datetime.now(timezone.utc)
        start = {"start": began.isoformat(timespec="seconds"), "end": None, "exit_code": None}
        self.content = {"format": FORMAT, **content, **start}
        name = f"{began:%Y%m%dT%H%M%S.%f}Z-{step.run.id}"
        self.file, self.log = (folder_of(step) / f"{name}.{kind}" for kind in ("json", "log"))
        self.log.touch(exist_ok=False)
        self._write()

    def _write(self) -> None:
        new = self.file.with_name(f".{self.file.name}.new")
        new.write_text(json.dumps(self.content, indent=1) + "\n")
        new.replace(self.file)

    def end(self, **content) -> None:
        self.content |= {"end": datetime.now(timezone.utc).isoformat(timespec="seconds"), **content}
        self._write()


@contextlib.contextmanager
def only_start(step: Step) -> Iterator[int]:
    """Refuses a second start of the same step, also after a kill -9 of this process: its children inherit the lock."""
    folder = folder_of(step)
    digest = hashlib.sha256(json.dumps([step.command, step.folders]).encode()).hexdigest()[:8]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{step.run.id}-{digest}.lock").open("w")
    except OSError as error:
        what = f"{error.filename or folder} cannot be written ({error.strerror}), and the record belongs there"
        raise LedgerError(f"{what}. Nothing was started.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"{shlex.join(step.command)} is already running for {step.base}. Wait for it, or end it"
            hint = "after a kill -9 of reproduce.py, what it started may continue for a while"
            raise LedgerError(f"{what} ({hint}). Nothing was started.") from None
        yield lock.fileno()


def content(step: Step, environment: Mapping[str, str], repository: Mapping, states: Mapping[str, Mapping]) -> dict:
    """What is known before a start. command: as `make` is called; variables: of the environment."""
    kept = {name: environment[name] for name in KEPT if environment.get(name)}
    return {
        "run": step.run.id,
        "experiments": list(step.experiments),
        "command": shlex.join(step.command),
        "variables": {**kept, **step.variables},
        "seeds": list(step.seeds),
        "folders": list(step.folders),
        "state": RUNNING,
        "modified": is_modified(step, repository, states),
        "repository": repository,
        "checkouts": states,
        "versions": versions(step, environment),
        "hardware": {} if step.submits else this_machine(),
    }


# ---------------------------------------------------------------------------------------------------------- the code


def repository_state() -> dict:
    """Of this project. commit: None where it is not a git repository, such as an unpacked archive."""
    top = _ask("git", "-C", str(ROOT), "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != ROOT:
        return {"commit": None, "changed": []}
    status = _ask("git", "-C", str(ROOT), "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all") or ""
    head = _ask("git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD")
    changed = sorted(line[3:] for line in status.split("\0") if line)
    return {"commit": head.strip() if head else None, "changed": changed}


def overlay_changes(repository: Mapping) -> list[str]:
    return [path for path in repository["changed"] if path.split("/")[0] in OVERLAY_SOURCES]


def checkout_states(step: Step, environment: Mapping[str, str]) -> dict[str, dict]:
    """As `apply.py status` prints them. control also needs HumanoidBench, where that is checked out."""
    names = [step.upstream, *(["humanoid-bench"] if step.kind == "control" else [])]
    names = [name for name in names if name in json.loads((ROOT / "upstreams.json").read_text())]  # sbx is not patched
    folder = str(checkouts(environment))
    command = [sys.executable, str(ROOT / "apply.py"), "status", *names, "--json", "--checkouts", folder]
    answer = subprocess.run(command, capture_output=True, text=True)
    try:
        found = json.loads(answer.stdout)
    except ValueError:
        what = f"the state of {folder} cannot be determined: {answer.stderr.strip()}"
        raise LedgerError(f"{what} Nothing was started.") from None
    keys = ("state", "version", "source", "commit", "files", "commits", "note")
    there = [name for name in names if name == step.upstream or found[name]["state"] != "absent"]
    return {name: {key: found[name][key] for key in keys} for name in there}


def is_modified(step: Step, repository: Mapping, states: Mapping[str, Mapping]) -> bool:
    """A stale checkout has another overlay than this repository; some commands bring it up to date first."""
    modified = ("modified",) if step.applies else ("modified", "stale")
    return bool(overlay_changes(repository)) or any(state["state"] in modified for state in states.values())


# ------------------------------------------------------------------------------------------------------- the machine


def training_python(step: Step, environment: Mapping[str, str]) -> str | None:
    """The Python that the Makefile chooses; None where it is yet to make the environment."""
    if environment.get("PYTHON"):
        return shutil.which(environment["PYTHON"])
    if step.upstream in CONTROL_HOSTS:
        made = ROOT / f".venv/{'cpu' if step.upstream == 'drl-code-pytorch' else 'control-cpu'}/bin/python"
        return str(made) if made.is_file() else None
    active, check = shutil.which("python3"), ROOT / "requirements/check_gpu_environment.py"
    if active and subprocess.run([active, check, step.upstream], capture_output=True).returncode == 0:
        return active
    made = gpu_environment(step.upstream)
    return str(made / "bin/python") if made else None


def versions(step: Step, environment: Mapping[str, str]) -> dict[str, str]:
    """Of the environment that trains; {} where it does not answer."""
    python = training_python(step, {**environment, **step.variables})
    answer = _ask(python, "-c", _VERSIONS, *PACKAGES) if python else None
    try:
        return json.loads(answer or "{}")
    except ValueError:
        return {}


def this_machine() -> dict:
    """memory: GB. The name of the machine is not part of it."""
    gpus = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else []
    return {
        "gpus": [line.strip() for line in (gpus or "").splitlines() if line.strip()],
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
    }


def _ask(*command: str) -> str | None:
    """What a command prints; None if it does not exist or fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_ASK)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


# ------------------------------------------------------------------------------------------------- reading it again


def read(file: Path) -> dict | Problem:
    """A copy may be cut short or edited by hand."""
    try:
        record = json.loads(file.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        return Problem(str(file), None, f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        return Problem(str(file), getattr(error, "lineno", None), f"is not a record, or is cut short: {error}")
    wrong = _wrong_fields(record) if isinstance(record, dict) else ["all of it"]
    if wrong:
        return Problem(str(file), None, f"is not a record of reproduce.py: {', '.join(wrong)} cannot be read")
    return record


def _wrong_fields(record: Mapping) -> list[str]:
    kinds = dict.fromkeys(("run", "command", "state", "start"), str)
    kinds |= dict.fromkeys(("variables", "repository", "checkouts", "hardware"), dict)
    kinds |= {"seeds": list, "folders": list, "modified": bool}
    wrong = [key for key, kind in kinds.items() if not isinstance(record.get(key), kind)]
    if wrong:
        return wrong
    good = {
        "variables": _is_texts(list(record["variables"].values())),
        "seeds": all(type(seed) is int for seed in record["seeds"]),
        "experiments": _is_texts(record.get("experiments", [])),
        "folders": _is_texts(record["folders"]) and not any("\0" in name for name in record["folders"]),
        "log_tail": _is_texts(record.get("log_tail", [])),
        "end": isinstance(record.get("end"), str | None),
        "exit_code": isinstance(record.get("exit_code"), int | None),
        "hardware": _is_texts(record["hardware"].get("gpus", [])),
    }
    return [key for key, is_good in good.items() if not is_good]


def _refuse_constant(text: str):
    raise ValueError(f"{text} is not JSON")


def _is_texts(value) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def changes(record: Mapping) -> list[str]:
    """What was modified, as far as the record says."""
    found = _texts(record["repository"], "changed")
    for name, state in record["checkouts"].items():
        found += [f"{name}/{file}" for file in _texts(state, "files")]
        found += [f"{name} commit {commit[:12]}" for commit in _texts(state, "commits")]
    return found


def _texts(table, key: str) -> list[str]:
    return list(table[key]) if isinstance(table, dict) and _is_texts(table.get(key)) else []


def hardware(record: Mapping) -> tuple[str, str]:
    """GPUs and CPU in words; empty where they are not known."""
    known = record["hardware"]
    gpus = ", ".join(f"{count} {name}" for name, count in Counter(_texts(known, "gpus")).items())
    return gpus, f"{known.get('cores')} cores of {known['cpu']}" if known.get("cpu") else ""
