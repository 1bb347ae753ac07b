# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""How the paper's image classifiers are trained: timm's distributed_train.sh and train.py in checkouts/timm."""

import argparse
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes import UserError, curves, launch_options, run_json, whole
from recipes.grid import Run, TrainingScript
from recipes.launch_options import LaunchOptions
from recipes.vision.experiments import (
    CIFAR10_FLAGS,
    DATA_DIRS,
    EXPERIMENTS,
    IMAGENET,
    TIME,
    WITH_AUG,
    WITHOUT_AUG,
    Variant,
    era,
)

SUMMARY, CHECKPOINT = "summary.csv", "last.pth.tar"
PAPER_GPUS = LaunchOptions.gpus  # the default
IMAGENET_CLASSES = 1000
# The names under which timm looks for a split. If it finds none it silently takes the data folder.
SPLITS = (("train", "training"), ("validation", "val", "valid", "eval", "evaluation"))


def flags_of(words: Sequence[str]) -> argparse.Namespace:
    """The flags of train.py on which checks depend; as in train.py the last of each wins, in full or abbreviated."""
    parser = argparse.ArgumentParser("train.py", add_help=False, exit_on_error=False)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--dataset", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("-j", "--workers", type=int, default=4)
    try:
        return parser.parse_known_args(words)[0]
    except argparse.ArgumentError as error:
        raise UserError(f"ARGS: {error}.") from None


class Timm(TrainingScript):
    launcher = launch_options.VISION
    experiments = EXPERIMENTS
    upstream, file = "timm", "train.py"
    packages = ("torch", "torchvision", "yaml", "safetensors", "huggingface_hub")
    space = 5 * 2**29  # ten checkpoints of 200 MB, the last and the best
    own_flags = (
        *("--cooldown-epochs", "--data-dir", "--era-floor", "--era-min-entropy", "--experiment", "--num-classes"),
        *("--output", "--resume", "--seed"),
    )
    harmless = ("-j", "--workers", "--log-interval", "--recovery-interval", "--checkpoint-hist", "--pin-mem")
    one_at_a_time = (TIME,)

    def __init__(self, name: str, added: Sequence[str] = ()):
        super().__init__(name, added)
        self.root = self.checkouts / "timm"
        self.experiment = self.experiments[name]
        self.classes, self.processes = self.options.classes, self.options.gpus
        aug, base = self.base_command()
        self.train_flags = flags_of([*base[2:], *self.added])  # the variants do not differ in these
        self.runs = self.plan(self.options.output or self.root / "output/era", aug, base)
        self.gpus = self.processes if self.train_flags.device.startswith("cuda") else 0
        self.cpus = self.processes * (1 + self.train_flags.workers)

    def plan(self, output: Path, aug: bool, base: list[str]) -> list[Run]:
        dataset, schedule = self.experiment.dataset, self.train_flags.epochs
        classes = ["--num-classes", str(self.classes)] if self.classes else []
        chosen = self.options.epochs
        if chosen and chosen > schedule:
            raise UserError(f"EPOCHS={chosen}: the schedule has {schedule}. ARGS='--epochs {chosen}' is a longer one.")
        epochs = chosen or self.experiment.stop_after
        steps = epochs and min(epochs, schedule)
        runs = []
        for seed in self.options.seeds or self.experiment.seeds:
            for variant in self.variants():
                parts = [dataset, f"{self.classes}classes" if classes else "", "aug" if aug else "", variant.name]
                name = "-".join(filter(None, parts))
                entry = f"time/{name}" if self.name == TIME else name
                command = (*base, *variant.flags, *classes, "--seed", str(seed), *self.added)
                _, _, agent = name.partition("-")
                folder = output / f"{entry}-seed{seed}"
                runs.append(Run(folder, dataset, agent or "baseline", seed, command, steps, entry))
        return runs

    def base_command(self) -> tuple[bool, list[str]]:
        """Whether the runs are with augmentation, and the printed command with GPUS and DATA_DIR."""
        aug, chosen = self.experiment.aug, self.options.augmentation
        if aug is not None and chosen is not None:
            raise UserError(f"AUG={chosen}: the paper says whether {self.name} is with augmentation.")
        if aug is None:
            aug = bool(chosen)
        words = WITH_AUG if aug else WITHOUT_AUG
        script, _, data_flag, _, *flags = words
        if self.experiment.dataset == IMAGENET:
            flags = [flag for flag in flags if flag not in CIFAR10_FLAGS]
        data = self.options.data_dir or DATA_DIRS[self.experiment.dataset]
        return aug, [script, str(self.processes), data_flag, str(data), *flags]

    def variants(self) -> list[Variant]:
        variants, min_entropies = self.experiment.variants, self.options.min_entropies
        if not min_entropies:
            return list(variants)
        if not any(variant.is_era for variant in variants):
            h0 = " ".join(f"{value:g}" for value in min_entropies)
            raise UserError(f"H0={h0}: {self.name} trains without ERA. Use {self.name}-era.")
        return [*(variant for variant in variants if not variant.is_era), *map(era, min_entropies)]

    def start_folder(self, run: Run) -> Path:
        return self.root

    def argv(self, run: Run) -> list[str]:
        command = [*run.command, "--output", str(run.folder.parent), "--experiment", run.name]
        if run.steps:
            # timm trains for the length of its schedule and these epochs more.
            command.append(f"--cooldown-epochs={run.steps - self.train_flags.epochs}")
        checkpoint = self.checkpoint(run)
        return [*command, "--resume", str(checkpoint)] if checkpoint else command

    def variables(self, run: Run) -> dict[str, str]:
        """The variables with which distributed_train.sh finds torchrun by its name, and that takes a free port.

        So runs can share a node.
        """
        scripts = os.path.dirname(self.python)
        return {"PATH": os.pathsep.join(filter(None, (scripts, os.environ["PATH"]))), "PET_STANDALONE": "1"}

    def checkpoint(self, run: Run) -> Path | None:
        """The newest whole checkpoint of an epoch's end.

        timm removes last.pth.tar before it renames tmp.pth.tar to it: after a kill in between, another is newest.
        """
        last = run.folder / CHECKPOINT
        if last.is_file() and zipfile.is_zipfile(last):
            return last
        # recovery-* is from the middle of an epoch: resuming there, timm would leave out the rest of that epoch.
        names = [path for path in run.folder.glob("*.pth.tar") if not re.search("best|recovery", path.name)]
        whole = [path for path in names if path.is_file() and zipfile.is_zipfile(path)]
        return max(whole, key=lambda path: path.stat().st_mtime, default=None)

    def epochs(self) -> int:
        """How many epochs a whole run has, whatever EPOCHS says."""
        return self.experiment.stop_after if self.name == TIME else self.train_flags.epochs

    def is_finished(self, run: Run) -> bool:
        return not self.incomplete_because(run)

    def incomplete_because(self, run: Run) -> str:
        """What the folder lacks of the epochs of this launch, which may be fewer than the run's; "" if nothing."""
        return whole.incomplete_because(run.folder, run.steps or self.epochs())

    def record(self, run: Run) -> dict[str, Any]:
        as_paper = run_json.is_as_paper(self.added, self.harmless) and self.processes == PAPER_GPUS and not self.classes
        known = {"added": list(self.added), "as_paper": as_paper, **run_json.code(self.root)}
        packages = ("torch", "torchvision", "numpy")
        known |= {"agent": run.agent, "entry": run.entry, "command": list(run.command)}
        return run_json.begin("timm", run.task, run.seed, self.epochs(), packages, **known)

    def complete_record(self, run: Run) -> None:
        record = run_json.read(run.folder)
        steps = record.get("total_steps")
        if steps and not record.get("finished") and not whole.incomplete_because(run.folder, steps):
            run_json.finish(run.folder, record)

    def last_result(self, run: Run) -> str:
        top1 = curves.read(run.folder / SUMMARY).get("eval_top1")
        return f", top-1 {top1[max(top1)]:.2f}" if top1 else ""

    def comparable(self, words: list[str]) -> list[str]:
        """The words without the folder of the data, which may move."""
        at = words.index("--data-dir")
        return [*words[:at], *words[at + 2 :]]

    def problems(self) -> list[str]:
        if self.train_flags.dataset:
            return []
        wanted = (self.classes or IMAGENET_CLASSES) if self.experiment.dataset == IMAGENET else None
        return folder_of_images_problems(self.root / self.train_flags.data_dir, wanted)

    def prepare(self) -> None:
        """Download CIFAR-10 in one process, before torchrun's, which would all write the same archive at once."""
        if self.train_flags.dataset == "torch/cifar10":
            from torchvision.datasets import CIFAR10

            CIFAR10(self.root / self.train_flags.data_dir, download=True)


def folder_of_images_problems(data: Path, wanted: int | None) -> list[str]:
    """What is wrong with a folder of images, which timm would silently train with: a sentence, or none.

    Args:
        wanted: the number of classes; None: any.
    """
    classes = []
    for names in SPLITS:
        split = next((data / name for name in names if (data / name).is_dir()), None)
        if split is None:
            return [
                f"data: no {data}/{names[0]} with a folder of images per class. Set DATA_DIR to the folder above it."
            ]
        classes.append({entry.name for entry in os.scandir(split) if entry.is_dir()})
    if classes[0] != classes[1]:
        return [
            f"data: {data}: the training images are in {len(classes[0])} class folders and the validation images in "
            f"{len(classes[1])}, or in others; timm numbers the classes of each by these names, so they must be the "
            "same. ImageNet's validation images come without class folders: sort them into some first."
        ]
    if wanted and len(classes[0]) != wanted:
        return [f"data: {data} has {len(classes[0])} classes, {wanted} expected. Complete it, or set NUM_CLASSES."]
    return []
