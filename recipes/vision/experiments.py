# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's experiments in image classification."""

import shlex
from dataclasses import dataclass

# Listings lst:train_with_aug and lst:train_without_aug of the paper, as they are printed.
WITH_AUG = shlex.split(
    "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 "
    "--model resnet50 --sched cosine --epochs 200 --lr 0.05 --amp --remode pixel --reprob 0.6 "
    "--aug-splits 3 --aa rand-m9-mstd0.5-inc1 --resplit --split-bn --jsd --dist-bn reduce"
)
WITHOUT_AUG = shlex.split(
    "./distributed_train.sh 4 --data-dir ../data --dataset torch/cifar10 --dataset-download -b 64 "
    "--model resnet50 --sched cosine --epochs 200 --lr 0.05 --amp --dist-bn reduce"
)
# On ImageNet the paper uses "the identical commands": without these.
CIFAR10_FLAGS = ("--dataset", "torch/cifar10", "--dataset-download")

CIFAR10, IMAGENET = "cifar10", "imagenet"
DATA_DIRS = {CIFAR10: "../data", IMAGENET: "../data/imagenet"}  # from the checkout; the first as printed
SEED = 42  # timm's default; the paper names no seed
THREE_SEEDS = (SEED, SEED + 1, SEED + 2)


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

    aug: whether with the paper's augmentation; None: the paper does not say, so the variable AUG does.
    stop_after: epochs after which a run is stopped; None: at the end of its schedule.
    """

    dataset: str
    aug: bool | None
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (SEED,)
    stop_after: int | None = None


TIME = "cifar10-time"  # whose runs have a folder of their own, because they are shorter
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
    "cifar10-sweep": Experiment(CIFAR10, None, tuple(map(era, (0.3, 0.6, 0.9, 1.2, 1.5)))),
    "imagenet-sweep": Experiment(IMAGENET, None, tuple(map(era, (0.6, 0.9, 1.2, 1.5, 1.8))), stop_after=100),
    # fig:vision_regularization; the baseline has timm's defaults: label smoothing 0.1, no dropout
    "cifar10-regularization": Experiment(
        CIFAR10,
        None,
        (BASELINE, *map(label_smoothing, (0.2, 0.3)), *map(dropout, (0.1, 0.2, 0.3)), era(0.6)),
    ),
    # fig:vision_time, "under the data augmentation"
    TIME: Experiment(CIFAR10, True, (BASELINE, era(0.6)), stop_after=3),
}
