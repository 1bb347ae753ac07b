# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The real DataParallelPPOActor with the overlay: against unpatched verl, and against fp64 arithmetic."""

import math

import plain
import pytest
import torch
from llm_helpers import take_steps
from test_forking_tokens import FRACTION, THRESHOLD, actor_config, plain_keep
from update_cases import (
    ALL_TERMS,
    BASE,
    CASES,
    GSPO,
    LAYOUTS,
    OFF_POLICY,
    PACKED,
    as_one_process_sees_it,
    cases,
    check,
    check_branches,
    check_metrics,
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
    OWN[case] |= {"kl_coef": 0}  # with which a reference policy would need verl's kernel
OWN["off-policy", "packed", "GSPO without ERA"] = {**OFF_POLICY, **PACKED, **GSPO, "clip": 0.01, "lr": 0.1}
FORKING = {fraction: {**BASE, "temperature": 0.9, **actor_config(fraction)} for fraction in (0.2, 0.6, 1.0)}
BRANCHES = {top_k: {**OFF_POLICY, "epochs": 1, "lr": 0, **with_era(top_k=top_k)} for top_k in (None, 5)}
BF16 = {
    (k, top_k, layout): {
        **{**BASE, "micro_batch": 24, "dtype": "float32", "autocast": True, "temperature": 0.7},
        **{"force_off_policy": True, **with_era(k=k, top_k=top_k), **LAYOUTS[layout]},
    }
    for k, top_k, layout in (  # no power of 2, and one
        (1.7, None, "packed"),
        (2.0, 5, "padded"),
        (1.7, 5, "fused kernels, packed"),
        (2.0, None, "padded"),
    )
}
REFERENCE = {**OFF_POLICY, "reference": True, "lora": True, "dtype": "float32", "autocast": True}
REFERENCES = {
    "without ERA": {**REFERENCE, **with_era(enable=False)},
    "with ERA": {**REFERENCE, **with_era(top_k=5)},
    "fused": {**REFERENCE, **with_era(top_k=5), "fused": True},
}
GEMMA2 = {**OFF_POLICY, **with_era(), "model": "gemma2", "dtype": "float32"}
GEMMA2 = {"gemma2": GEMMA2, "gemma2, fused": {**GEMMA2, "fused": True}}
# Several mini-batches, steps and Adam: what one different bit anywhere would spread.
LONG = {**BASE, "dtype": "float32", "adam": True, "steps": 3, "mini_batch": 8, "micro_batch": 4, "temperature": 0.9}
LONG |= {"entropy_coeff": 0.01}
PATHS = {
    "long": LONG,
    "long, dynamic": {**LONG, "dynamic": True},
    "long, packed": {**LONG, **PACKED},
    "long, packed, dynamic": {**LONG, **PACKED, "dynamic": True},
    "long, fused": {**LONG, **PACKED, "fused": True},
    "qwen2": {**BASE, "model": "qwen2", "dtype": "float32", "adam": True, "steps": 2},
}
WITHOUT_ERA = {"absent": {}, "disabled": with_era(enable=False, top_k=5, scale_advantages=True)}
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
    "above the target": {**ADAPTIVE, "adaptive_entropy": {"target": 0.0, "delta": 0.1}},
}
# v0.4.1 takes token means over micro-batches, which dynamic ones make of other rows than plain.py.
DYNAMIC = {
    (policy, packed): {**CASES[policy, "dynamic", ALL_TERMS], "remove_padding": packed}
    for policy in ("on-policy", "off-policy")
    for packed in (False, True)
}
ARITHMETIC = {**{case: settings for case, settings in CASES.items() if case[1] != "dynamic"}, **OWN}
EVERYTHING = {**ARITHMETIC, **DYNAMIC, **FORKING, **BRANCHES, **BF16, **REFERENCES, **GEMMA2, **BESIDE_UPSTREAM}
# Ulysses sequence parallelism over two processes; and FSDP, whose ranks have different responses, one of them empty.
PROCESSES = {
    **cases({"Ulysses": PACKED, "Ulysses, multi-turn": {**PACKED, "multi_turn": True}}, ("vanilla", "GSPO", ALL_TERMS)),
    **cases({"Ulysses, fused kernels": {**PACKED, "fused": True}}, ("vanilla", "GSPO", "entropy bonus", "top-k")),
    "FSDP": {**BASE, **with_era(), "data_parallel": True, "micro_batch": 4, "multi_turn": True},
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
    case = "off-policy", "multi-turn", "vanilla"
    check_metrics(updates[case], CASES[case])


@pytest.mark.slow
def test_two_processes(patched_verl):
    for case, result in zip(PROCESSES, take_steps(patched_verl, list(PROCESSES.values()), processes=2)):
        settings = PROCESSES[case]
        check(as_one_process_sees_it(result, settings), settings, bound=1e-12)
    check_metrics(as_one_process_sees_it(result, settings), settings)


def test_without_era_training_is_upstream_to_the_bit(updates, upstream):
    for path in PATHS:
        theirs = upstream[path]
        assert difference(theirs["start"], theirs["parameters"]) > 1e-3
        for era in WITHOUT_ERA:
            ours = updates[path, era]
            assert difference(theirs["parameters"], ours["parameters"]) == 0, path
            assert ours["metrics"] == theirs["metrics"]


def test_with_era_old_log_probs_and_entropies_stay_those_of_the_policy_that_sampled(updates, upstream):
    theirs, ours = upstream["one step"], updates["one step, top-k"]
    mask = plain.response_mask(theirs["batch"], BASE).bool()
    for name in ("log_probs", "entropys"):
        torch.testing.assert_close(ours[name][mask], theirs[name][mask], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ONLY_LOGS)
def test_k_of_1_only_logs_and_an_adaptive_bonus_sets_its_coefficient(updates, upstream, case):
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


@pytest.mark.parametrize("fraction", FORKING)
def test_only_forking_tokens_get_a_gradient(updates, fraction):
    """The update is SGD on the policy gradient of the kept tokens over the number of all tokens of a micro-batch."""
    settings, result = FORKING[fraction], updates[fraction]
    mask, entropy = plain.response_mask(result["batch"], settings), plain.entropies(result, settings)
    keep = plain_keep(entropy, mask, fraction)[0]
    assert keep.sum() >= math.floor(fraction * mask.sum().item())  # more where tokens tie
    advantages = result["advantages"] * keep
    check({**result, "batch": {**result["batch"], "advantages": advantages}}, settings, bound=1e-9)
    (metrics,) = result["metrics"]
    if fraction < 1:
        assert metrics[FRACTION] == keep.sum().item() / mask.sum().item()
        assert metrics[THRESHOLD] == pytest.approx(entropy[keep].min().item(), rel=1e-6)
    else:
        assert not any(name.startswith("forking/") for name in metrics)


@pytest.mark.parametrize("top_k", BRANCHES)
def test_old_log_probs_of_the_branches_cost_one_pass(updates, top_k):
    """The plain log-probs stay those of the sampling policy; the branches are those under 1, k and 1/k."""
    settings, result = BRANCHES[top_k], updates[top_k]
    batch, mask = result["batch"], plain.response_mask(result["batch"], settings)
    model = plain.build_model(settings, torch.double)
    model.load_state_dict(result["start"])
    with torch.no_grad():
        logits, _ = plain.policy(model, batch, settings)
    ones = torch.ones_like(batch["advantages"])
    expected, _ = plain.log_prob(logits, batch["responses"], ones)
    assert (batch["old_log_probs"] - expected)[mask].abs().max() < 1e-12
    for column, factor in enumerate((1, 2, 0.5)):
        expected, kept = plain.log_prob(logits, batch["responses"], factor * ones, top_k)
        assert kept[mask].all() == (top_k is None)
        assert (batch["era_branch_log_probs"][..., column] - expected)[mask & kept].abs().max() < 1e-12


@pytest.mark.parametrize("case", BF16, ids=str)
def test_the_first_off_policy_ratio_is_one_in_bf16(updates, case):
    """Up to the rounding of fp32, although the logits are bf16."""
    (metrics,) = updates[case]["metrics"]
    assert metrics["era/scaled_token_fraction"] > 0.1
    assert abs(metrics["actor/ppo_kl"][0]) < 1e-6 and metrics["actor/pg_clipfrac"] == [0.0]


def test_the_reference_pass_of_lora_knows_nothing_of_era(updates):
    """It is a pass of the actor, without its adapters, but not the one that makes log-probs under k and 1/k as well."""
    without, ours, fused = (updates[name]["ref_log_prob"] for name in REFERENCES)
    response = ours != 0  # 0 where there is no token, which upstream fills
    assert response.sum() > 24 and response.shape == without.shape
    in_bf16 = without[response].float()  # as upstream's log_softmax of bf16 logits is
    torch.testing.assert_close(ours[response], in_bf16, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(fused, ours)


def test_fused_kernels_of_a_real_model_with_a_soft_cap(updates):
    logits, fused = (updates[name] for name in GEMMA2)
    assert difference(logits["start"], logits["parameters"]) > 1e-3
    assert difference(logits["parameters"], fused["parameters"]) < 1e-6


REFUSALS = """
import contextlib
import numpy
import torch
import transformers
from omegaconf import OmegaConf
from tensordict import TensorDict
from types import SimpleNamespace
from verl import DataProto
from verl.models.transformers.monkey_patch import patch_forward_with_backends
from verl.utils import era_fsdp

def said(action):
    try:
        action()
        print('accepted')
    except ValueError as error:
        print(error)

def hooks(model=None, kl=False):
    config = {'era': {'enable': True}, 'ppo_mini_batch_size': 2, 'ppo_epochs': 1, 'entropy_coeff': 0}
    config |= {'use_kl_loss': kl, 'use_dynamic_bsz': True, 'use_fused_kernels': model is not None}
    return era_fsdp.ActorHooks(SimpleNamespace(config=OmegaConf.create(config), actor_module=model))

def fused(name, backend='torch', kl=False, **fields):
    with torch.device('meta'):
        config = getattr(transformers, name + 'Config')(num_hidden_layers=1, **fields)
        model = getattr(transformers, name + 'ForCausalLM')(config)
    with contextlib.redirect_stdout(None):
        patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend=backend)
    said(lambda: hooks(model, kl))

fused('Qwen2', backend=None)
fused('Qwen2')
fused('Gemma2')
fused('Granite', logits_scaling=8.0)
fused('Cohere')
fused('RecurrentGemma')
fused('Gemma2', kl=True)
images = {'multi_modal_inputs': numpy.array([{}, {}])}
data = DataProto(batch=TensorDict({}, batch_size=[2]), non_tensor_batch=images)
said(lambda: hooks().decide_scales(data, [], 'cpu'))
try:
    from recipe.sppo.dp_actor import DataParallelSPPOActor
    from recipe.spin.dp_actor import SPINDataParallelPPOActor
except ImportError:  # verl's source package has no recipe/
    raise SystemExit
for cls in (DataParallelSPPOActor, SPINDataParallelPPOActor):
    actor = object.__new__(cls)
    for enable, fraction in ((False, 1), (True, 1), (False, .2)):
        actor.config = OmegaConf.create({'era': {'enable': enable}, 'policy_loss': {'forking_fraction': fraction}})
        said(lambda: era_fsdp.ActorHooks(actor))
"""


def test_what_the_actor_refuses(patched_verl, run_in, tmp_path):
    """Heads that fused kernels cannot take, and recipes that would ignore ERA."""
    (tmp_path / "refusals.py").write_text(REFUSALS)
    said = run_in(patched_verl, tmp_path / "refusals.py").splitlines()
    words = ["forward verl has replaced", "accepted", "accepted", "logits_scaling", "logit_scale", "logits_soft_cap"]
    words += ["which verl's kernel for", "use_dynamic_bsz"]
    if (patched_verl / "recipe/sppo").is_dir():
        for actor in ("DataParallelSPPOActor", "SPINDataParallelPPOActor"):
            words += ["accepted", f"{actor}.update_policy", "forking_fraction"]
    assert len(said) == len(words)
    for line, word in zip(said, words):
        assert word in line
