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
"""What the runs still lack, as sentences for the user: all of it is said before anything starts."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import results
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


def flags_in(words: List[str]) -> List[str]:
    """As tyro reads them: - and _ are the same within a flag."""
    return [
        "--" + word[2:].partition("=")[0].replace("-", "_")
        for word in words
        if word.startswith("--")
    ]


def on_cpu(added: List[str]) -> bool:
    """As tyro, which takes the last of the two."""
    return [flag for flag in flags_in(added) if flag in ("--cuda", "--no_cuda")][-1:] == [
        "--no_cuda"
    ]


def flag_problems(name: str, added: List[str]) -> List[str]:
    compared = {
        flag for agent in runs.EXPERIMENTS[name].agents for flag in flags_in(list(agent.flags))
    } - set(OWN_FLAGS)
    reasons = {**{flag: f"{name} compares its values" for flag in compared}, **OWN_FLAGS}
    return [
        f"ARGS: {flag} cannot be set here: {reasons[flag]}."
        for flag in dict.fromkeys(flags_in(added))
        if flag in reasons
    ]


def ask_python(
    python: str, checkout: Path, commands: List[runs.Run], needs_egl: bool
) -> Optional[Dict[str, Any]]:
    """What probe.py says there. None: there is no such Python."""
    # Runs that differ by their seed alone are asked for once.
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
    command = [python, str(Path(__file__).with_name("probe.py"))]
    try:
        answer = subprocess.run(
            command,
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
            "problems": [f"environment: {python} does not start as it should: {reason}"],
        }


def local_gpus() -> int:
    """GPUs of this machine that CUDA may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def output_problems(output: Path) -> List[str]:
    """The folder of the runs, or the nearest one above it that is there, must take new folders."""
    there = next(path for path in (output, *output.parents) if os.path.exists(path))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    return [
        f"OUTPUT: the runs cannot be written to {output}: {there} is {'not writable' if there.is_dir() else 'not a folder'}. Choose another."
    ]


def folder_problems(run: runs.Run, folder: Path) -> List[str]:
    """What is in the run's folder must be the same run."""
    record = folder / training.COMMAND
    if not any((folder / name).exists() for name in (training.MODELS, runs.CURVES, results.LOG)):
        return []
    if not record.is_file():
        return [
            f"{run.name}: {folder} holds a run that was not started from here (no {training.COMMAND}). Move it away, or choose another OUTPUT."
        ]
    then = shlex.split(record.read_text())
    if then != list(run.command):
        words = [
            shlex.join([word for word in one if word not in other])
            for one, other in ((then, run.command), (run.command, then))
        ]
        return [
            f"{run.name}: {folder} holds a run with other flags (then: {words[0] or 'fewer'}; now: {words[1] or 'fewer'}). Give the same ones "
            "to go on with it, or choose another OUTPUT, or move it away."
        ]
    return []


def find_problems(
    jobs: List[Tuple[runs.Run, Path]],
    checkout: Path,
    python: str,
    engine: str,
    cpu: bool,
    environment_to_come: bool,
) -> Tuple[List[str], Optional[str]]:
    """jobs: of each run its folder. engine: ray, slurm (whose nodes check GPUs and EGL themselves), or alone for a single run.
    environment_to_come: `python` is not there yet. Also returns sys.prefix of `python`."""
    problems, prefix = [], None
    if not (checkout / "fast_td3/train.py").is_file():
        problems.append(
            f"checkout: {checkout} has no fast_td3/train.py. Run: python3 apply.py apply fasttd3"
        )
    if environment_to_come:
        if (
            any(not run.task.startswith("Gym-") for run, _ in jobs)
            and not training.humanoid_bench(checkout).is_dir()
        ):
            problems.append(
                f"HumanoidBench: no {training.humanoid_bench(checkout)}. Run: python3 apply.py apply humanoid-bench"
            )
    elif not problems:
        answer = ask_python(python, checkout, [run for run, _ in jobs], needs_egl=engine != "slurm")
        if answer is None:
            problems.append(
                f"environment: there is no Python that starts at {python}. Activate the environment that trains, or set PYTHON to its python."
            )
        else:
            prefix = answer["prefix"]
            problems += answer["problems"]
            if engine == "ray" and not answer["has_ray"]:
                problems.append(
                    f"Ray: {python} has none, and the runs are Ray tasks. Install it there: {python} -m pip install 'ray[default]'. SLURM=1 needs none."
                )
    if engine == "slurm" and not shutil.which("sbatch"):
        problems.append(
            "Slurm: SLURM=1, but there is no sbatch on this machine. Start it on a login node, or leave SLURM out."
        )
    if not cpu and engine != "slurm" and not os.environ.get("RAY_ADDRESS") and local_gpus() == 0:
        problems.append(
            'GPUs: this machine has none that CUDA may use. RAY_ADDRESS names a cluster, SLURM=1 submits; ARGS="--no_cuda" trains on the CPU.'
        )
    for output in dict.fromkeys(folder.parent for _, folder in jobs):
        problems += output_problems(output)
    for run, folder in jobs:
        problems += folder_problems(run, folder)
    return problems, prefix
