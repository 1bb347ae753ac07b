"""What the LLM demo and its smoke runs need before they start."""

import re
import sys
from pathlib import Path

from demo.runner import command
from demo.runner.errors import DemoError

NEEDS = command.Needs(
    target="demo",
    packages=("torch", "ray", "transformers", "hydra", "pyarrow", "matplotlib", "psutil"),
    megabytes=300,  # the results take about 10 MB, Ray's files and its object store the rest
    upstream="verl",
    files=("verl/trainer/main_ppo.py", "verl/utils/era.py"),
)


def check(checkout: Path, out: Path) -> None:
    need_plain_path(sys.executable)
    command.check(NEEDS, checkout, out)


def need_plain_path(python: str) -> None:
    """Ray starts its workers in a shell with Python's path unquoted (exec_worker in runtime_env/context.py of 2.46.0).

    Where that fails it waits five minutes for them.
    """
    if odd := "".join(sorted(set(re.findall(r"[^\w./+,:@%=-]", python)))):
        raise DemoError(
            f"Ray cannot start its processes with {python}, because of the characters {odd!r} in that path. Move this "
            "project to a folder without them, then run the command again. Nothing was started."
        )
