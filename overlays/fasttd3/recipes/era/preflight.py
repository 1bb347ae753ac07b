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
"""Checks before anything starts. A problem is a sentence for the user; all are reported at once."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import launching
import runs
import training

# Flags of train.py that launch.py sets, and what chooses their values.
OWN_FLAGS = {
    "--agent": "AGENT does",
    "--checkpoint_path": "RESUME=1 does",
    "--csv_path": "the run's folder does",
    "--env_name": "TASKS does",
    "--exp_name": "the name of the agent does",
    "--seed": "SEED does",
    "--use_wandb": "WANDB=1 does",
    "--no_use_wandb": "WANDB=1 turns wandb on",
}


def flags_in(words: Iterable[str]) -> list[str]:
    """As tyro reads them: - and _ are the same in a flag."""
    return [
        "--" + word[2:].partition("=")[0].replace("-", "_")
        for word in words
        if word.startswith("--")
    ]


def on_cpu(added: list[str]) -> bool:
    """tyro takes the last of the two."""
    chosen = [flag for flag in flags_in(added) if flag in ("--cuda", "--no_cuda")]
    return chosen[-1:] == ["--no_cuda"]


def flag_problems(name: str, added: list[str]) -> list[str]:
    agents = runs.EXPERIMENTS[name].agents
    compared = [flag for agent in agents for flag in flags_in(agent.flags)]
    reasons = {**dict.fromkeys(compared, f"{name} compares its values"), **OWN_FLAGS}
    return [
        f"ARGS: {flag} cannot be set here: {reasons[flag]}."
        for flag in dict.fromkeys(flags_in(added))
        if flag in reasons
    ]


def ask_python(
    python: str, checkout: Path, commands: list[runs.Run], needs_egl: bool
) -> dict | None:
    """The answer of probe.py; None if there is no such Python."""
    # Runs that differ only by their seed are checked once.
    asked = {
        (run.task, run.agent): [str(checkout / run.command[0]), *run.command[1:]]
        for run in commands
    }
    question = {
        "tasks": sorted({run.task for run in commands}),
        "commands": list(asked.values()),
        "needs_egl": needs_egl,
    }
    environment = {**os.environ, **training.variables(checkout)}
    probe = str(Path(__file__).with_name("probe.py"))
    try:
        answer = subprocess.run(
            [python, probe],
            input=json.dumps(question),
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    try:
        return json.loads(answer.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        reason = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        return {
            "prefix": None,
            "has_ray": True,
            "problems": [f"environment: {python} fails to run the check: {reason}"],
        }


def output_problems(output: Path) -> list[str]:
    """It must be possible to make folders in `output`, or in what exists of its parents."""
    nearest = next(path for path in (output, *output.parents) if os.path.exists(path))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return []
    what = "not writable" if nearest.is_dir() else "not a folder"
    return [f"OUTPUT: the runs cannot be written to {output}: {nearest} is {what}. Choose another."]


def environment_problems(
    jobs: list[tuple[runs.Run, Path]], checkout: Path, python: str, engine: str
) -> tuple[list[str], str | None]:
    """Also returns sys.prefix of `python`."""
    answer = ask_python(python, checkout, [run for run, _ in jobs], needs_egl=engine != "slurm")
    if answer is None:
        return [
            f"environment: there is no Python that starts at {python}. Activate the environment "
            "that trains, or set PYTHON to its python."
        ], None
    problems = answer["problems"]
    if engine == "ray" and not answer["has_ray"]:
        problems.append(
            f"Ray: {python} does not have it, and the runs are Ray tasks. Install it there: "
            f"{python} -m pip install 'ray[default]'. SLURM=1 does not need it."
        )
    return problems, answer["prefix"]


def find_problems(
    jobs: list[tuple[runs.Run, Path]], checkout: Path, python: str | None, engine: str, cpu: bool
) -> tuple[list[str], str | None]:
    """Also returns sys.prefix of `python`, if that was asked for.

    Args:
        jobs: the runs and their folders.
        python: of the environment that trains; None if that is still to be made.
        engine: ray; slurm, whose nodes check GPUs and EGL themselves; or alone for a single run.
    """
    problems, prefix = [], None
    bench = training.humanoid_bench(checkout)
    if not (checkout / "fast_td3/train.py").is_file():
        problems.append(
            f"checkout: {checkout} has no fast_td3/train.py. Run: python3 apply.py apply fasttd3"
        )
    elif python is not None:
        problems, prefix = environment_problems(jobs, checkout, python, engine)
    if (
        python is None
        and not bench.is_dir()
        and any(not run.task.startswith("Gym-") for run, _ in jobs)
    ):
        problems.append(f"HumanoidBench: no {bench}. Run: python3 apply.py apply humanoid-bench")
    if engine == "slurm" and not shutil.which("sbatch"):
        problems.append(
            "Slurm: SLURM=1, but this machine has no sbatch. Start it on a login node, or leave "
            "SLURM out."
        )
    has_gpus = cpu or engine == "slurm" or os.environ.get("RAY_ADDRESS") or launching.local_gpus()
    if not has_gpus:
        problems.append(
            "GPUs: this machine has none that CUDA may use. RAY_ADDRESS names a cluster, SLURM=1 "
            'submits; ARGS="--no_cuda" trains on the CPU.'
        )
    for output in dict.fromkeys(folder.parent for _, folder in jobs):
        problems += output_problems(output)
    for run, folder in jobs:
        if training.leftovers(folder):
            problems += launching.command_problems(run.name, folder, run.command)
    return problems, prefix
