# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Trains timm's test_resnet on scikit-learn's digits by one of the methods and evaluates it, in the current folder.

Writes measures.csv, a row per variant of the final model and set of images, and run.json. An interrupted run starts
over. Settings and protocol: docs/rivals/vision.md.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy
import pandas
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import random_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_uncertainty.losses import ConfidencePenaltyLoss, FocalLoss
from torch_uncertainty.metrics.classification import CalibrationError, CategoricalNLL
from torch_uncertainty.post_processing import TemperatureScaler
from torch_uncertainty.transforms import corruption
from torchvision.transforms.functional import normalize, to_tensor

import era.timm
from demo.vision import data
from demo.vision.settings import CLASSES, MODEL
from era.discrete import raw_logits
from recipes import PROJECT, run_json
from rivals import vision

PACKAGES = ("torch", "torchvision", "timm", "torch-uncertainty", "torchmetrics", "kornia", "scikit-learn", "pillow")
BATCH_SIZE = 20
PER_CLASS = 10  # training images
LEARNING_RATE = float(vision.METHODS["baseline"][2])
ECE_BINS = 15
SHIFT_SEED = 0


class LogitNormLoss(nn.CrossEntropyLoss):
    """Cross-entropy of the logits divided by their norm and by a temperature (Wei et al. 2022, arXiv:2205.09310).

    A model is evaluated with the logits as they are.
    """

    def __init__(self, temperature: float):
        super().__init__()
        self.temperature = temperature

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.normalize(logits, dim=-1) / self.temperature, targets)


class UniformMixing(nn.Module):
    """Mixes a prediction of less entropy than `floor` (nats) with the uniform one, so that it has at least `floor`.

    Entropy is concave, so the share (ln D - floor) / (ln D - H(p)) of p suffices (after Akrour et al. 2019).
    """

    def __init__(self, floor: float):
        super().__init__()
        self.floor = floor

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """logits: (..., D), floating. Returns the log-probabilities of the mixture, of the same shape and dtype."""
        probabilities, most = logits.softmax(-1), math.log(logits.shape[-1])
        # At 0, to which a probability may underflow, entr has an infinite gradient.
        positive = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny)
        entropies = torch.special.entr(positive).sum(-1, keepdim=True)
        is_below = entropies < self.floor
        # Where nothing is mixed the share is not used, but its gradient has to be finite.
        share = (most - self.floor) / (most - torch.where(is_below, entropies, 0))
        mixture = share * probabilities + (1 - share) / logits.shape[-1]
        return torch.where(is_below, mixture.log(), logits.log_softmax(-1))


LOSSES = {
    "label_smoothing": lambda smoothing: nn.CrossEntropyLoss(label_smoothing=smoothing),
    "confidence_penalty": ConfidencePenaltyLoss,
    "focal": FocalLoss,
    "logit_norm": LogitNormLoss,
    "uniform_mixing": lambda floor: lambda logits, targets: nn.functional.cross_entropy(
        UniformMixing(floor)(logits), targets
    ),
}
Images = tuple[torch.Tensor, torch.Tensor]  # (images, 3, 32, 32) fp32 in [0, 1], and their digits (images,) int64


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("vision_run.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--method", required=True, choices=vision.METHODS)
    parser.add_argument("--setting", required=True, help="one of the method's five")
    parser.add_argument("--seed", required=True, type=int)
    arguments = parser.parse_args(words)
    settings = vision.METHODS[arguments.method]
    if arguments.setting not in settings:
        parser.error(f"--setting {arguments.setting}: {arguments.method} has {', '.join(settings)}.")
    return arguments


def image_sets() -> dict[str, Images]:
    """Training images, some of the demo's; held-out images, the demo's validation images; test images, the rest."""
    pictures, digits = data.load()
    images, targets = torch.stack([to_tensor(picture) for picture in pictures]), torch.from_numpy(digits)
    parts = {name: numpy.array(indices) for name, indices in data.split(digits).items()}
    known = parts["train"]
    indices = {
        "train": numpy.concatenate([known[digits[known] == digit][:PER_CLASS] for digit in range(CLASSES)]),
        vision.HELD_OUT: parts["validation"],
        vision.TEST: numpy.setdiff1d(range(len(digits)), numpy.concatenate(list(parts.values()))),
    }
    return {name: (images[chosen], targets[chosen]) for name, chosen in indices.items()}


def corrupted(images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The images in every shifted set, the same in all runs. Seeds torch's generator."""
    torch.manual_seed(SHIFT_SEED)
    made = {}
    for name, (kind, severity) in vision.SHIFTS.items():
        seed = {"seed": SHIFT_SEED} if kind == "Snow" else {}  # it has a generator of its own
        transform = getattr(corruption, kind)(severity, **seed)
        made[name] = torch.stack([transform(image).float() for image in images])
    return made


def scaled_to(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return normalize(images, model.pretrained_cfg["mean"], model.pretrained_cfg["std"])


@torch.no_grad()
def predict(
    model: nn.Module, images: torch.Tensor, mixing: UniformMixing | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits before and after ERA or `mixing`, both (images, classes) in fp64; without either they are the same."""
    model.eval()
    with raw_logits(model) as activation:
        logits = torch.cat([model(part) for part in scaled_to(model, images).split(100)]).double()
        return logits, (mixing or activation)(logits)


def train(method: str, value: float, seed: int, images: torch.Tensor, targets: torch.Tensor) -> nn.Module:
    """Train a model by the method, and return it after its last epoch."""
    random_seed(seed)
    model = era.timm.create_model(MODEL, num_classes=CLASSES, era_min_entropy=value if method == "era" else None)
    loss_fn = LOSSES[method](value) if method in LOSSES else nn.CrossEntropyLoss()
    rate = value if method == "baseline" else LEARNING_RATE
    optimizer = create_optimizer_v2(model, opt="adamw", lr=rate, weight_decay=2e-5)
    scheduler, _ = create_scheduler_v2(optimizer, "cosine", num_epochs=vision.EPOCHS, warmup_epochs=2, warmup_lr=1e-5)
    loader = DataLoader(TensorDataset(scaled_to(model, images), targets), batch_size=BATCH_SIZE, shuffle=True)
    for epoch in range(vision.EPOCHS):
        scheduler.step(epoch)
        model.train()
        for batch, classes in loader:
            loss = loss_fn(model(batch), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def measures(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """top-1 and ECE in percent, NLL and entropies in nats. logits: (images, classes) fp64; targets: (images,) int64."""
    probabilities = logits.softmax(-1)
    entropies = torch.special.entr(probabilities).sum(-1)
    calibration = CalibrationError(task="multiclass", num_classes=CLASSES, num_bins=ECE_BINS)
    return {
        "top1": 100 * (logits.argmax(-1) == targets).double().mean().item(),
        "ece": 100 * calibration(probabilities, targets).item(),
        "nll": CategoricalNLL()(probabilities, targets).item(),
        "entropy_mean": entropies.mean().item(),
        "entropy_min": entropies.min().item(),
    }


def temperature(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """The temperature by which the logits are divided for the smallest NLL."""
    scaler = TemperatureScaler(nn.Identity())
    scaler.fit(DataLoader(TensorDataset(logits, targets), batch_size=len(targets)), progress=False)
    return scaler.temperature[0].item()


def evaluate(model: nn.Module, method: str, value: float, sets: dict[str, Images]) -> list[dict]:
    """A row per variant and set. The temperatures are fitted on the held-out images."""
    mixing = UniformMixing(value) if method == "uniform_mixing" else None
    predicted = {name: predict(model, images, mixing) for name, (images, _) in sets.items()}
    rows = []
    for variant in vision.VARIANTS[method]:
        activated = not variant.startswith("off")
        by = 1.0
        if variant.endswith("scaled"):
            by = temperature(predicted[vision.HELD_OUT][activated], sets[vision.HELD_OUT][1])
        for name, (_, targets) in sets.items():
            measured = measures(predicted[name][activated] / by, targets)
            rows.append({"variant": variant, "set": name, "temperature": by, **measured})
    return rows


def run(arguments: argparse.Namespace, folder: Path) -> None:
    if run_json.read(folder).get("finished"):
        sys.exit(f"vision_run.py: error: {folder} holds a finished run. Start this one in another folder.")
    torch.set_num_threads(1)
    known = {"method": arguments.method, "setting": arguments.setting, **run_json.code(PROJECT)}
    record = run_json.begin("rivals-vision", vision.TASK, arguments.seed, vision.EPOCHS, PACKAGES, **known)
    run_json.start(folder, record)
    sets = image_sets()
    value = float(arguments.setting)
    model = train(arguments.method, value, arguments.seed, *sets.pop("train"))
    images, targets = sets[vision.TEST]
    sets |= {name: (shifted, targets) for name, shifted in corrupted(images).items()}
    rows = pandas.DataFrame(evaluate(model, arguments.method, value, sets))
    rows.to_csv(folder / vision.MEASURES, index=False, float_format="%.6g", na_rep="nan")
    run_json.finish(folder, record, time.process_time())


if __name__ == "__main__":
    run(parse_arguments(sys.argv[1:]), Path.cwd())
