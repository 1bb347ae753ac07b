"""The code paths that real clusters use, each against plain fp64 arithmetic and against each other, gradients included."""

import agreement
import plain
import pytest
import torch
from test_actor import BASE, ERA

# One batch of 24 responses in one update, so that the token means of all paths are over the same tokens.
ONE_UPDATE = {**BASE, "micro_batch": 24, "era": ERA}
# Steps small enough that the policy stays near its old self, large enough that ratios are clipped.
OFF_POLICY = {**BASE, "mini_batch": 8, "micro_batch": 4, "epochs": 2, "lr": 0.5, "era": ERA}
LOSSES = {
    "vanilla": {},
    "top-k": {"era": {**ERA, "top_k": 5}},
    "scaled advantages": {"era": {**ERA, "scale_advantages": True, "k": 1.7}},
    "entropy bonus": {"entropy_coeff": 0.05},
    "KL loss": {"kl_coef": 0.1},
    "KL loss, entropy bonus, top-k": {"kl_coef": 0.1, "entropy_coeff": 0.05, "era": {**ERA, "top_k": 5}},
    "GSPO": {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean", "clip": 0.02},
    "GSPO, top-k": {
        "policy_loss": {"loss_mode": "gspo"},
        "loss_agg_mode": "seq-mean-token-mean",
        "clip": 0.02,
        "era": {**ERA, "top_k": 5},
    },
}
LAYOUTS = {  # Ulysses over two processes
    "padded": {},
    "remove-padding": {"remove_padding": True},
    "multi-turn": {"multi_turn": True},
    "LoRA": {"lora": True},
    "Ulysses": {"remove_padding": True},
    "Ulysses, multi-turn": {"remove_padding": True, "multi_turn": True},
}


def cases(base):
    return {(layout, loss): {**base, **LAYOUTS[layout], **LOSSES[loss]} for layout in LAYOUTS for loss in LOSSES}


@pytest.fixture(scope="module", params=["on-policy", "off-policy"])
def trained(request, steps, patched_verl):
    table, results = cases(ONE_UPDATE if request.param == "on-policy" else OFF_POLICY), {}
    for processes in (1, 2):
        part = {case: settings for case, settings in table.items() if ("Ulysses" in case[0]) == (processes == 2)}
        results |= zip(part, steps(patched_verl, list(part.values()), processes=processes))
    return table, results


def largest_difference(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_update_equals_fp64_arithmetic(trained, layout, loss):
    table, results = trained
    settings, result = table[layout, loss], results[layout, loss]
    expected = plain.train(result, settings)
    assert largest_difference(result["start"], expected) > 1e-3, "the update must move the policy"
    assert largest_difference(result["parameters"], expected) < 1e-9
    if "epochs" in settings:
        assert max(result["metrics"][0]["actor/pg_clipfrac"]) > 0, "the case must leave the trust region somewhere"


def test_paths_agree(steps, patched_verl):
    table, largest = agreement.differences(steps, patched_verl)
    assert {path for path, _ in table} > set(agreement.PATHS) and largest > 1
    for (path, top_k), (log_prob, gradient) in table.items():
        bound = 1e-5 if "fp32" in path else 1e-12
        assert log_prob < bound and gradient < bound, (path, top_k)


def test_dynamic_batches_agree(steps, patched_verl):
    for base in ({**BASE, "dynamic": True, "era": ERA}, {**OFF_POLICY, "dynamic": True, "kl_coef": 0.1}):
        padded, packed = steps(patched_verl, [{**base, "remove_padding": packed} for packed in (False, True)])
        assert largest_difference(padded["start"], padded["parameters"]) > 1e-3
        assert largest_difference(padded["parameters"], packed["parameters"]) < 1e-12


def test_old_log_probs_of_the_branches_cost_one_pass(steps, patched_verl):
    """The plain log-probs stay those of the sampling policy; the branches are those under 1, k and 1/k."""
    for top_k in (None, 5):
        (result,) = steps(patched_verl, [{**OFF_POLICY, "epochs": 1, "lr": 0, "era": {**ERA, "top_k": top_k}}])
        batch, mask = result["batch"], plain.response_mask(result["batch"], OFF_POLICY)
        model = plain.build_model(OFF_POLICY, torch.double)
        model.load_state_dict(result["start"])
        with torch.no_grad():
            logits, _ = plain.policy(model, batch, OFF_POLICY)
        ones = torch.ones_like(batch["advantages"])
        expected, _ = plain.log_prob(logits, batch["responses"], ones)
        assert (batch["old_log_probs"] - expected)[mask].abs().max() < 1e-12
        for column, factor in enumerate((1, 2, 0.5)):
            expected, kept = plain.log_prob(logits, batch["responses"], factor * ones, top_k)
            assert kept[mask].all() == (top_k is None)
            assert (batch["era_branch_log_probs"][..., column] - expected)[mask & kept].abs().max() < 1e-12


def test_the_first_off_policy_ratio_is_one_in_bf16(steps, patched_verl):
    """Old and new log-probs are rounded alike, although k is no power of 2 and the logits are bf16."""
    bf16 = {**ONE_UPDATE, "dtype": "float32", "autocast": True, "temperature": 0.7, "force_off_policy": True}
    kinds = [
        {"era": {**ERA, "k": k, "top_k": top_k}, "remove_padding": packed}
        for k in (1.7, 2.0)
        for top_k in (None, 5)
        for packed in (False, True)
    ]
    for result in steps(patched_verl, [{**bf16, **kind} for kind in kinds]):
        (metrics,) = result["metrics"]
        assert metrics["era/scaled_token_fraction"] > 0.1
        assert metrics["actor/ppo_kl"] == [0.0] and metrics["actor/pg_clipfrac"] == [0.0]


def test_fused_kernels_in_several_micro_batches(steps, patched_verl):
    """Each micro-batch has scales of its own, and none is left behind in the model."""
    base = {**BASE, "micro_batch": 8, "steps": 2, "era": ERA}
    plain_logits, fused = steps(patched_verl, [base, {**base, "fused": True}])
    assert largest_difference(plain_logits["start"], plain_logits["parameters"]) > 1e-3
    assert largest_difference(plain_logits["parameters"], fused["parameters"]) < 1e-5


HEADS = {"bias": {"bias": True}, "final_logit_softcapping": {"final_logit_softcapping": 30.0}}


@pytest.mark.parametrize("head", HEADS)
def test_heads_that_fused_kernels_cannot_scale_are_refused(steps, patched_verl, head):
    fused = {**ONE_UPDATE, "fused": True, "head": HEADS[head]}
    refused, without_era, logs_only = steps(
        patched_verl, [fused, {**fused, "era": {**ERA, "enable": False}}, {**fused, "era": {**ERA, "k": 1.0}}]
    )
    assert head in refused["error"] and "use_fused_kernels" in refused["error"]
    assert "error" not in without_era and "error" not in logs_only
