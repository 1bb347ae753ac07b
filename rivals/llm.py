# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The runs of docs/rivals/trl-hold.md in verl, and the measures of all runs in verl, which llm.md has too."""

import re

import numpy as np
import pandas as pd

from demo.llm import chain
from rivals.rule import KEY

# H_resp after the warm-up, a mean over seeds 1 and 2, in nats. Bounds and targets are shares of it, so that they fit
# every task; the paper's rule is 0.3.
START = {**dict.fromkeys(("chain", "chain-goal", "chain-biased"), 2.194), "chain-single": 1.039}
CURVES, SAMPLES = "train.csv", "samples.csv"
TEMPERATURES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 2.0, 3.0, 4.0)  # at which answers are sampled
STEPS = dict.fromkeys(START, 150) | {"chain-goal": 300}
# The shares that are trl-hold.md's bounds, in the order of its runs: those that llm.md's rule chose for ERA.
HOLD_SHARE = {"chain-goal": "0.7", "chain": "0.45", "chain-biased": "0.45", "chain-single": "0.45"}
HOLD_SEEDS = (31, 32, 33, 34, 35)
# What each method differs in from the demo's GRPO, as Hydra's overrides in actor_rollout_ref. {value} is the setting,
# {rate} the setting times the learning rate, {h_resp} the setting times H_resp, {bound} the task's.
METHODS = {
    "grpo": "actor.optim.lr={rate}",
    "grpo-stopped": "",  # its setting is the k of the run with hold at whose reward rivals.llm_run stops it
    "adaptive": "++actor.adaptive_entropy.delta=0.005 ++actor.adaptive_entropy.target={h_resp}",
    "era-hold": "actor.era.k={value} actor.era.low={bound} actor.era.hold=True",
    "era-k": "actor.era.k={value} actor.era.low={bound}",
    "era-negative": "actor.era.k=2.0 actor.era.low={bound}",  # trained by rivals.llm_trainer
}


def hold_settings(task: str) -> dict[str, list[str]]:
    """The methods on a task, and their settings."""
    held = {"era-hold": ["8", "2", "4", "1"], "era-k": ["8", "2", "4"], "era-negative": ["0"]}
    stopped = {"grpo-stopped": ["8"]} if task == "chain" else {}
    return {**held, "grpo": ["1", "0.25"], "adaptive": [HOLD_SHARE[task]], **stopped}


def overrides(method: str, setting: str, task: str) -> list[str]:
    """Hydra's overrides for a method and its setting: what differs from the demo's GRPO."""
    rate, h_resp = (float(setting) * value for value in (chain.TASKS[task].learning_rate, START[task]))
    bound = float(HOLD_SHARE[task]) * START[task]
    words = METHODS[method].format(value=setting, rate=rate, h_resp=f"{h_resp:.4f}", bound=f"{bound:.4f}").split()
    return [re.sub(r"^(\+*)", r"\1actor_rollout_ref.", word) for word in words]


def distinct_at(samples: pd.DataFrame, accuracy: float) -> float:
    """Distinct right answers of 32 at the hottest temperature at which `accuracy` of the answers are right.

    Linear between the two temperatures around it; 0 if no temperature has that accuracy.

    Args:
        samples: a row per temperature, the hottest first.
    """
    right, distinct = samples.pass_at_1.to_numpy(), samples.distinct_32.to_numpy()
    enough = right >= accuracy
    if not enough.any():
        return 0.0
    hottest = enough.argmax()
    around = slice(max(hottest - 1, 0), hottest + 1)
    return float(np.interp(accuracy, right[around], distinct[around]))


def measures(samples: pd.DataFrame) -> pd.DataFrame:
    """A row per run, by KEY: the row of `samples` at temperature 1, and measures over all temperatures.

    d@.95 is `distinct_at` .95, best_accuracy the accuracy at the best temperature, score what the rule maximizes.
    """
    rows = samples[samples.temperature == 1].set_index(KEY)
    runs = samples.sort_values("temperature", ascending=False).groupby(KEY)[["pass_at_1", "distinct_32"]]
    rows["d@.95"] = runs.apply(distinct_at, 0.95)
    rows["best_accuracy"] = runs.max().pass_at_1
    of_goal = rows.index.get_level_values("task") == "chain-goal"
    rows["score"] = rows.best_accuracy.where(of_goal, rows["d@.95"])
    return rows
