# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The updates that both versions of verl train, and how a result is judged against plain.py.

A case is named (policy, layout, loss). Each loss is trained padded and packed, each layout with the plain loss and with
all that reads the logits at once. actor_step.py and current/worker_step.py train them: the doors to the two versions.
"""

import math

import plain
import torch
from token_model import make_batch

BASE = {"model": "token", "bsz": 24, "micro_batch": 8, "remove_padding": False, "temperature": 1.0, "seed": 3}
# The random policies here have H_resp from 1.5 to 3.3 nats: these bounds put responses on both sides and between.
ERA = {"enable": True, "low": 2.75, "high": 2.8, "k": 2.0}
HOLD = {"hold": True, "low": 3.1, "high": 3.15}  # the warm ones too have responses below
# Steps small enough that the policy stays near its old self, large enough that ratios are clipped.
OFF_POLICY = {**BASE, "mini_batch": 8, "micro_batch": 4, "epochs": 2, "lr": 0.5}
GSPO = {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean", "clip": 0.02, "clip_high": 0.03}
# Exact in binary, so that verl 0.9's fp32 temperature is that of the fp64 arithmetic.
WARM, COLD = {"temperature": 1.25}, {"temperature": 0.75}


def with_era(**fields):
    return {"era": {**ERA, **fields}}


POLICIES = {"on-policy": BASE, "off-policy": OFF_POLICY}
PACKED = {"remove_padding": True}
LAYOUTS = {
    "padded": WARM,
    "packed": {**PACKED, **COLD},
    "dynamic": {**PACKED, "dynamic": True},
    "multi-turn": {**PACKED, "multi_turn": True},
    "multi-turn, padded": {"multi_turn": True, **COLD},
    "fused kernels, padded": {"fused": True, **WARM},
    "fused kernels, packed": {"fused": True, **PACKED, **COLD},
}
ALL_TERMS = "all terms"  # KL loss, entropy bonus and top-k
LOSSES = {
    "vanilla": {},
    "top-k": with_era(top_k=5),
    "scaled advantages": with_era(scale_advantages=True, k=1.75),
    "no upper bound": with_era(top_k=3, high=math.inf, scale_advantages=True),
    "hold": with_era(**HOLD),
    "hold, all terms": {"kl_coef": 0.1, "entropy_coeff": 0.05, **with_era(**HOLD, scale_advantages=True, top_k=5)},
    "hold, GSPO": {**GSPO, **with_era(**HOLD)},
    "hold, schedule": {**with_era(hold=True, low=1.6, low_end=4.6, high=4.6, schedule_steps=4), "updates_before": 2},
    "hold alone": with_era(**HOLD, k=1.0, top_k=3),  # with k = 1 no filter
    "gate of the release": with_era(min_advantage=1.0, top_fraction=0.3),
    "schedule": {**with_era(low=1.6, low_end=3.9, high=1.7, high_end=3.9, schedule_steps=4), "updates_before": 2},
    "entropy bonus": {"entropy_coeff": 0.05},
    "KL loss": {"kl_coef": 0.1},
    ALL_TERMS: {"kl_coef": 0.1, "entropy_coeff": 0.05, **with_era(top_k=5)},
    "GSPO": GSPO,
    "GSPO, top-k": {**GSPO, **with_era(top_k=5)},
}


def cases(layouts, losses):
    return {
        (policy, layout, loss): {**base, **with_era(), **layouts[layout], **LOSSES[loss]}
        for policy, base in POLICIES.items()
        for layout in layouts
        for loss in losses
    }


BOTH_LAYOUTS = {name: LAYOUTS[name] for name in ("padded", "packed")}
CASES = {**cases(LAYOUTS, ("vanilla", ALL_TERMS)), **cases(BOTH_LAYOUTS, LOSSES)}
CASES |= cases({"multi-turn": LAYOUTS["multi-turn"]}, ("scaled advantages", "hold", "hold alone"))
MEASURED = [  # their metrics are compared
    ("off-policy", "multi-turn", "vanilla"),
    ("on-policy", "multi-turn", ALL_TERMS),
    ("on-policy", "multi-turn", "scaled advantages"),
    ("on-policy", "multi-turn", "hold"),
    ("off-policy", "multi-turn", "hold alone"),
]
CASES["off-policy", "packed", "one mini-batch, two epochs"] = {**BASE, **with_era(), "epochs": 2, "lr": 0.5, **COLD}
# Several mini-batches, steps and Adam: what one different bit anywhere would spread.
LONG = {**BASE, "dtype": "float32", "adam": True, "steps": 3, "mini_batch": 8, "micro_batch": 4, "temperature": 0.9}
QWEN2 = {**BASE, "model": "qwen2", "dtype": "float32", "adam": True, "steps": 2}
WITHOUT_ERA = {"absent": {}, "disabled": with_era(enable=False, top_k=5, scale_advantages=True)}
# No response reaches this bound, and nothing is learned.
LOST = {**BASE, **with_era(low=9.0, high=9.0), "steps": 22, "lr": 0}
# Off-policy without learning: every ratio is 1. Some k is not a power of 2.
BF16 = {
    (k, top_k, layout): {
        **{**BASE, "micro_batch": 24, "dtype": "float32", "autocast": True, "epochs": 2, "lr": 0},
        **{**LAYOUTS[layout], **with_era(k=k, top_k=top_k)},
    }
    for k, top_k, layout in (
        (1.7, None, "packed"),
        (2.0, 5, "padded"),
        (1.7, 5, "fused kernels, packed"),
        (2.0, None, "padded"),
    )
}


def scales(result, settings):
    return plain.decide(plain.entropies(result, settings), result["batch"], settings)


def difference(ours, theirs):
    """The largest difference between the parameters of two policies."""
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def check(result, settings, bound, means_over="micro_batch"):
    """The update moved the policy, and to where fp64 arithmetic moves it.

    Args:
        bound: on the difference of the parameters.
        means_over: what a token mean of this verl is over, micro_batch or mini_batch.
    """
    if means_over == "mini_batch":
        settings = {**settings, "micro_batch": settings.get("mini_batch", settings["bsz"])}
    expected = plain.train(result, settings)
    assert difference(result["start"], expected) > 1e-3, "the update must move the policy"
    assert difference(result["parameters"], expected) < bound
    (metrics,) = result["metrics"]
    assert (metrics.get("era/dropped_token_fraction", 0) > 0.05) == settings.get("era", {}).get("hold", False)
    if "era" in settings and "epochs" not in settings:
        assert set(metrics["actor/ppo_kl"]) == set(metrics["actor/pg_clipfrac"]) == {0.0}, "the ratio is exactly 1"


def check_off(theirs, ours):
    """Training without ERA is upstream's to the bit."""
    assert difference(theirs["start"], theirs["parameters"]) > 1e-3
    assert difference(theirs["parameters"], ours["parameters"]) == 0


def check_bf16(result, bound):
    """The ratio is 1 although the logits are bf16: old and new log-probs are made alike, in fp32."""
    (metrics,) = result["metrics"]
    assert metrics["era/scaled_token_fraction"] > 0.1
    assert max(map(abs, metrics["actor/ppo_kl"])) <= bound and set(metrics["actor/pg_clipfrac"]) == {0.0}


def check_branches(results):
    """The plain cases choose every branch of Eq. llm, and leave the trust region."""
    case = "off-policy", "packed", "vanilla"
    assert scales(results[case], CASES[case]).unique().tolist() == [0.5, 1, 2]
    for loss in ("vanilla", "GSPO"):
        assert max(results["off-policy", "packed", loss]["metrics"][0]["actor/pg_clipfrac"]) > 0


def check_metrics(result, settings):
    """ERA's metrics equal their definitions."""
    metrics, expected = result["metrics"][0], plain.metrics(result, settings)
    logged = {name: value for name, value in metrics.items() if name.startswith("era/")}
    assert logged.keys() == expected.keys()
    for name, value in expected.items():
        assert math.isclose(logged[name], value, rel_tol=1e-5), name


def check_lost(result):
    """Updates below the bound are counted, and the log says so once."""
    assert [step["era/lost_fraction"] for step in result["metrics"]] == [1.0] * 22
    assert result["said"].count("ERA: in 20 of the last 20 updates H_resp was") == 1 == result["said"].count("\n")


def as_one_process_sees_it(result, settings):
    """Each of two ranks has half of the batch, and half of each mini-batch: here are its rows in that order."""
    if not settings.get("data_parallel"):
        return result
    half, part = settings["bsz"] // 2, settings.get("mini_batch", settings["bsz"]) // 2
    firsts = [rank + first for first in range(0, half, part) for rank in (0, half)]
    rows = [row for first in firsts for row in range(first, first + part)]
    batch = make_batch(settings["bsz"], settings["seed"], torch.double)
    return {**result, "batch": {key: value[rows] for key, value in batch.items()}}
