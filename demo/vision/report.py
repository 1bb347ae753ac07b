# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The demo's table and picture, from what the runs wrote."""

from pathlib import Path

import pandas

from demo.runner import tables
from demo.vision.settings import BASELINE, EPOCHS_FILE, MODEL, OFF, ON, Settings
from recipes import colors

ROUNDING = 1e-6  # of an entropy that comes from fp32 logits, nats
SMALLEST = "smallest entropy, nats"
# The measures on the screen, with their decimals.
SHOWN = {
    "top-1, %": ("top-1 %", 2),
    SMALLEST: ("H min", 4),
    "mean entropy, nats": ("H mean", 3),
    "mean confidence, %": ("conf. %", 2),
    "ECE, %": ("ECE %", 2),
    "NLL, nats": ("NLL", 3),
}
# The arms differ in line style, not in colour alone; dashes over a wider line show both where they agree.
STYLES = {
    BASELINE: dict(color=colors.BASELINE, linestyle=(0, (4, 2)), linewidth=1.4, zorder=4),
    ON: dict(color=colors.ERA, linewidth=2.6, zorder=3),
}


def evaluations(epochs: pandas.DataFrame) -> pandas.DataFrame:
    """The measures of the last epoch, by name and seed; of the ERA runs also with ERA off at evaluation."""
    last = epochs[epochs["epoch"] == epochs["epoch"].max()]
    baseline, era = last[last["name"] == BASELINE], last[last["name"] == ON]
    off = era.assign(name=OFF, **{label: era[f"off, {label}"] for label in SHOWN})
    return pandas.concat([baseline, era, off])[["name", "seed", *SHOWN]]


def held(epochs: pandas.DataFrame, floor: float) -> str:
    """Whether the floor held in training and validation. epochs: the rows of all runs. NaN did not hold."""
    smallest = epochs[[SMALLEST, f"train {SMALLEST}"]].min(axis=1, skipna=False)
    smallest = smallest.groupby([epochs["name"], epochs["seed"]]).agg(lambda entropies: entropies.min(skipna=False))
    era, baseline = smallest[ON], smallest[BASELINE].min(skipna=False)
    kept = (era >= floor - ROUNDING).sum()
    held_in = f"{kept} of {len(era)} runs: smallest H {era.min(skipna=False):.4f}, baseline {baseline:.4f}"
    unseen = "" if baseline < floor else ". The baseline stayed above it too, so these epochs do not show what ERA does"
    return f"ERA's floor of {floor:.4f} held in {held_in}{unseen}"


def end(runs: list[Settings], era, out: Path) -> None:
    """The end of the demo: its table, picture and runs.csv. era: the activation of the ERA runs."""
    epochs = tables.read(runs, out, EPOCHS_FILE)
    table = evaluations(epochs)
    table.to_csv(out / "runs.csv", index=False)
    titles = {SMALLEST: f"{SMALLEST} (validation)", "top-1, %": "top-1, % (validation)"}
    figure, axes = tables.picture(epochs, "epoch", titles, STYLES)
    axes[0].axhline(era.floor, color=colors.BOUND, linestyle="-.", label=f"ERA's floor, {era.floor:.4f}")
    axes[0].axhline(era.min_entropy, color="0.45", linestyle=":", label=f"H0 = {era.min_entropy:g}")
    axes[0].set_ylim(bottom=min(0, era.min_entropy))
    tables.save(figure, out / "entropy.png", f"{MODEL}, seed {', '.join(map(str, epochs['seed'].unique()))}")
    short = table.rename(columns={label: name for label, (name, _) in SHOWN.items()})
    shown = tables.rows_and_means(short, dict(SHOWN.values()))
    tables.print_end(shown, held(epochs, era.floor), out / "entropy.png", out / "runs.csv")
