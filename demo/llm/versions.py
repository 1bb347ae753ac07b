"""The two versions of verl that the demo trains with, and what each needs before it starts."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from demo.runner.command import need_overlay
from demo.runner.errors import DemoError


@dataclass(frozen=True)
class Version:
    """checkout, out: default folders of verl and of the results.

    trainer: the module that is the training process. start: how long the process takes to begin.
    """

    checkout: str
    out: str
    trainer: str
    start: str


VERSIONS = {
    "0.4.1": Version("checkouts/verl", "results/demo", "demo.llm.cpu_trainer", "half a minute"),
    "0.9.1": Version(
        ".venv/verl-sources/verl-0.9.1", "results/demo-verl-0.9.1", "demo.llm.verl_0_9.trainer", "a minute"
    ),
}


def check(checkout: Path, verl: str = "0.4.1") -> None:
    need_plain_path(sys.executable)
    if verl == "0.4.1":
        return need_overlay(checkout, "verl", "verl/trainer/main_ppo.py", "verl/utils/era.py")
    file = checkout / "verl/version/version"
    if not file.is_file() or file.read_text().strip() != verl:
        raise DemoError(f"{checkout} is not verl {verl}: no {file} that says so. `make demo VERL={verl}` fetches it")


def need_plain_path(python: str) -> None:
    """Ray starts its workers in a shell with Python's path unquoted (exec_worker in runtime_env/context.py of 2.46.0).

    Where that fails it waits five minutes for them.
    """
    if odd := "".join(sorted(set(re.findall(r"[^\w./+,:@%=-]", python)))):
        raise DemoError(
            f"Ray cannot start its processes with {python}, because of the characters {odd!r} in that path. Move this "
            "project to a folder without them, then run the command again."
        )
