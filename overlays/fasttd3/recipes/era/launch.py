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
"""python launch.py EXPERIMENT [flags of train.py]: the paper's runs of FastTD3 and FastSAC-ERA, as Ray tasks on this machine's GPUs.

Finished runs are skipped, so the same command again goes on. Interrupted ones begin anew: FastTD3's checkpoints hold neither
the replay buffer nor the optimizers' states. The flags come after those of the run and win. From the environment:

  TASKS, SEED, AGENT   a part of the experiment, one or several of each: "h1hand-walk-v0 h1hand-run-v0", "1 2", "fastsac_era"
  OUTPUT               folder of the runs: output/era in the checkout
  GPUS_PER_RUN         below 1 several runs share a GPU: 1
  CUDA_VISIBLE_DEVICES the GPUs that are used: all
  RAY_ADDRESS          of a Ray cluster that is there already, with the same files at the same places
  SLURM=1              submit a Slurm array instead, a job for each run; sbatch takes SBATCH_PARTITION, SBATCH_TIMELIMIT, ...
  RESUME=1             go on with interrupted runs from their last checkpoint all the same
  WANDB=1              log to wandb too
  PYTHON               of the environment that trains, with Ray: python3
  RUN_INDEX            train only this run of the grid, from 0, without Ray; the jobs of the Slurm array do
  DRY_RUN=1            print the commands and stop
  CHECK_ONLY=1         say what is missing and stop
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import preflight
import results
import runs
import training

CHECKOUT = Path(__file__).resolve().parent.parent.parent
GIVEN = (
    "TASKS",
    "SEED",
    "AGENT",
    "OUTPUT",
    "RESUME",
    "WANDB",
    "PYTHON",
)  # what the jobs of a Slurm array must have too
LINES_OF_LOG = 12

Job = Tuple[runs.Run, Path]

# Signals that asked to end. Not told by the exception: Ray's calls raise a KeyboardInterrupt of their own in its place.
asked_to_end: List[int] = []


class Refused(Exception):
    """Ends the launch with its message."""


def is_on(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def refuse_if_any(problems: List[str]) -> None:
    if problems:
        raise Refused(
            "This cannot start; nothing was changed:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )


def read_settings(
    name: str, experiment: runs.Experiment
) -> Tuple[runs.Settings, float, Optional[int]]:
    """From the environment, with GPUS_PER_RUN and RUN_INDEX. An empty variable is one that is not given."""
    problems, values = [], {"GPUS_PER_RUN": 1.0}

    def read(
        variable: str, parse: Callable[[str], Any], fits: Callable[[Any], bool], expected: str
    ) -> None:
        text = os.environ.get(variable, "").strip()
        if not text:
            return
        try:
            values[variable] = parse(text)
            fine = fits(values[variable])
        except ValueError:
            fine = False
        if not fine:
            problems.append(f"{variable}={text}: {expected} expected.")

    agents = [agent.name for agent in experiment.agents]
    several = lambda text, parse=str: tuple(dict.fromkeys(map(parse, text.split())))
    read(
        "TASKS",
        several,
        lambda tasks: all(re.fullmatch(r"(h1|h1hand|Gym)-\w[\w-]*-v\d+", task) for task in tasks),
        "tasks like h1hand-walk-v0 or Gym-Reacher-v4",
    )
    read(
        "SEED",
        lambda text: several(text, int),
        lambda seeds: all(0 <= seed < 2**32 for seed in seeds),
        "one or several integers from 0 to 2**32 - 1",
    )
    read(
        "AGENT",
        several,
        lambda names: set(names) <= set(agents),
        f"one or several of {name}'s, {', '.join(agents)},",
    )
    read("GPUS_PER_RUN", float, lambda share: 0 < share <= 1, "a number above 0, up to 1,")
    read("RUN_INDEX", int, lambda index: index >= 0, "a number from 0")
    if is_on("SLURM") and values["GPUS_PER_RUN"] != 1:
        problems.append("GPUS_PER_RUN: SLURM=1 gives each run a GPU of its own. Leave it out.")
    if is_on("SLURM") and "RUN_INDEX" in values:
        problems.append(
            "RUN_INDEX: SLURM=1 gives each job the index of its run. Leave it out; TASKS, SEED and AGENT choose a part of the grid."
        )
    refuse_if_any(problems)
    return (
        runs.Settings(values.get("TASKS"), values.get("SEED"), values.get("AGENT")),
        values["GPUS_PER_RUN"],
        values.get("RUN_INDEX"),
    )


def python_that_trains() -> str:
    """PYTHON; a path from the current folder is made absolute, as runs start in their own."""
    python = os.environ.get("PYTHON") or "python3"
    return os.path.abspath(python) if os.sep in python else python


def output_folder(experiment: runs.Experiment) -> Path:
    output = (
        Path(os.path.abspath(os.environ["OUTPUT"]))
        if os.environ.get("OUTPUT")
        else results.DEFAULT_FOLDER
    )
    return output / results.TIME_FOLDER if experiment.compares_time else output


def print_commands(jobs: List[Job], how: training.How) -> None:
    for run, folder in jobs:
        if results.is_finished(folder):
            print(f"# {run.name} is finished")
            continue
        path = training.variables(how.checkout)["PYTHONPATH"]
        before = f"PYTHONPATH={shlex.quote(path)} " if path else ""
        at = shlex.quote(str(folder))
        print(f"mkdir -p {at} && cd {at} && {before}{shlex.join(training.words(run, folder, how))}")


def slurm_script(
    name: str, added: List[str], jobs: List[Job], cpu: bool, at_once: Optional[int]
) -> str:
    left = [str(index) for index, (_, folder) in enumerate(jobs) if not results.is_finished(folder)]
    output = jobs[0][1].parent
    given = {
        **{key: os.environ[key] for key in GIVEN if os.environ.get(key)},
        "PYTHON": python_that_trains(),
        "OUTPUT": str(results.DEFAULT_FOLDER),
    }
    if os.environ.get("OUTPUT"):
        given["OUTPUT"] = os.path.abspath(os.environ["OUTPUT"])
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=era-{name}",
        f"#SBATCH --array={','.join(left)}" + (f"%{at_once}" if at_once else ""),
        *([] if cpu else ["#SBATCH --gres=gpu:1"]),
        f"#SBATCH --output={shlex.quote(str(output / 'slurm-%A_%a.txt'))}",
        *(f"export {key}={shlex.quote(value)}" for key, value in given.items()),
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


def train_grid(
    jobs: List[Job], how: training.How, gpus: float, at_once: int
) -> List[Tuple[Job, str]]:
    """By Ray. gpus: of each run; 0 for a CPU. Returns the runs that are not finished at the end, each with the reason."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    address = os.environ.get("RAY_ADDRESS")
    # "local": a Ray of our own, not one that happens to run on this machine.
    ray.init(address=address) if address else ray.init(
        address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    stop_on_signals()  # ray.init has put its own handler in place
    task = ray.remote(num_gpus=gpus, num_cpus=0 if gpus else 1, max_retries=0)(training.train)
    waiting, running, failed = list(jobs), {}, []
    try:
        if ray.cluster_resources().get("GPU", 0) < gpus:
            raise Refused(f"Ray at {address or 'this machine'} has no GPU. No run was started.")
        while waiting or running:
            while waiting and len(running) < at_once:
                run, folder = waiting.pop(0)
                running[task.remote(run, folder, how)] = run, folder
            for reference in ray.wait(list(running))[0]:
                run, folder = running.pop(reference)
                try:
                    reason = ray.get(reference)
                except ray.exceptions.RayError as error:
                    what = (
                        "not trained"
                        if isinstance(error, ray.exceptions.RayTaskError)
                        else "lost by Ray"
                    )  # the first: by its own OSError
                    reason = f"{what}: {str(error).strip().splitlines()[-1]}"
                if reason:
                    failed.append(((run, folder), reason))
                value = results.last_return(folder)
                said = reason or "finished" + (f", return {value:.2f}" if value is not None else "")
                print(
                    f"{time.strftime('%H:%M:%S')} {len(jobs) - len(waiting) - len(running)} of {len(jobs)}: {run.name} {said}",
                    flush=True,
                )
    finally:
        for reference in running:
            ray.cancel(reference)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=3 * training.SECONDS_TO_END)
        ray.shutdown()
    return failed


def report(failed: List[Tuple[Job, str]]) -> str:
    parts = []
    for (run, folder), reason in failed:
        if reason == training.ELSEWHERE:
            parts.append(f"  - {run.name}: {reason}.")
            continue
        log = folder / results.LOG
        text = log.read_text(errors="replace") if log.is_file() else ""
        tail = [
            f"      {line[-200:]}"
            for line in re.split(r"[\r\n]+", text.strip())[-LINES_OF_LOG:]
            if line.strip()
        ]
        parts.append("\n".join([f"  - {run.name}: {reason}. The end of {log}:", *tail]))
    return (
        f"Runs that are not finished: {len(failed)}\n"
        + "\n".join(parts)
        + "\nThe same command again skips finished runs and begins these anew; "
        "with RESUME=1 it goes on from their last checkpoints."
    )


def launch(name: str, added: List[str]) -> None:
    experiment = runs.EXPERIMENTS[name]
    settings, gpus, index = read_settings(name, experiment)
    refuse_if_any(preflight.flag_problems(name, added))
    output = output_folder(experiment)
    jobs = [(run, output / run.name) for run in runs.runs(experiment, settings, added)]
    if index is not None:
        refuse_if_any(
            [f"RUN_INDEX={index}: this grid has runs 0 to {len(jobs) - 1}."]
            if index >= len(jobs)
            else []
        )
        jobs = [jobs[index]]
    python, cpu = python_that_trains(), preflight.on_cpu(added)
    how = training.How(CHECKOUT, python, is_on("WANDB"), is_on("RESUME"))
    engine = "slurm" if is_on("SLURM") else "ray" if index is None else "alone"
    script = (
        slurm_script(name, added, jobs, cpu, 1 if experiment.compares_time else None)
        if engine == "slurm"
        else ""
    )
    if is_on("DRY_RUN"):
        return print(script, end="") if script else print_commands(jobs, how)
    problems, prefix = preflight.find_problems(
        jobs, CHECKOUT, python, engine, cpu, is_on("ENVIRONMENT_TO_COME")
    )
    refuse_if_any(problems)
    if is_on("CHECK_ONLY"):
        return
    left = [job for job in jobs if not results.is_finished(job[1])]
    if left and engine == "slurm":
        return submit(script, output / f"{name}.sbatch")
    if left and engine == "ray":
        if prefix != sys.prefix:  # Ray's tasks run in the driver's Python
            os.execvp(python, [python, os.path.abspath(__file__), name, *added])
        print(
            f"{len(left)} of {len(jobs)} runs to train, in {output}; each writes to its {results.LOG} and {runs.CURVES}",
            flush=True,
        )
        failed = train_grid(
            left, how, 0 if cpu else gpus, 1 if experiment.compares_time else len(left)
        )
    else:
        failed = [(job, reason) for job in left if (reason := training.train(*job, how))]
    folders = [folder for _, folder in jobs]
    print(
        f"\nRuns of {name} in {output}:\n"
        + "\n".join(
            (results.time_lines if experiment.compares_time else results.return_lines)(folders)
        )
    )
    if failed:
        raise Refused("\n" + report(failed))


def stop_on_signals() -> None:
    def stop(number: int, frame: Any) -> None:
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not cut the ending short
        asked_to_end.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP on purpose
            signal.signal(number, stop)


def main() -> int:
    name, *added = sys.argv[1:] or [""]
    if {"-h", "--help"} & {name, *added}:
        print(f"{__doc__}\nEXPERIMENT: {', '.join(runs.EXPERIMENTS)}")
        return 0
    if name not in runs.EXPERIMENTS:
        print(
            f"error: no experiment {name!r}. There are: {', '.join(runs.EXPERIMENTS)}. Nothing was changed.",
            file=sys.stderr,
        )
        return 2
    stop_on_signals()
    try:
        launch(name, added)
    except KeyboardInterrupt:
        print(
            f"\nstopped by {signal.Signals(asked_to_end[0]).name}; nothing is left running. The same command again skips finished runs and begins "
            "the others anew; with RESUME=1 it goes on from their last checkpoints.", file=sys.stderr,
        )  # fmt: skip
        return 128 + asked_to_end[0]
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
