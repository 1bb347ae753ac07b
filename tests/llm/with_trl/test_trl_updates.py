# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Parameters after some updates, against GRPO with ERA in fp64 (plain_grpo.py) and against TRL alone."""

import copy
import itertools
import math
import textwrap
import warnings

import eq_llm
import plain_grpo
import pytest
import tiny_grpo
import torch
import transformers
import trl
from datasets import Dataset
from packaging.version import Version
from peft import LoraConfig
from PIL import Image
from tiny_grpo import ERA, OFF_POLICY, Era, Plain, answers, known, model, on_two_processes, same, train, weights

from era.language_config import EraConfig
from era.trl import EraMixin

pytestmark = pytest.mark.usefixtures("one_thread")

KL = {"beta": 0.2, "use_bias_correction_kl": True}  # TRL 1.9 corrects only where it is asked to
OFF_POLICY_KL = {**OFF_POLICY, **KL}
SEQUENCE = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
TOOLS = {"rollout_func": answers}
VLLM = {**TOOLS, "use_vllm": True}
QUANTILE = {"top_entropy_quantile": 0.5137}
TOP_K = {"era_top_k": 5}
DIVIDED = {"era_scale_advantages": True}
HOLD = {"era_hold": True}
LOSSES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo")
FP64, FP32, BF16 = {}, {"dtype": torch.float32}, {"dtype": torch.bfloat16}


def loss(kind):
    return {"loss_type": kind, **({"epsilon_high": 5.0} if kind == "cispo" else {})}


def brief(completions, **_):
    """A reward for answers that end, so that some of positive advantage are not truncated."""
    return [-len(answer) / 24 for answer in completions]


def masks(*modes):
    return [{**VLLM, **OFF_POLICY, "vllm_importance_sampling_mode": mode} for mode in modes]


CASES = [
    # every loss, on the policy that sampled, off it, and with a KL loss
    *({**loss(kind), **policy} for kind in LOSSES for policy in ({}, OFF_POLICY, OFF_POLICY_KL)),
    # one ratio for a response
    SEQUENCE,
    *(
        {**policy, **SEQUENCE, "loss_type": kind}
        for kind in ("grpo", "luspo")
        for policy in (OFF_POLICY, OFF_POLICY_KL)
    ),
    # KL loss
    KL,
    {**KL, "use_bias_correction_kl": False},
    {**OFF_POLICY_KL, "use_bias_correction_kl": False},
    {**OFF_POLICY, **SEQUENCE, "beta": 0.02, "use_bias_correction_kl": False},
    # steps, batches and clipping
    {"gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_iterations": 2},
    {**OFF_POLICY, "num_iterations": 1},
    {**OFF_POLICY, "gradient_accumulation_steps": 1, "loss_type": "grpo"},
    {**OFF_POLICY, "epsilon": 0.05, "epsilon_high": 0.1, "delta": 1.01},
    {"max_completion_length": 24, "mask_truncated_completions": True, "reward": brief, "max_steps": 6},
    {**OFF_POLICY, "off_policy_mask_threshold": 0.001},
    # the tokens of highest entropy alone
    QUANTILE,
    {**OFF_POLICY_KL, **QUANTILE},
    # tools
    TOOLS,
    {**TOOLS, **OFF_POLICY, "learning_rate": 0.002},
    {**TOOLS, **OFF_POLICY_KL},
    {**TOOLS, **OFF_POLICY_KL, **SEQUENCE, "learning_rate": 0.002},
    # another engine sampled
    VLLM,
    {**VLLM, "vllm_importance_sampling_correction": False},
    *masks("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    {**VLLM, **OFF_POLICY_KL, "vllm_importance_sampling_mode": "token_truncate"},
    {**VLLM, **OFF_POLICY, "vllm_importance_sampling_mode": "token_truncate", "loss_type": "vespo"},
    {**VLLM, **OFF_POLICY, "off_policy_mask_threshold": 1.0},
    # ERA's own settings
    {"era_k": 3.0},
    {**OFF_POLICY, "era_k": 1.25},
    {"era_low": 0.0},
    {"era_high": math.inf},
    {**OFF_POLICY, "loss_type": "grpo", "era_top_fraction": 0.5, "era_low": 2.5, "era_high": 2.7},
    {"era_min_advantage": 0.3},
    {**OFF_POLICY, **DIVIDED, "era_min_advantage": 0.3},
    DIVIDED,
    {**OFF_POLICY_KL, **SEQUENCE, **DIVIDED},
    {**OFF_POLICY, **DIVIDED, "loss_type": "vespo"},
    HOLD,
    {**HOLD, **DIVIDED, "era_min_advantage": 0.3},
    *(
        {**OFF_POLICY_KL, **HOLD, **kind}
        for kind in ({}, SEQUENCE, {"loss_type": "vespo"}, {"off_policy_mask_threshold": 0.001})
    ),
    {**OFF_POLICY, **TOOLS, **HOLD, "num_iterations": 4},
    {**HOLD, "era_k": 1.0},
    {**OFF_POLICY, **HOLD, "era_k": 1.0},
    {**VLLM, **HOLD, "era_k": 1.0},
    {**KL, **TOP_K, **HOLD, "era_k": 1.0},
    TOP_K,
    {**OFF_POLICY, **TOP_K},
    {**KL, **TOP_K},
    {**OFF_POLICY_KL, **TOP_K},
    {**OFF_POLICY, **TOP_K, **loss("cispo")},
    {"temperature": 0.7, "era_low": 2.61, "era_high": 2.85},
    {**OFF_POLICY, "temperature": 1.2, "era_low": 3.2, "era_high": 3.4},
    # the model
    {"gradient_checkpointing": True},
    {**OFF_POLICY_KL, "gradient_checkpointing": True},
    # TRL's bonus beside it
    {"entropy_coef": 0.05},
    {**OFF_POLICY_KL, **QUANTILE, "entropy_coef": 0.05},
    {**OFF_POLICY, **TOOLS, "entropy_coef": 0.05},
]
# A mixture of four experts, two for each token, with the loss that balances them.
MIXTURE = {"kind": "Qwen2Moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXPERTS = {"router_aux_loss_coef": 0.3, "model_init_kwargs": tiny_grpo.IN_FP64}
MODELS = [
    ({"tie": True, "sharpness": 5}, {**OFF_POLICY, "era_low": 3.0, "era_high": 3.2}),
    ({"kind": "Gemma2", "final_logit_softcapping": 9.0, "head_dim": 8}, OFF_POLICY),  # its head caps the logits
    ({"kind": "Phi"}, KL),  # its head has a bias
    *((MIXTURE, {**EXPERTS, **policy}) for policy in ({}, OFF_POLICY, {**KL, "num_iterations": 2})),
]


# TRL before 1.10 trains on padding in luspo, and divides the entropy bonus of dapo by another number of tokens.
if Version(trl.__version__) < Version("1.10"):
    CASES = [
        case
        for case in CASES
        if case.get("loss_type") != "luspo" and not {"entropy_coef", "num_iterations"} <= case.keys()
    ]


def name(settings):
    """What a case sets, but for how OFF_POLICY does it, as far as that fits on a line."""
    own = [f"{key}={getattr(value, '__name__', value)}" for key, value in settings.items() if key not in OFF_POLICY]
    words = ["off-policy"] * ("num_iterations" in settings) + own
    return textwrap.shorten(", ".join(words), 44, placeholder="").strip(",") or "on-policy"


@pytest.fixture(autouse=True)
def stand_in_sampler(monkeypatch):
    monkeypatch.setattr(trl.trainer.grpo_trainer, "VLLMGeneration", tiny_grpo.Sampler)


def error_of(trainer, start, era):
    wanted, scales = plain_grpo.trained(start, [trainer.seen], trainer.args, era)
    return plain_grpo.error(weights(trainer), wanted, start), torch.cat(scales)


def check(settings, architecture=FP64, trainer_class=Era):
    settings = {**ERA, **settings}
    trainer, start = train(trainer_class, model(**architecture), **settings)
    found, scales = error_of(trainer, start, trainer.era_config)
    k = trainer.era_config.k
    one_bound = settings["era_low"] == 0 or settings["era_high"] == math.inf
    shares = [(scales == s).double().mean().item() for s in (k, 1 / k)]
    assert min(shares) > (-1 if one_bound else 0.01) and max(shares) > 0.05, shares
    dropped = max(one.get("era/dropped_token_fraction", 0) for one in trainer.state.log_history)
    assert (dropped > 0.05) == trainer.era_config.hold
    # vLLM's log-probs are in fp32, and transformers' shares of experts; else all is in fp64 but 1/k of k = 3, and
    # RMSNorm of other models than Qwen2's. luspo multiplies the KL loss, and what is rounded of it, by the length of an
    # answer. With k = 1 the log-probs are TRL's own, which its head may make in fp32.
    in_fp32 = k == 1 or "use_vllm" in settings or "router_aux_loss_coef" in settings
    in_fp32 = in_fp32 or settings.get("loss_type") == "luspo" and "beta" in settings
    assert found < (2e-6 if in_fp32 else 2e-7)
    if "beta" in settings:
        first = copy.deepcopy(start).double().eval()
        assert max(plain_grpo.reference_error(first, batch, trainer.args) for batch in trainer.seen) < 1e-5


@pytest.mark.parametrize("settings", CASES, ids=name)
def test_updates(settings):
    if not known(*(key for key in settings if key not in ("rollout_func", "reward") and not key.startswith("era_"))):
        pytest.skip("this TRL has no such setting")
    check(settings)


@pytest.mark.parametrize("architecture, settings", MODELS, ids=lambda one: name(one))
def test_updates_of_other_heads(architecture, settings):
    check(settings, architecture)


@pytest.mark.parametrize("settings", [{}, {**OFF_POLICY, "beta": 0.02}], ids=name)
def test_updates_of_trls_gmpo(settings):
    """A trainer of TRL that inherits from GRPOTrainer and has a loss of its own."""
    check(settings, trainer_class=tiny_grpo.EraGMPO)


class Sorted(Era):
    """Sorts the answers of a batch by length after ERA has decided, and leaves the longest out of the loss."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        order = batch["completion_mask"].sum(1).argsort()
        batch = {
            name: value[order] if torch.is_tensor(value) and value.dim() else value for name, value in batch.items()
        }
        batch["completion_mask"][-1] = 0
        return batch


class Turned(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        return {**batch, "advantages": -batch["advantages"]}


class EraTurned(tiny_grpo.Recording, EraMixin, Turned):
    """Its advantages are of another sign before ERA decides."""


@pytest.mark.parametrize("trainer_class", [Sorted, EraTurned])
def test_updates_of_a_class_that_edits_the_batch(trainer_class):
    check(OFF_POLICY, trainer_class=trainer_class)


def test_updates_with_a_tokenizer_without_a_pad_token():
    """TRL pads with the token that ends a response."""
    tokenizer = tiny_grpo.tokenizer()
    tokenizer.pad_token = None
    check({"processing_class": tokenizer})


def lora():
    modules = ["q_proj", "v_proj", "down_proj"]
    return LoraConfig(r=4, lora_alpha=16, target_modules=modules, task_type="CAUSAL_LM", init_lora_weights="gaussian")


@pytest.mark.parametrize("settings", [{}, KL, OFF_POLICY_KL, {**OFF_POLICY_KL, **TOP_K}], ids=name)
def test_updates_of_an_adapter(settings):
    """The reference policy is the same model, with its adapter off."""
    check({**settings, "learning_rate": 0.1, "peft_config": lora()})


@pytest.mark.parametrize(
    "architecture, settings",
    [
        (FP32, {}),
        (FP32, OFF_POLICY),
        (FP32, {"bf16": True}),
        (FP32, {"bf16": True, **OFF_POLICY}),
        (BF16, {}),  # off-policy, whether a small step is lost in weights of bf16 decides, in TRL as with ERA
        (BF16, {"cast_lm_head_to_fp32": True}),
    ],
    ids=name,
)
def test_rounding_is_no_worse_than_trls(architecture, settings):
    """Every response of positive advantage is scaled, whatever rounding does to its entropy. Sums over six seeds."""
    settings = {**settings, "learning_rate": 0.01 if "num_iterations" in settings else 0.1}
    errors = dict.fromkeys((Plain, Era), 0.0)
    for seed, trainer_class in itertools.product(range(5, 11), errors):
        era = {**ERA, "era_low": 9.0, "era_high": 9.0} if trainer_class is Era else {}
        trainer, start = train(trainer_class, model(**architecture), **settings, **era, seed=seed)
        errors[trainer_class] += error_of(trainer, start, trainer.era_config if era else EraConfig())[0]
    assert errors[Era] < 2 * errors[Plain], errors


BITWISE = [
    {},
    OFF_POLICY_KL,
    {**VLLM, **OFF_POLICY},
    {**QUANTILE, "entropy_coef": 0.05},
    {**KL, "peft_config": lora()},
    {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, **KL},
    EXPERTS,
]


@pytest.mark.parametrize("settings", BITWISE, ids=name)
def test_off_and_with_k_1_it_is_trl_to_the_bit(settings):
    """Parameters and all that is logged."""
    architecture = MIXTURE if settings is EXPERTS else FP64
    plain, _ = train(Plain, model(**architecture), **settings)
    for era in ({"era_k": 2.0}, {**ERA, "era_k": 1.0}):
        trainer, _ = train(Era, model(**architecture), **settings, **era)
        assert same(weights(trainer), weights(plain))
        assert logged(trainer) == logged(plain)
        assert any("era/response_entropy" in one for one in trainer.state.log_history) == trainer.era_config.enable


def logged(trainer):
    left_out = ("time", "per_second", "era/")
    return [
        {key: str(value) for key, value in one.items() if not any(part in key for part in left_out)}
        for one in trainer.state.log_history
    ]


@pytest.mark.parametrize(
    "policy, era_k, hold",
    [({}, 2.0, True), (OFF_POLICY, 2.0, False), (OFF_POLICY, 1.0, True), (OFF_POLICY, 1.0, False)],
    ids=["on", "off", "k=1, hold", "k=1"],
)
def test_metrics_are_those_of_their_definitions(policy, era_k, hold):
    """Off-policy ERA decides once for a generation batch, else in each micro-batch of an update."""
    trainer, start = train(Era, model(), **TOOLS, **policy, **ERA, era_k=era_k, era_hold=hold)
    parts = []
    for batch in trainer.seen[: 4 if policy else 1]:
        mask = plain_grpo.mask_of(batch)
        with torch.no_grad():
            logits = plain_grpo.logits_of(start, batch, trainer.args)
        entropy = plain_grpo.entropy_of(logits)
        decided = batch["advantages"].unsqueeze(-1).expand(mask.shape), mask, trainer.era_config
        tensors = entropy, mask, plain_grpo.decide(entropy, *decided), plain_grpo.dropped(logits, batch, *decided)
        parts += [[torch.nn.functional.pad(one, (0, 12 - one.size(1))) for one in tensors]]
    of_update = parts[:2] if era_k == 1 and not hold else parts
    wanted = eq_llm.metrics(*map(torch.cat, zip(*of_update)), trainer.era_config.low, trainer.era_config.high)
    assert (wanted["era/dropped_token_fraction"] > 0.05) == hold
    logged = trainer.state.log_history[0]
    assert {key: logged[key] for key in wanted} == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("policy", [{}, {**OFF_POLICY, "num_iterations": 4}], ids=["on-policy", "off-policy"])
def test_a_lost_bound_is_counted_and_said_once(policy):
    """Off-policy also in updates without a decision of their own."""
    settings = {**ERA, "era_low": 9.0, "era_high": 9.0, **policy, "max_steps": 22, "learning_rate": 0.0}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer, _ = train(Era, model(), **settings)
    assert [one["era/lost_fraction"] for one in trainer.state.log_history[:22]] == [1.0] * 22
    lines = [str(one.message) for one in said if "ERA: " in str(one.message)]
    assert len(lines) == 1 and "in 20 of the last 20 updates" in lines[0] and "below era_low=9" in lines[0]


SCHEDULE = {"era_low_end": 2.95, "era_high_end": 2.95, "era_schedule_steps": 3}
POLICIES = {"on-policy": (KL, 2), "off-policy": (OFF_POLICY, 4), "schedule": ({**KL, **SCHEDULE}, 2)}


@pytest.mark.parametrize("settings, at", POLICIES.values(), ids=POLICIES)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(settings, at, tmp_path):
    settings = {**ERA, **settings, "max_steps": 2 * at}
    whole, _ = train(Era, model(), **settings)
    train(Era, model(), **settings, save_strategy="steps", save_steps=at, output_dir=str(tmp_path))
    resumed, _ = train(Era, model(), **settings, resume=str(tmp_path / f"checkpoint-{at}"))
    assert resumed.state.global_step == 2 * at and same(weights(resumed), weights(whole))


def test_a_schedule_acts_and_is_logged():
    schedule = {"era_low": 0.0, "era_low_end": 12.0, "era_high": 13.0, "era_high_end": 12.1, "era_schedule_steps": 3}
    with pytest.warns(UserWarning, match="schedule_steps is 3, but this training has 2 updates"):
        trainer, _ = train(Era, model(), **{**ERA, **schedule, "max_steps": 2})
    names = ("era/low", "era/high", "era/low_fraction", "era/high_fraction")
    logged = [[one[name] for name in names] for one in trainer.state.log_history[:2]]
    assert logged == [pytest.approx([0.0, 13.0, 0.0, 0.0]), pytest.approx([4.0, 12.7, 1.0, 0.0])]


VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SHOWS = "{% for part in messages[0].content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"


@pytest.mark.parametrize("settings", [{}, KL, OFF_POLICY, OFF_POLICY_KL], ids=name)
def test_updates_with_images(settings, tmp_path):
    """A whole step of a Llava: its generation with images, and its passes in micro-batches."""
    tokenizer = tiny_grpo.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image = tokenizer.convert_tokens_to_ids("<image>")
    pixels = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = transformers.LlavaProcessor(
        pixels, tokenizer, 14, "default", chat_template=SHOWS, num_additional_image_tokens=1
    )
    text = transformers.AutoConfig.from_pretrained(
        tiny_grpo.write(tmp_path / "text", torch.double, vocab_size=image + 1)
    )
    shape = transformers.CLIPVisionConfig(**VISION, image_size=28, patch_size=14)
    torch.manual_seed(3)
    llava = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(text_config=text, vision_config=shape, image_token_index=image)
    )
    with torch.no_grad():
        llava.lm_head.weight.mul_(16)
        llava.model.multi_modal_projector.linear_2.weight.mul_(30)
    llava.double().save_pretrained(tmp_path)
    llava = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path, dtype="auto")
    llava.generation_config.suppress_tokens = [image]
    start, args = copy.deepcopy(llava), {**tiny_grpo.BASE, **ERA, "era_low": 2.7, "era_high": 3.0, **settings}
    noise = torch.randint(256, (64, 28, 28, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    asked = [[{"role": "user", "content": row["prompt"]}] for row in tiny_grpo.prompts()]
    rows = [{"prompt": prompt, "image": Image.fromarray(one.numpy())} for prompt, one in zip(asked, noise)]
    given = dict(
        model=llava,
        reward_funcs=lambda completions, **_: tiny_grpo.reward([one[0]["content"] for one in completions]),
        args=tiny_grpo.EraGRPOConfig(output_dir=str(tmp_path / "out"), **args),
        train_dataset=Dataset.from_list(rows),
        processing_class=processor,
    )
    if not hasattr(trl.trainer.utils, "add_fused_lm_head"):
        with pytest.raises(ValueError, match="a multi-modal model: this TRL takes its logits"):
            Era(**given)
        return
    trainer = Era(**given)
    trainer.train()
    blind = [{**batch, "pixel_values": torch.zeros_like(batch["pixel_values"])} for batch in trainer.seen]
    found, scales = error_of(trainer, start, trainer.era_config)
    assert (scales == 2).any() and (scales == 0.5).any(), scales
    assert found < 2e-6
    without_seeing, _ = plain_grpo.trained(start, [blind], trainer.args, trainer.era_config)
    assert plain_grpo.error(weights(trainer), without_seeing, start) > 1e-3


def test_two_processes(tmp_path):
    """DDP and FSDP2 with gloo, each rank with samples of its own."""
    found = on_two_processes("two_processes.py", tiny_grpo.write(tmp_path, torch.double))
    assert found.keys() == {"on-policy", "KL", "tools", "FSDP2", "FSDP2, head apart"}
    for case in found.values():
        assert case["error"] < 2e-6 and case["samples differ"] and 0 < case["scaled"] < 1
        assert case["scaled"] == pytest.approx(case["logged"], abs=1e-6)


@pytest.mark.parametrize("stage", ["none", "1", "2", "3", "3 at load"])
def test_zero_of_deepspeed(stage, tmp_path):
    """Each rank with samples of its own, off-policy with a KL loss. DeepSpeed makes a model in fp64 one in fp32."""
    # Not in the lock, since it compiles an operation when it first runs.
    install = "pip install --no-deps deepspeed==0.19.8 hjson ninja py-cpuinfo msgpack einops pydantic pydantic-core"
    pytest.importorskip("deepspeed", reason=f"{install} annotated-types typing-inspection")
    case = on_two_processes("under_deepspeed.py", tiny_grpo.write(tmp_path, torch.float32), stage)
    assert case["error"] < 1e-4 and case["samples differ"] and 0.1 < case["scaled"] < 0.9
    assert case["scaled"] == pytest.approx(case["logged"], abs=1e-6)
    assert ("ZeroOptimizer" in case["optimizer"], "Stage3" in case["optimizer"]) == (stage != "none", stage[0] == "3")
    assert (case["split"], case["split at load"]) == (stage[0] == "3", stage == "3 at load")
