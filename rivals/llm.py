"""The methods that hold an entropy, or keep a policy near its start, in verl; each with five settings.

docs/rivals/llm.md says why these, and how one of the five is chosen.
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from demo.llm import chain

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
DELTA = 0.005  # of the adaptive coefficient
OFF_POLICY_RATE = 2e-4  # with four updates per batch of answers
OFF_POLICY = {
    f"{ACTOR}ppo_mini_batch_size": 4,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 32,
    f"{ACTOR}optim.lr": OFF_POLICY_RATE,
}
STEPS = dict.fromkeys(START, 150) | {"chain-goal": 300}
CURVES, SAMPLES = "train.csv", "samples.csv"
ACCURACY = 0.95  # at which distinct right answers are compared


@dataclass(frozen=True)
class Method:
    """title: in tables. settings: values of what is tuned. overrides: hydra's, of a value and a task."""

    title: str
    settings: tuple[str, ...]
    overrides: Callable[[str, str], dict]
    off_policy: bool = False


def _learning_rate(value: str, task: str) -> dict:
    return {f"{ACTOR}optim.lr": float(value) * chain.TASKS[task].learning_rate}


def _off_policy_rate(value: str, task: str) -> dict:
    return {f"{ACTOR}optim.lr": float(value) * OFF_POLICY_RATE}


def _temperature(value: str, task: str) -> dict:
    return {"actor_rollout_ref.rollout.temperature": value}


def _share(value: str, entropy: float) -> str:
    return f"{float(value) * entropy:.4f}"


def _era(value: str, task: str) -> dict:
    return {f"{ERA}k": 2.0, f"{ERA}low": _share(value, START[task][0])}


def _adaptive(value: str, task: str) -> dict:
    return {f"{ERA}low": _share(value, START[task][0]), f"++{ERA}entropy_coeff_delta": DELTA}


def _adaptive_mean(value: str, task: str) -> dict:
    low = _share(value, START[task][1])
    return {f"{ERA}low": low, f"{ERA}top_fraction": 1.0, f"++{ERA}entropy_coeff_delta": DELTA}


def _bonus(value: str, task: str) -> dict:
    return {f"{ACTOR}entropy_coeff": value}


def _kl(value: str, task: str) -> dict:
    return {
        f"{ACTOR}use_kl_loss": True,
        f"{ACTOR}kl_loss_coef": value,
        f"{REFERENCE}log_prob_micro_batch_size_per_gpu": 128,
        f"+{REFERENCE}fsdp_config.model_dtype": "fp32",
        f"+{REFERENCE}fsdp_config.mixed_precision.param_dtype": "fp32",
    }


def _clip_higher(value: str, task: str) -> dict:
    return {f"{ACTOR}clip_ratio_low": 0.2, f"{ACTOR}clip_ratio_high": value}


def _clip_cov(value: str, task: str) -> dict:
    clips = {f"{ACTOR}clip_ratio_{side}": 1.0 for side in ("low", "high")}  # as its authors' recipes have them
    return {f"{LOSS}loss_mode": "clip_cov", f"{LOSS}clip_cov_ratio": value, **clips}


def _kl_cov(value: str, task: str) -> dict:
    return {f"{LOSS}loss_mode": "kl_cov", f"{LOSS}kl_cov_ratio": value, f"{LOSS}ppo_kl_coef": 1.0}


METHODS = {
    "grpo": Method("GRPO, learning rate", ("0.25", "0.5", "1", "2", "4"), _learning_rate),
    "hotter": Method("GRPO sampled hotter, temperature", ("1.1", "1.2", "1.35", "1.5", "2.0"), _temperature),
    "era": Method("ERA, omega_low", SHARES, _era),
    "adaptive": Method("adaptive bonus on H_resp, target", SHARES, _adaptive),
    "adaptive-mean": Method("adaptive bonus on the mean entropy, target", SHARES, _adaptive_mean),
    "bonus": Method("entropy bonus, coefficient", ("0.01", "0.02", "0.03", "0.05", "0.08"), _bonus),
    "kl": Method("KL loss, coefficient", ("0.01", "0.02", "0.03", "0.05", "0.1"), _kl),
    "off-grpo": Method("GRPO, learning rate", ("0.25", "0.5", "1", "1.5", "2"), _off_policy_rate, True),
    "off-era": Method("ERA, omega_low", SHARES, _era, True),
    "clip-higher": Method("clip-higher, upper clip", ("0.24", "0.28", "0.4", "0.6", "1.0"), _clip_higher, True),
    "clip-cov": Method("Clip-Cov, share", ("0.002", "0.01", "0.02", "0.05", "0.1"), _clip_cov, True),
    "kl-cov": Method("KL-Cov, share", ("0.002", "0.02", "0.1", "0.2", "0.5"), _kl_cov, True),
}


def overrides(method: str, setting: str, task: str) -> list[str]:
    """What differs from the demo's GRPO."""
    chosen = METHODS[method]
    values = (OFF_POLICY if chosen.off_policy else {}) | chosen.overrides(setting, task)
    return [f"{key}={value}" for key, value in values.items()]


def read(folder: Path) -> dict:
    """A finished run: task, method, setting, seed; rows of `samples` and of `curves`."""
    run = json.loads((folder / "run.json").read_text())
    known = {name: run[name] for name in ("task", "method", "setting", "seed")}
    return {**known, "samples": _rows(folder / SAMPLES), "curves": _rows(folder / CURVES)}


def _rows(file: Path) -> list[dict]:
    with file.open(newline="") as stream:
        return [{name: float(text or "nan") for name, text in row.items()} for row in csv.DictReader(stream)]


def distinct_at(samples: list[dict], accuracy: float = ACCURACY) -> float | None:
    """Distinct right answers of 32 at the hottest temperature at which `accuracy` of the answers are right.

    Linear between the two temperatures around it. None if no temperature has that accuracy.
    """
    hotter = None
    for row in sorted(samples, key=lambda row: -row["temperature"]):
        if row["pass_at_1"] >= accuracy:
            if hotter is None:
                return row["distinct_32"]
            share = (accuracy - row["pass_at_1"]) / (hotter["pass_at_1"] - row["pass_at_1"])
            return row["distinct_32"] + share * (hotter["distinct_32"] - row["distinct_32"])
        hotter = row
    return None


def score(run: dict) -> float:
    """What the rule maximizes: the accuracy on chain-goal, else distinct answers at ACCURACY, 0 if that is missed."""
    if run["task"] == "chain-goal":
        return max(row["pass_at_1"] for row in run["samples"])
    return distinct_at(run["samples"]) or 0.0


def choose(runs: list[dict], task: str, method: str, seeds: Sequence[int]) -> str:
    """The setting with the largest mean score over the tuning seeds; of equal ones the first.

    Raises KeyError if a run is missing.
    """
    found = {(run["setting"], run["seed"]): run for run in runs if (run["task"], run["method"]) == (task, method)}
    settings = METHODS[method].settings
    return max(settings, key=lambda setting: mean(score(found[setting, seed]) for seed in seeds))
