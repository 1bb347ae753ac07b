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
"""preflight.py runs this with the Python that trains.

Reads {tasks, commands, needs_egl} from stdin as JSON and prints {prefix, has_ray, problems}.
"""

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
    """Gymnasium must know each task, and FastTD3 be able to train on it."""
    os.environ["MUJOCO_GL"] = "disable"  # nothing is rendered here
    import gymnasium
    from environments import gymnasium_env

    if any(not task.startswith("Gym-") for task in tasks):
        import humanoid_bench  # noqa: F401  registers its tasks
    for task in tasks:
        try:
            gymnasium.spec(task.removeprefix("Gym-"))
            if task.startswith("Gym-"):
                gymnasium_env.check_task(task.removeprefix("Gym-"), rendering=False)
        except gymnasium.error.Error as error:
            yield f"TASKS: {task}: {error}"
        except SystemExit as error:
            reason = str(error).removeprefix("error: --env_name ")
            yield f"TASKS: {reason.removesuffix(' Nothing was started.')}"


def flag_problems(command):
    """train.py's own parser must take it."""
    from hyperparams import get_args

    sys.argv, said = command, io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            get_args()
        except SystemExit:
            reason = re.sub(r"[│╭╮╰╯─\s]+", " ", said.getvalue()).strip()
            yield f"ARGS: train.py refuses its flags: {reason}"


def problems(tasks, commands, needs_egl):
    sys.path.insert(0, os.path.dirname(commands[0][0]))  # as Python does to start train.py
    bench = any(not task.startswith("Gym-") for task in tasks)
    needed = FASTTD3 + (HUMANOIDBENCH if bench else ())
    lacks = [name for name in needed if importlib.util.find_spec(name) is None]
    if lacks:
        hint = ""
        if "humanoid_bench" in lacks:
            hint = " humanoid_bench: python3 apply.py apply humanoid-bench, beside this checkout."
        yield (
            f"environment: {sys.executable} lacks {', '.join(lacks)}. Activate the environment "
            f"that trains, or set PYTHON to its python; `make control-...` makes one.{hint}"
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
    warnings.simplefilter("ignore")  # tyro warns of defaults that are None
    yield from dict.fromkeys(problem for command in commands for problem in flag_problems(command))


if __name__ == "__main__":
    found = list(problems(**json.load(sys.stdin)))
    has_ray = importlib.util.find_spec("ray") is not None
    print(json.dumps({"prefix": sys.prefix, "has_ray": has_ray, "problems": found}))
