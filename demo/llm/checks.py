"""What the LLM demo and its smoke runs need before they start."""

import re
import sys
from pathlib import Path

from demo.llm.versions import VERSIONS
from demo.runner import command
from demo.runner.errors import DemoError


def check(checkout: Path, out: Path, verl: str = "0.4.1") -> None:
    need_plain_path(sys.executable)
    if verl == "0.9.1":
        need_source(checkout, verl)
    command.check(VERSIONS[verl].needs, checkout, out)


def need_source(checkout: Path, verl: str) -> None:
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
            "project to a folder without them, then run the command again. Nothing was started."
        )
