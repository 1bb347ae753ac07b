# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.vision.loop IMAGES H0|None SEED EPOCHS: trains timm's test_resnet, with ERA or without.

Writes epochs.csv, with a row for every epoch, into the folder that it is started in. The measures that begin with "off"
are those with ERA off at evaluation. Needs a patched timm on PYTHONPATH. Ends with its process group when stdin closes.
"""

import sys

import numpy
import pandas
import torch
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.layers import raw_logits
from timm.loss import LabelSmoothingCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import random_seed
from timm.utils.era import predictive_entropy

from demo.vision import settings
from demo.vision.measures import measures
from recipes.processes import end_with_parent


def loader(model, folder: str, split: str, batch_size: int):
    config = resolve_data_config({"img_size": settings.IMAGE_SIZE, "crop_pct": 1.0}, model=model)
    return create_loader(
        create_dataset("", root=folder, split=split),
        batch_size=batch_size,
        is_training=split == "train",
        no_aug=True,
        num_workers=1,
        device=torch.device("cpu"),
        **{name: config[name] for name in ("input_size", "mean", "std", "interpolation", "crop_pct")},
    )


def train_epoch(model, images, loss_fn, optimizer) -> dict[str, float]:
    model.train()
    losses, smallest = [], []
    for batch, targets in images:
        logits = model(batch)
        loss = loss_fn(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        smallest.append(predictive_entropy(logits.detach()).min().item())
    return {"train loss": sum(losses) / len(losses), "train smallest entropy, nats": min(smallest)}


@torch.inference_mode()
def predict(model, images) -> dict[str, numpy.ndarray]:
    """The logits before and after ERA of all images, raw and era, (images, classes) fp32; targets, (images,) int."""
    model.eval()
    batches = []
    with raw_logits(model) as activation:
        for batch, targets in images:
            raw = model(batch)
            batches.append((raw, activation(raw), targets))
    return {name: torch.cat(parts).numpy() for name, parts in zip(("raw", "era", "targets"), zip(*batches))}


def main(folder: str, min_entropy: float | None, seed: int, epochs: int) -> None:
    random_seed(seed)
    model = create_model(settings.MODEL, num_classes=settings.CLASSES, era_min_entropy=min_entropy)
    train_images = loader(model, folder, "train", settings.BATCH_SIZE)
    validation_images = loader(model, folder, "validation", settings.VALIDATION_BATCH_SIZE)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=settings.LEARNING_RATE, weight_decay=settings.WEIGHT_DECAY)
    scheduler, epochs = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=epochs,
        warmup_epochs=settings.WARMUP_EPOCHS,
        warmup_lr=settings.WARMUP_LEARNING_RATE,
    )
    loss_fn, rows = LabelSmoothingCrossEntropy(settings.SMOOTHING), []
    for epoch in range(epochs):
        scheduler.step(epoch)
        trained = train_epoch(model, train_images, loss_fn, optimizer)
        predicted = predict(model, validation_images)
        on, off = (measures(predicted[logits], predicted["raw"], predicted["targets"]) for logits in ("era", "raw"))
        rows.append({"epoch": epoch + 1, **trained, **on, **{f"off, {label}": value for label, value in off.items()}})
        pandas.DataFrame(rows).to_csv(settings.EPOCHS_FILE, index=False)


if __name__ == "__main__":
    end_with_parent()
    folder, h0, seed, epochs = sys.argv[1:]
    main(folder, None if h0 == "None" else float(h0), int(seed), int(epochs))
