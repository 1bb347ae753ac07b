# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""scikit-learn's bundled handwritten digits, 8 x 8 pixels in 17 grey levels, as folders of PNG images."""

from pathlib import Path

import numpy
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from demo.vision.settings import IMAGE_SIZE

COUNTS = {"train": 300, "validation": 700}
SPLIT_SEED = 0  # one split for all runs


def write(folder: Path) -> Path:
    """Writes the images as folder/{train,validation}/<digit>/<number in scikit-learn's set>.png, and returns it."""
    images, targets = load()
    for part, indices in split(targets).items():
        for digit in set(targets):
            (folder / part / str(digit)).mkdir(parents=True, exist_ok=True)
        for index in indices:
            images[index].save(folder / part / str(targets[index]) / f"{index:04d}.png")
    return folder


def load() -> tuple[list[Image.Image], numpy.ndarray]:
    """All 1797 of scikit-learn's set as RGB images, and their digits, (1797,) int64."""
    digits, size = load_digits(), (IMAGE_SIZE, IMAGE_SIZE)
    pixels = (digits.images * (255 / 16)).round().astype(numpy.uint8)
    images = [Image.fromarray(digit).resize(size, Image.Resampling.BICUBIC).convert("RGB") for digit in pixels]
    return images, digits.target


def split(targets: numpy.ndarray) -> dict[str, list[int]]:
    """The indices of the two parts; both have every class in the same proportion."""
    train, validation = train_test_split(
        range(len(targets)),
        train_size=COUNTS["train"],
        test_size=COUNTS["validation"],
        stratify=targets,
        random_state=SPLIT_SEED,
    )
    return {"train": train, "validation": validation}
