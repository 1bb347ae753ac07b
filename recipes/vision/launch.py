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
"""python launch.py EXPERIMENT [flags of train.py]: trains the paper's image classifiers in turn.

Repeating the command skips finished runs and resumes the others from their last checkpoints. Your
flags come after the run's own and win. Settings come from the environment:

  GPUS, DATA_DIR     4, and ../data from the checkout (ImageNet: ../data/imagenet), as in the paper
  OUTPUT             folder of the runs: output/era in the checkout
  SEED               one or several: "42 43 44"
  H0                 one or several in nats, in place of the experiment's: "0.3 0.6 0.9"
  AUG                1 or 0: with or without augmentation, where the paper does not say
  NUM_CLASSES        adds --num-classes; the paper's commands leave ResNet-50 its 1,000 outputs,
                     even on CIFAR-10
  EPOCHS             stop after this many epochs; the schedule does not change
  DOWNLOAD           0: never download CIFAR-10
  PYTHON             of the environment that trains: python3
  DRY_RUN=1          print the commands and stop
  CHECK_ONLY=1       say what is missing and stop
"""

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import launching
import preflight
import run_json
import runs
from launching import CHECKOUT, Refused, is_on, refuse_if_any

import results

EPOCH_BEGINS = re.compile(r"Train: (\d+) \[")
SECONDS_TO_END = 60
PACKAGES = ("torch", "torchvision", "numpy")
# Flags of train.py that change nothing in what is trained.
HARMLESS = (
    *("-j", "--workers", "--log-interval", "--recovery-interval"),
    *("--checkpoint-hist", "--pin-mem"),
)

Job = preflight.Job


def read_settings(name: str, experiment: runs.Experiment) -> runs.Settings:
    positive = launching.checked(int, lambda number: number > 0)
    parsers = {
        "GPUS": (positive, "a number of GPUs"),
        "SEED": launching.SEEDS,
        "H0": (
            launching.several(launching.checked(float, math.isfinite)),
            "one or several numbers (nats)",
        ),
        "AUG": (launching.checked(str, ("0", "1").__contains__), "0 or 1"),
        "NUM_CLASSES": (positive, "a number of classes"),
        "EPOCHS": (positive, "a number of epochs"),
    }
    values, problems = launching.read_variables(parsers)
    if "H0" in values and not any(variant.is_era for variant in experiment.variants):
        problems.append(f"H0={os.environ['H0']}: {name} trains without ERA. Use {name}-era.")
    if "AUG" in values and not experiment.free_aug:
        paper = "with" if experiment.aug else "without"
        problems.append(f"AUG={values['AUG']}: {name} is {paper} augmentation in the paper. Leave AUG out.")
    refuse_if_any(problems)
    data_dir = os.environ.get("DATA_DIR")
    return runs.Settings(
        gpus=values.get("GPUS", 4),
        data_dir=os.path.abspath(data_dir) if data_dir else None,
        seeds=values.get("SEED"),
        min_entropies=values.get("H0"),
        aug=values["AUG"] == "1" if "AUG" in values else None,
        num_classes=values.get("NUM_CLASSES"),
        epochs=values.get("EPOCHS"),
    )


def plan(name: str, settings: runs.Settings, added: list[str]) -> list[Job]:
    """The experiment's runs, each with its folder and the epochs it is to have."""
    experiment = runs.with_settings(runs.EXPERIMENTS[name], settings)
    output = launching.output_folder(experiment.compares_time)
    jobs = [
        (run, output / run.name, preflight.wanted_epochs(run, experiment))
        for run in runs.runs(experiment, settings, added)
    ]
    longest = max(epochs for *_, epochs in jobs)
    if settings.epochs and settings.epochs > longest:
        longer = f'ARGS="--epochs {settings.epochs}", with an OUTPUT of its own'
        refuse_if_any([f"EPOCHS={settings.epochs}: the schedule has {longest}. For a longer one: {longer}."])
    return jobs


def train_command(run: runs.Run, folder: Path) -> list[str]:
    command = [*run.command, "--output", str(folder.parent), "--experiment", folder.name]
    checkpoint = folder / preflight.CHECKPOINT
    return [*command, "--resume", str(checkpoint)] if checkpoint.exists() else command


def scripts_folder(python: str) -> str:
    """The folder of the environment's torchrun; beside its Python where that does not start."""
    answer = preflight.ask_python(python)
    return (answer and answer["scripts"]) or os.path.dirname(shutil.which(python) or python)


def print_commands(jobs: list[Job], python: str) -> None:
    scripts = scripts_folder(python)
    path = f'PATH={shlex.quote(scripts)}:"$PATH" ' if scripts else ""
    infeasible = []
    finished = sum(results.epochs_done(folder) >= epochs for _, folder, epochs in jobs)
    print(f"{len(jobs)} runs, {finished} of them finished:", file=sys.stderr)
    for run, folder, epochs in jobs:
        flags = preflight.flags_of(run.command)
        infeasible += preflight.era_problems(flags)
        if results.epochs_done(folder) >= epochs:
            print(f"# {run.name} is finished")
            continue
        command = f"PET_STANDALONE=1 {shlex.join(train_command(run, folder))}"
        stop = f"  # is stopped after {epochs} epochs" if epochs < flags.epochs else ""
        print(f"cd {shlex.quote(str(CHECKOUT))} && {path}{command}{stop}")
    for problem in dict.fromkeys(preflight.checkout_problems(CHECKOUT) + infeasible):
        print(f"note: {problem}", file=sys.stderr)


def download_cifar10(folder: Path, python: str) -> None:
    """In one process, before torchrun's, which would all write the same archive at once."""
    print(f"downloading CIFAR-10 into {folder} ...", flush=True)
    code = "import sys; from torchvision.datasets import CIFAR10 as C; C(sys.argv[1], download=True)"
    answer = subprocess.run([python, "-c", code, folder], capture_output=True, text=True)
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Refused(
            f"CIFAR-10 could not be downloaded into {folder}: {reason}. If this machine has no "
            f"network, copy torchvision's {preflight.CIFAR10_FOLDER} there from another one, or "
            "set DATA_DIR. No run was started."
        )


def about(settings: runs.Settings, added: list[str]) -> dict[str, Any]:
    """What the launch knows of its runs, for run.json."""
    is_as_paper = run_json.is_as_paper(added, HARMLESS) and settings.gpus == runs.Settings().gpus
    return {
        "added": added,
        "as_paper": is_as_paper and settings.num_classes is None,
        **run_json.code(CHECKOUT),
    }


def record_of(run: runs.Run, epochs: int, python: str, known: dict[str, Any]) -> dict[str, Any]:
    """The run.json of a run that starts now. epochs: of the whole run, whatever EPOCHS says."""
    name, _, seed = run.name.rpartition("-seed")
    dataset, _, agent = name.partition("-")
    known = {**known, **run_json.described_by(python, PACKAGES)}
    command = list(run.command)
    return run_json.begin("timm", dataset, int(seed), epochs, (), agent=agent or "baseline", command=command, **known)


def train(run: runs.Run, folder: Path, epochs: int, python: str, record: dict[str, Any]) -> None:
    """Trains until the run's summary has `epochs` epochs. Its output goes into log.txt too."""
    folder.mkdir(parents=True, exist_ok=True)
    summary, log_file = folder / results.SUMMARY, folder / results.LOG
    environment = {
        **os.environ,
        "PATH": f"{scripts_folder(python)}{os.pathsep}{os.environ['PATH']}",
        "PET_STANDALONE": "1",  # torchrun takes a free port, so that runs can share a node
    }
    with launching.only_one(folder) as lock, log_file.open("a") as log:
        if lock is None:
            raise Refused(
                f"{folder}: another launch is training this run. Wait for it or end it (after a "
                "kill -9 of the launch, its torchrun goes on alone)."
            )
        results.tidy_summary(summary)
        command = train_command(run, folder)
        (folder / launching.COMMAND).write_text(shlex.join(run.command) + "\n")
        run_json.start(folder, record)
        # torchrun inherits the lock: if this process is killed alone, training goes on.
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=[lock],
        )
        try:
            for line in process.stdout:
                for stream in (sys.stdout, log):
                    stream.write(line)
                    stream.flush()
                begun = EPOCH_BEGINS.match(line)
                if begun and int(begun[1]) >= epochs:  # the last wanted epoch has its checkpoint
                    break
            else:
                process.wait()
        finally:
            if process.poll() is None:
                launching.end(process, SECONDS_TO_END)
            results.tidy_summary(summary)
    done = results.epochs_done(folder)
    if done >= record["total_steps"]:
        run_json.finish(folder, record)
    if done < epochs:
        again = "resumes it from its last checkpoint" if done else "starts it over"
        raise Refused(
            f"{run.name} ended with exit code {process.returncode} after {done} of {epochs} epochs."
            f" Its output is in {log_file}. Repeating the command {again} and skips finished runs."
        )


def launch(name: str, added: list[str]) -> None:
    experiment = runs.EXPERIMENTS[name]
    settings = read_settings(name, experiment)
    refuse_if_any(preflight.flag_problems(added))
    jobs = plan(name, settings, added)
    python = os.environ.get("PYTHON") or "python3"
    download = os.environ.get("DOWNLOAD") != "0"
    if is_on("DRY_RUN"):
        return print_commands(jobs, python)
    python_to_check = None if is_on("ENVIRONMENT_TO_COME") else python
    refuse_if_any(preflight.find_problems(experiment.dataset, jobs, CHECKOUT, python_to_check, settings.gpus, download))
    if is_on("CHECK_ONLY"):
        return
    left = [job for job in jobs if results.epochs_done(job[1]) < job[2]]
    known = about(settings, added)
    for number, (run, folder, epochs) in enumerate(left, 1):
        flags = preflight.flags_of(run.command)
        data = CHECKOUT / flags.data_dir
        if flags.dataset == "torch/cifar10" and not preflight.has_cifar10(data):
            download_cifar10(data, python)
        is_resumed = (folder / preflight.CHECKPOINT).exists()
        resumed = f", resumed after epoch {results.epochs_done(folder)}" if is_resumed else ""
        print(
            f"== {run.name} ({number} of {len(left)} to train): {epochs} epochs{resumed}, in {folder}",
            flush=True,
        )
        total = experiment.stop_after if experiment.compares_time else flags.epochs
        train(run, folder, epochs, python, record_of(run, total, python, known))
    folders = [folder for _, folder, _ in jobs]
    if experiment.compares_time:
        lines = results.time_lines(folders)
    else:
        lines = results.accuracy_lines(folders, max(epochs for *_, epochs in jobs))
    print(f"\nRuns of {name} in {folders[0].parent}:\n" + "\n".join(lines))


if __name__ == "__main__":
    after_stop = ". Repeat the command to resume from the last checkpoint."
    sys.exit(launching.main(__doc__, runs.EXPERIMENTS, launch, after_stop))
