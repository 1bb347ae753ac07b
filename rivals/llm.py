# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The methods that hold an entropy, or keep a policy near its start, in verl; each with five settings.

docs/rivals/llm.md says why these, and how one of the five is chosen; docs/rivals/trl-hold.md what HOLD is for.
"""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from demo.llm import chain
from rivals.rule import KEY

# Setpoints are shares of the entropy after the warm-up, so that they fit every task; the paper's rule is 0.3.
SHARES = "0.15 0.2 0.3 0.45 0.7"
# The entropy after the warm-up in nats, a mean over seeds 1 and 2: H_resp, and the mean over all tokens.
START = {
    **dict.fromkeys(("chain", "chain-goal", "chain-biased"), (2.194, 0.797)),
    "chain-single": (1.039, 0.368),
}
CURVES, SAMPLES = "train.csv", "samples.csv"
TEMPERATURES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 2.0, 3.0, 4.0)  # at which answers are sampled
STEPS = dict.fromkeys(START, 150) | {"chain-goal": 300}
# The task on which settings are chosen, the one on which they are reported, and whether updates are off-policy.
PARTS = (
    ("chain", "chain", False),
    ("chain", "chain-biased", False),
    ("chain", "chain-single", False),
    ("chain", "chain", True),
    ("chain-goal", "chain-goal", False),  # the longest of them
)
OFF_POLICY_RATE = 2e-4  # with four updates per batch of answers
OFF_POLICY = f"actor.ppo_mini_batch_size=4 actor.ppo_micro_batch_size_per_gpu=32 actor.optim.lr={OFF_POLICY_RATE} "
ADAPTIVE = "++actor.adaptive_entropy.delta=0.005 ++actor.adaptive_entropy.target="


@dataclass(frozen=True)
class Method:
    """A method and the values of what is tuned.

    Attributes:
        title: its name and what is tuned, as the pictures have it.
        values: separated by blanks.
        words: what differs from the demo's GRPO, as Hydra's overrides in actor_rollout_ref. {value} is the setting,
            {rate} the setting times the learning rate, {h_resp} and {mean} the setting times an entropy of START,
            {bound} the task's of HOLD_SHARE.
        trainer: the module that trains, where it is not the demo's.
    """

    title: str
    values: str
    words: str
    off_policy: bool = False
    trainer: str | None = None

    @property
    def name(self) -> str:
        """The title without what is tuned."""
        return self.title.partition(",")[0]

    @property
    def settings(self) -> list[str]:
        return self.values.split()


METHODS = {
    "grpo": Method("GRPO, learning rate", "0.25 0.5 1 2 4", "actor.optim.lr={rate}"),
    "hotter": Method("GRPO sampled hotter, temperature", "1.1 1.2 1.35 1.5 2.0", "rollout.temperature={value}"),
    "era": Method("ERA, omega_low", SHARES, "actor.era.k=2.0 actor.era.low={h_resp}"),
    "adaptive": Method("adaptive bonus on H_resp, target", SHARES, f"{ADAPTIVE}{{h_resp}}"),
    "adaptive-mean": Method(
        "adaptive bonus on the mean entropy, target",
        SHARES,
        f"{ADAPTIVE}{{mean}} actor.era.top_fraction=1.0",
    ),
    "bonus": Method("entropy bonus, coefficient", "0.01 0.02 0.03 0.05 0.08", "actor.entropy_coeff={value}"),
    "kl": Method(
        "KL loss, coefficient",
        "0.01 0.02 0.03 0.05 0.1",
        "actor.use_kl_loss=True actor.kl_loss_coef={value} ref.log_prob_micro_batch_size_per_gpu=128 "
        "+ref.fsdp_config.model_dtype=fp32 +ref.fsdp_config.mixed_precision.param_dtype=fp32",
    ),
    "off-grpo": Method("GRPO, learning rate", "0.25 0.5 1 1.5 2", OFF_POLICY + "actor.optim.lr={rate}", True),
    "off-era": Method("ERA, omega_low", SHARES, OFF_POLICY + "actor.era.k=2.0 actor.era.low={h_resp}", True),
    "clip-higher": Method(
        "clip-higher, upper clip",
        "0.24 0.28 0.4 0.6 1.0",
        OFF_POLICY + "actor.clip_ratio_low=0.2 actor.clip_ratio_high={value}",
        True,
    ),
    "clip-cov": Method(
        "Clip-Cov, share",
        "0.002 0.01 0.02 0.05 0.1",
        # clips as its authors' recipes have them
        OFF_POLICY + "actor.policy_loss.loss_mode=clip_cov actor.policy_loss.clip_cov_ratio={value} "
        "actor.clip_ratio_low=1.0 actor.clip_ratio_high=1.0",
        True,
    ),
    "kl-cov": Method(
        "KL-Cov, share",
        "0.002 0.02 0.1 0.2 0.5",
        OFF_POLICY + "actor.policy_loss.loss_mode=kl_cov actor.policy_loss.kl_cov_ratio={value} "
        "actor.policy_loss.ppo_kl_coef=1.0",
        True,
    ),
}

# The bounds of trl-hold.md, in the order of its runs, as shares of H_resp: those that llm.md's rule chose for ERA.
HOLD_SHARE = {"chain-goal": "0.7", "chain": "0.45", "chain-biased": "0.45", "chain-single": "0.45"}
HOLD_SEEDS = (31, 32, 33, 34, 35)
HOLD = {
    "era-hold": Method("ERA with hold, k", "8 2 4 1", "actor.era.k={value} actor.era.low={bound} actor.era.hold=True"),
    "era-k": Method("ERA, k", "8 2 4", "actor.era.k={value} actor.era.low={bound}"),
    "era-negative": Method(
        "ERA, weight of negative advantages",
        "0",
        "actor.era.k=2.0 actor.era.low={bound}",
        trainer="rivals.llm_trainer",
    ),
}


def hold_settings(task: str) -> dict[str, list[str]]:
    """The methods of trl-hold.md on a task, and their settings."""
    held = {name: method.settings for name, method in HOLD.items()}
    return {**held, "grpo": ["1", "0.25"], "adaptive": [HOLD_SHARE[task]]}


def settings(off_policy: bool) -> dict[str, list[str]]:
    """The settings of each method with this kind of updates."""
    return {name: one.settings for name, one in METHODS.items() if one.off_policy == off_policy}


def overrides(method: str, setting: str, task: str) -> list[str]:
    """Hydra's overrides for a method and its setting: what differs from the demo's GRPO."""
    chosen, value = (METHODS | HOLD)[method], float(setting)
    rate = OFF_POLICY_RATE if chosen.off_policy else chain.TASKS[task].learning_rate
    h_resp, mean = (f"{value * entropy:.4f}" for entropy in START[task])
    bound = f"{float(HOLD_SHARE[task]) * START[task][0]:.4f}"
    words = chosen.words.format(value=setting, rate=value * rate, h_resp=h_resp, mean=mean, bound=bound).split()
    last = dict(word.split("=") for word in words)  # off-grpo has two learning rates
    return [re.sub(r"^(\+*)", r"\1actor_rollout_ref.", f"{key}={value}") for key, value in last.items()]


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
