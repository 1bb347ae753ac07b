# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Pictures of docs/rivals/, docs/control/ and docs/when-to-use.md."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ledger.statistics import mean_curve
from recipes import colors
from recipes.curves import at_end
from rivals import llm, records, trl, vision
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
# The colours are of recipes/colors.py. ERA and GRPO stand out in black and white too.
STYLES = {
    "grpo": {"linestyle": (0, (4, 3)), "zorder": 3},
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
# title: task, setting of ERA
EXAMPLES = {
    "healthy": ("chain", "0.45"),
    "higher bound": ("chain", "0.7"),
    "useless: one right answer": ("chain-single", "0.3"),
}


def style(method: str) -> dict:
    name = method.removeprefix("off-")
    return {"linewidth": 1.2, "markersize": 4, "color": colors.METHODS[name], **STYLES[name]}


def color(method: str, setting: str) -> str:
    """Of an arm: some have a colour for each setting. A bound behind the setting, as in 8@1.6, makes no difference."""
    return colors.METHODS.get(f"{method} {setting.partition('@')[0]}") or colors.METHODS[method]


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
    figure = Figure((9, 5.6))
    axes = figure.subplots(2, 4, sharey=True)
    for axis in axes.flat[len(methods) :]:
        axis.axis("off")
    for (method, values), axis in zip(methods.items(), axes.flat):
        for place, setting in enumerate(values):
            ends = seeds.response_entropy["chain", method, setting]
            axis.plot([place] * len(ends), ends, "o", color=colors.BASELINE, alpha=0.5)
            if method in ("era", "adaptive"):  # adaptive-mean's target is of another entropy
                target = float(setting) * llm.START["chain"][0]
                axis.plot([place - 0.4, place + 0.4], [target] * 2, color=colors.BOUND, linewidth=2)
        axis.set_xticks(range(len(values)), values, fontsize=9)
        axis.set_xlim(-0.5, len(values) - 0.5)
        title, label = llm.METHODS[method].title.split(", ")
        axis.set_title(title.replace(" on ", "\non ").replace(" sampled ", "\nsampled "), fontsize=10)
        axis.set_xlabel(label + unit.get(method, ""), fontsize=9)
        axis.set_ylabel("H_resp at the end (nats)" if axis in axes[:, 0] else "")
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
        column[0].axhline(bound, color=colors.BOUND, linewidth=0.8, label="omega_low")
        for name, color in (("low_fraction", colors.ORANGE), ("scaled_token_fraction", colors.GREEN)):
            column[1].plot(run.step, run[name], color=color, label=f"era/{name}")
        column[0].set_title(f"{title}\n({task}, omega_low {bound:.2f})", fontsize=9)
        column[2].set_xlabel("training step")
    for axis, label in zip(axes[:, 0], ("era/response_entropy, nats", "share, ERA's run", "reward")):
        axis.set_ylabel(label, fontsize=9)
        axis.legend()
    figure.savefig(file)


def trl_curves(curves: pd.DataFrame, file: Path) -> None:
    """Entropy, reward and diversity over the steps of TRL's runs, means over the seeds, and ERA's bounds in red."""
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
                    column[0].axhline(float(setting), color=colors.BOUND, linewidth=0.8)
        column[0].set_title(task, fontsize=10)
        column[-1].set_xlabel("training step")
    for axis, label in zip(axes[:, 0], rows.values()):
        axis.set_ylabel(label, fontsize=9)
    axes[1, 0].legend(loc="lower right")
    figure.savefig(file)


def bound_curves(
    curves: pd.DataFrame,
    panels: Mapping[str, Mapping[str, tuple[str, str]]],
    bounds: Mapping[str, float],
    file: Path,
) -> None:
    """H_resp of the arms of trl-bound.md on each task, and what is left of the answers' variety at equal reward.

    A line is the mean over the seeds, a dot the end of a seed.

    Args:
        panels: by task, the method and setting of each arm, by its name. Arms and tasks without runs are left out. The
            last panel, of variety against reward, is of the first task.
        bounds: ERA's, in nats, by task.
    """
    known = curves.set_index(KEY).sort_index()
    trained = set(known.index.droplevel("seed"))
    of_tasks = {}
    for task, arms_of_task in panels.items():
        if with_runs := {name: arm for name, arm in arms_of_task.items() if (task, *arm) in trained}:
            of_tasks[task] = with_runs
    figure = Figure((8, 6.2))
    axes = figure.subplots(2, 2).ravel()
    for (task, arms_of_task), axis in zip(of_tasks.items(), axes):
        for name, arm in arms_of_task.items():
            runs = known.loc[(task, *arm)].assign(
                share=lambda run: run.step / run.step.groupby("seed").transform("max")
            )
            mean = runs.groupby("share").response_entropy.mean()
            look = {"color": color(*arm)}
            axis.plot(mean.index, mean, linewidth=1.8, label=name, **look)
            last = runs.groupby("seed").tail(records.LAST // records.WINDOW)
            ends = last.groupby("seed").response_entropy.mean()
            axis.plot([1.03] * len(ends), ends, "o", markersize=3, clip_on=False, **look)
            if task == next(iter(of_tasks)):
                path = runs.groupby("step")[["reward", "distinct_right"]].mean().rolling(5, min_periods=1).mean()
                axes[2].plot(path.reward, path.distinct_right, linewidth=1.8, **look)
        axis.axhline(bounds[task], color=colors.BOUND, linewidth=1, label="ERA's bound")
        axis.set(title=f"{task}: entropy", xlabel="share of the training's answers", ylabel="H_resp (nats)")
    axes[2].set(
        title=f"{next(iter(of_tasks))}: variety at equal reward",
        xlabel="reward (mean over 25 steps)",
        ylabel="distinct right answers of 8",
    )
    axes[3].axis("off")
    labels = {label: line for axis in axes[:2] for line, label in zip(*axis.get_legend_handles_labels())}
    axes[3].legend(labels.values(), labels, loc="center left", fontsize=9)
    figure.savefig(file)


def held_curves(panels: Mapping[str, tuple[tuple[str, str], float, pd.DataFrame]], file: Path) -> None:
    """H_resp of the arms of trl-hold.md, a panel for each and a line for each seed, with the bound.

    panels: by title, the method and setting, the bound in nats, and the rows of curves.csv.
    """
    columns = 5
    rows = -(-len(panels) // columns)
    figure = Figure((9, 1.75 * rows + 0.3))
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for (title, (arm, bound, curves)), axis in zip(panels.items(), axes.flat):
        for _, run in curves.groupby("seed"):
            axis.plot(run.step, run.response_entropy, color=color(*arm), linewidth=1.2, alpha=0.8)
        axis.axhline(bound, color=colors.BOUND, linewidth=0.9)
        axis.set_title(title.replace("without ", "without\n"), fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0, 0].set_ylim(bottom=0)  # of all: they share the axis
    figure.supylabel("H_resp (nats)", fontsize=9)
    figure.supxlabel("training step", fontsize=9)
    figure.savefig(file)


def arms(fresh: dict[str, pd.DataFrame], labels: list[str], reference: str, file: Path) -> None:
    """NLL of every fresh seed as a dot and each arm's mean as a bar, on the test and on the shifted images."""
    figure = Figure((9, 4))
    axes = figure.subplots(1, 2, sharey=True)
    heights = [-number for number in range(len(fresh))]
    for images, axis in zip((vision.TEST, vision.SHIFTED), axes):
        for (arm, runs), height in zip(fresh.items(), heights):
            values = runs["nll", images]
            color = colors.METHODS[vision.ARMS[arm]]
            axis.plot(values, [height] * len(values), "o", color=color, markersize=4, alpha=0.5)
            axis.plot(values.mean(), height, "|", color=color, markersize=14, markeredgewidth=2)
        mean = fresh[reference]["nll", images].mean()
        axis.axvline(mean, color="0.7", linewidth=1, zorder=0, label=f"{reference}: the mean over the seeds")
        axis.set_xlabel(f"NLL on {images} images (nats)")
    axes[0].set_yticks(heights, labels)
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
            curve, color = mean_curve([windows(seed, window) for seed in seeds]), colors.METHODS[agent]
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
    axes[0].set_ylabel("return of an evaluation's episode")
    figure.savefig(file)


def return_and_entropy(
    returns: dict[str, list[pd.Series]], entropies: dict[str, list[pd.Series]], labels: dict[str, str], file: Path
) -> None:
    """PPO on HalfCheetah-v4 for README: returns, and beside them what ERA bounds, as means of ten evaluations."""
    figure = Figure((8, 3.2))
    for axis, curves in zip(figure.subplots(1, 2), (returns, entropies)):
        for agent, style in zip(labels, ("-", "-", "--")):
            curve, color = mean_curve([windows(seed, 10) for seed in curves[agent]]), colors.METHODS[agent]
            axis.plot(curve.index, curve["mean"], style, color=color, label=labels[agent], linewidth=1.5)
            axis.fill_between(curve.index, curve.low, curve.high, color=color, alpha=0.12, linewidth=0)
        axis.set_xlabel("steps in the environment")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    returns_axis, entropy_axis = figure.axes
    returns_axis.set_ylabel("return of an evaluation's episode")
    entropy_axis.set_ylabel("entropy per dimension (nats)")
    entropy_axis.axhline(-0.3, color=colors.BOUND, linewidth=0.8, label="H0 = -0.3, ERA's bound")
    figure.legend(*entropy_axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file)
