# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The real DataParallelPPOActor with the overlay: against unpatched verl, and against fp64 arithmetic."""

import math

import plain
import pytest
import torch
from forking import FRACTION, THRESHOLD, actor_config, plain_keep
from llm_helpers import take_steps
from update_cases import (
    ALL_TERMS,
    BASE,
    BF16,
    CASES,
    GSPO,
    HOLD,
    LONG,
    LOST,
    MEASURED,
    OFF_POLICY,
    PACKED,
    QWEN2,
    WITHOUT_ERA,
    as_one_process_sees_it,
    cases,
    check,
    check_bf16,
    check_branches,
    check_lost,
    check_metrics,
    check_off,
    difference,
    with_era,
)

LAYOUTS_OF_THE_ACTOR = {
    "LoRA": {"lora": True},
    "fused kernels, LoRA": {"fused": True, **PACKED, "lora": True},
    "fused kernels, bias and soft-cap": {"fused": True, "head": {"bias": True, "final_logit_softcapping": 20.0}},
}
OWN = cases(LAYOUTS_OF_THE_ACTOR, ("vanilla", ALL_TERMS))
for case in [case for case in OWN if "soft-cap" in case[1] and case[2] == ALL_TERMS]:
    OWN[case] |= {"kl_coef": 0}  # because with a KL loss the reference policy would need verl's kernel
OWN["off-policy", "packed", "GSPO without ERA"] = {**OFF_POLICY, **PACKED, **GSPO, "clip": 0.01, "lr": 0.1}
FORKING = {fraction: {**BASE, "temperature": 0.9, **actor_config(fraction)} for fraction in (0.2, 0.6, 1.0)}
FORKING[0.6]["multi_turn"] = True
TWO_FORKING = {
    "FSDP, forking tokens": {**FORKING[0.2], "data_parallel": True, "micro_batch": 4, "multi_turn": True},
    "Ulysses, forking tokens": {**FORKING[0.6], **PACKED},
}
REFERENCE = {**OFF_POLICY, "reference": True, "lora": True, "dtype": "float32", "autocast": True}
REFERENCES = {
    "without ERA": {**REFERENCE, **with_era(enable=False)},
    "with ERA": {**REFERENCE, **with_era(top_k=5)},
    "fused": {**REFERENCE, **with_era(top_k=5), "fused": True},
}
LONG = {**LONG, "entropy_coeff": 0.01}
PATHS = {
    "long": LONG,
    "long, dynamic": {**LONG, "dynamic": True},
    "long, packed": {**LONG, **PACKED},
    "long, packed, dynamic": {**LONG, **PACKED, "dynamic": True},
    "long, fused": {**LONG, **PACKED, "fused": True},
    "qwen2": QWEN2,
}
BONUS = {**BASE, "entropy_coeff": 0.01, "kl_coef": 0.1}
FOUR_STEPS = {**BASE, "adam": True, "steps": 4, "mini_batch": 8}
UPSTREAM = {
    **PATHS,
    "one step": BASE,
    "bonus and KL": BONUS,
    "bonus and KL, packed": {**BONUS, **PACKED},
    "adaptive": {**FOUR_STEPS, "entropy_coeffs": [0.0, 0.1, 0.2, 0.3]},  # given by hand, as the controller would
}
LOGS_ONLY, ADAPTIVE = with_era(k=1.0, top_k=5, scale_advantages=True), {"target": 9.0, "delta": 0.1}
ADAPTIVE = {**FOUR_STEPS, **with_era(k=1.0, top_fraction=1.0), "adaptive_entropy": ADAPTIVE}
ONLY_LOGS = {
    **{case: {**UPSTREAM[case], **LOGS_ONLY} for case in ("bonus and KL", "bonus and KL, packed")},
    "adaptive": ADAPTIVE,
    "adaptive, restarted": {**ADAPTIVE, "restart": True},
}
BESIDE_UPSTREAM = {
    **{(path, era): {**PATHS[path], **WITHOUT_ERA[era]} for path in PATHS for era in WITHOUT_ERA},
    **ONLY_LOGS,
    "one step, top-k": {**BASE, **with_era(top_k=3)},
    "one step, top-k, off-policy": {**BASE, **with_era(top_k=3), "epochs": 2},
    "above the target": {**ADAPTIVE, "adaptive_entropy": {"target": 0.0, "delta": 0.1}},
}
# v0.4.1 takes token means over micro-batches, and dynamic micro-batches have other rows than plain.py's.
DYNAMIC = {
    (policy, packed): {**CASES[policy, "dynamic", ALL_TERMS], "remove_padding": packed}
    for policy in ("on-policy", "off-policy")
    for packed in (False, True)
}
ARITHMETIC = {**{case: settings for case, settings in CASES.items() if case[1] != "dynamic"}, **OWN}
EVERYTHING = {"lost": LOST, **ARITHMETIC, **DYNAMIC, **FORKING, **BF16, **REFERENCES, **BESIDE_UPSTREAM}
# Ulysses sequence parallelism over two processes; and FSDP, whose ranks have different responses, one of them empty.
PROCESSES = {
    **cases({"Ulysses": PACKED, "Ulysses, multi-turn": {**PACKED, "multi_turn": True}}, ("vanilla", "GSPO", ALL_TERMS)),
    **cases({"Ulysses, fused kernels": {**PACKED, "fused": True}}, ("vanilla", "GSPO", "entropy bonus", "top-k")),
    "FSDP": {**BASE, **with_era(**HOLD), "data_parallel": True, "micro_batch": 4, "multi_turn": True},
}


@pytest.fixture(scope="module")
def updates(patched_verl):
    return dict(zip(EVERYTHING, take_steps(patched_verl, list(EVERYTHING.values()))))


@pytest.fixture(scope="module")
def upstream(upstream_verl):
    return dict(zip(UPSTREAM, take_steps(upstream_verl, list(UPSTREAM.values()))))


@pytest.mark.parametrize("case", ARITHMETIC, ids=", ".join)
def test_update_equals_fp64_arithmetic(updates, case):
    check(updates[case], ARITHMETIC[case], bound=1e-12)


@pytest.mark.parametrize("policy", ["on-policy", "off-policy"])
def test_dynamic_batches_agree(updates, policy):
    padded, packed = updates[policy, False], updates[policy, True]
    assert difference(padded["start"], padded["parameters"]) > 1e-3
    assert difference(padded["parameters"], packed["parameters"]) < 1e-12


def test_the_cases_exercise_every_branch_and_metrics_equal_their_definitions(updates):
    check_branches(updates)
    for case in MEASURED:
        check_metrics(updates[case], CASES[case])
    check_lost(updates["lost"])


def test_a_schedule_without_a_count_of_updates_is_refused(patched_verl):
    case = {**BASE, **with_era(low_end=2.7, schedule_steps=4)}
    (result,) = take_steps(patched_verl, [case])
    assert "not set actor.era_hooks.lr_scheduler" in result["error"]


def test_an_update_that_lost_its_scales_ends(import_verl):
    """As where a recipe's update passes on keys of its own; in the update it would look like upstream's."""
    from verl.utils.era.language_config import EraConfig
    from verl.utils.era_fsdp import ActorHooks

    hooks, log_prob = ActorHooks.__new__(ActorHooks), torch.zeros(2, 3)
    batch = {"old_log_probs": log_prob, "advantages": log_prob}
    hooks.config = EraConfig(enable=True)
    with pytest.raises(RuntimeError, match="has no era_logit_scale, so it would train without ERA"):
        hooks.policy_loss_inputs(batch, log_prob)
    hooks.config = EraConfig(enable=True, k=1)
    assert hooks.policy_loss_inputs(batch, log_prob)[0] is log_prob


@pytest.mark.slow
def test_two_processes(patched_verl):
    nan = {**TWO_FORKING["FSDP, forking tokens"], "nan_on_rank": 1}
    everything = {**PROCESSES, **TWO_FORKING, "NaN": nan}
    results = dict(zip(everything, take_steps(patched_verl, list(everything.values()), processes=2)))
    assert "are NaN" in results["NaN"]["error"], "on both ranks, or one would wait forever"
    for case, settings in everything.items():
        results[case] = as_one_process_sees_it(results[case], settings)
    for case, settings in PROCESSES.items():
        check(results[case], settings, bound=1e-12)
    for case, settings in TWO_FORKING.items():
        check_forking(results[case], settings)
    check_metrics(results["FSDP"], PROCESSES["FSDP"])


def test_without_era_training_is_upstream_to_the_bit(updates, upstream):
    for path in PATHS:
        for era in WITHOUT_ERA:
            check_off(upstream[path], updates[path, era])
            assert updates[path, era]["metrics"] == upstream[path]["metrics"]


def test_old_log_probs_and_entropies_are_the_sampling_policys(updates, upstream):
    mask = plain.response_mask(upstream["one step"]["batch"], BASE)
    for case in ("one step, top-k", "one step, top-k, off-policy"):
        theirs, ours = (results[name]["batch"] for results, name in ((upstream, "one step"), (updates, case)))
        for name in ("old_log_probs", "entropys"):
            torch.testing.assert_close(ours[name][mask], theirs[name][mask], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ONLY_LOGS)
def test_k_of_1_only_logs_and_adaptive_bonus(updates, upstream, case):
    """In fp64, where the one read of the logits and upstream's functions round alike; also after restarts."""
    ours, theirs = updates[case], upstream[case.removesuffix(", restarted")]
    assert difference(theirs["start"], theirs["parameters"]) > 1e-3
    assert difference(theirs["parameters"], ours["parameters"]) < 1e-12
    for expected, metrics in zip(theirs["metrics"], ours["metrics"]):
        added = metrics.keys() - expected.keys()
        assert "era/response_entropy" in added and expected.keys() < metrics.keys()
        assert {name.partition("/")[0] for name in added} <= {"era", "adaptive_entropy"}
    if "adaptive" in case:
        coefficients = UPSTREAM["adaptive"]["entropy_coeffs"]
        assert [step["adaptive_entropy/coeff"] for step in ours["metrics"]] == pytest.approx(coefficients)


def test_an_entropy_above_the_target_gets_no_bonus(updates, upstream):
    result = updates["above the target"]
    assert [step["adaptive_entropy/coeff"] for step in result["metrics"]] == [0.0] * 4
    assert difference(upstream["adaptive"]["parameters"], result["parameters"]) > 1e-3


def check_forking(result, settings):
    """The update is SGD on the policy gradient of the kept tokens over the number of all tokens of a micro-batch."""
    fraction, batch = settings["policy_loss"]["forking_fraction"], result["batch"]
    mask, entropy = plain.response_mask(batch, settings), plain.entropies(result, settings)
    keep, _ = plain_keep(entropy, mask, fraction)
    assert keep.sum() >= math.floor(fraction * mask.sum().item())  # more where tokens tie
    check({**result, "batch": {**batch, "advantages": batch["advantages"] * keep}}, settings, bound=1e-9)
    (metrics,) = result["metrics"]
    if fraction < 1:
        assert metrics[FRACTION] == keep.sum().item() / mask.sum().item()
        assert metrics[THRESHOLD] == pytest.approx(entropy[keep].min().item(), rel=1e-6)
    else:
        assert not any(name.startswith("forking/") for name in metrics)


@pytest.mark.parametrize("fraction", FORKING)
def test_only_forking_tokens_get_a_gradient(updates, fraction):
    check_forking(updates[fraction], FORKING[fraction])


@pytest.mark.parametrize("case", BF16, ids=str)
def test_the_off_policy_ratio_without_learning_is_one_in_bf16(updates, case):
    check_bf16(updates[case], bound=1e-6)  # the rounding of fp32


def test_the_reference_pass_of_lora_knows_nothing_of_era(updates):
    """It is a pass of the actor, without its adapters, but not the one that makes log-probs under k and 1/k as well."""
    without, ours, fused = (updates[name]["ref_log_prob"] for name in REFERENCES)
    response = ours != 0  # 0 where there is no token, which upstream fills
    assert response.sum() > 24 and response.shape == without.shape
    in_bf16 = without[response].float()  # as upstream's log_softmax of bf16 logits is
    torch.testing.assert_close(ours[response], in_bf16, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(fused, ours)
