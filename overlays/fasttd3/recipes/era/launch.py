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
"""python launch.py EXPERIMENT [flags of train.py]: trains FastTD3 and FastSAC-ERA as in the paper.

The runs are Ray tasks on this machine's GPUs. Repeating the command skips finished runs and starts
interrupted ones over: FastTD3's checkpoints hold neither the replay buffer nor the optimizers'
states. Your flags come after the run's own and win. Settings come from the environment:

  TASKS, SEED, AGENT   a part of the experiment, one or several of each:
                       "h1hand-walk-v0 h1hand-run-v0", "1 2", "fastsac_era"
  OUTPUT               folder of the runs: output/era in the checkout
  GPUS_PER_RUN         below 1 several runs share a GPU: 1
  CUDA_VISIBLE_DEVICES the GPUs to use: all
  RAY_ADDRESS          of an existing Ray cluster whose nodes have the same files at the same paths
  SLURM=1              submit a Slurm array instead, a job for each run; sbatch reads
                       SBATCH_PARTITION, SBATCH_TIMELIMIT, ...
  RESUME=1             resume interrupted runs from their last checkpoints all the same
  WANDB=1              log to wandb too
  PYTHON               of the environment that trains, with Ray: python3
  RUN_INDEX            train only this run of the grid, from 0, without Ray, as the Slurm jobs do
  DRY_RUN=1            print the commands and stop
  CHECK_ONLY=1         say what is missing and stop
"""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import launching
import preflight
import results
import runs
import training
from launching import CHECKOUT, Refused, checked, is_on, refuse_if_any, several

# Variables that the jobs of a Slurm array get as they are.
PASSED_ON = ("TASKS", "SEED", "AGENT", "RESUME", "WANDB")
LINES_OF_LOG = 12

Job = tuple[runs.Run, Path]


def read_settings(
    name: str, experiment: runs.Experiment
) -> tuple[runs.Settings, float, int | None]:
    """Also returns GPUS_PER_RUN and RUN_INDEX."""
    agents = [agent.name for agent in experiment.agents]
    task = re.compile(r"(h1|h1hand|Gym)-\w[\w-]*-v\d+")
    parsers = {
        "TASKS": (
            several(checked(str, task.fullmatch)),
            "tasks like h1hand-walk-v0 or Gym-Reacher-v4",
        ),
        "SEED": launching.SEEDS,
        "AGENT": (
            several(checked(str, agents.__contains__)),
            f"one or several of {name}'s, {', '.join(agents)},",
        ),
        "GPUS_PER_RUN": (
            checked(float, lambda share: 0 < share <= 1),
            "a number above 0, up to 1,",
        ),
        "RUN_INDEX": (checked(int, lambda index: index >= 0), "a number from 0"),
    }
    values, problems = launching.read_variables(parsers)
    gpus, index = values.get("GPUS_PER_RUN", 1.0), values.get("RUN_INDEX")
    if is_on("SLURM") and gpus != 1:
        problems.append("GPUS_PER_RUN: SLURM=1 gives each run a GPU of its own. Leave it out.")
    if is_on("SLURM") and index is not None:
        problems.append(
            "RUN_INDEX: SLURM=1 gives each job the index of its run. Leave it out; TASKS, SEED and "
            "AGENT choose a part of the grid."
        )
    refuse_if_any(problems)
    settings = runs.Settings(values.get("TASKS"), values.get("SEED"), values.get("AGENT"))
    return settings, gpus, index


def python_that_trains() -> str:
    """PYTHON, with a relative path made absolute, because each run starts in its own folder."""
    python = os.environ.get("PYTHON") or "python3"
    return os.path.abspath(python) if os.sep in python else python


def print_commands(jobs: list[Job], how: training.How) -> None:
    path = training.variables(how.checkout)["PYTHONPATH"]
    before = f"PYTHONPATH={shlex.quote(path)} " if path else ""
    for run, folder in jobs:
        if results.is_finished(folder):
            print(f"# {run.name} is finished")
            continue
        at = shlex.quote(str(folder))
        print(f"mkdir -p {at} && cd {at} && {before}{shlex.join(training.words(run, folder, how))}")


def slurm_script(
    name: str, added: list[str], jobs: list[Job], cpu: bool, at_once: int | None
) -> str:
    left = [str(index) for index, (_, folder) in enumerate(jobs) if not results.is_finished(folder)]
    variables = {key: os.environ[key] for key in PASSED_ON if os.environ.get(key)}
    variables |= {"PYTHON": python_that_trains(), "OUTPUT": str(launching.output_folder())}
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=era-{name}",
        f"#SBATCH --array={','.join(left)}" + (f"%{at_once}" if at_once else ""),
        *([] if cpu else ["#SBATCH --gres=gpu:1"]),
        f"#SBATCH --output={shlex.quote(str(jobs[0][1].parent / 'slurm-%A_%a.txt'))}",
        *(f"export {key}={shlex.quote(value)}" for key, value in variables.items()),
        "export RUN_INDEX=$SLURM_ARRAY_TASK_ID SLURM= DRY_RUN= CHECK_ONLY=",
        f"exec {shlex.join([sys.executable, os.path.abspath(__file__), name, *added])}",
    ]
    return "\n".join(lines) + "\n"


def submit(script: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    answer = subprocess.run(["sbatch", str(file)], capture_output=True, text=True)
    if answer.returncode != 0:
        raise Refused(f"sbatch refused {file}: {(answer.stderr or answer.stdout).strip()}")
    print(answer.stdout.strip())


def start_ray(gpus: float) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    address = os.environ.get("RAY_ADDRESS")
    # "local": a Ray of our own, not one that happens to run on this machine.
    ray.init(address=address) if address else ray.init(
        address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    launching.stop_on_signals()  # ray.init has installed its own handler
    if ray.cluster_resources().get("GPU", 0) < gpus:
        raise Refused(f"Ray at {address or 'this machine'} has no GPU. No run was started.")


def train_grid(
    jobs: list[Job], how: training.How, gpus: float, at_once: int
) -> list[tuple[Job, str]]:
    """Trains the runs as Ray tasks.

    Args:
        gpus: for each run; 0 to train on the CPU.
        at_once: the most runs that are trained at the same time.

    Returns:
        The runs that did not finish, each with the reason.
    """
    import ray

    waiting, running, failed = list(jobs), {}, []
    try:
        start_ray(gpus)
        task = ray.remote(num_gpus=gpus, num_cpus=0 if gpus else 1, max_retries=0)(training.train)
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[task.remote(*job, how)] = job
            for reference in ray.wait(list(running))[0]:
                job = running.pop(reference)
                reason = reason_of(reference)
                if reason:
                    failed.append((job, reason))
                done = len(jobs) - len(waiting) - len(running)
                report_end(job, reason, f"{done} of {len(jobs)}")
    finally:
        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=3 * training.SECONDS_TO_END)
        ray.shutdown()
    return failed


def reason_of(reference: Any) -> str:
    """Why the run of this ray.ObjectRef did not finish, or an empty string."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # an OSError of training.train
        return f"not trained: {str(error).strip().splitlines()[-1]}"
    except ray.exceptions.RayError as error:
        return f"lost by Ray: {str(error).strip().splitlines()[-1]}"


def report_end(job: Job, reason: str, count: str) -> None:
    run, folder = job
    value = results.last_return(folder)
    finished = "finished" if value is None else f"finished, return {value:.2f}"
    print(f"{time.strftime('%H:%M:%S')} {count}: {run.name} {reason or finished}", flush=True)


def report(failed: list[tuple[Job, str]]) -> str:
    parts = []
    for (run, folder), reason in failed:
        if reason == training.ELSEWHERE:
            parts.append(f"  - {run.name}: {reason}.")
            continue
        log = folder / results.LOG
        text = log.read_text(errors="replace") if log.is_file() else ""
        lines = re.split(r"[\r\n]+", text.strip())[-LINES_OF_LOG:]
        tail = [f"      {line[-200:]}" for line in lines if line.strip()]
        parts.append("\n".join([f"  - {run.name}: {reason}. The end of {log}:", *tail]))
    return (
        f"Runs that are not finished: {len(failed)}\n"
        + "\n".join(parts)
        + "\nRepeating the command skips finished runs and starts these over; with RESUME=1 it "
        "resumes them from their last checkpoints."
    )


def launch(name: str, added: list[str]) -> None:
    experiment = runs.EXPERIMENTS[name]
    settings, gpus, index = read_settings(name, experiment)
    refuse_if_any(preflight.flag_problems(name, added))
    output = launching.output_folder(experiment.compares_time)
    jobs = [(run, output / run.name) for run in runs.runs(experiment, settings, added)]
    if index is not None:
        if index >= len(jobs):
            refuse_if_any([f"RUN_INDEX={index}: this grid has runs 0 to {len(jobs) - 1}."])
        jobs = [jobs[index]]
    python, cpu = python_that_trains(), preflight.on_cpu(added)
    how = training.How(CHECKOUT, python, is_on("WANDB"), is_on("RESUME"))
    at_once = 1 if experiment.compares_time else None
    engine = "slurm" if is_on("SLURM") else "ray" if index is None else "alone"
    script = slurm_script(name, added, jobs, cpu, at_once) if engine == "slurm" else ""
    if is_on("DRY_RUN"):
        return print(script, end="") if script else print_commands(jobs, how)
    python_to_check = None if is_on("ENVIRONMENT_TO_COME") else python
    problems, prefix = preflight.find_problems(jobs, CHECKOUT, python_to_check, engine, cpu)
    refuse_if_any(problems)
    if is_on("CHECK_ONLY"):
        return
    left = [job for job in jobs if not results.is_finished(job[1])]
    if left and engine == "slurm":
        return submit(script, output / f"{name}.sbatch")
    if left and engine == "ray":
        if prefix != sys.prefix:  # Ray's tasks run in the driver's Python
            os.execvp(python, [python, os.path.abspath(__file__), name, *added])
        files = f"{results.LOG} and {runs.CURVES}"
        print(
            f"{len(left)} of {len(jobs)} runs to train, in {output}; each writes {files}",
            flush=True,
        )
        failed = train_grid(left, how, 0 if cpu else gpus, at_once or len(left))
    else:
        failed = [(job, reason) for job in left if (reason := training.train(*job, how))]
    lines = results.time_lines if experiment.compares_time else results.return_lines
    print(f"\nRuns of {name} in {output}:\n" + "\n".join(lines([folder for _, folder in jobs])))
    if failed:
        raise Refused("\n" + report(failed))


if __name__ == "__main__":
    after_stop = (
        "; nothing is left running. Repeating the command skips finished runs and starts the "
        "others over; with RESUME=1 it resumes them from their last checkpoints."
    )
    sys.exit(launching.main(__doc__, runs.EXPERIMENTS, launch, after_stop))
