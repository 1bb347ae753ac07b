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
    BF16,
    CASES,
    COLD,
    HOLD,
    LAYOUTS,
    LONG,
    LOSSES,
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

BY_TEMPERATURE = {"scales_responses": True}  # the way of Megatron and VeOmni: one scale for each response
CASES = {**CASES, **cases({"static padding": {**PACKED, "pad_to_length": True}}, ("vanilla", ALL_TERMS))}
CASES |= {
    (*case, "by temperature"): {**settings, **BY_TEMPERATURE}
    for case, settings in CASES.items()
    if case[2] in ("vanilla", "GSPO", "gate of the release", "hold", "hold alone", "one mini-batch, two epochs")
    and "fused" not in case[1]
}
CASES["off-policy", "packed", "scaled advantages", "by temperature"] = {
    **{**OFF_POLICY, **LAYOUTS["packed"], **with_era(scale_advantages=True, k=4.0)},
    **BY_TEMPERATURE,
}
ULYSSES = {**OFF_POLICY, **with_era(), **PACKED}
PROCESSES = {  # two of them: ranks with different responses, one of them empty; and sequence parallelism
    "FSDP": {**BASE, **with_era(), "data_parallel": True, "micro_batch": 4, "multi_turn": True},
    "FSDP, off-policy": {**OFF_POLICY, **with_era(**HOLD, top_k=5), "data_parallel": True, "micro_batch": 2},
    "FSDP, off-policy, dynamic": {**ULYSSES, "data_parallel": True, "dynamic": True},
    "Ulysses": {**BASE, **with_era(**HOLD), **PACKED, **COLD},
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


def test_a_schedule_without_a_count_of_updates_is_refused():
    case = {**BASE, **with_era(low_end=2.7, schedule_steps=4)}
    (result,) = environment.take_steps(environment.VERSIONS[-1], [case])
    assert "the trainer does not say how many updates" in result["error"]


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
    for case in MEASURED:
        check_metrics(updates[case], CASES[case])


def test_two_processes(version):
    results = dict(zip(PROCESSES, environment.take_steps(version, list(PROCESSES.values()), processes=2)))
    for name, settings in PROCESSES.items():
        check_update(as_one_process_sees_it(results[name], settings), settings)
    check_metrics(as_one_process_sees_it(results["FSDP"], PROCESSES["FSDP"]), PROCESSES["FSDP"])


UPSTREAM = {
    "padded": {**LONG, "entropy_coeff": 0.01},
    "packed": {**LONG, **PACKED, "kl_coef": 0.1},
    "dynamic": {**LONG, **PACKED, "dynamic": True},
    "qwen2": {**QWEN2, **PACKED},
    "LoRA": {**LONG, **PACKED, "lora": True},
}


def metrics_of_verl(result):
    return [{name: value for name, value in step.items() if "perf/" not in name} for step in result["metrics"]]


def test_without_era_training_is_verls_to_the_bit(version):
    settings = [{**path, **era} for path in UPSTREAM.values() for era in ({"plugin": False}, *WITHOUT_ERA.values())]
    results = iter(environment.take_steps(version, settings))
    for _ in UPSTREAM:
        verl = next(results)
        for ours in (next(results), next(results)):
            assert ours["engine"] == "FSDPEngineWithLMHead"
            check_off(verl, ours)
            assert metrics_of_verl(ours) == metrics_of_verl(verl)


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


FOUR_STEPS = {**BASE, "adam": True, "steps": 4, "mini_batch": 8}
ADAPTIVE = {**FOUR_STEPS, **with_era(k=1.0, top_fraction=1.0)}
BELOW, ABOVE = ({"adaptive_entropy": {"target": target, "delta": 0.1}} for target in (9.0, 0.0))


def test_the_adaptive_bonus_is_verls_bonus_with_its_coefficients(version):
    """Also through verl's checkpoints; and a step above the target has none."""
    verl = {**FOUR_STEPS, "plugin": False, "entropy_coeffs": [0.0, 0.1, 0.2, 0.3]}
    ours = [{**ADAPTIVE, **BELOW}, {**ADAPTIVE, **BELOW, "restart": True}, {**ADAPTIVE, **ABOVE}]
    verl, *below, above = environment.take_steps(version, [verl, *ours])
    for result in below:
        assert difference(verl["parameters"], result["parameters"]) < 1e-10
        coefficients = [step["adaptive_entropy/coeff"] for step in result["metrics"]]
        assert coefficients == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert [step["adaptive_entropy/coeff"] for step in above["metrics"]] == [0.0] * 4
    assert difference(verl["parameters"], above["parameters"]) > 1e-3


def test_fsdp_turbo_takes_eras_methods():
    settings = {**OFF_POLICY, **with_era(top_k=5), **PACKED, **LOSSES[ALL_TERMS], "turbo": True}
    (result,) = environment.take_steps("0.9.1", [settings])
    assert result["engine"] == "EraFSDPTurboEngine"
    check_update(result, settings)


LORA = {**OFF_POLICY, **with_era(), "lora": True, "lr": 1.0}
MIXED = {**BASE, **with_era(), "mixed_advantages": True}


@pytest.fixture(scope="module")
def others(version):
    lora = [{**LORA, **PACKED}, LORA, {**LORA, "fused": True}]
    settings = [*lora, MIXED, {**MIXED, **BY_TEMPERATURE}, LOST, *BF16.values()]
    results = environment.take_steps(version, settings)
    return {"lora": results[:3], "mixed": results[3:5], "lost": results[5], "bf16": results[6:]}


def test_lora(others):
    """The adapter alone is trained; verl starts it at a change of zero, so several mini-batches are needed."""
    _, padded, _ = others["lora"]
    for result in others["lora"]:
        trained = {name for name, p in result["parameters"].items() if not torch.equal(p, result["start"][name])}
        assert trained and all("lora_" in name for name in trained)
        assert difference(result["parameters"], padded["parameters"]) < 1e-12


def test_a_lost_bound_is_said(others):
    check_lost(others["lost"])


def test_the_off_policy_ratio_without_learning_is_one_in_bf16(others):
    for result in others["bf16"]:
        check_bf16(result, bound=0)


def test_a_response_that_needs_two_scales_is_refused(others):
    """Where each response has one temperature. With a scale for each token such a response is trained."""
    apart, refused = others["mixed"]
    check_update(apart, MIXED)
    assert "the first is number 2" in refused["error"]
