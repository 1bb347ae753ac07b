"""The real DataParallelPPOActor with the overlay: against unpatched verl, against fp64 arithmetic, and path against path."""

import json
import math
from pathlib import Path

import pytest
import torch
from token_model import PROMPT, TokenModel

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


@pytest.fixture(scope="session")
def steps(run_in, tmp_path_factory):
    """steps(tree, list of settings): a result for each, from one process (starting torch and verl takes seconds)."""

    def run(tree, settings, processes=1):
        folder = tmp_path_factory.mktemp("steps")
        (folder / "settings.json").write_text(json.dumps(settings))
        run_in(tree, Path(__file__).with_name("actor_step.py"), folder / "settings.json", folder / "results.pt", processes=processes)
        return torch.load(folder / "results.pt", weights_only=False)

    return run


def gradients(result):
    """SGD with learning rate 1 and no clipping: the parameters' change is the gradient."""
    return {name: result["start"][name] - result["parameters"][name] for name in result["start"]}


def plain_update(result, settings):
    """The gradients, scales and metrics of the update in fp64 from the paper's equations, sharing no code with the overlay."""
    era, batch, temperature = settings["era"], result["batch"], settings["temperature"]
    model = TokenModel().double()
    model.load_state_dict(result["start"])
    mask = batch["loss_mask" if settings.get("multi_turn") else "attention_mask"][:, PROMPT:].bool()
    advantages = batch["advantages"]
    logits = model(batch["input_ids"], position_ids=batch["position_ids"]).logits[:, PROMPT - 1 : -1] / temperature
    p = logits.softmax(-1)
    entropy = -(p * p.log()).sum(-1).detach()
    scale, h_resp = torch.ones_like(advantages), []
    for b in range(len(mask)):
        tokens = entropy[b][mask[b]].tolist()
        top = sorted(tokens, reverse=True)[: max(1, math.floor(era.get("top_fraction", 0.2) * len(tokens)))]
        h_resp.append(sum(top) / len(top) if tokens else math.nan)
        for t in range(mask.size(1)):
            if mask[b, t] and advantages[b, t] > era.get("min_advantage", 0):
                scale[b, t] = era["k"] if h_resp[b] < era["low"] else 1 / era["k"] if h_resp[b] > era["high"] else 1
    z = logits * scale.unsqueeze(-1)
    if era.get("top_k"):
        z = z.masked_fill(z < z.topk(era["top_k"]).values[..., -1:], -math.inf)
    label_logits = z.gather(-1, batch["responses"].unsqueeze(-1)).squeeze(-1)
    kept = label_logits.isfinite()
    log_prob = torch.where(kept, label_logits, 0) - torch.where(kept, z.logsumexp(-1), 0)
    if era.get("scale_advantages"):
        advantages = advantages / scale
    size = settings["micro_batch"]
    losses = [-(advantages * log_prob * mask)[i : i + size].sum() / mask[i : i + size].sum() for i in range(0, len(mask), size)]
    grads = torch.autograd.grad(sum(losses) / len(losses), list(model.parameters()))
    return dict(zip(result["start"], grads)), scale, h_resp, entropy, mask


def update_settings(situation, variant):
    return {**BASE, **situation, "era": {**ERA, **variant}}


@pytest.fixture(scope="session")
def updates(steps, patched_verl):
    cases = [(s, v) for s in SITUATIONS for v in VARIANTS]
    return {str(case): result for case, result in zip(cases, steps(patched_verl, [update_settings(*case) for case in cases]))}


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_update_equals_fp64_arithmetic(updates, situation, variant):
    settings, result = update_settings(situation, variant), updates[str((situation, variant))]
    expected, scale, *_ = plain_update(result, settings)
    assert len(scale.unique()) == (2 if variant.get("high") == math.inf else 3), "the case must exercise every branch of Eq. llm"
    for name, gradient in gradients(result).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-9, msg=lambda m: f"{name}: {m}")
    (metrics,) = result["metrics"]
    assert metrics["actor/ppo_kl"] == [0.0] * 3 and metrics["actor/pg_clipfrac"] == [0.0] * 3, "the ratio is exactly 1"


def test_metrics_equal_their_definitions(updates):
    settings, result = update_settings({"multi_turn": True}, {}), updates[str(({"multi_turn": True}, {}))]
    _, scale, h_resp, entropy, mask = plain_update(result, settings)
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


def test_paths_agree(steps, patched_verl):
    """padded = remove-padding = Ulysses over two processes: unequal lengths, and padding to a multiple of the ranks.

    With one micro-batch the token means are the same; dynamic batches are compared among themselves.
    """
    cases = [{**BASE, "seed": seed, "micro_batch": 24, "era": {**ERA, "top_k": top_k}} for seed in (3, 6, 7) for top_k in (None, 5)]
    packed = [{**case, "remove_padding": True} for case in cases]
    odd = [result["batch"]["attention_mask"].sum().item() % 2 for result in steps(patched_verl, cases)]
    assert set(odd) == {0, 1}, "the cases must be with and without padding for two ranks"
    for results in zip(steps(patched_verl, cases), steps(patched_verl, packed), steps(patched_verl, packed, processes=2)):
        for other in results[1:]:
            for name, gradient in gradients(results[0]).items():
                torch.testing.assert_close(gradients(other)[name], gradient, rtol=1e-9, atol=1e-12)
            assert other["metrics"][0]["era/scaled_token_fraction"] == results[0]["metrics"][0]["era/scaled_token_fraction"] > 0


def test_dynamic_batches_agree(steps, patched_verl):
    padded, packed = steps(patched_verl, [{**BASE, "dynamic": True, "remove_padding": packed, "era": ERA} for packed in (False, True)])
    for name, gradient in gradients(padded).items():
        torch.testing.assert_close(gradients(packed)[name], gradient, rtol=1e-9, atol=1e-12)


def test_metrics_are_those_of_all_ranks(steps, patched_verl):
    """Two data-parallel ranks with different responses, one of them empty."""
    settings = {**BASE, "micro_batch": 4, "multi_turn": True, "era": ERA}
    (alone,), (together,) = steps(patched_verl, [settings]), steps(patched_verl, [{**settings, "data_parallel": True}], processes=2)
    era = {name: value for name, value in alone["metrics"][0].items() if name.startswith("era/")}
    assert len(era) == 6 and era["era/scaled_token_fraction"] > 0
    assert {name: together["metrics"][0][name] for name in era} == pytest.approx(era, rel=1e-9)


# Several mini-batches, steps and Adam: what one different bit anywhere would spread.
LONG = {**BASE, "dtype": "float32", "adam": True, "steps": 3, "mini_batch": 8, "micro_batch": 4, "temperature": 0.9, "entropy_coeff": 0.01}
WITHOUT_ERA = {
    "absent": {},
    "disabled": {"era": {**ERA, "enable": False, "top_k": 5, "scale_advantages": True}},
    "logs only": {"era": {**ERA, "k": 1.0, "top_k": 5, "scale_advantages": True}},
}


def test_without_era_training_is_upstream_to_the_bit(steps, patched_verl, upstream_verl):
    paths = [{**LONG, **path} for path in PATHS.values()] + [{**BASE, "model": "qwen2", "dtype": "float32", "adam": True, "steps": 2}]
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


def test_unsound_updates_are_refused(steps, patched_verl, run_in, tmp_path):
    mini_batches, epochs = steps(patched_verl, [{**BASE, "mini_batch": 8, "era": ERA}, {**BASE, "epochs": 2, "era": ERA}])
    assert "ERA is on-policy: 24 responses, ppo_mini_batch_size 8" in mini_batches["error"]
    assert "ppo_epochs 2" in epochs["error"]
    script = tmp_path / "no_entropies.py"
    script.write_text(
        "from tensordict import TensorDict\n"
        "from verl import DataProto\n"
        "from verl.utils import era_fsdp\n"
        "try:\n"
        "    era_fsdp.decide_scales(era_fsdp.EraConfig(enable=True), DataProto(batch=TensorDict({}, batch_size=[2])), [], 2, 1, 'cpu')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    assert "ERA needs the response entropies of the old_log_prob pass" in run_in(patched_verl, script)


def test_recipes_with_an_update_of_their_own_are_refused(patched_verl, run_in, tmp_path):
    """recipe/sppo and recipe/spin replace the update and would silently ignore ERA. The real classes, where recipe/ is there."""
    if not (patched_verl / "recipe/sppo").is_dir():
        pytest.skip("the source package of verl has no recipe/")
    script = tmp_path / "own_update.py"
    script.write_text(
        "from types import SimpleNamespace\n"
        "from verl.utils import era_fsdp\n"
        "from recipe.sppo.dp_actor import DataParallelSPPOActor\n"
        "from recipe.spin.dp_actor import SPINDataParallelPPOActor\n"
        "for cls in (DataParallelSPPOActor, SPINDataParallelPPOActor):\n"
        "    actor = object.__new__(cls)\n"
        "    for enable in (False, True):\n"
        "        actor.config = {'era': {'enable': enable}}\n"
        "        try:\n"
        "            print(era_fsdp.read_config(actor).enable)\n"
        "        except ValueError as error:\n"
        "            print(error)\n"
    )
    sppo_off, sppo_on, spin_off, spin_on = run_in(patched_verl, script).splitlines()
    assert sppo_off == spin_off == "False"
    assert "DataParallelSPPOActor.update_policy" in sppo_on and "SPINDataParallelPPOActor.update_policy" in spin_on
