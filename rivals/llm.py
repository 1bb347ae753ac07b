# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The methods that hold an entropy, or keep a policy near its start, in verl; each with five settings.

docs/rivals/llm.md says why these, and how one of the five is chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from demo.llm import chain
from rivals.rule import KEY

ACTOR = "actor_rollout_ref.actor."
ERA = f"{ACTOR}era."
LOSS = f"{ACTOR}policy_loss."
REFERENCE = "actor_rollout_ref.ref."

# Setpoints are shares of the entropy after the warm-up, so that they fit every task; the paper's rule is 0.3.
SHARES = ("0.15", "0.2", "0.3", "0.45", "0.7")
# That entropy in nats: H_resp, and the mean over all tokens. Means over seeds 1 and 2.
START = {
    **dict.fromkeys(("chain", "chain-goal", "chain-biased"), (2.194, 0.797)),
    "chain-single": (1.039, 0.368),
}
CURVES, SAMPLES = "train.csv", "samples.csv"
STEPS = dict.fromkeys(START, 150) | {"chain-goal": 300}
DELTA = 0.005  # of the adaptive coefficient
OFF_POLICY_RATE = 2e-4  # with four updates per batch of answers
OFF_POLICY = {
    f"{ACTOR}ppo_mini_batch_size": 4,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 32,
    f"{ACTOR}optim.lr": OFF_POLICY_RATE,
}
# The task on which settings are chosen, the one on which they are reported, and whether updates are off-policy.
PARTS = (
    ("chain", "chain", False),
    ("chain", "chain-biased", False),
    ("chain", "chain-single", False),
    ("chain", "chain", True),
    ("chain-goal", "chain-goal", False),  # the longest of them
)


@dataclass(frozen=True)
class Method:
    """title: in tables. settings: values of what is tuned. overrides: hydra's, of a value and a task."""

    title: str
    settings: tuple[str, ...]
    overrides: Callable[[str, str], dict]
    off_policy: bool = False

    @property
    def name(self) -> str:
        """Without what is tuned."""
        return self.title.partition(",")[0]


def _nats(share: str, entropy: float) -> str:
    return f"{float(share) * entropy:.4f}"


def _era(share: str, task: str) -> dict:
    return {f"{ERA}k": 2.0, f"{ERA}low": _nats(share, START[task][0])}


def _adaptive(share: str, task: str) -> dict:
    return {f"{ERA}low": _nats(share, START[task][0]), f"++{ERA}entropy_coeff_delta": DELTA}


def _adaptive_mean(share: str, task: str) -> dict:
    low = _nats(share, START[task][1])
    return {f"{ERA}low": low, f"{ERA}top_fraction": 1.0, f"++{ERA}entropy_coeff_delta": DELTA}


def _kl(coefficient: str, task: str) -> dict:
    return {
        f"{ACTOR}use_kl_loss": True,
        f"{ACTOR}kl_loss_coef": coefficient,
        f"{REFERENCE}log_prob_micro_batch_size_per_gpu": 128,
        f"+{REFERENCE}fsdp_config.model_dtype": "fp32",
        f"+{REFERENCE}fsdp_config.mixed_precision.param_dtype": "fp32",
    }


def _clip_cov(share: str, task: str) -> dict:
    clips = {f"{ACTOR}clip_ratio_{side}": 1.0 for side in ("low", "high")}  # as its authors' recipes have them
    return {f"{LOSS}loss_mode": "clip_cov", f"{LOSS}clip_cov_ratio": share, **clips}


METHODS = {
    "grpo": Method(
        "GRPO, learning rate",
        ("0.25", "0.5", "1", "2", "4"),
        lambda value, task: {f"{ACTOR}optim.lr": float(value) * chain.TASKS[task].learning_rate},
    ),
    "hotter": Method(
        "GRPO sampled hotter, temperature",
        ("1.1", "1.2", "1.35", "1.5", "2.0"),
        lambda value, task: {"actor_rollout_ref.rollout.temperature": value},
    ),
    "era": Method("ERA, omega_low", SHARES, _era),
    "adaptive": Method("adaptive bonus on H_resp, target", SHARES, _adaptive),
    "adaptive-mean": Method("adaptive bonus on the mean entropy, target", SHARES, _adaptive_mean),
    "bonus": Method(
        "entropy bonus, coefficient",
        ("0.01", "0.02", "0.03", "0.05", "0.08"),
        lambda value, task: {f"{ACTOR}entropy_coeff": value},
    ),
    "kl": Method("KL loss, coefficient", ("0.01", "0.02", "0.03", "0.05", "0.1"), _kl),
    "off-grpo": Method(
        "GRPO, learning rate",
        ("0.25", "0.5", "1", "1.5", "2"),
        lambda value, task: {f"{ACTOR}optim.lr": float(value) * OFF_POLICY_RATE},
        off_policy=True,
    ),
    "off-era": Method("ERA, omega_low", SHARES, _era, off_policy=True),
    "clip-higher": Method(
        "clip-higher, upper clip",
        ("0.24", "0.28", "0.4", "0.6", "1.0"),
        lambda value, task: {f"{ACTOR}clip_ratio_low": 0.2, f"{ACTOR}clip_ratio_high": value},
        off_policy=True,
    ),
    "clip-cov": Method("Clip-Cov, share", ("0.002", "0.01", "0.02", "0.05", "0.1"), _clip_cov, off_policy=True),
    "kl-cov": Method(
        "KL-Cov, share",
        ("0.002", "0.02", "0.1", "0.2", "0.5"),
        lambda value, task: {f"{LOSS}loss_mode": "kl_cov", f"{LOSS}kl_cov_ratio": value, f"{LOSS}ppo_kl_coef": 1.0},
        off_policy=True,
    ),
}


def settings(off_policy: bool) -> dict[str, tuple[str, ...]]:
    """Of each method of a part."""
    return {name: one.settings for name, one in METHODS.items() if one.off_policy == off_policy}


def overrides(method: str, setting: str, task: str) -> list[str]:
    """What differs from the demo's GRPO."""
    chosen = METHODS[method]
    values = (OFF_POLICY if chosen.off_policy else {}) | chosen.overrides(setting, task)
    return [f"{key}={value}" for key, value in values.items()]


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

    d@.95 and its like are `distinct_at`; best_accuracy is that of the best temperature, score what the rule maximizes.
    """
    found = samples[samples.temperature == 1].set_index(KEY)
    runs = samples.sort_values("temperature", ascending=False).groupby(KEY)[["pass_at_1", "distinct_32"]]
    for label, accuracy in {"d@.95": 0.95, "d@.90": 0.9, "d@.80": 0.8}.items():
        found[label] = runs.apply(distinct_at, accuracy)
    found["best_accuracy"] = runs.max().pass_at_1
    of_goal = found.index.get_level_values("task") == "chain-goal"
    found["score"] = found.best_accuracy.where(of_goal, found["d@.95"])
    return found
