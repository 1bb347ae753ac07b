# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""run.json: what a run was trained with, and whether it is finished."""

import datetime
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Dict, Sequence

FILE = "run.json"


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def processor() -> str:
    """The CPU's name as the kernel has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions(packages: Sequence[str]) -> Dict[str, str]:
    """Of Python, and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def begin(host: str, task: str, seed: int, total_steps: int, packages: Sequence[str]) -> Dict:
    """The record of a run that starts now.

    The launcher sets ERA_AGENT, its name of the agent, and ERA_COMMIT, this project's commit.
    """
    return {
        "host": host,
        "task": task,
        "agent": os.environ.get("ERA_AGENT"),
        "seed": seed,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "total_steps": total_steps,
        "finished": False,
        "started": now(),
        "ended": None,
        "cpu_seconds": 0.0,
        "commit": os.environ.get("ERA_COMMIT"),
        "versions": versions(packages),
        "hardware": {"cpu": processor(), "cores": os.cpu_count()},
    }


def write(folder: Path, record: Dict[str, Any]) -> None:
    """Replaces run.json as a whole: a kill or a full disk leaves the earlier one."""
    new = folder / f"{FILE}.new"
    new.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(new, folder / FILE)


def finish(folder: Path, record: Dict[str, Any], cpu_seconds: float) -> None:
    """Writes the record of a run that has reached its last step."""
    ended = {"finished": True, "ended": now(), "cpu_seconds": round(cpu_seconds, 1)}
    write(folder, {**record, **ended})


def read(folder: Path) -> Dict[str, Any]:
    """{} without run.json, or with one that cannot be read."""
    try:
        record = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
