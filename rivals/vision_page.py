# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of docs/rivals/vision.md."""

import pandas as pd

from recipes.pages import table
from rivals import vision
from rivals.comparisons import difference
from rivals.rule import TUNING_SEEDS, chosen_and_fresh, rows_of_seeds

REFERENCE = "baseline, scaled"


def arm_name(arm: str) -> str:
    return arm.replace("logit_norm", "LogitNorm").replace("_", " ").replace("era", "ERA")


def chosen_runs(numbers: pd.DataFrame) -> tuple[dict[str, str], dict[str, pd.DataFrame]]:
    """The chosen setting of each arm, and its fresh runs."""
    return chosen_and_fresh(numbers, vision.scores(numbers), vision.settings())


def tables(numbers: pd.DataFrame) -> dict[str, str]:
    """The tables of vision.md, by the names of their places in it."""
    scores, (chosen, fresh) = vision.scores(numbers), chosen_runs(numbers)

    def minus(arm: str, other: str, images: str) -> str:
        return "-" if arm == other else difference(fresh[arm]["nll", images], fresh[other]["nll", images], 3)

    results = []
    for arm, setting in chosen.items():
        means = fresh[arm].mean()
        digits = {"temperature": 2, "top1": 2, "ece": 2, "nll": 3}
        cells = [f"{means[measure, vision.TEST]:.{decimals}f}" for measure, decimals in digits.items()]
        cells += [minus(arm, REFERENCE, vision.TEST), f"{means['nll', vision.SHIFTED]:.3f}"]
        results.append([arm_name(arm), setting, *cells, minus(arm, REFERENCE, vision.SHIFTED)])
    best = {}  # arm of each method, by its NLL on the tuning seeds
    for method in vision.METHODS:
        arms = [arm for arm in chosen if vision.ARMS[arm] == method]
        best[method] = max(arms, key=lambda arm: rows_of_seeds(scores, (arm, chosen[arm]), TUNING_SEEDS).mean())
    era = best.pop("era")
    beside = [[arm_name(arm), minus(era, arm, vision.TEST), minus(era, arm, vision.SHIFTED)] for arm in best.values()]
    heads = ["temperature", "top-1, %", "ECE, %", "NLL", "minus the baseline's", "shifted: NLL", "minus the baseline's"]
    return {
        "results": table(["arm", "setting", *heads], results),
        "best": table([f"{arm_name(era)} minus", "NLL", "shifted: NLL"], beside),
    }
