# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The arms of PPO and SAC that are compared, and their recorded runs, as many seeds as records/ has."""

import re
from collections.abc import Callable, Collection, Mapping

import pandas as pd

from era.gaussian_defaults import PPO_TARGET
from recipes import PROJECT, curves

RECORDS = PROJECT / "records"
CHEETAH = "HalfCheetah-v4"
TASKS = (CHEETAH, "Ant-v4", "Walker2d-v4", "Hopper-v4")
RETURN = "eval_avg_return"
ARMS = {
    "ppo": "upstream's parameter, from 1, with the entropy bonus (PPO)",
    "ppo_era": f"ERA, H0 = {PPO_TARGET} (PPO-ERA)",
    "ppo_era_0.3": f"ERA, H0 = {-PPO_TARGET:+}",
    "ppo_constant": f"the constant that has {PPO_TARGET}",
    "ppo_parameter": "upstream's parameter, from that constant, without bonus",
    "ppo_head": "ERA's layer without ERA, from that constant",
}
TARGETS = {
    "ppo_era_-2.0": "-2.0 (0.03)",
    "ppo_era": f"{PPO_TARGET} (0.18), the paper's",
    "ppo_era_0.3": f"{-PPO_TARGET:+} (0.33)",
    "ppo_era_1.0": "+1.0 (0.66)",
    "ppo": "none: PPO, from 1.4 (1) on",
}
EAPO = {
    "ppo": "PPO, with its entropy bonus",
    "ppo_no_bonus": "PPO without the bonus",
    "eapo_3m": "EAPO",
    "ppo_era": "PPO-ERA",
}
EAPO_SEEDS = (1, 2, 3)
ALPHA = {"sac": "SAC, alpha from 1", "sac-alpha_0.01": "SAC, alpha from 0.01", "sac_era": "SAC-ERA, delta = 0"}
OBAC = {
    "sac": "SAC",
    "obac": "OBAC",
    "obac-reward": "OBAC, reward switch",
    "sac_era": "SAC-ERA",
    "obac_era": "OBAC-ERA",
}


def runs(group: str, agent: str, task: str = CHEETAH, seeds: Collection[int] | None = None) -> dict[int, pd.DataFrame]:
    """By seed, train.csv of each recorded run, indexed by the steps. seeds: the only ones that are taken."""
    folders = {}
    for folder in (RECORDS / group).glob(f"{task}-{agent}-seed*"):
        seed = int(re.search("[0-9]+$", folder.name)[0])
        if seeds is None or seed in seeds:
            folders[seed] = folder
    return {seed: pd.DataFrame(curves.read(folders[seed] / "train.csv")).sort_index() for seed in sorted(folders)}


def returns(
    group: str,
    agent: str,
    task: str = CHEETAH,
    seeds: Collection[int] | None = None,
    measure: Callable[[Mapping[int, float]], float] = curves.at_end,
) -> pd.Series:
    """By seed, a measure of recipes/curves.py of the evaluations' returns."""
    measured = {seed: measure(rows[RETURN]) for seed, rows in runs(group, agent, task, seeds).items()}
    return pd.Series(measured, dtype=float)
