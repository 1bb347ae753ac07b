"""Whole updates by verl 0.9's training worker and FSDP engine, against fp64 arithmetic and against verl's own."""

import math

import environment
import pytest

environment.require()

import plain  # noqa: E402
import torch  # noqa: E402
from llm_helpers import largest_difference  # noqa: E402
from token_model import make_batch  # noqa: E402

BASE = {"model": "token", "bsz": 24, "micro_batch": 8, "remove_padding": False, "temperature": 1.0, "seed": 3}
# The random policies here have H_resp from 1.5 to 3.3 nats: these bounds put responses on both sides and between.
ERA = {"enable": True, "low": 2.75, "high": 2.8, "k": 2.0}
# Steps small enough that the policy stays near its old self, large enough that ratios are clipped.
OFF_POLICY = {**BASE, "mini_batch": 8, "micro_batch": 4, "epochs": 2, "lr": 0.5}
GSPO = {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean", "clip": 0.02}
# Exact in binary, so that verl's fp32 temperature is that of the fp64 arithmetic.
WARM, COLD = {"temperature": 1.25}, {"temperature": 0.75}


def with_era(**fields):
    return {"era": {**ERA, **fields}}


POLICIES = {"on-policy": BASE, "off-policy": OFF_POLICY}
LAYOUTS = {
    "padded": WARM,
    "packed": {"remove_padding": True, **COLD},
    "static padding": {"remove_padding": True, "pad_to_length": True},
    "dynamic": {"dynamic": True, "remove_padding": True},
    "multi-turn": {"multi_turn": True, "remove_padding": True},
    "multi-turn, padded": {"multi_turn": True, **COLD},
    "fused kernels, padded": {"fused": True, **WARM},
    "fused kernels, packed": {"fused": True, "remove_padding": True, **COLD},
}
LOSSES = {
    "vanilla": {},
    "top-k": with_era(top_k=5),
    "scaled advantages": with_era(scale_advantages=True, k=1.75),
    "no upper bound": with_era(top_k=3, high=math.inf, scale_advantages=True),
    "gate of the release": with_era(min_advantage=1.0, top_fraction=0.3),
    "entropy bonus": {"entropy_coeff": 0.05},
    "KL loss": {"kl_coef": 0.1},
    "KL loss, entropy bonus, top-k": {"kl_coef": 0.1, "entropy_coeff": 0.05, **with_era(top_k=5)},
    "GSPO": GSPO,
    "GSPO, top-k": {**GSPO, **with_era(top_k=5)},
}
CASES = {
    (policy, layout, loss): {**base, **with_era(), **LAYOUTS[layout], **LOSSES[loss]}
    for policy, base in POLICIES.items()
    for layout in LAYOUTS
    for loss in LOSSES
    if layout in ("padded", "packed") or loss in ("vanilla", "KL loss, entropy bonus, top-k")
}
CASES["off-policy", "packed", "one mini-batch, two epochs"] = {**BASE, **with_era(), "epochs": 2, "lr": 0.5, **COLD}
# The way of Megatron and VeOmni: one scale for each response, through verl's own temperature.
CASES |= {
    (policy, layout, loss, "by temperature"): {**CASES[policy, layout, loss], "scales_responses": True}
    for policy, layout, loss in CASES
    if loss in ("vanilla", "GSPO", "gate of the release", "one mini-batch, two epochs") and "fused" not in layout
}
CASES["off-policy", "packed", "scaled advantages", "by temperature"] = {
    **OFF_POLICY,
    **LAYOUTS["packed"],
    **with_era(scale_advantages=True, k=4.0),
    "scales_responses": True,
}
PROCESSES = {  # two of them: ranks with different responses, one of them empty; and sequence parallelism
    "FSDP": {**BASE, **with_era(), "data_parallel": True, "micro_batch": 4, "multi_turn": True},
    "FSDP, off-policy": {**OFF_POLICY, **with_era(top_k=5), "data_parallel": True, "micro_batch": 2},
    "FSDP, off-policy, dynamic": {
        **OFF_POLICY,
        **with_era(),
        "data_parallel": True,
        "dynamic": True,
        "remove_padding": True,
    },
    "Ulysses": {**BASE, **with_era(), "remove_padding": True, **COLD},
    "Ulysses, off-policy": {**OFF_POLICY, **with_era(), "remove_padding": True},
    "Ulysses, all losses": {**OFF_POLICY, **LOSSES["KL loss, entropy bonus, top-k"], "remove_padding": True},
    "Ulysses, static padding": {**OFF_POLICY, **with_era(), "remove_padding": True, "pad_to_length": True},
}
PROCESSES |= {
    f"{name}, fused kernels": {**PROCESSES[name], "fused": True}
    for name in ("FSDP, off-policy", "Ulysses, all losses", "Ulysses, static padding")
}
PROCESSES |= {
    f"{name}, by temperature": {**PROCESSES[name], "scales_responses": True}
    for name in ("FSDP", "FSDP, off-policy, dynamic", "Ulysses, off-policy")
}


@pytest.fixture(scope="module", params=environment.VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def updates(version):
    return dict(zip(CASES, environment.take_steps(version, list(CASES.values()))))


def arithmetic(result, settings):
    """verl 0.9 takes its means over the whole mini-batch, whatever the micro-batches."""
    return plain.train(result, {**settings, "micro_batch": settings.get("mini_batch", settings["bsz"])})


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_update_equals_fp64_arithmetic(updates, case):
    settings, result = CASES[case], updates[case]
    assert result["engine"] == ("FSDPEngineWithLMHead" if "by temperature" in case else "EraFSDPEngine")
    expected = arithmetic(result, settings)
    assert largest_difference(result["start"], expected) > 1e-3, "the update must move the policy"
    # verl adds 1e-8 to a response's number of tokens where it takes means over each
    bound = 1e-7 if settings.get("loss_agg_mode") == "seq-mean-token-mean" else 1e-12
    assert largest_difference(result["parameters"], expected) < bound
    (metrics,) = result["metrics"]
    if case[0] == "on-policy":
        assert set(metrics["actor/ppo_kl"]) == set(metrics["actor/pg_clipfrac"]) == {0.0}, "the ratio is exactly 1"


def test_the_cases_exercise_every_branch(updates):
    settings, result = CASES["off-policy", "packed", "vanilla"], updates["off-policy", "packed", "vanilla"]
    assert plain.decide(plain.entropies(result, settings), result["batch"], settings)[0].unique().tolist() == [
        0.5,
        1,
        2,
    ]
    assert max(result["metrics"][0]["actor/pg_clipfrac"]) > 0


def test_metrics_equal_their_definitions(updates):
    settings, result = CASES["off-policy", "multi-turn", "vanilla"], updates["off-policy", "multi-turn", "vanilla"]
    (metrics,) = result["metrics"]
    assert {name: metrics[name] for name in metrics if "era/" in name} == pytest.approx(
        plain.metrics(result, settings), rel=1e-5
    )


def as_one_process_sees_it(result, settings):
    """Each of two ranks has half of the batch, and half of each mini-batch: here are its rows in that order."""
    if not settings.get("data_parallel"):
        return result
    half, part = settings["bsz"] // 2, settings.get("mini_batch", settings["bsz"]) // 2
    rows = [
        row for first in range(0, half, part) for rank in (0, half) for row in range(rank + first, rank + first + part)
    ]
    batch = make_batch(settings["bsz"], settings["seed"], torch.double)
    return {**result, "batch": {key: value[rows] for key, value in batch.items()}}


def test_two_processes(version):
    results = dict(zip(PROCESSES, environment.take_steps(version, list(PROCESSES.values()), processes=2)))
    for name, settings in PROCESSES.items():
        result = as_one_process_sees_it(results[name], settings)
        assert largest_difference(result["parameters"], arithmetic(result, settings)) < 1e-12, name
    result = as_one_process_sees_it(results["FSDP"], PROCESSES["FSDP"])
    expected = plain.metrics(result, PROCESSES["FSDP"])
    assert {name: result["metrics"][0][name] for name in expected} == pytest.approx(expected, rel=1e-5)


# Several mini-batches, steps and Adam: what one different bit anywhere would spread.
LONG = {**BASE, "dtype": "float32", "adam": True, "steps": 3, "mini_batch": 8, "micro_batch": 4, "temperature": 0.9}
UPSTREAM = {
    "padded": {**LONG, "entropy_coeff": 0.01},
    "packed": {**LONG, "remove_padding": True, "kl_coef": 0.1},
    "dynamic": {**LONG, "remove_padding": True, "dynamic": True},
    "qwen2": {**BASE, "model": "qwen2", "dtype": "float32", "adam": True, "steps": 2, "remove_padding": True},
    "LoRA": {**LONG, "lora": True, "remove_padding": True},
}
WITHOUT_ERA = {
    "absent": {},
    "disabled": with_era(enable=False, top_k=5, scale_advantages=True),
}


def test_without_era_training_is_verls_to_the_bit(version):
    cases = [(path, era) for path in UPSTREAM for era in ("verl", *WITHOUT_ERA)]
    settings = [{**UPSTREAM[path], **({"plugin": False} if era == "verl" else WITHOUT_ERA[era])} for path, era in cases]
    results = dict(zip(cases, environment.take_steps(version, settings)))
    for (path, era), result in results.items():
        upstream = results[path, "verl"]
        assert result["engine"] == "FSDPEngineWithLMHead"
        assert largest_difference(result["start"], result["parameters"]) > 1e-3
        assert largest_difference(result["parameters"], upstream["parameters"]) == 0.0, (path, era)
        for theirs, ours in zip(upstream["metrics"], result["metrics"]):
            assert not any(name.startswith("era/") for name in ours)
            assert {name: ours[name] for name in theirs if "perf/" not in name} == {
                name: value for name, value in theirs.items() if "perf/" not in name
            }


def test_k_of_1_only_logs(version):
    """In fp64, where the one read of the logits and verl's functions round alike."""
    cases = [{**UPSTREAM[path], "dtype": "float64", "adam": False} for path in ("padded", "packed", "LoRA")]
    settings = [*({**case, "plugin": False} for case in cases), *({**case, **with_era(k=1.0)} for case in cases)]
    results = environment.take_steps(version, settings)
    for verl, era in zip(results[:3], results[3:]):
        assert era["engine"] == "EraFSDPEngine" and largest_difference(verl["start"], verl["parameters"]) > 1e-3
        assert largest_difference(era["parameters"], verl["parameters"]) < 1e-10
        for theirs, ours in zip(verl["metrics"], era["metrics"]):
            assert {name for name in ours if not name.startswith("era/")} == theirs.keys() != ours.keys()


LORA = {**OFF_POLICY, **with_era(), "lora": True, "lr": 1.0}


def test_lora(version):
    """The adapter alone is trained; verl starts it at a change of zero, so several mini-batches are needed."""
    packed, padded, fused = environment.take_steps(
        version, [{**LORA, "remove_padding": True}, LORA, {**LORA, "fused": True}]
    )
    for result in (packed, padded, fused):
        trained = {name for name, p in result["parameters"].items() if not torch.equal(p, result["start"][name])}
        assert trained and all("lora_" in name for name in trained)
        assert largest_difference(result["parameters"], padded["parameters"]) < 1e-12


BF16 = [
    {
        **BASE,
        **with_era(k=k, top_k=top_k),
        "dtype": "float32",
        "autocast": True,
        "temperature": 0.7,
        "epochs": 2,
        "lr": 0,
    }
    | {"remove_padding": packed, "fused": fused}
    for k, top_k, packed, fused in (
        (1.75, None, True, False),
        (2.0, 5, False, False),
        (1.75, 5, True, True),
        (2.0, None, False, False),
    )
]


def test_the_first_off_policy_ratio_is_one_in_bf16(version):
    """Old and new log-probs are rounded alike, in fp32, although the logits are bf16: with no learning all are 1."""
    for settings, result in zip(BF16, environment.take_steps(version, BF16)):
        (metrics,) = result["metrics"]
        assert metrics["era/scaled_token_fraction"] > 0.1
        assert set(metrics["actor/ppo_kl"]) == set(metrics["actor/pg_clipfrac"]) == {0.0}, settings


def test_a_response_that_needs_two_scales_is_refused(version):
    """Where there is one temperature for a response; with a scale for each token it is trained."""
    settings = {**BASE, **with_era(), "mixed_advantages": True}
    apart, refused = environment.take_steps(version, [settings, {**settings, "scales_responses": True}])
    assert largest_difference(apart["parameters"], arithmetic(apart, settings)) < 1e-12
    assert "of the 24 responses of this rank, 1 (the first is number 2) have tokens" in refused["error"]
    assert "This step's update was not begun; checkpoints are as they were." in refused["error"]
