# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What is declared as refused in verl v0.4.1 is refused by verl's own start-up check, or by the actor's hooks."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
import token_model
import torch
from forking import actor_config
from helpers import NO_RECIPES
from llm_helpers import keys_taken_for_era, refused
from omegaconf import OmegaConf

from era.language_config import VERL_0_4_1, refuse_elsewhere

ACTOR = "actor_rollout_ref.actor"
KEY = f"{ACTOR}.era"
LOSS = f"{ACTOR}.policy_loss"
ON, K_1 = f"{KEY}.enable=True", f"{KEY}.k=1"
HOLD_ALONE = [K_1, f"{KEY}.hold=True"]
COVARIANCE, FORKING, GSPO = f"{LOSS}.loss_mode=kl_cov", f"{LOSS}.forking_fraction=0.2", f"{LOSS}.loss_mode=gspo"
MULTI_TURN = [f"actor_rollout_ref.rollout.multi_turn.{item}" for item in ("tool_config_path=tools.yaml", "enable=True")]
MULTI_TURN = ["algorithm.adv_estimator=grpo", *MULTI_TURN]
KL_LOSS = f"{ACTOR}.use_kl_loss=True"
FUSED = "actor_rollout_ref.model.use_fused_kernels=True"
ULYSSES = [f"{ACTOR}.ulysses_sequence_parallel_size=2", "actor_rollout_ref.model.use_remove_padding=True", FUSED]
BONUS = [f"+{ACTOR}.adaptive_entropy.{item}" for item in ("target=0.5", "delta=0.005")]
MEGATRON = f"{ACTOR}.strategy=megatron"
SCHEDULE = [f"+{KEY}.{item}" for item in ("low_end=0.2", "schedule_steps=40")]
CHECKPOINTS = [f"{ACTOR}.checkpoint.{does}_contents" for does in ("save", "load")]
SEQUENCE_MEAN = f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"


@pytest.fixture
def start(config_of, import_verl):
    """The real RayPPOTrainer's check of its configuration, without building the trainer."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    passes = (
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    )

    def check(*overrides):
        config = config_of(*passes, "data.train_batch_size=256", *overrides)
        RayPPOTrainer._validate_config(SimpleNamespace(config=config, use_critic=False, use_reference_policy=False))

    return check


def hooks(model=None, use_kl_loss=False):
    from verl.utils.era_fsdp import ActorHooks

    config = {"era": {"enable": True}, "ppo_mini_batch_size": 2, "ppo_epochs": 1, "entropy_coeff": 0}
    config |= {"use_kl_loss": use_kl_loss, "use_dynamic_bsz": True, "use_fused_kernels": model is not None}
    return ActorHooks(SimpleNamespace(config=OmegaConf.create(config), actor_module=model))


def with_head(name, use_kl_loss=False, fused=True, **fields):
    """The hooks of an actor with fused kernels and an untrained model."""
    import transformers

    with torch.device("meta"):
        config = getattr(transformers, f"{name}Config")(num_hidden_layers=1, **fields)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    if fused:
        token_model.fuse(model)
    return hooks(model, use_kl_loss)


def with_images():
    data = SimpleNamespace(batch={}, non_tensor_batch={"multi_modal_inputs": [{}, {}]})
    hooks().decide(data, [], "cpu")


def in_recipe(recipe, name, enable, fraction):
    """The hooks of a recipe's own actor."""
    from verl.utils.era_fsdp import ActorHooks

    actor_class = getattr(pytest.importorskip(f"recipe.{recipe}.dp_actor", reason=NO_RECIPES), name)
    actor = object.__new__(actor_class)
    actor.config = OmegaConf.create({"era": {"enable": enable}, **actor_config(fraction)})
    ActorHooks(actor)


RECIPES = [("sppo", "DataParallelSPPOActor"), ("spin", "SPINDataParallelPPOActor")]
ONLY_WITH_ERA = {  # what is refused where ERA changes the training
    "covariances": [[COVARIANCE], [f"{LOSS}.loss_mode=clip_cov"]],
    "forking": [[FORKING]],
    "multi-turn": [["+algorithm.filter_groups.enable=False", *MULTI_TURN]],
    "reference policy with Ulysses": [[KL_LOSS, *ULYSSES], ["algorithm.use_kl_in_reward=True", *ULYSSES]],
}
# By refusal, what breaks it and no other: overrides of the configuration, or what an actor is made with.
BREAKS = {
    **{name: [[ON, *overrides] for overrides in cases] for name, cases in ONLY_WITH_ERA.items()},
    "multi-turn": [[ON, *alone, *ONLY_WITH_ERA["multi-turn"][0]] for alone in ([], HOLD_ALONE)],
    "forking": [[ON, FORKING], [ON, *HOLD_ALONE, FORKING]],
    "megatron": [[ON, K_1, MEGATRON]],
    "another model": [partial(with_head, name, fused=False) for name in ("Qwen2", "Gemma2", "Granite", "Cohere")],
    "another head": [
        partial(with_head, "Granite", logits_scaling=8.0),
        partial(with_head, "Cohere"),
        partial(with_head, "RecurrentGemma"),
        partial(with_head, "Qwen2", output_logit_soft_cap=30.0),  # xLSTM's key
    ],
    "head of the reference policy": [partial(with_head, "Gemma2", use_kl_loss=True)],
    "images in dynamic batches": [with_images],
    "schedule without extra": [[ON, *SCHEDULE, f"{contents}=[model,optimizer]"] for contents in CHECKPOINTS],
    "own update": [partial(in_recipe, *recipe, True, 1) for recipe in RECIPES],
    "forking in an own update": [partial(in_recipe, *recipe, False, 0.2) for recipe in RECIPES],
    "forking on megatron": [[FORKING, MEGATRON]],
    "forking with covariances": [[FORKING, COVARIANCE]],
    "gspo on megatron": [[GSPO, SEQUENCE_MEAN, MEGATRON]],
    "gspo with another mean": [[GSPO, f"{ACTOR}.loss_agg_mode=token-mean"]],
    "bonus without k=1": [BONUS, [ON, *BONUS], [ON, *HOLD_ALONE, *BONUS]],
    "bonus with a coefficient": [[ON, *BONUS, K_1, f"{ACTOR}.entropy_coeff=0.01"]],
    "bonus without the optimizer": [[ON, *BONUS, K_1, f"{contents}=[model,extra]"] for contents in CHECKPOINTS],
}


@pytest.mark.parametrize("name", VERL_0_4_1)
def test_whatever_is_declared_is_refused(name, start):
    for case in BREAKS[name]:
        with refused(VERL_0_4_1[name]):
            case() if callable(case) else start(*case)


BAD = [  # overrides; the key that is named
    *(([f"{LOSS}.forking_fraction={of}"], f"fraction is {of}; expected a number") for of in ("0", "'0.2'")),
    *(
        (overrides, f"{ACTOR}.adaptive_entropy is ")
        for overrides in (
            [f"+{ACTOR}.adaptive_entropy=0.1"],
            BONUS[:1],
            [ON, K_1, BONUS[0], f"+{ACTOR}.adaptive_entropy.delta=0"],
        )
    ),
]


@pytest.mark.parametrize("overrides, named", BAD)
def test_values_out_of_range_are_refused(start, overrides, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        start(*overrides)


def test_a_key_of_era_elsewhere_or_without_a_value_is_refused(start):
    """test_config.py has all of them."""
    with pytest.raises(ValueError, match=rf"^trainer\.era would be ignored: its place is {KEY}\.\nNothing was started"):
        start("+trainer.era.k=2")
    with pytest.raises(ValueError, match=rf"^{KEY}\.k has no value"):
        start(f"++{KEY}.k=???")


def test_fields_without_enable_are_refused_before_ray_starts(config_of, import_verl, monkeypatch):
    from verl.trainer import main_ppo

    started = []
    monkeypatch.setattr(main_ppo, "run_ppo", started.append)
    with pytest.raises(ValueError, match=rf"^{KEY}\.low without {ON}, so that this would train without ERA"):
        main_ppo.main.__wrapped__(config_of(f"{KEY}.low=0.3"))
    assert not started
    main_ppo.main.__wrapped__(config_of())
    assert started


def test_upstreams_own_keys_are_not_taken_for_eras(upstream_verl):
    assert keys_taken_for_era(upstream_verl, ["verl"]) == []
    words = ["operational", "generation", "temperature", "num_iterations", "overall", "era5", "camera", "low", "top_k"]
    words += ["enable", "max_advantage", "drop_fraction", "lr_schedule_steps", "schedule", "entropy_regularization"]
    own = {"reward_kwargs": {"min_advantage": 1, "k": 5}}  # of a user's own function
    refuse_elsewhere({"mine": dict.fromkeys(words), "custom_reward_function": own})


def test_keys_of_upstreams_recipes_are_not_taken_for_eras(verl_with_recipes):
    assert keys_taken_for_era(verl_with_recipes, ["recipe"]) == []


ACCEPTED = [
    [],
    *(
        [ON, *overrides, switch]
        for cases in ONLY_WITH_ERA.values()
        for overrides in cases
        for switch in (K_1, f"{KEY}.enable=False")
    ),
    [ON, *BONUS, K_1, f"{CHECKPOINTS[0]}=[model,optimizer]"],
    [ON, *SCHEDULE, f"{CHECKPOINTS[0]}=[model,extra]"],
    [ON, f"{KEY}.high=inf", f"{KEY}.low=0.2", f"{KEY}.top_k=20", f"{KEY}.scale_advantages=True"],
    [ON, f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.entropy_coeff=0.01", KL_LOSS, FUSED],
    [ON, *MULTI_TURN],
    [ON, GSPO, SEQUENCE_MEAN],
    [ON, f"{LOSS}.loss_mode=recovery"],  # the user's own loss, not a covariance loss
    [ON, *ULYSSES, KL_LOSS, "actor_rollout_ref.model.lora_rank=8"],
    # DAPO's generation batch may be larger than the training batch, which is what the update sees.
    [ON, "+data.gen_batch_size=768", "+algorithm.filter_groups.enable=True"],
]


@pytest.mark.parametrize("overrides", ACCEPTED)
def test_what_is_supported_starts(start, overrides):
    start(*overrides)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_with_its_own_update_runs_without_era(import_verl, recipe):
    in_recipe(*recipe, enable=False, fraction=1)


@pytest.mark.parametrize(
    "name, fields",
    [("Qwen2", {}), ("Gemma2", {}), ("Qwen2", {"attn_logit_softcapping": 50.0, "logits_scaling": 1.0})],
)
def test_heads_that_fused_kernels_support(import_verl, name, fields):
    with_head(name, **fields)
