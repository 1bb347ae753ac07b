"""Evaluates a run's last checkpoint on the validation images. `import timm` must give the patched timm."""

from pathlib import Path

import torch
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.layers import attach_era, raw_logits
from timm.models import create_model, load_checkpoint
from timm.utils.era import saved_setting

from demo.vision.measures import Predictions
from demo.vision.settings import CLASSES, FLAGS, IMAGE_SIZE, MODEL


@torch.inference_mode()
def predict(checkpoint: Path, data: Path) -> Predictions:
    model = create_model(MODEL, num_classes=CLASSES)
    load_checkpoint(model, str(checkpoint))
    setting = saved_setting(str(checkpoint))
    if setting:
        attach_era(model, setting["min_entropy"], setting["tau"], setting["inverse"])
    model.eval()
    outputs, targets = [], []
    with raw_logits(model) as activation:
        for images, classes in _loader(model, data):
            raw = model(images)
            outputs.append((raw, activation(raw)))
            targets.append(classes)
    raw, era = (torch.cat(logits).numpy() for logits in zip(*outputs))
    return Predictions(raw, era if setting else None, torch.cat(targets).numpy(), setting)


def _loader(model, data: Path):
    """The same as in train.py's validation."""
    config = resolve_data_config({"img_size": IMAGE_SIZE, "crop_pct": FLAGS["crop-pct"]}, model=model)
    return create_loader(
        create_dataset("", root=str(data), split="validation"),
        batch_size=FLAGS["validation-batch-size"],
        num_workers=0,
        persistent_workers=False,
        device=torch.device("cpu"),
        **{name: config[name] for name in ("input_size", "mean", "std", "interpolation", "crop_pct")},
    )
