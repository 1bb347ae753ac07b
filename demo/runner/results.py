"""Folders of finished runs, reused as long as the code and the package versions behind them stay the same."""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from demo.runner.progress import Line

INFO_FILE = "run.json"


def key_of(files: Iterable[Path], packages: Iterable[str]) -> dict:
    """What a result depends on besides its settings. Patch releases of Python compute alike and do not count."""
    sha = hashlib.sha256()
    for file in files:
        sha.update(f"\0{file.name}\0".encode() + file.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "code": sha.hexdigest(),
        "versions": {"python": python, **{name: metadata.version(name) for name in packages}},
    }


def machine(key: dict) -> dict:
    """What a recorded time depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "versions": {**key["versions"], "python": platform.python_version()},
    }


def finished(folder: Path, key: dict) -> dict | None:
    """The run.json of the folder; None if there is none or it has another key."""
    info = _read_info(folder)
    return info if info and info.get("key") == key else None


def reusable(folder: Path, key: dict, upstream: str, line: Line, name: str, length: str) -> dict | None:
    """As `finished`; says on the line that the run is reused, or why an older one is not."""
    info = finished(folder, key)
    if info is not None:
        line.show(f"{name}{length}, reused from {folder}", last=True)
    elif found := difference(folder, key, upstream):
        again = "training again, and keeping it until the new one is finished"
        line.show(f"{name}{folder} differs in {found}: {again}", last=True)
    return info


def difference(folder: Path, key: dict, upstream: str) -> str:
    """How the finished run in the folder differs from one with this key, in words; empty if it does not exist."""
    info = _read_info(folder)
    old = info.get("key") if info else key
    if old == key:
        return ""
    old = old if isinstance(old, dict) else {}  # the first demos wrote a single digest
    before, now = old.get("versions", key["versions"]), key["versions"]
    changed = [f"{name} ({before.get(name)} then, {now[name]} now)" for name in now if before.get(name) != now[name]]
    code = [f"the demo's or {upstream}'s code"] if old.get("code") != key["code"] else []
    return ", ".join(changed + code)


def _read_info(folder: Path) -> dict | None:
    try:
        return json.loads((folder / INFO_FILE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def finish(folder: Path, key: dict, **info) -> dict:
    """Marks the folder as complete. Written last: a folder without it is made again."""
    info = {"key": key, **info}
    write_json(folder / INFO_FILE, info)
    return info


def write_json(file: Path, content: dict) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")


def empty(folder: Path) -> Path:
    """The folder, without what was in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def unfinished(folder: Path) -> Path:
    """Where the folder's new content is made; the old content stays until the new one is finished."""
    return folder.with_name(f"{folder.name}.new")


def replace(folder: Path) -> None:
    """Moves the new content into place. At every moment the old or the new one is complete under some name."""
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    unfinished(folder).rename(folder)
    shutil.rmtree(old, ignore_errors=True)
