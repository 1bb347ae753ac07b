# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The demo's table and picture, from what the runs wrote."""

import json
from pathlib import Path

import pandas

from demo.runner import tables
from demo.runner.training import csv_rows
from demo.trl.settings import ANSWERS, ARMS, BOUNDS, STEPS_FILE, VALIDATED, VALIDATION_FILE, Settings
from recipes import colors

# The measures on the screen, with their decimals.
SHOWN = {"reward": 2, "pass@8": 2, "distinct right of 8": 2, "H_resp": 2, "scaled by ERA": 2, "s a step": 1}
STYLES = {
    ARMS["grpo"]: dict(color=colors.BASELINE, linestyle=(0, (4, 3)), linewidth=1.2, zorder=4),
    ARMS["era"]: dict(color=colors.ERA, linewidth=3, zorder=3),
    ARMS["adaptive"]: dict(color=colors.ORANGE, linestyle=":", linewidth=2, zorder=5),
}
LAST = 4  # steps whose mean H_resp the table has


def measures(steps: pandas.DataFrame, validation: dict[str, float]) -> dict[str, float]:
    """The measures of a finished run."""
    values = (
        *(validation[name] for name in VALIDATED),
        steps["response_entropy"].tail(LAST).mean(),
        steps["scaled_token_fraction"].mean(),
        steps["step_seconds"].median(),
    )
    return dict(zip(SHOWN, values))


def end(settings: Settings, folder: Path) -> None:
    """The end of the demo: its table, picture and runs.csv."""
    steps = {name: csv_rows(folder / arm / STEPS_FILE) for arm, name in ARMS.items()}
    validations = {name: json.loads((folder / arm / VALIDATION_FILE).read_text()) for arm, name in ARMS.items()}
    runs = pandas.DataFrame(
        {"name": name, "seed": settings.seed, **measures(steps[name], validations[name])} for name in steps
    )
    runs.to_csv(folder / "runs.csv", index=False)
    curves = pandas.concat(rows.assign(name=name, seed=settings.seed) for name, rows in steps.items())
    low, window = BOUNDS[settings.task_name]["era"], min(11, settings.steps // 3 or 1)
    shown = f"SmolLM2-135M, {settings.task_name}, seed {settings.seed}"
    tables.entropy_picture(curves, STYLES, ANSWERS, low, window, shown, folder / "entropy.png")
    first = steps["ERA"]["response_entropy"].iloc[0]  # the same in all arms
    note = (
        f"H_resp: nats, the mean of the last {LAST} steps; in the first batch it was {first:.2f}. "
        f"ERA's bound is {low:.2f}.\n"
        f"The first three columns are of {ANSWERS} answers to each of 16 prompts by the final weights. "
        "One run of so few steps shows that\n"
        "a pretrained model trains with ERA and how its entropy moves; it cannot show which arm is better: "
        "docs/rivals/trl.md."
    )
    tables.print_end(tables.rows_and_means(runs, SHOWN), note, folder / "entropy.png", folder / "runs.csv")
