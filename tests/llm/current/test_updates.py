# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Whole updates by verl 0.9's training worker and FSDP engine, against fp64 arithmetic and against verl's own."""

import environment
import pytest

environment.require()

import torch  # noqa: E402
from update_cases import (  # noqa: E402
    ALL_TERMS,
    BASE,
    CASES,
    COLD,
    LAYOUTS,
    LOSSES,
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

BY_TEMPERATURE = {"scales_responses": True}  # the way of Megatron and VeOmni: one scale for each response
CASES = {**CASES, **cases({"static padding": {**PACKED, "pad_to_length": True}}, ("vanilla", ALL_TERMS))}
CASES |= {
    (*case, "by temperature"): {**settings, **BY_TEMPERATURE}
    for case, settings in CASES.items()
    if case[2] in ("vanilla", "GSPO", "gate of the release", "one mini-batch, two epochs") and "fused" not in case[1]
}
CASES["off-policy", "packed", "scaled advantages", "by temperature"] = {
    **{**OFF_POLICY, **LAYOUTS["packed"], **with_era(scale_advantages=True, k=4.0)},
    **BY_TEMPERATURE,
}
ULYSSES = {**OFF_POLICY, **with_era(), **PACKED}
PROCESSES = {  # two of them: ranks with different responses, one of them empty; and sequence parallelism
    "FSDP": {**BASE, **with_era(), "data_parallel": True, "micro_batch": 4, "multi_turn": True},
    "FSDP, off-policy": {**OFF_POLICY, **with_era(top_k=5), "data_parallel": True, "micro_batch": 2},
    "FSDP, off-policy, dynamic": {**ULYSSES, "data_parallel": True, "dynamic": True},
    "Ulysses": {**BASE, **with_era(), **PACKED, **COLD},
    "Ulysses, off-policy": ULYSSES,
    "Ulysses, all losses": {**ULYSSES, **LOSSES[ALL_TERMS]},
    "Ulysses, static padding": {**ULYSSES, "pad_to_length": True},
}
PROCESSES |= {
    f"{name}, fused kernels": {**PROCESSES[name], "fused": True}
    for name in ("FSDP, off-policy", "Ulysses, all losses", "Ulysses, static padding")
}
PROCESSES |= {
    f"{name}, by temperature": {**PROCESSES[name], **BY_TEMPERATURE}
    for name in ("FSDP", "FSDP, off-policy, dynamic", "Ulysses, off-policy")
}


@pytest.fixture(scope="module", params=environment.VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def updates(version):
    return dict(zip(CASES, environment.take_steps(version, list(CASES.values()))))


def check_update(result, settings):
    # verl 0.9 adds 1e-8 to a response's number of tokens where it takes means over each
    bound = 1e-7 if settings.get("loss_agg_mode") == "seq-mean-token-mean" else 1e-12
    check(result, settings, bound, means_over="mini_batch")


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_update_equals_fp64_arithmetic(updates, case):
    result = updates[case]
    assert result["engine"] == ("FSDPEngineWithLMHead" if "by temperature" in case else "EraFSDPEngine")
    check_update(result, CASES[case])


def test_the_cases_exercise_every_branch_and_metrics_equal_their_definitions(updates):
    check_branches(updates)
    case = "off-policy", "multi-turn", "vanilla"
    check_metrics(updates[case], CASES[case])


def test_two_processes(version):
    results = dict(zip(PROCESSES, environment.take_steps(version, list(PROCESSES.values()), processes=2)))
    for name, settings in PROCESSES.items():
        check_update(as_one_process_sees_it(results[name], settings), settings)
    check_metrics(as_one_process_sees_it(results["FSDP"], PROCESSES["FSDP"]), PROCESSES["FSDP"])


# Several mini-batches, steps and Adam: what one different bit anywhere would spread.
LONG = {**BASE, "dtype": "float32", "adam": True, "steps": 3, "mini_batch": 8, "micro_batch": 4, "temperature": 0.9}
UPSTREAM = {
    "padded": {**LONG, "entropy_coeff": 0.01},
    "packed": {**LONG, **PACKED, "kl_coef": 0.1},
    "dynamic": {**LONG, **PACKED, "dynamic": True},
    "qwen2": {**BASE, **PACKED, "model": "qwen2", "dtype": "float32", "adam": True, "steps": 2},
    "LoRA": {**LONG, **PACKED, "lora": True},
}
WITHOUT_ERA = {
    "verl": {"plugin": False},
    "absent": {},
    "disabled": with_era(enable=False, top_k=5, scale_advantages=True),
}


def metrics_of_verl(result):
    return [
        {name: value for name, value in step.items() if not name.startswith(("era/", "perf/"))}
        for step in result["metrics"]
    ]


def test_without_era_training_is_verls_to_the_bit(version):
    settings = [{**path, **era} for path in UPSTREAM.values() for era in WITHOUT_ERA.values()]
    results = iter(environment.take_steps(version, settings))
    for path in UPSTREAM:
        verl = next(results)
        assert difference(verl["start"], verl["parameters"]) > 1e-3
        for ours in (next(results), next(results)):
            assert ours["engine"] == "FSDPEngineWithLMHead"
            assert difference(ours["parameters"], verl["parameters"]) == 0.0, path
            assert metrics_of_verl(ours) == metrics_of_verl(verl)
            assert ours["metrics"][0].keys() == verl["metrics"][0].keys()


def test_k_of_1_only_logs(version):
    """In fp64, where the one read of the logits and verl's functions round alike."""
    paths = [{**UPSTREAM[path], "dtype": "float64", "adam": False} for path in ("padded", "packed", "LoRA")]
    settings = [{**path, **era} for path in paths for era in ({"plugin": False}, with_era(k=1.0))]
    results = iter(environment.take_steps(version, settings))
    for verl, era in zip(results, results):
        assert era["engine"] == "EraFSDPEngine" and difference(verl["start"], verl["parameters"]) > 1e-3
        assert difference(era["parameters"], verl["parameters"]) < 1e-10
        for theirs, ours in zip(verl["metrics"], era["metrics"]):
            assert {name for name in ours if not name.startswith("era/")} == theirs.keys() != ours.keys()


LORA = {**OFF_POLICY, **with_era(), "lora": True, "lr": 1.0}
BF16 = [
    {
        **{**BASE, **with_era(k=k, top_k=top_k), "dtype": "float32", "autocast": True, "temperature": 0.7},
        **{"epochs": 2, "lr": 0, "remove_padding": packed, "fused": fused},
    }
    for k, top_k, packed, fused in (
        (1.75, None, True, False),
        (2.0, 5, False, False),
        (1.75, 5, True, True),
        (2.0, None, False, False),
    )
]
MIXED = {**BASE, **with_era(), "mixed_advantages": True}


@pytest.fixture(scope="module")
def others(version):
    settings = [{**LORA, **PACKED}, LORA, {**LORA, "fused": True}, *BF16, MIXED, {**MIXED, **BY_TEMPERATURE}]
    results = environment.take_steps(version, settings)
    return {"lora": results[:3], "bf16": results[3:7], "mixed": results[7:]}


def test_lora(others):
    """The adapter alone is trained; verl starts it at a change of zero, so several mini-batches are needed."""
    _, padded, _ = others["lora"]
    for result in others["lora"]:
        trained = {name for name, p in result["parameters"].items() if not torch.equal(p, result["start"][name])}
        assert trained and all("lora_" in name for name in trained)
        assert difference(result["parameters"], padded["parameters"]) < 1e-12


def test_the_first_off_policy_ratio_is_one_in_bf16(others):
    """Old and new log-probs are rounded alike, in fp32, although the logits are bf16: with no learning all are 1."""
    for result in others["bf16"]:
        (metrics,) = result["metrics"]
        assert metrics["era/scaled_token_fraction"] > 0.1
        assert set(metrics["actor/ppo_kl"]) == set(metrics["actor/pg_clipfrac"]) == {0.0}


def test_a_response_that_needs_two_scales_is_refused(others):
    """Where there is one temperature for a response; with a scale for each token it is trained."""
    apart, refused = others["mixed"]
    check_update(apart, MIXED)
    assert "of the 24 responses of this rank, 1 (the first is number 2) have tokens" in refused["error"]
