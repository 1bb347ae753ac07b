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

import os
from collections.abc import Iterable
from pathlib import Path

import grid
import launching
import runs
import training

PROBE = Path(__file__).with_name("probe.py")
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
    return ["--" + word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]


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


def question(commands: list[runs.Run], checkout: Path, needs_egl: bool) -> dict:
    """For probe.py. Runs that differ only by their seed are checked once."""
    asked = {(run.task, run.agent): [str(checkout / run.command[0]), *run.command[1:]] for run in commands}
    return {
        "tasks": sorted({run.task for run in commands}),
        "commands": list(asked.values()),
        "needs_egl": needs_egl,
    }


def find_problems(
    jobs: list[tuple[runs.Run, Path]], checkout: Path, python: str | None, engine: str, cpu: bool
) -> tuple[list[str], str | None]:
    """Also returns sys.prefix of `python`, if that was asked for.

    Args:
        jobs: the runs and their folders.
        python: of the environment that trains; None if that is still to be made.
        engine: ray; slurm, whose nodes check GPUs and EGL themselves; or here for a single run.
    """
    problems, prefix = [], None
    bench = training.humanoid_bench(checkout)
    if not (checkout / "fast_td3/train.py").is_file():
        problems.append(f"checkout: {checkout} has no fast_td3/train.py. Run: python3 apply.py apply fasttd3")
    elif python is not None:
        asked = question([run for run, _ in jobs], checkout, needs_egl=engine != "slurm")
        variables = training.variables(checkout)
        problems, prefix = grid.environment_problems(python, PROBE, asked, variables, engine)
    if python is None and not bench.is_dir() and any(not run.task.startswith("Gym-") for run, _ in jobs):
        problems.append(f"HumanoidBench: no {bench}. Run: python3 apply.py apply humanoid-bench")
    has_gpus = cpu or engine == "slurm" or os.environ.get("RAY_ADDRESS") or launching.local_gpus()
    if not has_gpus:
        problems.append(
            "GPUs: this machine has none that CUDA may use. RAY_ADDRESS names a cluster, SLURM=1 "
            'submits; ARGS="--no_cuda" trains on the CPU.'
        )
    return problems, prefix
