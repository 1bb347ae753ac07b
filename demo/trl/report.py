# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The demo's table and picture, from what the runs wrote."""

import json
import math
from pathlib import Path

import pandas

from demo.runner import tables
from demo.trl.settings import ANSWERS, ARMS, SHARE, STEPS_FILE, VALIDATION_FILE, Settings
from demo.trl.tasks import VALIDATION_PROMPTS

# The measures on the screen, with their decimals.
SHOWN = {
    "reward": ("reward", 2),
    "pass_at_8": ("pass@8", 2),
    "distinct_8": ("distinct right of 8", 2),
    "response_entropy": ("H_resp", 2),
    "scaled": ("scaled by ERA", 3),
    "step_seconds": ("s a step", 1),
    "seconds": ("seconds", 0),
}
START = "warm-up"
STYLES = {
    "GRPO": dict(color="black", linestyle=(0, (4, 3)), linewidth=1.2, zorder=4),
    "ERA": dict(color="#4a90d0", linewidth=3, zorder=3),
    ARMS["adaptive"]: dict(color="#c46a1c", linestyle=":", linewidth=2, zorder=5),
}


def run_measures(run: Path) -> tuple[pandas.DataFrame, dict[str, float]]:
    """Of a finished run: its steps, and its measures."""
    steps = pandas.read_csv(run / STEPS_FILE)
    of_training = {
        "scaled": steps["scaled_token_fraction"].mean(),
        "step_seconds": steps["step_seconds"].median(),
        "seconds": steps["step_seconds"].sum(),
    }
    return steps, json.loads((run / VALIDATION_FILE).read_text()) | of_training


def held(low: float, steps: dict[str, pandas.DataFrame], ends: pandas.Series) -> str:
    """What the runs say, and what they do not. low: ERA's bound. ends: H_resp at the end, by name."""
    below = [name for name in STYLES if ends[name] < low]
    first = steps["ERA"].loc[steps["ERA"]["scaled_token_fraction"] > 0, "step"].min()
    acted = "acted on no step" if math.isnan(first) else f"acted from step {first:.0f} on"
    return (
        f"ERA's bound was {low:.2f} nats ({SHARE:g} x H_resp after the warm-up); ERA {acted}.\n"
        f"H_resp ended below the bound with {' and '.join(below) or 'none of the three'}."
    )


def end(settings: Settings, start: dict[str, float], folder: Path) -> None:
    """The end of the demo: its table, picture and runs.csv. start: measures after the warm-up."""
    steps, found = {}, {START: start}
    for arm, name in ARMS.items():
        steps[name], found[name] = run_measures(folder / arm)
    runs, low = pandas.DataFrame(found).T, SHARE * start["response_entropy"]
    runs.to_csv(folder / "runs.csv", index_label="run")
    shown = runs.rename_axis("name").reset_index().assign(seed=settings.seed)
    shown = shown.rename(columns={label: short for label, (short, _) in SHOWN.items()})
    draw(settings, steps, low, folder / "entropy.png")
    answers = ANSWERS * VALIDATION_PROMPTS
    note = (
        f"{held(low, steps, runs['response_entropy'])}\n"
        f"Of {VALIDATION_PROMPTS} prompts x {ANSWERS} answers; at a reward of 0.5 chance alone is +-"
        f"{1.96 * math.sqrt(0.25 / answers):.2f} or more, between seeds much more. One run of {settings.steps} steps "
        "shows\nthat a pretrained model trains with ERA and how its entropy moves; it cannot show which arm is better. "
        "For that:\ndocs/rivals/trl.md."
    )
    table = tables.rows_and_means(shown, dict(SHOWN.values()))
    tables.print_end(table, note, folder / "entropy.png", folder / "runs.csv")


def draw(settings: Settings, steps: dict[str, pandas.DataFrame], low: float, file: Path) -> None:
    titles = {
        "response_entropy": "response entropy (nats)",
        "reward": "mean reward",
        "distinct_right": f"distinct right answers of {ANSWERS}",
    }
    window = min(11, settings.steps // 3 or 1)
    curves = pandas.concat(one.assign(name=name, seed=settings.seed) for name, one in steps.items())
    figure, axes = tables.picture(curves, "step", titles, STYLES, window)
    axes[0].axhline(low, color="0.5", linestyle=":", linewidth=1.2, label=rf"$\omega_\mathrm{{low}}$ = {low:.2f}")
    for axis in axes:
        axis.set_ylim(bottom=0)
    note = f"SmolLM2-135M, {settings.task_name}, seed {settings.seed} (thin: each step; thick: mean of {window})"
    tables.save(figure, file, note)
