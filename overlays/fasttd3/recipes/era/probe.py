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
"""Run by preflight.py with the Python that trains: reads {tasks, commands, needs_egl} from stdin as JSON and prints {prefix, problems}."""

import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import warnings

FASTTD3 = (
    "torch",
    "tensordict",
    "tyro",
    "wandb",
    "tqdm",
    "numpy",
    "gymnasium",
    "mujoco",
    "stable_baselines3",
)
HUMANOIDBENCH = ("humanoid_bench", "dm_control", "loguru")


def task_problems(tasks):
    """Whether Gymnasium knows each, HumanoidBench's after its own registration, and FastTD3 can train on those of Gymnasium."""
    os.environ["MUJOCO_GL"] = "disable"  # nothing is rendered here
    import gymnasium
    from environments import gymnasium_env

    if any(not task.startswith("Gym-") for task in tasks):
        import humanoid_bench  # noqa: F401
    for task in tasks:
        try:
            gymnasium.spec(task[len("Gym-") :] if task.startswith("Gym-") else task)
        except gymnasium.error.Error as error:
            yield f"TASKS: {task}: {error}"
            continue
        if task.startswith("Gym-"):
            try:
                gymnasium_env.check_task(task[len("Gym-") :], rendering=False)
            except SystemExit as error:
                yield f"TASKS: {str(error).removeprefix('error: --env_name ').removesuffix(' Nothing was started.')}"


def flag_problems(command):
    """By train.py's own parser."""
    from hyperparams import get_args

    sys.argv, said = command, io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            get_args()
        except SystemExit:
            reason = re.sub(r"[│╭╮╰╯─\s]+", " ", said.getvalue()).strip()
            yield f"ARGS: train.py refuses its flags: {reason}"


def problems(tasks, commands, needs_egl):
    sys.path.insert(0, os.path.dirname(commands[0][0]))  # as train.py does when it is started
    bench = any(not task.startswith("Gym-") for task in tasks)
    lacks = [
        name
        for name in FASTTD3 + (HUMANOIDBENCH if bench else ())
        if importlib.util.find_spec(name) is None
    ]
    if lacks:
        yield (
            f"environment: {sys.executable} lacks {', '.join(lacks)}. Activate the environment that trains, or set PYTHON to its python; "
            "`make control-...` makes one."
            + (
                " humanoid_bench: python3 apply.py apply humanoid-bench, beside this checkout."
                if "humanoid_bench" in lacks
                else ""
            )
        )
    if needs_egl and bench:
        from environments import egl

        no_egl = egl.problem()
        if no_egl:
            yield f"EGL: {no_egl} HumanoidBench always makes an environment that renders."
    if lacks:
        return
    try:
        yield from task_problems(tasks)
    except ImportError as error:
        yield f"environment: {sys.executable} cannot import what the tasks need: {error}."
    warnings.simplefilter("ignore")  # tyro's, on defaults of None
    yield from dict.fromkeys(problem for command in commands for problem in flag_problems(command))


if __name__ == "__main__":
    found = list(problems(**json.load(sys.stdin)))
    print(
        json.dumps(
            {
                "prefix": sys.prefix,
                "has_ray": importlib.util.find_spec("ray") is not None,
                "problems": found,
            }
        )
    )
