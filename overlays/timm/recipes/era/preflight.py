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
"""What a run still lacks, as sentences for the user: all of it is said before anything starts."""

import argparse
import json
import math
import os
import shlex
import subprocess
import zipfile
from pathlib import Path
from typing import Optional

import runs
from results import epochs_done

COMMAND, CHECKPOINT = "command.txt", "last.pth.tar"
SCRIPTS = ("distributed_train.sh", "train.py")
MODULES = ("torch", "torchvision", "yaml", "safetensors", "huggingface_hub", "numpy", "PIL")
CIFAR10_FOLDER = "cifar-10-batches-py"  # torchvision's
CIFAR10_CLASSES = 10
CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
# The names under which timm looks for a split; without any of them it takes the data folder itself, and says nothing.
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
    "--resume": "an unfinished run is resumed by itself",
    "--seed": "SEED does",
}


# Flags of train.py that the checks go by: type, and default there.
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


def flags_of(command: tuple[str, ...]) -> argparse.Namespace:
    """READ_FLAGS, the last of each as in train.py; the rest is left to train.py."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag, (kind, default) in READ_FLAGS.items():
        parser.add_argument(flag, type=kind, default=default)
    return parser.parse_known_args(command[2:])[0]


def wanted_epochs(run: runs.Run, experiment: runs.Experiment) -> int:
    scheduled = flags_of(run.command).epochs
    return min(scheduled, experiment.stop_after or scheduled)


def ask_python(python: str) -> Optional[dict]:
    """Of the environment that trains: `lacks` (modules), `scripts` (folder of torchrun or ''). None: there is no such Python."""
    code = (
        "import importlib.util, json, os, sys, sysconfig\n"
        f"lacks = [name for name in {MODULES!r} if importlib.util.find_spec(name) is None]\n"
        "folders = [os.path.dirname(sys.executable), sysconfig.get_path('scripts')]\n"
        "scripts = next((folder for folder in folders if os.access(os.path.join(folder, 'torchrun'), os.X_OK)), '')\n"
        "print(json.dumps({'lacks': lacks, 'scripts': scripts}))"
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
            f"environment: there is no Python that starts at {python}. Activate the environment that trains, or set PYTHON to its python."
        ]
    if answer["lacks"]:
        return [
            f"environment: {python} lacks {', '.join(answer['lacks'])}. Activate the environment that trains, or set PYTHON to its "
            "python; `make vision-...` makes one."
        ]
    if not answer["scripts"]:
        return [
            f"environment: {python} has torch but no torchrun among its scripts, which distributed_train.sh starts. Install torch again "
            "there, or set PYTHON to another environment's python."
        ]
    return []


def checkout_problems(checkout: Path) -> list[str]:
    lacks = [name for name in SCRIPTS if not (checkout / name).is_file()]
    if not lacks:
        return []
    return [
        f"checkout: {checkout} has no {' and no '.join(lacks)}, because it was made from the source package, which lacks them. "
        "Make it from git: python apply.py apply timm --source git --checkouts <an empty folder>."
    ]


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


def gpu_problems(flags: argparse.Namespace, gpus: int) -> list[str]:
    if flags.device == "cpu" and gpus > 1:
        return [
            "GPUs: train.py cannot train in several processes on a CPU (it hands DistributedDataParallel device_ids). "
            f"Set GPUS=1 instead of {gpus}."
        ]
    found = local_gpus() if flags.device.startswith("cuda") else gpus
    if found >= gpus:
        return []
    return [
        f"GPUs: the run wants {gpus} (GPUS), this machine has {found}. GPUS chooses, but the batch is 64 per GPU and the learning rate "
        "is fixed: another number than 4 is another experiment than the paper's."
    ]


def has_cifar10(folder: Path) -> bool:
    return all((folder / CIFAR10_FOLDER / name).is_file() for name in CIFAR10_FILES)


def outputs(flags: argparse.Namespace) -> Optional[int]:
    """Of the classifier; None where only train.py knows."""
    return flags.num_classes or (RESNET50_CLASSES if flags.model == "resnet50" else None)


def data_problems(
    flags: argparse.Namespace, checkout: Path, dataset: str, download: bool
) -> list[str]:
    folder = checkout / flags.data_dir
    if flags.dataset == "torch/cifar10":
        if flags.num_classes is not None and flags.num_classes < CIFAR10_CLASSES:
            return [
                f"data: CIFAR-10 has {CIFAR10_CLASSES} classes, the model {flags.num_classes} outputs. Set NUM_CLASSES={CIFAR10_CLASSES}."
            ]
        if has_cifar10(folder) or download:
            return []
        return [
            f"data: no CIFAR-10 in {folder} (no whole {CIFAR10_FOLDER}/ there), and DOWNLOAD=0. Put torchvision's {CIFAR10_FOLDER} "
            "there, set DATA_DIR, or leave DOWNLOAD out on a machine with network."
        ]
    if flags.dataset:
        return []  # of a kind that timm alone knows
    found, problems = {}, []
    for split, wished in (("train", flags.train_split), ("validation", flags.val_split)):
        names = [wished, *SPLITS[split]]
        there = next((folder / name for name in names if (folder / name).is_dir()), None)
        if there is None:
            others = ", ".join(name for name in SPLITS[split] if name != wished)
            problems.append(
                f"data: no {folder}/{wished} (timm also takes {others}), with a folder of images per class in it. "
                "Set DATA_DIR to the folder that has it."
            )
        else:
            found[split] = {entry.name for entry in os.scandir(there) if entry.is_dir()}
    if problems:
        return problems
    if found["train"] != found["validation"]:
        return [
            f"data: {folder}: the training images are in {len(found['train'])} class folders and the validation images in "
            f"{len(found['validation'])}, or in others; timm numbers the classes of each by these names, so they must be the same. "
            "ImageNet's validation images come without class folders: sort them into some first."
        ]
    classes, most = len(found["train"]), outputs(flags)
    expected = flags.num_classes or IMAGENET_CLASSES
    if dataset == runs.IMAGENET and classes != expected:
        return [
            f"data: {folder} has {classes} classes, {expected} expected. Complete it, or set NUM_CLASSES={classes} for a data set of its own."
        ]
    if most is not None and classes > most:
        return [
            f"data: {folder} has {classes} classes, the model {most} outputs. Set NUM_CLASSES={classes}."
        ]
    return []


def era_problems(flags: argparse.Namespace) -> list[str]:
    """Whether H0 is feasible, by the bounds of timm/layers/era.py, which needs torch to be asked."""
    n, tau = outputs(flags), flags.era_tau
    if flags.era_min_entropy is None or n is None or n < 2 or not math.e <= tau < math.inf:
        return []
    low, high = (1 + math.log(count * math.log(tau) / tau) for count in (1, n))
    if low < flags.era_min_entropy < high:
        return []
    return [
        f"ERA: H0={flags.era_min_entropy:g} is not feasible for {n} classes and tau={tau:g}: it must lie strictly between "
        f"{low:.4f} and {high:.4f} nats."
    ]


def comparable(command: list[str]) -> list[str]:
    """The words that may not change when a run is resumed: where the data lie may."""
    if "--data-dir" in command:
        at = command.index("--data-dir")
        return [*command[:at], *command[at + 2 :]]
    return command


def differing_words(one: list[str], other: list[str]) -> tuple[str, str]:
    """What is left of both without the words that they have in common at their beginning and end."""
    begin = len(os.path.commonprefix([one, other]))
    one, other = one[begin:], other[begin:]
    end = len(os.path.commonprefix([one[::-1], other[::-1]]))
    return shlex.join(one[: len(one) - end]), shlex.join(other[: len(other) - end])


def folder_problems(run: runs.Run, folder: Path, wanted: int) -> list[str]:
    """What is in the run's folder must be the same run, and whole."""
    checkpoint, record, done = folder / CHECKPOINT, folder / COMMAND, epochs_done(folder)
    if not checkpoint.exists() and done == 0:
        return []
    if not record.is_file():
        return [
            f"{run.name}: {folder} holds a run that was not started from here (no {COMMAND}). Move it away, or choose another OUTPUT."
        ]
    before, now = comparable(shlex.split(record.read_text())), comparable(list(run.command))
    if before != now:
        then, here = differing_words(before, now)
        return [
            f"{run.name}: {folder} holds a run with other flags (then: {then or 'nothing'}; now: {here or 'nothing'}). Give the same ones "
            "to go on with it, or choose another OUTPUT, or move it away."
        ]
    if done >= wanted:
        return []
    if checkpoint.exists() and not zipfile.is_zipfile(checkpoint):
        return [
            f"{run.name}: {checkpoint} is cut off. Put one of the checkpoint-<epoch>.pth.tar beside it in its place, or move {folder} away."
        ]
    if (
        not checkpoint.exists() and done > 1
    ):  # one alone may have been killed before its checkpoint, and is trained again
        newest = newest_checkpoint(folder)
        copy = (
            f"Go on from the newest one: {shlex.join(['cp', str(newest), str(checkpoint)])}. Or move"
            if newest
            else "Move"
        )
        return [
            f"{run.name}: {folder} has {done} epochs and no {CHECKPOINT} to go on from. {copy} the folder away to begin again."
        ]
    return []


def newest_checkpoint(folder: Path) -> Optional[Path]:
    """Other than last.pth.tar, which timm unlinks before it renames tmp.pth.tar to it: a kill in between leaves that one, whole."""
    numbered = sorted(
        folder.glob("checkpoint-*.pth.tar"), key=lambda file: (len(file.name), file.name)
    )
    whole = [file for file in (*numbered, folder / "tmp.pth.tar") if zipfile.is_zipfile(file)]
    return whole[-1] if whole else None


def flag_problems(added: list[str]) -> list[str]:
    """train.py takes the beginning of a flag for it; of those that matter here only the whole is taken."""
    given = dict.fromkeys(word.partition("=")[0] for word in added)
    problems = [
        f"ARGS: {flag} cannot be set here: {OWN_FLAGS[flag]}."
        for flag in OWN_FLAGS
        if flag in given
    ]
    for short in given:
        if short in READ_FLAGS or len(short) < 3:
            continue
        for flag in {**READ_FLAGS, **OWN_FLAGS}:
            if flag != short and flag.startswith(short):
                own = (
                    f", which cannot be set here: {OWN_FLAGS[flag]}"
                    if flag in OWN_FLAGS
                    else f". Write {flag} in full"
                )
                problems.append(f"ARGS: {short} is short for {flag}{own}.")
    try:
        if flags_of(("", "", *added)).epochs < 1:
            problems.append("ARGS: --epochs must be at least 1.")
    except argparse.ArgumentError as error:
        problems.append(f"ARGS: {error}.")
    return problems


def find_problems(
    dataset: str,
    jobs: list[tuple[runs.Run, Path, int]],
    checkout: Path,
    python: str,
    gpus: int,
    download: bool,
    environment_to_come: bool,
) -> list[str]:
    """jobs: of each run its folder and the epochs that it is to have. environment_to_come: `python` is not there yet."""
    problems = checkout_problems(checkout)
    if not environment_to_come:
        problems += environment_problems(python)
    for run, folder, epochs in jobs:
        flags = flags_of(run.command)
        problems += (
            gpu_problems(flags, gpus)
            + data_problems(flags, checkout, dataset, download)
            + era_problems(flags)
        )
        problems += folder_problems(run, folder, epochs)
    return list(dict.fromkeys(problems))  # most are the same for all runs
