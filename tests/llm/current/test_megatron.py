# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Whole updates by verl 0.9's training worker and Megatron engine, on a CPU, against fp64 arithmetic.

What does not run here: TransformerEngine, attention over more than one token, bf16, the distributed optimizer, sequence
parallelism, virtual pipeline stages, experts, Megatron-Bridge, GPUs.
"""

import importlib.util

import environment
import pytest

environment.require()

import plain  # noqa: E402
from update_cases import COLD, GSPO, WARM, as_one_process_sees_it, difference, with_era  # noqa: E402

for package, module in {"megatron-core": "megatron", "mbridge": "mbridge"}.items():
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {package}, which is not installed", allow_module_level=True)

BASE = {"model": "qwen2", "megatron": True, "dtype": "float32", "bsz": 24, "micro_batch": 8, "seed": 3, "lr": 0.1}
# The random policies here have H_resp from 0.1 to 2.5 nats: these bounds put responses on both sides and between.
BASE |= {"remove_padding": True, "temperature": 1.0, **with_era(low=1.5, high=1.8)}
OFF_POLICY = {**BASE, "mini_batch": 8, "micro_batch": 4, "epochs": 2, "lr": 0.002}
ALL_TERMS = {"kl_coef": 0.1, "entropy_coeff": 0.05, **with_era(low=1.5, high=1.8, top_k=5)}
CASES = {
    "packed": {**BASE, **COLD},
    "padded": {**BASE, **WARM, "remove_padding": False},
    "dynamic": {**BASE, "dynamic": True},
    "multi-turn, scaled advantages": {**BASE, "multi_turn": True, **with_era(low=1.5, high=1.8, scale_advantages=True)},
    "hold": {**BASE, **with_era(low=1.5, high=1.8, hold=True)},
    "off-policy, hold alone": {**OFF_POLICY, **with_era(low=1.5, high=1.8, hold=True, k=1.0)},
    "GSPO": {**BASE, **GSPO, "micro_batch": 24},
    "off-policy": {**OFF_POLICY, **WARM},
    "off-policy, padded": {**OFF_POLICY, "remove_padding": False},
    "off-policy, dynamic": {**OFF_POLICY, "dynamic": True},
    "off-policy, GSPO": {**OFF_POLICY, **GSPO, "micro_batch": 8, "lr": 1e-3},
    "KL loss": {**BASE, **WARM, "kl_coef": 0.1},
    "entropy bonus": {**BASE, **COLD, "entropy_coeff": 0.05},
    "top-k": {**BASE, **with_era(low=1.5, high=1.8, top_k=5)},
    "all terms, padded": {**BASE, **ALL_TERMS, **COLD, "remove_padding": False},
    "all terms, dynamic": {**BASE, **ALL_TERMS, "dynamic": True},
    "static padding": {**BASE, **ALL_TERMS, "pad_to_length": True},
    "off-policy, all terms": {**OFF_POLICY, **ALL_TERMS, **COLD},
    "several advantages in a response": {**BASE, "mixed_advantages": True, "kl_coef": 0.1},
}
PROCESSES = {
    f"{policy}, {parallel}": {**base, **COLD, "micro_batch": 4, parallel: 2}
    for policy, base in {
        "on-policy": {**BASE, "kl_coef": 0.1, "entropy_coeff": 0.05},
        "off-policy": OFF_POLICY,
        "off-policy, all terms": {**OFF_POLICY, **ALL_TERMS},
    }.items()
    for parallel in ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel")
}


@pytest.fixture(scope="module", params=environment.VERSIONS)
def version(request):
    return request.param


def arithmetic(result, settings):
    """From the fp32 parameters that the engine started with."""
    for part in ("batch", "start", "parameters"):
        result[part] = {k: v.double() if v.is_floating_point() else v for k, v in result[part].items()}
    whole = {**settings, "own_tokens": True, "micro_batch": settings.get("mini_batch", settings["bsz"])}
    return plain.train(as_one_process_sees_it(result, settings), whole), whole


@pytest.mark.parametrize("cases", [CASES, PROCESSES], ids=["one process", "two processes"])
def test_update_equals_fp64_arithmetic(version, cases):
    processes = 1 + (cases is PROCESSES)
    for name, result in zip(cases, environment.take_steps(version, list(cases.values()), processes)):
        assert result["engine"] == "EraMegatronEngine"
        expected, settings = arithmetic(result, cases[name])
        step, error = (difference(result[part], expected) for part in ("start", "parameters"))
        assert step > 1e-2 and error < 1e-5, (name, step, error)  # fp32, of parameters up to 3
        if "off-policy" not in name and result["metrics"][0]:
            assert set(result["metrics"][0]["actor/ppo_kl"]) == {0.0}, "the ratio is exactly 1"


def test_logs_only_and_off_are_verls_to_the_bit(version):
    base = {**OFF_POLICY, "kl_coef": 0.1, "entropy_coeff": 0.05}
    cases = [{**base, "plugin": False}, {**base, **with_era(k=1.0, top_k=5)}, {**base, **with_era(enable=False)}]
    verl, logs, off = environment.take_steps(version, cases)
    assert difference(verl["start"], verl["parameters"]) > 1e-2
    assert difference(verl["parameters"], logs["parameters"]) == difference(verl["parameters"], off["parameters"]) == 0
    assert "era/response_entropy" in logs["metrics"][0] and "era/response_entropy" not in verl["metrics"][0]
