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

import argparse
import json
import math
import os
import shlex
import subprocess
import zipfile
from pathlib import Path

import launching
import runs

from results import epochs_done

CHECKPOINT = "last.pth.tar"
SCRIPTS = ("distributed_train.sh", "train.py")
MODULES = ("torch", "torchvision", "yaml", "safetensors", "huggingface_hub", "numpy", "PIL")
CIFAR10_FOLDER = "cifar-10-batches-py"  # torchvision's
CIFAR10_CLASSES = 10
CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
# The names under which timm looks for a split. If it finds none it silently takes the data folder.
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "eval", "evaluation"),
}
IMAGENET_CLASSES = 1000
RESNET50_CLASSES = 1000  # outputs without --num-classes

# Flags of train.py that launch.py sets, and what chooses their values.
OWN_FLAGS = {
    "--data-dir": "DATA_DIR does",
    "--era-floor": "H0 does, by timm.layers.calibrate_min_entropy",
    "--era-min-entropy": "H0 does",
    "--experiment": "the name of the run does",
    "--num-classes": "NUM_CLASSES does",
    "--output": "OUTPUT does",
    "--resume": "an unfinished run is resumed automatically",
    "--seed": "SEED does",
}
# Flags of train.py on which the checks depend: type, and default there.
READ_FLAGS = {
    "--data-dir": (str, ""),
    "--dataset": (str, ""),
    "--device": (str, "cuda"),
    "--epochs": (int, 300),
    "--era-min-entropy": (float, None),
    "--era-tau": (float, 4.0),
    "--model": (str, "resnet50"),
    "--num-classes": (int, None),
    "--train-split": (str, "train"),
    "--val-split": (str, "validation"),
}

Job = tuple[runs.Run, Path, int]  # its folder, and the epochs that it is to have


def flags_of(command: tuple[str, ...]) -> argparse.Namespace:
    """READ_FLAGS; as in train.py the last of each wins."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag, (kind, default) in READ_FLAGS.items():
        parser.add_argument(flag, type=kind, default=default)
    return parser.parse_known_args(command[2:])[0]


def wanted_epochs(run: runs.Run, experiment: runs.Experiment) -> int:
    scheduled = flags_of(run.command).epochs
    return min(scheduled, experiment.stop_after or scheduled)


def ask_python(python: str) -> dict | None:
    """Asks the environment that trains.

    Returns:
        `lacks`, a list of modules, and `scripts`, the folder of torchrun or ''; None if there is no
        such Python.
    """
    code = (
        "import importlib.util, json, os, sys, sysconfig\n"
        f"lacks = [name for name in {MODULES!r} if importlib.util.find_spec(name) is None]\n"
        "folders = [os.path.dirname(sys.executable), sysconfig.get_path('scripts')]\n"
        "found = [each for each in folders if os.access(os.path.join(each, 'torchrun'), os.X_OK)]\n"
        "print(json.dumps({'lacks': lacks, 'scripts': ''.join(found[:1])}))"
    )
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=300)
        return json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None


def environment_problems(python: str) -> list[str]:
    answer = ask_python(python)
    if answer is None:
        return [
            f"environment: there is no Python that starts at {python}. Activate the environment "
            "that trains, or set PYTHON to its python."
        ]
    if answer["lacks"]:
        return [
            f"environment: {python} lacks {', '.join(answer['lacks'])}. Activate the environment "
            "that trains, or set PYTHON to its python; `make vision-...` makes one."
        ]
    if not answer["scripts"]:
        return [
            f"environment: {python} has torch but no torchrun among its scripts, which "
            "distributed_train.sh starts. Install torch again there, or set PYTHON to another "
            "environment's python."
        ]
    return []


def checkout_problems(checkout: Path) -> list[str]:
    lacks = [name for name in SCRIPTS if not (checkout / name).is_file()]
    if not lacks:
        return []
    return [
        f"checkout: {checkout} has no {' and no '.join(lacks)}, because it was made from the "
        "source package, which lacks them. Make it from git: python apply.py apply timm "
        "--source git --checkouts <an empty folder>."
    ]


def gpu_problems(flags: argparse.Namespace, gpus: int) -> list[str]:
    if flags.device == "cpu" and gpus > 1:
        return [
            "GPUs: train.py cannot train in several processes on a CPU (it hands "
            f"DistributedDataParallel device_ids). Set GPUS=1 instead of {gpus}."
        ]
    found = launching.local_gpus() if flags.device.startswith("cuda") else gpus
    if found >= gpus:
        return []
    return [
        f"GPUs: the run wants {gpus} (GPUS), this machine has {found}. GPUS chooses, but the batch "
        "is 64 per GPU and the learning rate is fixed: with another number than 4 it is not the "
        "paper's experiment."
    ]


def has_cifar10(folder: Path) -> bool:
    return all((folder / CIFAR10_FOLDER / name).is_file() for name in CIFAR10_FILES)


def outputs(flags: argparse.Namespace) -> int | None:
    """Of the classifier; None if only train.py knows."""
    return flags.num_classes or (RESNET50_CLASSES if flags.model == "resnet50" else None)


def data_problems(flags: argparse.Namespace, checkout: Path, dataset: str, download: bool) -> list[str]:
    folder = checkout / flags.data_dir
    if flags.dataset == "torch/cifar10":
        return cifar10_problems(flags, folder, download)
    return [] if flags.dataset else folder_of_images_problems(flags, folder, dataset)


def cifar10_problems(flags: argparse.Namespace, folder: Path, download: bool) -> list[str]:
    if flags.num_classes is not None and flags.num_classes < CIFAR10_CLASSES:
        return [
            f"data: CIFAR-10 has {CIFAR10_CLASSES} classes, the model {flags.num_classes} outputs. "
            f"Set NUM_CLASSES={CIFAR10_CLASSES}."
        ]
    if download or has_cifar10(folder):
        return []
    return [
        f"data: no CIFAR-10 in {folder} (no complete {CIFAR10_FOLDER}/), and DOWNLOAD=0. Put "
        f"torchvision's {CIFAR10_FOLDER} there, set DATA_DIR, or leave DOWNLOAD out on a machine "
        "with network."
    ]


def folder_of_images_problems(flags: argparse.Namespace, folder: Path, dataset: str) -> list[str]:
    classes, problems = {}, []
    for split, wanted in (("train", flags.train_split), ("validation", flags.val_split)):
        names = dict.fromkeys((wanted, *SPLITS[split]))
        found = next((folder / name for name in names if (folder / name).is_dir()), None)
        if found is None:
            others = ", ".join(list(names)[1:])
            problems.append(
                f"data: no {folder}/{wanted} (timm also takes {others}) with a folder of images "
                "per class. Set DATA_DIR to the folder that has it."
            )
        else:
            classes[split] = {entry.name for entry in os.scandir(found) if entry.is_dir()}
    if problems:
        return problems
    if classes["train"] != classes["validation"]:
        return [
            f"data: {folder}: the training images are in {len(classes['train'])} class folders and "
            f"the validation images in {len(classes['validation'])}, or in others; timm numbers "
            "the classes of each by these names, so they must be the same. ImageNet's validation "
            "images come without class folders: sort them into some first."
        ]
    count, most = len(classes["train"]), outputs(flags)
    expected = flags.num_classes or IMAGENET_CLASSES
    if dataset == runs.IMAGENET and count != expected:
        return [
            f"data: {folder} has {count} classes, {expected} expected. Complete it, or set "
            f"NUM_CLASSES={count} if it is another data set."
        ]
    if most is not None and count > most:
        return [f"data: {folder} has {count} classes, the model {most} outputs. Set NUM_CLASSES={count}."]
    return []


def era_problems(flags: argparse.Namespace) -> list[str]:
    """Whether H0 is feasible, by the bounds of timm/layers/era.py, which would need torch."""
    n, tau = outputs(flags), flags.era_tau
    if flags.era_min_entropy is None or n is None or n < 2 or not math.e <= tau < math.inf:
        return []
    low, high = (1 + math.log(count * math.log(tau) / tau) for count in (1, n))
    if low < flags.era_min_entropy < high:
        return []
    return [
        f"ERA: H0={flags.era_min_entropy:g} is not feasible for {n} classes and tau={tau:g}: it "
        f"must lie strictly between {low:.4f} and {high:.4f} nats."
    ]


def without_data_dir(command: list[str]) -> list[str]:
    """The words that must be the same when a run is resumed; the data may have moved."""
    if "--data-dir" not in command:
        return command
    at = command.index("--data-dir")
    return [*command[:at], *command[at + 2 :]]


def folder_problems(run: runs.Run, folder: Path, wanted: int) -> list[str]:
    """Whether the run's folder holds this run, with an intact checkpoint to go on from."""
    checkpoint, done = folder / CHECKPOINT, epochs_done(folder)
    if not checkpoint.exists() and done == 0:
        return []
    problems = launching.command_problems(run.name, folder, run.command, without_data_dir)
    if problems or done >= wanted:
        return problems
    if checkpoint.exists() and not zipfile.is_zipfile(checkpoint):
        return [
            f"{run.name}: {checkpoint} is cut off. Replace it by one of the "
            f"checkpoint-<epoch>.pth.tar beside it, or move {folder} away."
        ]
    # After one epoch alone it may have been killed before its first checkpoint: train it again.
    if not checkpoint.exists() and done > 1:
        newest = newest_checkpoint(folder)
        copy = newest and shlex.join(["cp", str(newest), str(checkpoint)])
        return [
            f"{run.name}: {folder} has {done} epochs and no {CHECKPOINT} to go on from. "
            + (f"Go on from the newest one: {copy}. Or move" if copy else "Move")
            + " the folder away to begin again."
        ]
    return []


def newest_checkpoint(folder: Path) -> Path | None:
    """Other than last.pth.tar. timm deletes that one before it renames tmp.pth.tar to it."""
    numbered = sorted(folder.glob("checkpoint-*.pth.tar"), key=lambda file: (len(file.name), file))
    whole = [file for file in (*numbered, folder / "tmp.pth.tar") if zipfile.is_zipfile(file)]
    return whole[-1] if whole else None


def flag_problems(added: list[str]) -> list[str]:
    """train.py takes unique beginnings of a flag; here the flags that matter must be in full."""
    given = dict.fromkeys(word.partition("=")[0] for word in added)
    problems = [f"ARGS: {flag} cannot be set here: {OWN_FLAGS[flag]}." for flag in OWN_FLAGS if flag in given]
    for short in given:
        if short in READ_FLAGS or len(short) < 3:
            continue
        for flag in {**READ_FLAGS, **OWN_FLAGS}:
            if flag != short and flag.startswith(short):
                own = (
                    f", which cannot be set here: {OWN_FLAGS[flag]}" if flag in OWN_FLAGS else f". Write {flag} in full"
                )
                problems.append(f"ARGS: {short} is short for {flag}{own}.")
    try:
        if flags_of(("", "", *added)).epochs < 1:
            problems.append("ARGS: --epochs must be at least 1.")
    except argparse.ArgumentError as error:
        problems.append(f"ARGS: {error}.")
    return problems


def find_problems(
    dataset: str, jobs: list[Job], checkout: Path, python: str | None, gpus: int, download: bool
) -> list[str]:
    """All problems, each once.

    Args:
        python: of the environment that trains; None if that is still to be made.
    """
    problems = checkout_problems(checkout)
    if python is not None:
        problems += environment_problems(python)
    for run, folder, epochs in jobs:
        flags = flags_of(run.command)
        problems += gpu_problems(flags, gpus)
        problems += data_problems(flags, checkout, dataset, download)
        problems += era_problems(flags)
        problems += folder_problems(run, folder, epochs)
    return list(dict.fromkeys(problems))  # most are the same for all runs
