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
"""The paper's experiments in image classification, and the exact command of each of their runs."""

import shlex
from dataclasses import dataclass, replace

# Listings lst:train_with_aug and lst:train_without_aug of the paper, as they are printed.
WITH_AUG = (
    "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 "
    "--model resnet50 --sched cosine --epochs 200 --lr 0.05 --amp --remode pixel --reprob 0.6 "
    "--aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd --dist-bn reduce"
)
WITHOUT_AUG = (
    "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 "
    "--model resnet50 --sched cosine --epochs 200 --lr 0.05 --amp --dist-bn reduce"
)
# On ImageNet the paper uses "the identical commands": without these.
CIFAR10_FLAGS = ["--dataset", "torch/cifar10", "--dataset-download"]

CIFAR10, IMAGENET = "cifar10", "imagenet"
# From the checkout; the first as printed.
DATA_DIRS = {CIFAR10: "../data", IMAGENET: "../data/imagenet"}
SEED = 42  # timm's default; the paper names no seed


@dataclass(frozen=True)
class Variant:
    """What a run adds to the printed command. name: its part of the run's name."""

    name: str
    flags: tuple[str, ...]

    @property
    def is_era(self) -> bool:
        return "--era-min-entropy" in self.flags


BASELINE = Variant("", ())


def era(min_entropy: float) -> Variant:
    number = str(min_entropy).removesuffix(".0")  # all digits, so that two values are two runs
    return Variant(f"era{number}", ("--era-min-entropy", number))


def label_smoothing(rate: float) -> Variant:
    return Variant(f"smoothing{rate:g}", ("--smoothing", f"{rate:g}"))


def dropout(rate: float) -> Variant:
    return Variant(f"dropout{rate:g}", ("--drop", f"{rate:g}"))


@dataclass(frozen=True)
class Experiment:
    """The runs of one row or figure: each variant with each seed.

    aug: with the paper's augmentation.
    free_aug: the paper does not say whether with augmentation, so AUG may.
    stop_after: epochs after which a run is stopped; None: at the end of its schedule.
    compares_time: of a training step, at the end; the runs have a folder of their own.
    """

    dataset: str
    aug: bool
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (SEED,)
    free_aug: bool = False
    stop_after: int | None = None
    compares_time: bool = False


THREE_SEEDS = (SEED, SEED + 1, SEED + 2)

EXPERIMENTS = {
    # tab:main_results_vision
    "cifar10": Experiment(CIFAR10, False, (BASELINE,), THREE_SEEDS),
    "cifar10-era": Experiment(CIFAR10, False, (era(0.6),), THREE_SEEDS),
    "cifar10-aug": Experiment(CIFAR10, True, (BASELINE,), THREE_SEEDS),
    "cifar10-aug-era": Experiment(CIFAR10, True, (era(0.6),), THREE_SEEDS),
    "imagenet": Experiment(IMAGENET, False, (BASELINE,)),
    "imagenet-era": Experiment(IMAGENET, False, (era(1.2),)),
    "imagenet-aug": Experiment(IMAGENET, True, (BASELINE,)),
    "imagenet-aug-era": Experiment(IMAGENET, True, (era(1.2),)),
    # fig:vision_entropy, "using checkpoints from the 100th [ImageNet] and 200th epochs"
    "cifar10-sweep": Experiment(CIFAR10, False, tuple(map(era, (0.3, 0.6, 0.9, 1.2, 1.5))), free_aug=True),
    "imagenet-sweep": Experiment(
        IMAGENET, False, tuple(map(era, (0.6, 0.9, 1.2, 1.5, 1.8))), free_aug=True, stop_after=100
    ),
    # fig:vision_regularization; the baseline has timm's defaults: label smoothing 0.1, no dropout
    "cifar10-regularization": Experiment(
        CIFAR10,
        False,
        (
            BASELINE,
            *map(label_smoothing, (0.2, 0.3)),
            *map(dropout, (0.1, 0.2, 0.3)),
            era(0.6),
        ),
        free_aug=True,
    ),
    # fig:vision_time, "under the data augmentation"
    "cifar10-time": Experiment(CIFAR10, True, (BASELINE, era(0.6)), stop_after=3, compares_time=True),
}


@dataclass(frozen=True)
class Settings:
    """From the environment. None: as the experiment has it. min_entropies: nats."""

    gpus: int = 4
    data_dir: str | None = None
    seeds: tuple[int, ...] | None = None
    min_entropies: tuple[float, ...] | None = None
    aug: bool | None = None
    num_classes: int | None = None
    epochs: int | None = None


@dataclass(frozen=True)
class Run:
    """name: of its folder. command: all but --output, --experiment and --resume."""

    name: str
    command: tuple[str, ...]


def with_settings(experiment: Experiment, settings: Settings) -> Experiment:
    """The experiment with what the settings replace."""
    variants = experiment.variants
    if settings.min_entropies is not None:
        others = tuple(variant for variant in variants if not variant.is_era)
        variants = (*others, *map(era, settings.min_entropies))
    return replace(
        experiment,
        variants=variants,
        seeds=settings.seeds or experiment.seeds,
        aug=experiment.aug if settings.aug is None else settings.aug,
        stop_after=settings.epochs or experiment.stop_after,
    )


def printed_command(experiment: Experiment, gpus: int, data_dir: str) -> list[str]:
    script, _, data_flag, _, *flags = shlex.split(WITH_AUG if experiment.aug else WITHOUT_AUG)
    if experiment.dataset == IMAGENET:
        flags = [flag for flag in flags if flag not in CIFAR10_FLAGS]
    return [script, str(gpus), data_flag, data_dir, *flags]


def runs(experiment: Experiment, settings: Settings, added: list[str]) -> list[Run]:
    """The runs of an experiment (one of with_settings), in order.

    Args:
        added: flags of train.py that come last and win.
    """
    data_dir = settings.data_dir or DATA_DIRS[experiment.dataset]
    base = printed_command(experiment, settings.gpus, data_dir)
    classes = ["--num-classes", str(settings.num_classes)] if settings.num_classes else []
    kind = f"{settings.num_classes}classes" if classes else ""
    aug = "aug" if experiment.aug else ""
    result = []
    for seed in experiment.seeds:
        for variant in experiment.variants:
            parts = [experiment.dataset, kind, aug, variant.name, f"seed{seed}"]
            command = (*base, *variant.flags, *classes, "--seed", str(seed), *added)
            result.append(Run("-".join(filter(None, parts)), command))
    return result
