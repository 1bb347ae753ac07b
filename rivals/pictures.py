# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Pictures of docs/rivals/ and docs/control/."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ledger.statistics import mean_curve
from recipes import colors
from recipes.curves import at_end
from rivals import llm_page, records, trl_page, vision
from rivals.rule import FRESH_SEEDS, KEY

matplotlib.rcParams.update(
    {
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.constrained_layout.use": True,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "savefig.dpi": 110,
    }
)
# By method or agent, the same wherever it is drawn. Some arms of trl.md have their setting behind the name.
COLORS = {
    # language models
    "grpo": colors.BASELINE,
    "era": colors.ERA,
    "adaptive": colors.ORANGE,
    "adaptive-mean": colors.LIGHT_ORANGE,
    "bonus": colors.GREEN,
    "kl": colors.BROWN,
    "hotter": colors.LIGHT_RED,
    "clip-higher": colors.DARK_RED,
    "clip-cov": colors.TEAL,
    "kl-cov": colors.OCHRE,
    "grpo-rate": colors.GREY,
    "grpo 0.25": colors.GREY,
    "grpo-negative 0": colors.PINK,
    "era-k 2": colors.ERA,
    "era-k 4": colors.LIGHT_BLUE,
    "era-k 8": colors.K_8,
    "era-negative 0": colors.NO_NEGATIVES,
    "era-hold": colors.HOLD,
    # control
    "ppo": colors.BASELINE,
    "ppo_no_bonus": colors.GREY,
    "ppo_era": colors.ERA,
    "ppo_era_0.3": colors.DARK_BLUE,
    "ppo_constant": colors.ORANGE,
    "ppo_parameter": colors.GREEN,
    "ppo_head": colors.OCHRE,
    "eapo_3m": colors.DARK_RED,
    "sac": colors.BASELINE,
    "sac_era": colors.ERA,
    "obac": colors.TEAL,
    "obac-reward": colors.LIGHT_ORANGE,
    "obac_era": colors.PURPLE,
    # classifiers
    "baseline": colors.BASELINE,
    "label_smoothing": colors.ORANGE,
    "confidence_penalty": colors.GREEN,
    "focal": colors.OCHRE,
    "logit_norm": colors.DARK_RED,
    "uniform_mixing": colors.TEAL,
}
# ERA stands out in black and white too.
STYLES = {
    "grpo-rate": {"zorder": 3},
    "era": {"linewidth": 2.5, "marker": "o"},
    "adaptive": {"marker": "s"},
    "adaptive-mean": {"marker": "D"},
    "bonus": {"marker": "^"},
    "kl": {"marker": "v"},
    "hotter": {"marker": "x"},
    "clip-higher": {"marker": "P"},
    "clip-cov": {"marker": "*"},
    "kl-cov": {"marker": "h"},
}


def color(method: str, setting: str) -> str:
    """Of an arm: some have a colour for each setting. A bound behind the setting, as in 8@1.6, makes no difference."""
    return COLORS.get(f"{method} {setting.partition('@')[0]}") or COLORS[method]


def frontiers(samples: pd.DataFrame, parts: dict[str, tuple[str, dict[str, str]]], file: Path) -> None:
    """Accuracy against distinct answers over the temperatures, means over the fresh seeds.

    parts: by title of the panel, the task and the setting of each method.
    """
    fresh = samples[samples.seed.isin(FRESH_SEEDS)]
    means = fresh.groupby(["task", "method", "setting", "temperature"])[["pass_at_1", "distinct_32"]].mean()
    figure = Figure((3 * len(parts), 5.2))
    axes = figure.subplots(1, len(parts), sharey=True)
    for (title, (task, settings)), axis in zip(parts.items(), axes):
        for method, setting in settings.items():
            points = means.loc[task, method, setting]
            name = method.removeprefix("off-").replace("grpo", "grpo-rate")
            label = f"GRPO, rate x {setting}" if name == "grpo-rate" else llm_page.NAMES[method]
            look = {"linewidth": 1.2, "markersize": 4, "color": COLORS[name], **STYLES[name]}
            axis.plot(points.pass_at_1, points.distinct_32, label=label, **look)
        axis.set(xlabel="accuracy", xlim=(0.5 if task == "chain" else 0, 1.005))
        axis.set_title(title, fontsize=10)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=8.5)
    axes[0].set_ylabel("distinct right answers of 32")
    figure.savefig(file)


def trl_curves(curves: pd.DataFrame, file: Path) -> None:
    """H_resp of the arms of trl.md on each task, and what is left of the answers' variety at equal reward on the first.

    A line is the mean over the seeds, a dot the end of a seed. curves: curves.csv.
    """
    known = curves[curves.seed.isin(trl_page.SEEDS)].set_index(KEY).sort_index()
    figure = Figure((8, 6.2))
    axes = figure.subplots(2, 2).ravel()
    for (task, arms_of_task), axis in zip(trl_page.PANELS.items(), axes):
        for arm in arms_of_task:
            runs = known.loc[(task, *arm)]
            mean = runs.groupby("step")[["response_entropy", "reward", "distinct_right"]].mean()
            look = {"color": color(*arm)}
            name = trl_page.NAMES[arm] + (f" ({task})" if arm[0] == "adaptive" else "")  # its targets differ
            axis.plot(mean.index, mean.response_entropy, linewidth=1.8, label=name, **look)
            last = runs.groupby("seed").tail(records.LAST // records.ROW_STEPS)
            ends = last.groupby("seed").response_entropy.mean()
            axis.plot([1.03 * mean.index[-1]] * len(ends), ends, "o", markersize=3, clip_on=False, **look)
            if axis is axes[0]:
                path = mean.rolling(5, min_periods=1).mean()
                axes[2].plot(path.reward, path.distinct_right, linewidth=1.8, **look)
        axis.axhline(trl_page.BOUND[task], color=colors.BOUND, linewidth=1, label="ERA's bound")
        axis.set(title=f"{task}: entropy", xlabel="training step", ylabel="H_resp (nats)", ylim=(0, None))
    axes[2].set(
        title=f"{next(iter(trl_page.PANELS))}: variety at equal reward",
        xlabel="reward (mean over 25 steps)",
        ylabel="distinct right answers of 8",
    )
    axes[3].axis("off")
    labels = {label: line for axis in axes[:2] for line, label in zip(*axis.get_legend_handles_labels())}
    axes[3].legend(labels.values(), labels, loc="center left", fontsize=9)
    figure.savefig(file)


def held_curves(panels: Mapping[str, tuple[tuple[str, str], float, pd.DataFrame]], file: Path) -> None:
    """H_resp of the arms of trl-hold.md, a panel for each and a line for each seed, with the bound in red.

    panels: by title, the method and setting, the bound in nats, and the rows of curves.csv. The first line of a title
    is the task, which begins a row.
    """
    of_tasks, rows = Counter(title.split("\n")[0] for title in panels), []
    columns = min(5, max(of_tasks.values()))
    for title, panel in panels.items():
        task, name = title.split("\n")
        if not rows or rows[-1][0] != task or len(rows[-1][1]) == columns:
            rows.append((task, {}))
        rows[-1][1][name] = panel
    figure = Figure((9, 1.6 * len(rows) + 0.3))
    axes = figure.subplots(len(rows), columns, sharey=True, squeeze=False)
    for (task, of_row), row in zip(rows, axes):
        for axis in row[len(of_row) :]:
            axis.axis("off")
        for (name, (arm, bound, curves)), axis in zip(of_row.items(), row):
            for _, run in curves.groupby("seed"):
                axis.plot(run.step, run.response_entropy, color=color(*arm), linewidth=1.2, alpha=0.8)
            axis.axhline(bound, color=colors.BOUND, linewidth=0.9)
            axis.set_title(name, fontsize=8 if len(name) < 25 else 7)
            axis.tick_params(labelsize=7)
        row[0].set_ylabel(task.replace(", ", "\n"), fontsize=8)
    axes[0, 0].set_ylim(bottom=0)  # of all: they share the axis
    figure.supylabel("H_resp (nats)", fontsize=9)
    figure.supxlabel("training step", fontsize=9)
    figure.savefig(file)


def arms(chosen: dict[str, str], fresh: dict[str, pd.DataFrame], file: Path) -> None:
    """NLL of every fresh seed as a dot and each arm's mean as a bar, on the test and on the shifted images.

    chosen: the setting of each arm.
    """
    figure = Figure((9, 4))
    axes = figure.subplots(1, 2, sharey=True)
    heights = [-number for number in range(len(fresh))]
    for images, axis in zip((vision.TEST, vision.SHIFTED), axes):
        for (arm, runs), height in zip(fresh.items(), heights):
            values = runs["nll", images]
            color = COLORS[vision.ARMS[arm]]
            axis.plot(values, [height] * len(values), "o", color=color, markersize=4, alpha=0.5)
            axis.plot(values.mean(), height, "|", color=color, markersize=14, markeredgewidth=2)
        mean = fresh[vision.REFERENCE]["nll", images].mean()
        axis.axvline(mean, color="0.7", linewidth=1, zorder=0, label=f"{vision.REFERENCE}: the mean over the seeds")
        axis.set_xlabel(f"NLL on {images} images (nats)")
    axes[0].set_yticks(heights, [f"{vision.arm_name(arm)} ({setting})" for arm, setting in chosen.items()])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower right", fontsize=9)
    figure.savefig(file)


def windows(curve: pd.Series, window: int) -> pd.Series:
    """The means of successive values, at the last step of each."""
    return curve.rolling(window).mean().iloc[window - 1 :: window]


def returns(panels: Mapping[str, tuple[dict[str, list[pd.Series]], dict[str, str]]], window: int, file: Path) -> None:
    """Mean return of each arm over the steps, and beside it the end of each seed as a dot, a column for each arm.

    Args:
        panels: by title, the evaluations of each agent's seeds, and each agent's label.
        window: how many evaluations a point of a curve is the mean of.
    """
    figure = Figure((4.4 * max(len(panels), 1.6), 5.4))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for (title, (curves, labels)), axis in zip(panels.items(), axes):
        for place, (agent, seeds) in enumerate(curves.items(), start=1):
            curve, color = mean_curve([windows(seed, window) for seed in seeds]), COLORS[agent]
            axis.plot(curve.index, curve["mean"], color=color, label=f"{labels[agent]}: {len(seeds)}", linewidth=1.8)
            last = curve.index[-1]
            ends = [at_end(seed) for seed in seeds]
            axis.plot([last * (1 + 0.03 * place)] * len(ends), ends, "o", color=color, markersize=4, alpha=0.7)
        axis.axvline(last * 1.01, color="0.8", linewidth=0.8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("steps in the environment; right: the end of each seed")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.set_xticks([tick for tick in axis.get_xticks() if 0 <= tick <= last])
        axis.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.13), title="mean of the seeds, and how many", fontsize=8
        )
    axes[0].set_ylabel(f"return, mean of {window} evaluations" if window > 1 else "return of an evaluation")
    figure.savefig(file)
