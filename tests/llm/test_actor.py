"""The real DataParallelPPOActor with the overlay: against unpatched verl, and against fp64 arithmetic.

The grid of all code paths is in test_code_paths.py. All settings of a kind are trained in one process.
"""

import math

import plain
import pytest
import torch
from llm_helpers import largest_difference, take_steps
from test_forking_tokens import FRACTION, THRESHOLD, actor_config, plain_keep

BASE = {"model": "token", "bsz": 24, "micro_batch": 8, "remove_padding": False, "temperature": 1.0, "seed": 3}
# The random policies here have H_resp from 1.5 to 3.3 nats: these bounds put responses on both sides and between.
ERA = {"enable": True, "low": 2.75, "high": 2.8, "k": 2.0}
# Steps small enough that the policy stays near its old self, large enough that ratios are clipped.
OFF_POLICY = {**BASE, "mini_batch": 8, "micro_batch": 4, "epochs": 2, "lr": 0.5, "era": ERA}
GSPO = {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean"}


def with_era(**fields):
    return {"era": {**ERA, **fields}}


ON_POLICY = {
    "plain": {},
    "remove-padding": {"remove_padding": True, "temperature": 0.7},
    "multi-turn": {"multi_turn": True},
    "top-k": with_era(top_k=5),
    "scaled advantages": with_era(scale_advantages=True),
    "gate of the release": with_era(min_advantage=1.0),
    "other factors": with_era(k=3.0, top_fraction=0.3),
    "no upper bound": with_era(top_k=3, high=math.inf, scale_advantages=True),
}
UPDATES = {name: {**BASE, **with_era(), **settings} for name, settings in ON_POLICY.items()}
UPDATES |= {
    "off-policy": OFF_POLICY,
    "off-policy, all losses": {**OFF_POLICY, "kl_coef": 0.1, "entropy_coeff": 0.05, **with_era(top_k=5)},
    "off-policy, GSPO": {**OFF_POLICY, **GSPO, "clip": 0.02, "remove_padding": True},
    "GSPO without ERA": {**OFF_POLICY, **GSPO, "clip": 0.01, "lr": 0.1, "temperature": 0.9, **with_era(enable=False)},
    "LoRA": {**BASE, "lora": True, **with_era()},
}
FORKING = {fraction: {**BASE, "temperature": 0.9, **actor_config(fraction)} for fraction in (0.2, 0.6, 1.0)}


@pytest.fixture(scope="module")
def updates(patched_verl):
    cases = UPDATES | FORKING
    return dict(zip(cases, take_steps(patched_verl, list(cases.values()))))


@pytest.mark.parametrize("name", UPDATES)
def test_update_equals_fp64_arithmetic(updates, name):
    settings, result = UPDATES[name], updates[name]
    if not settings["era"]["enable"]:
        settings = {key: value for key, value in settings.items() if key != "era"}
    else:
        branches = 2 if settings["era"]["high"] == math.inf else 3
        assert len(scales(result, settings).unique()) == branches, "the case must exercise every branch of Eq. llm"
    for parameter, expected in plain.train(result, settings).items():
        torch.testing.assert_close(result["parameters"][parameter], expected, rtol=1e-6, atol=1e-9)
    (metrics,) = result["metrics"]
    if "epochs" in settings:
        assert max(metrics["actor/pg_clipfrac"]) > 0, "the case must leave the trust region somewhere"
        assert "GSPO" not in name or set(metrics["actor/pg_clipfrac_lower"]) == {0.0}
    else:
        assert metrics["actor/ppo_kl"] == metrics["actor/pg_clipfrac"] == [0.0] * 3, "the ratio is exactly 1"


def scales(result, settings):
    return plain.decide(plain.entropies(result, settings), result["batch"], settings)[0]


def test_metrics_equal_their_definitions(updates):
    settings, result = UPDATES["multi-turn"], updates["multi-turn"]
    expected = plain.metrics(result, settings)
    (metrics,) = result["metrics"]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_the_release_and_the_equation_differ(updates):
    """The release cuts advantages to whole numbers, so that its gate is at 1: fewer tokens than Eq. llm."""
    equation, release = (
        updates[name]["metrics"][0]["era/scaled_token_fraction"] for name in ("plain", "gate of the release")
    )
    assert 0 < release < equation


def test_two_processes(updates, patched_verl):
    """Ulysses sequence parallelism; and FSDP, whose ranks have different responses, one of them empty."""
    multi_turn = UPDATES["multi-turn"]
    ulysses = {**OFF_POLICY, "remove_padding": True}
    sequence, shards = take_steps(patched_verl, [ulysses, {**multi_turn, "fsdp": True, "micro_batch": 4}], processes=2)
    for parameter, expected in plain.train(sequence, ulysses).items():
        torch.testing.assert_close(sequence["parameters"][parameter], expected, rtol=1e-6, atol=1e-9)
    era = {name: value for name, value in updates["multi-turn"]["metrics"][0].items() if name.startswith("era/")}
    assert len(era) == 6 and era["era/scaled_token_fraction"] > 0
    assert {name: shards["metrics"][0][name] for name in era} == pytest.approx(era, rel=1e-9)


# Several mini-batches, steps and Adam: what one different bit anywhere would spread.
LONG = {
    **BASE,
    "dtype": "float32",
    "adam": True,
    "steps": 3,
    "mini_batch": 8,
    "micro_batch": 4,
    "temperature": 0.9,
    "entropy_coeff": 0.01,
}
PATHS = [
    LONG,
    {**LONG, "dynamic": True},
    {**LONG, "remove_padding": True},
    {**LONG, "remove_padding": True, "dynamic": True},
    {**LONG, "remove_padding": True, "fused": True},
    {**BASE, "model": "qwen2", "dtype": "float32", "adam": True, "steps": 2},
]
WITHOUT_ERA = {
    "absent": {},
    "disabled": with_era(enable=False, top_k=5, scale_advantages=True),
}


def test_without_era_training_is_upstream_to_the_bit(patched_verl, upstream_verl):
    *upstream, once = take_steps(upstream_verl, [*PATHS, BASE])
    cases = [(name, p) for name in WITHOUT_ERA for p in range(len(PATHS))]
    settings = [{**PATHS[p], **WITHOUT_ERA[name]} for name, p in cases]
    *results, with_top_k = take_steps(patched_verl, [*settings, {**BASE, **with_era(top_k=3)}])
    for (name, p), patched in zip(cases, results):
        assert patched["parameters"].keys() == upstream[p]["parameters"].keys()
        for parameter, value in upstream[p]["parameters"].items():
            assert not torch.equal(value, upstream[p]["start"][parameter])
            assert torch.equal(patched["parameters"][parameter], value), (name, PATHS[p], parameter)
        for theirs, ours in zip(upstream[p]["metrics"], patched["metrics"]):
            assert ours == theirs
    # With ERA, old log-probs and entropies stay those of the policy that sampled.
    mask = plain.response_mask(once["batch"], BASE).bool()
    for name in ("log_probs", "entropys"):
        torch.testing.assert_close(with_top_k[name][mask], once[name][mask], rtol=1e-12, atol=1e-12)


def test_k_of_1_only_logs(patched_verl, upstream_verl):
    """In fp64, where the one read of the logits and upstream's functions round alike."""
    cases = [{**BASE, "entropy_coeff": 0.01, "kl_coef": 0.1, "remove_padding": packed} for packed in (False, True)]
    logs_only = [{**case, **with_era(k=1.0, top_k=5, scale_advantages=True)} for case in cases]
    for theirs, ours in zip(take_steps(upstream_verl, cases), take_steps(patched_verl, logs_only)):
        assert largest_difference(theirs["start"], theirs["parameters"]) > 1e-3
        assert largest_difference(theirs["parameters"], ours["parameters"]) < 1e-12
        for expected, metrics in zip(theirs["metrics"], ours["metrics"]):
            added = {name for name in metrics if name.startswith("era/")}
            assert added and metrics.keys() - added == expected.keys()


def test_adaptive_entropy_bonus(patched_verl, upstream_verl):
    """The same updates as upstream's with the coefficients given by hand, and after a restart before each step."""
    case = {**BASE, "adam": True, "steps": 4, "mini_batch": 8, "entropy_coeffs": [0.0, 0.1, 0.2, 0.3]}
    era = with_era(k=1.0, top_fraction=1.0, low=9.0, high=9.0, entropy_coeff_delta=0.1)
    adaptive = {**BASE, "adam": True, "steps": 4, "mini_batch": 8, **era}
    (theirs,) = take_steps(upstream_verl, [case])
    above = {**adaptive, **with_era(k=1.0, low=0.0, entropy_coeff_delta=0.1)}
    *ours, without = take_steps(patched_verl, [adaptive, {**adaptive, "restart": True}, above])
    for result in ours:
        assert [step["era/entropy_coeff"] for step in result["metrics"]] == pytest.approx(case["entropy_coeffs"])
        assert largest_difference(theirs["parameters"], result["parameters"]) < 1e-12
    assert [step["era/entropy_coeff"] for step in without["metrics"]] == [0.0] * 4
    assert largest_difference(theirs["parameters"], without["parameters"]) > 1e-3


@pytest.mark.parametrize("fraction", FORKING)
def test_only_forking_tokens_get_a_gradient(updates, fraction):
    """The update is SGD on the policy gradient of the kept tokens over the number of all tokens of a micro-batch."""
    settings, result = FORKING[fraction], updates[fraction]
    mask, entropy = plain.response_mask(result["batch"], settings), plain.entropies(result, settings)
    keep = plain_keep(entropy, mask, fraction)[0]
    assert keep.sum() >= math.floor(fraction * mask.sum().item())  # more where tokens tie
    kept = {**result, "batch": {**result["batch"], "advantages": result["advantages"] * keep}}
    for name, expected in plain.train(kept, settings).items():
        torch.testing.assert_close(result["parameters"][name], expected, rtol=1e-6, atol=1e-9)
    (metrics,) = result["metrics"]
    if fraction < 1:
        assert metrics[FRACTION] == keep.sum().item() / mask.sum().item()
        assert metrics[THRESHOLD] == pytest.approx(entropy[keep].min().item(), rel=1e-6)
    else:
        assert not any(name.startswith("forking/") for name in metrics)


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

def hooks(epochs, model=None, kl=False):
    config = {'era': {'enable': True}, 'ppo_mini_batch_size': 2, 'ppo_epochs': epochs}
    config |= {'use_kl_loss': kl, 'entropy_coeff': 0, 'use_dynamic_bsz': True}
    config |= {'use_fused_kernels': model is not None}
    return era_fsdp.ActorHooks(SimpleNamespace(config=OmegaConf.create(config), actor_module=model))

def decide(epochs, tensors, **others):
    data = DataProto(batch=TensorDict(tensors, batch_size=[2]), **others)
    said(lambda: hooks(epochs).decide_scales(data, [], 'cpu'))

def fused(name, backend='torch', kl=False, **fields):
    with torch.device('meta'):
        config = getattr(transformers, name + 'Config')(num_hidden_layers=1, **fields)
        model = getattr(transformers, name + 'ForCausalLM')(config)
    with contextlib.redirect_stdout(None):
        patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend=backend)
    said(lambda: hooks(1, model, kl))

fused('Qwen2', backend=None)
fused('Qwen2')
fused('Gemma2')
fused('Granite', logits_scaling=8.0)
fused('Cohere')
fused('RecurrentGemma')
fused('Gemma2', kl=True)
decide(1, {})
decide(2, {'era_response_entropy': torch.zeros(2)})
decide(1, {}, non_tensor_batch={'multi_modal_inputs': numpy.array([{}, {}])})
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
    """Heads that fused kernels cannot take, updates without an old_log_prob pass, and recipes that would ignore ERA."""
    (tmp_path / "refusals.py").write_text(REFUSALS)
    unpatched, *heads, rest = run_in(patched_verl, tmp_path / "refusals.py").split("\n", 7)
    assert "needs a text model with an lm_head whose forward verl has replaced" in unpatched
    qwen2, gemma2, *refused = heads
    assert qwen2 == gemma2 == "accepted"
    names = ("logits_scaling is 8.0", "logit_scale is 0.0625", "logits_soft_cap is 30.0", "which verl's kernel for")
    assert len(refused) == 4 and all(name in text for name, text in zip(names, refused))
    on_policy, off_policy, multi_modal, *recipes = rest.splitlines()
    assert "ERA needs 'era_response_entropy' of the old_log_prob pass" in on_policy
    assert "ERA needs 'era_branch_log_probs' of the old_log_prob pass" in off_policy and "ppo_epochs 2" in off_policy
    assert "use_dynamic_bsz" in multi_modal and "multi-modal" in multi_modal
    if (patched_verl / "recipe/sppo").is_dir():
        sppo_off, sppo_on, sppo_forking, spin_off, spin_on, spin_forking = recipes
        assert sppo_off == spin_off == "accepted"
        assert "DataParallelSPPOActor.update_policy" in sppo_on and "SPINDataParallelPPOActor.update_policy" in spin_on
        assert "forking_fraction" in sppo_forking and "forking_fraction" in spin_forking
