# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The demo's table and picture, from the curves that train.py wrote."""

from pathlib import Path

import pandas

from demo.control.settings import CURVES_FILE, DIMENSIONS, ERA, FLAGS, LEARNED, NAMES, TARGET_ENTROPY, TASK, Settings
from demo.runner import tables
from recipes import colors

ROUNDING = 1e-4  # of an entropy summed in fp32 and written with six digits, nats
LAST = 3  # evaluations, whose mean is the return at the end
DECIMALS = {"return": 0, "H min": 2, "H end": 2, "margin": 4, "delta": 2}
STYLES = {
    "FastTD3": dict(color=colors.BASELINE, linestyle=(0, (4, 2)), linewidth=1.6, zorder=4),
    "FastTD3 no delay": dict(color=colors.PURPLE, linestyle=(0, (2, 1)), linewidth=1.8, zorder=4),
    "ERA": dict(color=colors.ERA, linestyle="-", linewidth=2.4, zorder=3),
    "ERA+delta": dict(color=colors.ORANGE, linestyle=(0, (5, 1, 1, 1)), linewidth=2, zorder=5),
}


def measures(curves: pandas.DataFrame) -> pandas.Series:
    """The measures of one run, NaN for what its agent lacks.

    They are the return at the end; the policy's entropy, smallest and in the last tenth; the smallest margin of the
    Gaussian's entropy above its target, H0 + delta; delta at the end.
    """
    entropies = curves["policy_entropy"].dropna()
    margins = curves["gaussian_entropy"] - curves["target_entropy"] - curves["delta"]
    return pandas.Series(
        {
            "return": curves["eval_avg_return"].dropna().tail(LAST).mean(),
            "H min": entropies.min(),
            "H end": entropies.tail(max(1, len(entropies) // 10)).mean(),
            "margin": margins.min(skipna=False),
            "delta": curves["delta"].iloc[-1],
        }
    )


def held(runs: pandas.DataFrame) -> str:
    """Whether the guarantee held. runs: the measures of all runs. A margin that is not a number did not hold."""
    margins = runs.loc[runs["name"].isin([NAMES[ERA], NAMES[LEARNED]]), "margin"]
    kept = (margins >= -ROUNDING).sum()
    return (
        f"The Gaussian's bound, H0 + delta, held in {kept} of {len(margins)} ERA runs: "
        f"margin {margins.min(skipna=False):.0e} nats"
    )


def end(runs: list[Settings], out: Path) -> None:
    """The end of the demo: its table, picture and runs.csv."""
    curves = tables.read(runs, out, CURVES_FILE)
    table = curves.groupby(["name", "seed"], sort=False).apply(measures, include_groups=False).reset_index()
    table.to_csv(out / "runs.csv", index=False)
    h0, seeds = DIMENSIONS * TARGET_ENTROPY, ", ".join(map(str, curves["seed"].unique()))
    titles = {
        "eval_avg_return": f"return of {FLAGS['num_eval_envs']} episodes, without noise",
        "policy_entropy": "entropy of the policy, nats",
        "gaussian_entropy": "entropy of its Gaussian, nats",
    }
    figure, axes = tables.picture(curves, "global_step", titles, STYLES)
    for axis in axes[1:]:
        axis.axhline(h0, color=colors.BOUND, linewidth=4, alpha=0.4, zorder=1, label=f"H0 = {h0:g}")
    tables.save(figure, out / "curves.png", f"{TASK}, FastTD3's train.py on a CPU, seed {seeds}")
    tables.print_end(tables.rows_and_means(table, DECIMALS), held(table), out / "curves.png", out / "runs.csv")
