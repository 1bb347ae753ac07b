# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's runs for image classification in seconds on a CPU: flags of the recipe's launcher, and generated images.

bf16, because a convolution in fp16 takes a CPU 500 times as long, and one process because train.py cannot use more on
a CPU.
"""

import random
from pathlib import Path

from PIL import Image

CLASSES, SIDE = 10, 32
IMAGES = {"train": 4, "validation": 2}  # per class
FLAGS = [
    "--dataset=", "--model", "test_resnet", "--img-size", str(SIDE), "--device", "cpu", "-b", "8", "--workers", "1",
    "--epochs", "1", "--log-interval", "1", "--checkpoint-hist", "1", "--amp-dtype", "bfloat16",
]  # fmt: skip
EXPERIMENTS = [
    *("cifar10", "cifar10-era", "cifar10-aug", "cifar10-aug-era"),
    *("imagenet", "imagenet-era", "imagenet-aug", "imagenet-aug-era"),
    *("cifar10-sweep", "imagenet-sweep", "cifar10-regularization", "cifar10-time"),
]


def write_images(folder: Path) -> None:
    """Class folders of noise around a colour of the class."""
    draw = random.Random(1)
    for split, count in IMAGES.items():
        for label in range(CLASSES):
            (folder / split / str(label)).mkdir(parents=True)
            for number in range(count):
                image = Image.effect_noise((SIDE, SIDE), 60).convert("RGB")
                colour = Image.new("RGB", image.size, f"hsl({36 * label}, 80%, {draw.randint(30, 70)}%)")
                Image.blend(image, colour, 0.5).save(folder / split / str(label) / f"{number}.png")
