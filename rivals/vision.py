# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA on digits beside five losses and uniform mixing; each with five settings.

The protocol is docs/rivals/vision.md; vision_run.py trains and evaluates one run. An arm is a method and a variant of
its evaluation; the `off` variants of ERA and uniform mixing are the same weights without the activation.
"""

import math

import pandas as pd

TASK, MEASURES, EPOCHS = "digits", "measures.csv", 40
# Labels of the settings. The baseline's are learning rates; all others train with the middle one.
METHODS = {
    "baseline": ("0.0025", "0.005", "0.01", "0.02", "0.04"),
    "label_smoothing": ("0.01", "0.03", "0.1", "0.2", "0.3"),
    "confidence_penalty": ("0.01", "0.03", "0.1", "0.3", "1"),
    "focal": ("1", "1.5", "2", "3", "5"),  # gamma; below 1 its gradient is nan where a probability rounds to 1
    "era": ("0", "0.15", "0.3", "0.6", "0.9"),  # H0 in nats
    "logit_norm": ("0.01", "0.02", "0.04", "0.1", "0.3"),  # temperature
    "uniform_mixing": ("0.094", "0.314", "0.535", "0.982", "1.407"),  # floors in nats: those of ERA's settings
}
ACTIVATIONS = ("era", "uniform_mixing")  # at the model's output, and not in the loss alone
VARIANTS = {
    method: ("plain", "scaled", *(("off", "off_scaled") if method in ACTIVATIONS else ())) for method in METHODS
}
ARMS = {f"{method}, {variant}": method for method, variants in VARIANTS.items() for variant in variants}
HELD_OUT, TEST, SHIFTED = "heldout", "test", "shifted"
# name of a shifted set: class of torch_uncertainty.transforms.corruption and severity
SHIFTS = {
    f"{kind}-{severity}": (kind, severity)
    for kind in ("GaussianNoise", "DefocusBlur", "Snow", "Pixelate")
    for severity in (1, 2)
}


def settings() -> dict[str, tuple[str, ...]]:
    """The settings of each arm."""
    return {arm: METHODS[method] for arm, method in ARMS.items()}


def measures(rows: pd.DataFrame) -> pd.DataFrame:
    """By arm, setting and seed: each measure on each kind of images; on the shifted ones the mean over the eight sets.

    Args:
        rows: of measures.csv of all runs.
    """
    rows = rows.assign(
        arm=rows.method + ", " + rows.variant, images=rows["set"].where(~rows["set"].isin(SHIFTS), SHIFTED)
    )
    grouped = rows.groupby(["arm", "setting", "seed", "images"])[["temperature", "top1", "ece", "nll"]]
    return grouped.agg(lambda column: column.mean(skipna=False)).unstack()


def scores(measured: pd.DataFrame) -> pd.Series:
    """Minus the NLL on the held-out images, which the rule minimizes; a collapse is not chosen."""
    return -measured["nll", HELD_OUT].fillna(math.inf)
