"""The real DataParallelPPOActor with the overlay: against unpatched verl, against fp64 arithmetic, and path against path."""

import math

import plain
import pytest
import torch
from token_model import TokenModel

BASE = {"model": "token", "bsz": 24, "micro_batch": 8, "remove_padding": False, "temperature": 1.0, "seed": 3}
# The random policies here have H_resp from 1.5 to 3.3 nats, so that these bounds put responses on both sides and between.
ERA = {"enable": True, "low": 2.75, "high": 2.8, "k": 2.0}
PATHS = {
    "padded": {},
    "padded, dynamic batch": {"dynamic": True},
    "remove-padding": {"remove_padding": True},
    "remove-padding, dynamic batch": {"remove_padding": True, "dynamic": True},
}
VARIANTS = [
    {},
    {"top_k": 5},
    {"scale_advantages": True},
    {"min_advantage": 0.6},
    {"k": 3.0, "top_fraction": 0.3},
    {"top_k": 3, "high": math.inf, "scale_advantages": True},
]
SITUATIONS = [{}, {"remove_padding": True}, {"multi_turn": True}, {"temperature": 0.7}]


def entropies(result, settings):
    model = TokenModel().double()
    model.load_state_dict(result["start"])
    with torch.no_grad():
        return plain.policy(model, result["batch"], settings)[1]


def scales(result, settings):
    return plain.decide(entropies(result, settings), result["batch"], settings)[0]


def update_settings(situation, variant):
    return {**BASE, **situation, "era": {**ERA, **variant}}


@pytest.fixture(scope="session")
def updates(steps, patched_verl):
    cases = [(s, v) for s in SITUATIONS for v in VARIANTS]
    return {
        str(case): result
        for case, result in zip(cases, steps(patched_verl, [update_settings(*case) for case in cases]))
    }


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_update_equals_fp64_arithmetic(updates, situation, variant):
    settings, result = update_settings(situation, variant), updates[str((situation, variant))]
    assert len(scales(result, settings).unique()) == (2 if variant.get("high") == math.inf else 3), (
        "the case must exercise every branch of Eq. llm"
    )
    for name, expected in plain.train(result, settings).items():
        torch.testing.assert_close(
            result["parameters"][name], expected, rtol=1e-6, atol=1e-9, msg=lambda m: f"{name}: {m}"
        )
    (metrics,) = result["metrics"]
    assert metrics["actor/ppo_kl"] == [0.0] * 3 and metrics["actor/pg_clipfrac"] == [0.0] * 3, "the ratio is exactly 1"


def test_metrics_equal_their_definitions(updates):
    settings, result = update_settings({"multi_turn": True}, {}), updates[str(({"multi_turn": True}, {}))]
    entropy, mask = entropies(result, settings), plain.response_mask(result["batch"], settings)
    scale, h_resp = plain.decide(entropy, result["batch"], settings)
    top, rest = [], []
    for row, keep in zip(entropy, mask):
        tokens = sorted(row[keep].tolist(), reverse=True)
        count = min(len(tokens), max(1, math.floor(0.2 * len(tokens))))
        top, rest = top + tokens[:count], rest + tokens[count:]
    known = [h for h in h_resp if not math.isnan(h)]
    assert len(known) < len(h_resp), "the case must have an empty response"
    expected = {
        "era/response_entropy": sum(known) / len(known),
        "era/low_fraction": sum(h < ERA["low"] for h in known) / len(known),
        "era/high_fraction": sum(h > ERA["high"] for h in known) / len(known),
        "era/scaled_token_fraction": (scale != 1).sum().item() / mask.sum().item(),
        "era/top_entropy": sum(top) / len(top),
        "era/rest_entropy": sum(rest) / len(rest),
    }
    (metrics,) = result["metrics"]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_metrics_are_those_of_all_ranks(steps, patched_verl):
    """Two data-parallel ranks with different responses, one of them empty."""
    settings = {**BASE, "micro_batch": 4, "multi_turn": True, "era": ERA}
    (alone,), (together,) = (
        steps(patched_verl, [settings]),
        steps(patched_verl, [{**settings, "fsdp": True}], processes=2),
    )
    era = {name: value for name, value in alone["metrics"][0].items() if name.startswith("era/")}
    assert len(era) == 6 and era["era/scaled_token_fraction"] > 0
    assert {name: together["metrics"][0][name] for name in era} == pytest.approx(era, rel=1e-9)


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
WITHOUT_ERA = {
    "absent": {},
    "disabled": {"era": {**ERA, "enable": False, "top_k": 5, "scale_advantages": True}},
    "logs only": {"era": {**ERA, "k": 1.0, "top_k": 5, "scale_advantages": True}},
}


def test_without_era_training_is_upstream_to_the_bit(steps, patched_verl, upstream_verl):
    paths = [{**LONG, **path} for path in PATHS.values()] + [
        {**BASE, "model": "qwen2", "dtype": "float32", "adam": True, "steps": 2}
    ]
    upstream = steps(upstream_verl, paths)
    cases = [(name, p) for name in WITHOUT_ERA for p in range(len(paths))]
    for (name, p), patched in zip(cases, steps(patched_verl, [{**paths[p], **WITHOUT_ERA[name]} for name, p in cases])):
        assert patched["parameters"].keys() == upstream[p]["parameters"].keys()
        for parameter, value in upstream[p]["parameters"].items():
            assert not torch.equal(value, upstream[p]["start"][parameter])
            assert torch.equal(patched["parameters"][parameter], value), (name, paths[p], parameter)
        for theirs, ours in zip(upstream[p]["metrics"], patched["metrics"]):
            assert {m: value for m, value in ours.items() if not m.startswith("era/")} == theirs
            assert any(m.startswith("era/") for m in ours) == (name == "logs only")


def test_old_log_probs_and_entropies_are_those_of_the_sampling_policy(steps, patched_verl, upstream_verl):
    (upstream,), (patched,) = steps(upstream_verl, [BASE]), steps(patched_verl, [{**BASE, "era": {**ERA, "top_k": 3}}])
    assert torch.equal(patched["log_probs"], upstream["log_probs"])
    assert torch.equal(patched["entropys"], upstream["entropys"])


def test_the_release_and_the_equation_differ(steps, patched_verl):
    """min_advantage=1 is the release's gate (its advantages are cut to whole numbers): fewer tokens than Eq. llm."""
    results = steps(patched_verl, [update_settings({}, {"min_advantage": a}) for a in (0.0, 1.0)])
    equation, release = (result["metrics"][0]["era/scaled_token_fraction"] for result in results)
    assert 0 < release < equation


def test_an_update_without_its_old_log_prob_pass_is_refused(patched_verl, run_in, tmp_path):
    script = tmp_path / "no_entropies.py"
    script.write_text(
        "import numpy\n"
        "import torch\n"
        "from omegaconf import OmegaConf\n"
        "from tensordict import TensorDict\n"
        "from types import SimpleNamespace\n"
        "from verl import DataProto\n"
        "from verl.utils import era_fsdp\n"
        "def hooks(epochs):\n"
        "    config = {'era': {'enable': True}, 'ppo_mini_batch_size': 2, 'ppo_epochs': epochs, 'use_kl_loss': False, 'entropy_coeff': 0, 'use_dynamic_bsz': True}\n"
        "    return era_fsdp.ActorHooks(SimpleNamespace(config=OmegaConf.create(config)))\n"
        "for epochs, batch in ((1, {}), (2, {'era_response_entropy': torch.zeros(2)})):\n"
        "    try:\n"
        "        hooks(epochs).decide_scales(DataProto(batch=TensorDict(batch, batch_size=[2])), [], 'cpu')\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    hooks(1).decide_scales(DataProto(batch=TensorDict({}, batch_size=[2]), non_tensor_batch={'multi_modal_inputs': numpy.array([{}, {}])}), [], 'cpu')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    on_policy, off_policy, multi_modal = run_in(patched_verl, script).splitlines()
    assert "use_dynamic_bsz" in multi_modal and "multi-modal" in multi_modal
    assert "ERA needs 'era_response_entropy' of the old_log_prob pass" in on_policy
    assert "ERA needs 'era_branch_log_probs' of the old_log_prob pass" in off_policy and "ppo_epochs 2" in off_policy


def test_recipes_with_an_update_of_their_own_are_refused(patched_verl, run_in, tmp_path):
    """recipe/sppo and recipe/spin replace the update and would silently ignore ERA. The real classes, where recipe/ is there."""
    if not (patched_verl / "recipe/sppo").is_dir():
        pytest.skip("the source package of verl has no recipe/")
    script = tmp_path / "own_update.py"
    script.write_text(
        "from omegaconf import OmegaConf\n"
        "from verl.utils import era_fsdp\n"
        "from recipe.sppo.dp_actor import DataParallelSPPOActor\n"
        "from recipe.spin.dp_actor import SPINDataParallelPPOActor\n"
        "for cls in (DataParallelSPPOActor, SPINDataParallelPPOActor):\n"
        "    actor = object.__new__(cls)\n"
        "    for enable, fraction in ((False, 1), (True, 1), (False, .2)):\n"
        "        actor.config = OmegaConf.create({'era': {'enable': enable}, 'policy_loss': {'forking_fraction': fraction}})\n"
        "        try:\n"
        "            print(era_fsdp.ActorHooks(actor).config.enable)\n"
        "        except ValueError as error:\n"
        "            print(error)\n"
    )
    sppo_off, sppo_on, sppo_forking, spin_off, spin_on, spin_forking = run_in(patched_verl, script).splitlines()
    assert sppo_off == spin_off == "False"
    assert "DataParallelSPPOActor.update_policy" in sppo_on and "SPINDataParallelPPOActor.update_policy" in spin_on
    assert "forking_fraction" in sppo_forking and "forking_fraction" in spin_forking
