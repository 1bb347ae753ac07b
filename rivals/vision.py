# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The table of docs/rivals/vision.md, whose runs are recorded and no longer trained here.

An arm is a method and a variant of its evaluation; the `off` variants of ERA and uniform mixing are the same weights
without the activation.
"""

import math

import pandas as pd

from recipes.pages import table
from rivals.comparisons import difference
from rivals.rule import TUNING_SEEDS, chosen_and_fresh, rows_of_seeds

# Labels of the settings. The baseline's are learning rates; all others were trained with the middle one.
METHODS = {
    "baseline": ("0.0025", "0.005", "0.01", "0.02", "0.04"),
    "label_smoothing": ("0.01", "0.03", "0.1", "0.2", "0.3"),
    "confidence_penalty": ("0.01", "0.03", "0.1", "0.3", "1"),
    "focal": ("1", "1.5", "2", "3", "5"),  # gamma
    "era": ("0", "0.15", "0.3", "0.6", "0.9"),  # H0 in nats
    "logit_norm": ("0.01", "0.02", "0.04", "0.1", "0.3"),  # temperature
    "uniform_mixing": ("0.094", "0.314", "0.535", "0.982", "1.407"),  # floors in nats: those of ERA's settings
}
ACTIVATIONS = ("era", "uniform_mixing")  # at the model's output, and not in the loss alone
ARMS = {
    f"{method}, {variant}": method
    for method in METHODS
    for variant in ("plain", "scaled", *(("off", "off_scaled") if method in ACTIVATIONS else ()))
}
REFERENCE = "baseline, scaled"
HELD_OUT, TEST, SHIFTED = "heldout", "test", "shifted"
MEASURES = {"temperature": 2, "top1": 2, "ece": 2, "nll": 3}  # on the test images; decimals


def measures(rows: pd.DataFrame) -> pd.DataFrame:
    """By arm, setting and seed: each measure on each kind of images; on the shifted ones the mean over the eight sets.

    Args:
        rows: of measures.csv of all runs.
    """
    images = rows["set"].where(rows["set"].isin((HELD_OUT, TEST)), SHIFTED)
    rows = rows.assign(arm=rows.method + ", " + rows.variant, images=images)
    grouped = rows.groupby(["arm", "setting", "seed", "images"])[[*MEASURES]]
    return grouped.agg(lambda column: column.mean(skipna=False)).unstack()


def chosen_runs(numbers: pd.DataFrame) -> tuple[dict[str, str], dict[str, pd.DataFrame]]:
    """The chosen setting of each arm that is shown, and its fresh runs: ERA's arms, and each other method's best.

    The rule minimizes the NLL on the held-out images of the tuning seeds; a collapse is not chosen.
    """
    scores = -numbers["nll", HELD_OUT].fillna(math.inf)
    chosen, fresh = chosen_and_fresh(numbers, scores, {arm: METHODS[method] for arm, method in ARMS.items()})
    best = {}
    for method in METHODS:
        arms = [arm for arm in chosen if ARMS[arm] == method]
        best[method] = max(arms, key=lambda arm: rows_of_seeds(scores, (arm, chosen[arm]), TUNING_SEEDS).mean())
    era = best.pop("era")
    shown = [*best.values(), *(arm for arm in chosen if ARMS[arm] == "era" and arm != era), era]
    return {arm: chosen[arm] for arm in shown}, {arm: fresh[arm] for arm in shown}


def arm_name(arm: str) -> str:
    return arm.replace("logit_norm", "LogitNorm").replace("_", " ").replace("era", "ERA")


def results_table(numbers: pd.DataFrame) -> str:
    """A line per arm, compared with REFERENCE. The last is ERA's best, which is compared with each other method's."""
    chosen, fresh = chosen_runs(numbers)
    *_, era = chosen

    def minus(arm: str, other: str, images: str) -> str:
        return "-" if arm == other else difference(fresh[arm]["nll", images], fresh[other]["nll", images], 3)

    def compared(arm: str, images: str) -> list[str]:
        return [minus(arm, REFERENCE, images), "-" if ARMS[arm] == "era" else minus(era, arm, images)]

    lines = []
    for arm, setting in chosen.items():
        means = fresh[arm].mean()
        on_test = [f"{means[measure, TEST]:.{digits}f}" for measure, digits in MEASURES.items()]
        on_shifted = [f"{means['nll', SHIFTED]:.3f}", *compared(arm, SHIFTED)]
        lines.append([arm_name(arm), setting, *on_test, *compared(arm, TEST), *on_shifted])
    differences = ["minus the baseline's", f"{arm_name(era)} minus it"]
    heads = ["temperature", "top-1, %", "ECE, %", "NLL", *differences, "shifted: NLL", *differences]
    return table(["arm", "setting", *heads], lines)
