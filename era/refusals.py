# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What is not supported with ERA in verl 0.9 and TRL, and what to do instead.

These are declarations by name, and need neither framework. Whether a training has one is found out
in TRL by era/trl.py, in verl by era/verl/config.py and worker.py, and for fused kernels by
era/fused_head.py. Those of verl v0.4.1, and what 0.9 shares with it, are in era/language_config.py,
because a patched checkout has that file alone. Other frameworks have theirs in their plug-in.
"""

from era.language_config import (
    ACTOR,
    BONUS_KEY,
    BONUS_REFUSALS,
    COVARIANCES,
    FUSED_REFUSALS,
    LOSS_KEY,
    Refusal,
)

FUSED_KERNELS = "actor_rollout_ref.model.use_fused_kernels"
# Those of verl's advantage estimators that sum the rewards of a response and give all of its tokens
# one advantage.
RESPONSE_ADVANTAGES = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "gdpo",
    "rloo",
    "rloo_vectorized",
    "opo",
    "gpg",
    "reinforce_plus_plus_baseline",
)
_TRAINER_MODE = "trainer.v1.trainer_mode"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_ONE_TEMPERATURE = "those kernels take one temperature for all responses"
_SCALED_ENTROPY = "on VeOmni the entropy would be the scaled policy's"


def _replayed_routes(engine: str, strategy: str) -> Refusal:
    return Refusal(
        f"{engine}: `{strategy}.router_replay.mode=R2`",
        f"on {engine} the pass for the old log-probs of the scaled policy would record routes",
        "Set it to R3 or disabled, or model_engine to dp",
        f"{ACTOR}.{strategy}.router_replay.mode",
    )


VERL_0_9 = {
    "legacy trainer": Refusal(
        "`trainer.use_v1=False`",
        "the legacy trainer drops the token entropies before the update",
        "Set it to True",
        "trainer.use_v1",
    ),
    "separate trainer": Refusal(
        f"`{_TRAINER_MODE}=separate_async`",
        "its old log-probs are of weights from before several updates, so ERA would set a ratio to "
        "1 that is not",
        "Set it to sync or colocate_async",
        _TRAINER_MODE,
    ),
    "unknown trainer": Refusal(
        f"another `{_TRAINER_MODE}`",
        "it was never tried with ERA",
        "Set it to sync or colocate_async",
        _TRAINER_MODE,
    ),
    "bypass": Refusal(
        f"`{_BYPASS}=True`",
        "it skips the pass that makes the token entropies",
        "Set it to False",
        _BYPASS,
    ),
    "bypass loss": Refusal(
        "`policy_loss.loss_mode=bypass_mode`",
        "its old log-probs are the sampler's, not those of the scaled policy",
        "Set it to vanilla or gspo",
        LOSS_KEY,
    ),
    "covariances": COVARIANCES,
    "geometric mean": Refusal(
        "`policy_loss.loss_mode=geo_mean` with `hold` or `scale_advantages`",
        "it takes the mean advantage of a response, and ERA would change some of its tokens",
        "Set hold and scale_advantages to False, or another loss_mode",
        LOSS_KEY,
    ),
    "distillation": Refusal(
        "`distillation.enabled=True`",
        "its loss is not the one that ERA changes",
        "Set it to False",
        "distillation.enabled",
    ),
    "another loss": Refusal(
        "another loss of the actor's than `ppo_loss`",
        "ERA changes verl's ppo_loss",
        "Set distillation.enabled to False",
    ),
    "unknown configuration": Refusal(
        "another `_target_` of the actor's, as torchtitan's and automodel's",
        "only verl's FSDP, Megatron and VeOmni engines apply ERA",
        "Set model_engine to dp, megatron or veomni",
        f"{ACTOR}._target_",
    ),
    "unknown engine": Refusal(
        "a `strategy` of the actor's of another `_target_`",
        "it is not an engine of that configuration",
        "Set model_engine to dp, megatron or veomni, and not the strategy",
        f"{ACTOR}.strategy",
    ),
    "replaced engine": Refusal(
        "an engine that `VERL_ENGINE_VENDOR` or the platform chooses",
        "ERA is in verl's own engine",
        "Unset VERL_ENGINE_VENDOR, or set enable to False",
    ),
    **FUSED_REFUSALS,
    "kernels on FSDP-Turbo": Refusal(
        "FSDP-Turbo: fused kernels",
        "ERA replaces the model's forward for them, and FSDP-Turbo rewrites it",
        "Set it to False",
        FUSED_KERNELS,
    ),
    "kernels on Megatron": Refusal(
        "Megatron: fused kernels, in a launcher of your own",
        f"on Megatron {_ONE_TEMPERATURE}. Without them a micro-batch's logits take tokens x "
        "vocabulary / tensor parallelism x 4 bytes, of which verl makes a copy for entropies",
        "Set it to False, or model_engine to dp",
        FUSED_KERNELS,
    ),
    "router replay on Megatron": _replayed_routes("Megatron", "megatron"),
    "context parallelism on Megatron": Refusal(
        "Megatron: `megatron.dynamic_context_parallel`",
        "on Megatron one rank of a group alone gets the old log-probs of the scaled policy",
        "Set it to False, or model_engine to dp",
        f"{ACTOR}.megatron.dynamic_context_parallel",
    ),
    "kernels on VeOmni": Refusal(
        "VeOmni: fused kernels",
        f"on VeOmni {_ONE_TEMPERATURE}",
        "Set it to False, or model_engine to dp",
        FUSED_KERNELS,
    ),
    "router replay on VeOmni": _replayed_routes("VeOmni", "veomni"),
    "estimator on VeOmni": Refusal(
        "VeOmni: `algorithm.adv_estimator` other than "
        + ", ".join(f"`{name}`" for name in RESPONSE_ADVANTAGES),
        "on VeOmni a response has one temperature, and with this estimator its advantages can "
        "differ",
        f"Set it to one of {', '.join(RESPONSE_ADVANTAGES)}, or model_engine to dp",
        "algorithm.adv_estimator",
    ),
    "top-k on VeOmni": Refusal(
        "VeOmni: `era.top_k`",
        "on VeOmni verl has no such filter",
        "Set it to null, or model_engine to dp",
        f"{ACTOR}.era.top_k",
    ),
    "KL loss on VeOmni": Refusal(
        "VeOmni: `use_kl_loss=True`",
        "on VeOmni its KL would be the scaled policy's",
        "Set it to False, or model_engine to dp",
        f"{ACTOR}.use_kl_loss",
    ),
    "entropy bonus on VeOmni": Refusal(
        "VeOmni: `entropy_coeff` other than 0",
        _SCALED_ENTROPY,
        "Set it to 0, or model_engine to dp",
        f"{ACTOR}.entropy_coeff",
    ),
    "entropy on VeOmni": Refusal(
        "VeOmni: `calculate_entropy=True`",
        _SCALED_ENTROPY,
        "Set it to False, or model_engine to dp",
        f"{ACTOR}.calculate_entropy",
    ),
    **BONUS_REFUSALS,
    "bonus on another engine": Refusal(
        "Megatron and VeOmni",
        "the bonus's coefficient would not be in the checkpoints of this engine",
        "Set model_engine to dp",
        f"{ACTOR}.strategy",
        subject=f"`{BONUS_KEY}`",
    ),
}

_NOT_ITS_MODEL = "Take another model, or train this one without ERA"
TRL = {
    "RLOOTrainer": Refusal(
        "RLOOTrainer",
        "it takes ratios of whole responses, from old log-probs that it has summed, without the "
        "scales of their tokens",
        "Take GRPOTrainer",
    ),
    "AsyncGRPOTrainer": Refusal(
        "AsyncGRPOTrainer (experimental)",
        "its old log-probs are vLLM's, under no scale, and it does not know the entropies of the "
        "policy that sampled",
        "Take GRPOTrainer",
    ),
    "own log-probs": Refusal(
        "a `_get_per_token_logps_and_entropies` of your own, also with `era_k=1`",
        "ERA makes the log-probs and would not call it",
        "Leave it to TRL",
    ),
    "own loss with KL": Refusal(
        "a `_compute_loss` of your own with `beta` above 0",
        "ERA calls it a second time for the KL loss, and what it adds would count twice",
        "Add that in compute_loss",
    ),
    "own loss with advantages": Refusal(
        "`era_hold`, also with `era_k=1`, or `era_scale_advantages`, with a "
        "`_compute_loss` of your own or GMPO's",
        "that loss may have read the advantages before ERA changes them, or may need one for a "
        "response",
        "Leave one of them out",
    ),
    "Liger": Refusal(
        "`use_liger_kernel` before TRL 1.14, also with `era_k=1`",
        "this TRL computes the whole loss in Liger's kernel",
        "Set it to False, or take TRL 1.14 or newer",
    ),
    "LUSPO": Refusal(
        '`loss_type="luspo"` before TRL 1.10',
        "it also trains on padding, whose log-probs ERA does not make",
        "Take TRL 1.10 or newer",
    ),
    "images": Refusal(
        "a multi-modal model before TRL 1.15",
        "this TRL takes its logits, not log-probs",
        "Take TRL 1.15 or newer",
    ),
    "top-k with an off-policy mask": Refusal(
        "`era_top_k` with `off_policy_mask_threshold`",
        "the filter would count as a drift of the policy",
        "Leave one of them out",
    ),
    "prompt learning": Refusal("prompt learning of PEFT", "it adds positions", "Take LoRA"),
    "head": Refusal(
        "a head that is not torch's plain linear layer, as one with an adapter",
        "ERA makes log-probs of the weights of such a layer",
        "With PEFT, leave the head out of target_modules and modules_to_save",
    ),
    "logits": Refusal(
        "a model that scales, caps or cuts its logits (Cohere, Granite, RecurrentGemma, xLSTM, "
        "Inkling), but for Gemma's soft-cap",
        "its logits are not those of its head, and era.trl does not know what was done to them",
        _NOT_ITS_MODEL,
    ),
    "auxiliary loss": Refusal(
        "`router_aux_loss_coef` with a mixture of experts whose loss is not Mixtral's",
        "its auxiliary loss of experts is not the one that era.trl knows",
        "Set router_aux_loss_coef=0.0",
    ),
}
