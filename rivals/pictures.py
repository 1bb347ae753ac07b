# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Pictures of docs/rivals/, docs/control/ and docs/when-to-use.md."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from demo.runner import colors
from ledger.statistics import mean_curve
from rivals import llm, trl, vision
from rivals.rule import FRESH_SEEDS, KEY, TUNING_SEEDS

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
# Dark to light; ERA and GRPO stand out in black and white too.
STYLES = {
    "grpo": {"color": colors.BASELINE, "linestyle": (0, (4, 3)), "zorder": 3},
    "era": {"color": colors.ERA, "linewidth": 2.5, "marker": "o"},
    "adaptive": {"color": colors.ORANGE, "marker": "s"},
    "adaptive-mean": {"color": colors.LIGHT_ORANGE, "marker": "D"},
    "bonus": {"color": colors.GREEN, "marker": "^"},
    "kl": {"color": colors.PURPLE, "marker": "v"},
    "hotter": {"color": colors.GREY, "marker": "x"},
    "clip-higher": {"color": colors.DARK_RED, "marker": "P"},
    "clip-cov": {"color": colors.TEAL, "marker": "*"},
    "kl-cov": {"color": colors.OCHRE, "marker": "h"},
}
ARM_COLORS = {
    "ppo": colors.BASELINE,
    "ppo_no_bonus": colors.GREY,
    "ppo_era": colors.ERA,
    "ppo_era_0.3": colors.PURPLE,
    "ppo_constant": colors.ORANGE,
    "ppo_parameter": colors.GREEN,
    "ppo_head": colors.OCHRE,
    "eapo_3m": colors.DARK_RED,
    "sac": colors.BASELINE,
    "sac_era": colors.ERA,
    "obac": colors.ORANGE,
    "obac-reward": colors.GREEN,
    "obac_era": colors.PURPLE,
}
# Of trl-bound.md, by method and setting: the same in every panel.
BOUND_COLORS = {
    ("grpo", "0"): colors.BASELINE,
    ("grpo-rate", "0.25"): colors.GREY,
    ("grpo-negative", "0.5"): colors.TEAL,
    ("grpo-negative", "0"): colors.GREEN,
    ("adaptive", "0.23"): colors.ORANGE,
    ("era", "1.2"): "#8fc1e3",
    ("era-k", "4"): colors.ERA,
    ("era-k", "8"): "#123a66",
    ("era-negative", "0.5"): "#c9a6dd",
    ("era-negative", "0"): colors.PURPLE,
    ("era-scaled", "4"): colors.DARK_RED,
    ("era-dynamic", "4"): colors.OCHRE,
    ("era-answers", "4"): colors.LIGHT_ORANGE,
}
# title: task, setting of ERA
EXAMPLES = {
    "healthy": ("chain", "0.45"),
    "higher bound": ("chain", "0.7"),
    "useless: one right answer": ("chain-single", "0.3"),
}


def style(method: str) -> dict:
    return {"linewidth": 1.2, "markersize": 4, **STYLES[method.removeprefix("off-")]}


def frontiers(samples: pd.DataFrame, parts: dict[str, tuple[str, dict[str, str]]], file: Path) -> None:
    """Accuracy against distinct answers over the temperatures, means over the fresh seeds.

    parts: by title of the panel, the task and the setting of each method.
    """
    fresh = samples[samples.seed.isin(FRESH_SEEDS)]
    means = fresh.groupby(["task", "method", "setting", "temperature"])[["pass_at_1", "distinct_32"]].mean()
    figure = Figure((4.2 * len(parts), 4.6))
    axes = figure.subplots(1, len(parts), sharey=True)
    for (title, (task, settings)), axis in zip(parts.items(), axes):
        for method, setting in settings.items():
            points = means.loc[task, method, setting]
            axis.plot(points.pass_at_1, points.distinct_32, label=llm.METHODS[method].name, **style(method))
        axis.set(xlabel="accuracy", xlim=(0.5 if task == "chain" else 0, 1.005))
        axis.set_title(title, fontsize=10)
        axis.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    axes[0].set_ylabel("distinct right answers of 32")
    figure.savefig(file)


def settings(numbers: pd.DataFrame, file: Path) -> None:
    """H_resp at the end over the five settings of each method on `chain`, a dot for every seed."""
    methods = llm.settings(off_policy=False)
    seeds = numbers[numbers.index.isin((*TUNING_SEEDS, *FRESH_SEEDS), "seed")].sort_index()
    unit = {"grpo": ", x the task's"} | dict.fromkeys(("era", "adaptive", "adaptive-mean"), ", x start")
    figure = Figure((2 * len(methods), 3.1))
    axes = figure.subplots(1, len(methods), sharey=True)
    for (method, values), axis in zip(methods.items(), axes):
        for place, setting in enumerate(values):
            ends = seeds.response_entropy["chain", method, setting]
            axis.plot([place] * len(ends), ends, "o", color=colors.BASELINE, alpha=0.5)
            if method in ("era", "adaptive"):  # adaptive-mean's target is of another entropy
                target = float(setting) * llm.START["chain"][0]
                axis.plot([place - 0.4, place + 0.4], [target] * 2, color=colors.ERA, linewidth=2)
        axis.set_xticks(range(len(values)), values, fontsize=7)
        axis.set_xlim(-0.5, len(values) - 0.5)
        title, label = llm.METHODS[method].title.split(", ")
        axis.set_title(title.replace(" on ", "\non ").replace(" sampled ", "\nsampled "), fontsize=8)
        axis.set_xlabel(label + unit.get(method, ""), fontsize=8)
    axes[0].set_ylabel("response entropy at the end, nats")
    figure.savefig(file)


def examples(curves: pd.DataFrame, file: Path) -> None:
    """How ERA's metrics look when it helps, and when not; with GRPO, tuning seed 1."""
    known = curves.set_index(KEY).sort_index()
    figure = Figure((10, 6.4))
    axes = figure.subplots(3, len(EXAMPLES), sharex=True, sharey="row")
    for (title, (task, share)), column in zip(EXAMPLES.items(), axes.T):
        bound = float(share) * llm.START[task][0]
        for method, setting in (("grpo", "1"), ("era", share)):
            run = known.loc[task, method, setting, 1]
            look = {**style(method), "marker": None, "label": llm.METHODS[method].name}
            column[0].plot(run.step, run.response_entropy, **look)
            column[2].plot(run.step, run.reward, **look)
        column[0].axhline(bound, color="0.5", linewidth=0.8, label="omega_low")
        for name, color in (("low_fraction", colors.ORANGE), ("scaled_token_fraction", colors.GREEN)):
            column[1].plot(run.step, run[name], color=color, label=f"era/{name}")
        column[0].set_title(f"{title}\n({task}, omega_low {bound:.2f})", fontsize=9)
        column[2].set_xlabel("step")
    for axis, label in zip(axes[:, 0], ("era/response_entropy, nats", "share, ERA's run", "reward")):
        axis.set_ylabel(label, fontsize=9)
        axis.legend()
    figure.savefig(file)


def trl_curves(curves: pd.DataFrame, file: Path) -> None:
    """Entropy, reward and diversity over the steps of TRL's runs, means over the seeds, and ERA's bounds."""
    rows = {"response_entropy": "H_resp, nats", "reward": "reward", "distinct_right": "distinct right\nanswers of 8"}
    figure = Figure((4.6 * len(trl.TASKS) + 1.5, 6.4))
    axes = figure.subplots(len(rows), len(trl.TASKS), sharex=True, sharey="row")
    for task, column in zip(trl.TASKS, axes.T):
        means = curves[curves.task == task].groupby(["method", "setting", "step"])[[*rows]].mean()
        for method, values in trl.TASKS[task].items():
            for setting in values:
                name = trl.NAMES[method].format(setting)
                pale = 0.5 if setting != values[0] else 1
                look = {**style(method), "marker": None, "label": name, "alpha": pale}
                run = means.loc[method, setting]
                for measure, axis in zip(rows, column):
                    axis.plot(run.index, run[measure], **look)
                if method == "era":
                    column[0].axhline(float(setting), color="0.5", linewidth=0.8)
        column[0].set_title(task, fontsize=10)
        column[-1].set_xlabel("step")
    for axis, label in zip(axes[:, 0], rows.values()):
        axis.set_ylabel(label, fontsize=9)
    axes[1, 0].legend(loc="lower right")
    figure.savefig(file)


def bound_curves(
    curves: pd.DataFrame,
    panels: Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]],
    bounds: Mapping[str, float],
    file: Path,
) -> None:
    """Every seed of the arms of trl-bound.md as a thin line, and the mean of each arm, over the share of the answers.

    Args:
        panels: by title, the task, and the method and setting of each arm, by its name. Arms and panels without runs
            are left out.
        bounds: ERA's, in nats, by task.
    """
    rows = {"response_entropy": "H_resp, nats", "reward": "reward", "distinct_right": "distinct right\nanswers of 8"}
    known = curves.set_index(KEY).sort_index()
    trained = set(known.index.droplevel("seed"))
    with_runs = {
        title: (task, {name: arm for name, arm in arms.items() if (task, *arm) in trained})
        for title, (task, arms) in panels.items()
    }
    panels = {title: panel for title, panel in with_runs.items() if panel[1]}
    figure = Figure((4.2 * len(panels), 7))
    axes = figure.subplots(len(rows), len(panels), sharex=True, sharey="row", squeeze=False)
    for (title, (task, arms_shown)), column in zip(panels.items(), axes.T):
        for name, arm in arms_shown.items():
            of_arm = known.loc[(task, *arm)].assign(share=lambda run: run.step / run.step.max())
            look = {"color": BOUND_COLORS[arm]}
            for measure, axis in zip(rows, column):
                for _, run in of_arm.groupby("seed"):
                    axis.plot(run.share, run[measure], linewidth=0.6, alpha=0.6, **look)
                mean = of_arm.groupby("share")[measure].mean()
                axis.plot(mean.index, mean, linewidth=2, label=name, **look)
        column[0].axhline(bounds[task], color="0.5", linewidth=0.8)
        column[0].set_title(title, fontsize=10)
        column[-1].set_xlabel("share of the answers")
        column[-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.25))
    for axis, label in zip(axes[:, 0], rows.values()):
        axis.set_ylabel(label, fontsize=9)
    figure.savefig(file)


def arms(fresh: dict[str, pd.DataFrame], labels: list[str], reference: str, file: Path) -> None:
    """NLL of every fresh seed as a dot and each arm's mean as a bar, on the test and on the shifted images."""
    figure = Figure((9, 4))
    axes = figure.subplots(1, 2, sharey=True)
    heights = [-number for number in range(len(fresh))]
    for images, axis in zip((vision.TEST, vision.SHIFTED), axes):
        for (arm, runs), height in zip(fresh.items(), heights):
            values = runs["nll", images]
            color = colors.ERA if vision.ARMS[arm] == "era" else colors.BASELINE
            axis.plot(values, [height] * len(values), "o", color=color, markersize=4, alpha=0.5)
            axis.plot(values.mean(), height, "|", color=color, markersize=14, markeredgewidth=2)
        axis.axvline(fresh[reference]["nll", images].mean(), color="0.7", linewidth=1, zorder=0)
        axis.set_xlabel(f"NLL on {images} images, nats")
    axes[0].set_yticks(heights, labels)
    figure.savefig(file)


def returns(panels: Mapping[str, tuple[dict[str, list[pd.Series]], dict[str, str]]], file: Path) -> None:
    """Mean return of each arm's seeds over the steps, with its 95 % interval.

    Args:
        panels: by title, the curves of each agent's seeds, and each agent's label.
    """
    figure = Figure((4.8 * len(panels), 5.4))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for (title, (curves, labels)), axis in zip(panels.items(), axes):
        for agent, seeds in curves.items():
            curve, color = mean_curve(seeds), ARM_COLORS[agent]
            axis.plot(curve.index, curve["mean"], color=color, label=labels[agent], linewidth=1.4)
            axis.fill_between(curve.index, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13))
    axes[0].set_ylabel("return")
    figure.savefig(file)


def return_and_entropy(
    returns: dict[str, list[pd.Series]], entropies: dict[str, list[pd.Series]], labels: dict[str, str], file: Path
) -> None:
    """PPO on HalfCheetah-v4 for README: the arms' returns, and beside them what ERA bounds."""
    figure = Figure((8, 3.2))
    for axis, curves in zip(figure.subplots(1, 2), (returns, entropies)):
        for agent, style in zip(labels, ("-", "-", "--")):
            curve, color = mean_curve(curves[agent]), ARM_COLORS[agent]
            axis.plot(curve.index, curve["mean"], style, color=color, label=labels[agent], linewidth=1.5)
            axis.fill_between(curve.index, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
        axis.set_xlabel("step")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    returns_axis, entropy_axis = figure.axes
    returns_axis.set_ylabel("return")
    entropy_axis.set_ylabel("entropy per dimension (nats)")
    entropy_axis.axhline(-0.3, color=colors.BOUND, linewidth=0.8, label="H0 = -0.3, ERA's bound")
    figure.legend(*entropy_axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file)
