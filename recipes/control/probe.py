"""preflight.py runs this with the Python that trains.

Reads {packages, script, tasks, commands, here} from stdin as JSON and prints {prefix, has_ray, problems}.
"""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import environments

MUJOCO = 3  # newest major: with 4, dog and humanoid of dm_control fail


def environment_problems(packages):
    lacks = [name for name in packages if importlib.util.find_spec(name) is None]
    if lacks:
        yield (
            f"environment: {sys.executable} lacks {', '.join(lacks)}. Activate the environment that trains, or set "
            "PYTHON to its python; `make control-...` makes one."
        )
    with contextlib.suppress(PackageNotFoundError):
        found = version("mujoco")
        if int(found.partition(".")[0]) > MUJOCO:
            yield f"environment: {sys.executable} has mujoco {found}. Install mujoco<{MUJOCO + 1} there."


def task_problems(names, here):
    reasons = {}
    for name in names:
        if not here and environments.suite(name) == "HumanoidBench":
            continue  # a login node may have no EGL
        try:
            environments.check(name)
        except ImportError as error:
            needs = environments.NEEDS[environments.suite(name)]
            reason = f"{sys.executable} cannot import what it needs: {error}. {needs}"
            reasons.setdefault(reason, []).append(name)
        except ValueError as error:
            reasons.setdefault(str(error), []).append(name)
    for reason, found in reasons.items():
        yield f"TASKS: {', '.join(found)}: {reason}"


def flag_problems(script, command):
    """The script's own parser must take the flags. Where it is not a function, the script's folder must name them."""
    flags, name = command[1:], os.path.basename(script)
    texts = [file.read_text() for file in sorted(Path(script).parent.glob("*.py"))]
    if "def parse_arguments(" not in Path(script).read_text():
        known = {flag for text in texts for flag in re.findall(r"""["'](--\w+)["']""", text)}
        unknown = [flag for flag in flags if flag.startswith("--") and flag.partition("=")[0] not in known]
        yield from (f"ARGS: {name} has no flag {flag}." for flag in dict.fromkeys(unknown))
        return
    module, said = importlib.import_module(name.removesuffix(".py")), io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            module.parse_arguments(flags)
        except SystemExit:
            yield f"ARGS: {name} refuses its flags: {said.getvalue().strip().splitlines()[-1]}"


def problems(packages, script, tasks, commands, here):
    found = list(environment_problems(packages))
    yield from found
    if found:
        return
    yield from task_problems(tasks, here)
    sys.path.insert(0, os.path.dirname(script))  # as Python does to start it
    yield from dict.fromkeys(problem for command in commands for problem in flag_problems(script, command))


if __name__ == "__main__":
    found = list(problems(**json.load(sys.stdin)))
    has_ray = importlib.util.find_spec("ray") is not None
    print(json.dumps({"prefix": sys.prefix, "has_ray": has_ray, "problems": found}))
