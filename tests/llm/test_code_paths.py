"""The code paths of real clusters, against plain fp64 arithmetic and against each other, gradients included."""

import agreement
import plain
import pytest
import torch
from llm_helpers import largest_difference, take_steps
from test_actor import BASE, ERA, GSPO, OFF_POLICY, with_era

pytestmark = pytest.mark.slow

# One batch of 24 responses in one update, so that the token means of all paths are over the same tokens.
ONE_UPDATE = {**BASE, "micro_batch": 24, "era": ERA}
LOSSES = {
    "vanilla": {},
    "top-k": with_era(top_k=5),
    "scaled advantages": with_era(scale_advantages=True, k=1.7),
    "entropy bonus": {"entropy_coeff": 0.05},
    "KL loss": {"kl_coef": 0.1},
    "KL loss, entropy bonus, top-k": {"kl_coef": 0.1, "entropy_coeff": 0.05, **with_era(top_k=5)},
    "GSPO": {**GSPO, "clip": 0.02},
    "GSPO, top-k": {**GSPO, "clip": 0.02, **with_era(top_k=5)},
}
LAYOUTS = {  # Ulysses over two processes
    "padded": {},
    "remove-padding": {"remove_padding": True},
    "multi-turn": {"multi_turn": True},
    "LoRA": {"lora": True},
    "Ulysses": {"remove_padding": True},
    "Ulysses, multi-turn": {"remove_padding": True, "multi_turn": True},
    "fused": {"fused": True},
    "fused, remove-padding, LoRA": {"fused": True, "remove_padding": True, "lora": True},
    "fused, Ulysses": {"fused": True, "remove_padding": True},
}
WITH_HEAD = {"fused": True, "head": {"bias": True, "final_logit_softcapping": 20.0}}
GRID = {
    (policy, layout, loss): {**base, **LAYOUTS[layout], **LOSSES[loss]}
    for policy, base in (("on-policy", ONE_UPDATE), ("off-policy", OFF_POLICY))
    for layout in LAYOUTS
    for loss in LOSSES
}
GRID |= {
    (policy, "fused, bias and soft-cap", loss): {**GRID[policy, "fused", loss], **WITH_HEAD}
    for policy in ("on-policy", "off-policy")
    for loss in ("top-k", "entropy bonus")
}


@pytest.fixture(scope="module")
def trained(patched_verl):
    results = {}
    for processes in (1, 2):
        part = {case: settings for case, settings in GRID.items() if ("Ulysses" in case[1]) == (processes == 2)}
        results |= zip(part, take_steps(patched_verl, list(part.values()), processes))
    return results


@pytest.mark.parametrize("case", GRID, ids=", ".join)
def test_update_equals_fp64_arithmetic(trained, case):
    settings, result = GRID[case], trained[case]
    expected = plain.train(result, settings)
    assert largest_difference(result["start"], expected) > 1e-3, "the update must move the policy"
    assert largest_difference(result["parameters"], expected) < 1e-9
    if "epochs" in settings:
        assert max(result["metrics"][0]["actor/pg_clipfrac"]) > 0, "the case must leave the trust region somewhere"


def test_paths_agree(patched_verl):
    table, largest = agreement.differences(patched_verl)
    assert {path for path, _ in table} > set(agreement.PATHS) and largest > 1
    for (path, top_k), (log_prob, gradient) in table.items():
        assert log_prob < 1e-12 and gradient < 1e-12, (path, top_k)


DYNAMIC = [{**BASE, "dynamic": True, "era": ERA}, {**OFF_POLICY, "dynamic": True, "kl_coef": 0.1}]
BRANCHES = [{**OFF_POLICY, "epochs": 1, "lr": 0, **with_era(top_k=top_k)} for top_k in (None, 5)]
BF16 = [
    {
        **{**ONE_UPDATE, "dtype": "float32", "autocast": True, "temperature": 0.7, "force_off_policy": True},
        **{**with_era(k=k, top_k=top_k), "remove_padding": packed, "fused": fused},
    }
    for k in (1.7, 2.0)  # no power of 2, and one
    for top_k in (None, 5)
    for packed, fused in ((False, False), (True, False), (True, True))
]
REFERENCE = {**OFF_POLICY, "reference": True, "lora": True, "dtype": "float32", "autocast": True}
GEMMA2 = {**OFF_POLICY, "model": "gemma2", "dtype": "float32"}  # its softmax is in fp32
SINGLE = {
    **{("dynamic", i, packed): {**DYNAMIC[i], "remove_padding": packed} for i in (0, 1) for packed in (False, True)},
    **{("branches", i): settings for i, settings in enumerate(BRANCHES)},
    **{("bf16", i): settings for i, settings in enumerate(BF16)},
    **{("reference", enable): {**REFERENCE, **with_era(enable=enable, top_k=5)} for enable in (False, True)},
    ("reference", "fused"): {**REFERENCE, **with_era(top_k=5), "fused": True},
    **{("gemma2", fused): {**GEMMA2, "fused": fused} for fused in (False, True)},
}


@pytest.fixture(scope="module")
def single(patched_verl):
    return dict(zip(SINGLE, take_steps(patched_verl, list(SINGLE.values()))))


@pytest.mark.parametrize("i", range(len(DYNAMIC)))
def test_dynamic_batches_agree(single, i):
    padded, packed = single["dynamic", i, False], single["dynamic", i, True]
    assert largest_difference(padded["start"], padded["parameters"]) > 1e-3
    assert largest_difference(padded["parameters"], packed["parameters"]) < 1e-12


@pytest.mark.parametrize("i", range(len(BRANCHES)))
def test_old_log_probs_of_the_branches_cost_one_pass(single, i):
    """The plain log-probs stay those of the sampling policy; the branches are those under 1, k and 1/k."""
    settings, result = BRANCHES[i], single["branches", i]
    top_k, batch, mask = settings["era"]["top_k"], result["batch"], plain.response_mask(result["batch"], settings)
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


@pytest.mark.parametrize("i", range(len(BF16)))
def test_the_first_off_policy_ratio_is_one_in_bf16(single, i):
    """Up to the rounding of fp32, although the logits are bf16."""
    (metrics,) = single["bf16", i]["metrics"]
    assert metrics["era/scaled_token_fraction"] > 0.1
    assert abs(metrics["actor/ppo_kl"][0]) < 1e-6 and metrics["actor/pg_clipfrac"] == [0.0]


def test_the_reference_pass_of_lora_knows_nothing_of_era(single):
    """It is a pass of the actor, without its adapters, but not the one that makes log-probs under k and 1/k as well."""
    without, with_era = single["reference", False], single["reference", True]
    response = with_era["ref_log_prob"] != 0  # 0 where there is no token, which upstream fills
    assert response.sum() > 24 and response.shape == without["ref_log_prob"].shape
    in_bf16 = without["ref_log_prob"][response].float()  # as upstream's log_softmax of bf16 logits is
    torch.testing.assert_close(with_era["ref_log_prob"][response], in_bf16, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(single["reference", "fused"]["ref_log_prob"], with_era["ref_log_prob"])


def test_fused_kernels_of_a_real_model_with_a_soft_cap(single):
    logits, fused = single["gemma2", False], single["gemma2", True]
    assert largest_difference(logits["start"], logits["parameters"]) > 1e-3
    assert largest_difference(logits["parameters"], fused["parameters"]) < 1e-6
