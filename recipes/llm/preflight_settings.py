# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Settings of an LLM run that do not go together, or that verl would find out about after it has generated."""

from collections.abc import Iterator
from pathlib import Path

from .preflight_model import heads

IS_PATCHED_CHECKOUT = __package__ == "recipe.era"  # of verl v0.4.1, and not verl 0.9
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SHORT_TRIAL = 10  # steps, which is what the recipes lose at most, because they save every 10


def setting_problems(config) -> Iterator[str]:
    """What is wrong with the sizes and ranges of a run's settings."""
    yield from batch_problems(config)
    yield from length_problems(config)
    yield from parallel_problems(config)
    yield from rollout_problems(config)
    yield from saving_problems(config)


def listed(names) -> list[str]:
    """The names of a setting that has one, several or none."""
    return [names] if isinstance(names, str) else list(names or ())


def gpus(config) -> int:
    return config.trainer.nnodes * config.trainer.n_gpus_per_node


def ranks(config) -> tuple[int, int]:
    """How many GPUs share a sequence, and how many data-parallel ranks there are."""
    actor = config.actor_rollout_ref.actor
    if actor.strategy == "megatron":
        shared = actor.megatron.context_parallel_size
        group = shared * actor.megatron.tensor_model_parallel_size * actor.megatron.pipeline_model_parallel_size
    else:  # verl 0.9 has the size in fsdp_config
        shared = actor.fsdp_config.get("ulysses_sequence_parallel_size") or actor.ulysses_sequence_parallel_size
        group = shared
    return shared, max(1, gpus(config) // group)


def uses_critic(config) -> bool:
    """Whether the run trains a critic: in verl 0.9 critic.enable says so, or else the estimator."""
    enabled = config.critic.get("enable")
    return config.algorithm.adv_estimator == "gae" if enabled is None else bool(enabled)


def batch_problems(config) -> Iterator[str]:
    """What is wrong with the batch sizes: verl would train a rest as a mini-batch, and round mini-batches down."""
    # The filter of recipe/dapo cuts what was generated to train_batch_size; without the filter all is trained on.
    filtered = config.algorithm.filter_groups.enable or not config.data.get("gen_batch_size")
    key = "train_batch_size" if filtered else "gen_batch_size"
    prompts, mini = config.data[key], config.actor_rollout_ref.actor.ppo_mini_batch_size
    responses, data_parallel = mini * config.actor_rollout_ref.rollout.n, ranks(config)[1]
    if prompts % mini:
        yield f"batch: data.{key}={prompts} prompts do not divide into mini-batches of ppo_mini_batch_size={mini}."
    if responses % data_parallel:
        yield (
            f"batch: the {responses} responses of a mini-batch (ppo_mini_batch_size={mini} x rollout.n) do not divide "
            f"among {data_parallel} data-parallel ranks."
        )
    if IS_PATCHED_CHECKOUT and generation_batch(config) % gpus(config):  # verl 0.9 generates for one prompt at a time
        yield (
            f"batch: the {generation_batch(config)} prompts of a generation (data.gen_batch_size, or else "
            f"train_batch_size) do not divide among {gpus(config)} GPUs, to which verl hands them out equally."
        )


def generation_batch(config) -> int:
    """The prompts that verl v0.4.1 draws at a time."""
    return config.data.get("gen_batch_size") or config.data.train_batch_size


def longest_sequence(config) -> int:
    """The tokens of the longest prompt with the longest response, or what vLLM is asked to take if that is more."""
    both = config.data.max_prompt_length + config.data.max_response_length
    return max(both, config.actor_rollout_ref.rollout.get("max_model_len") or 0)


def length_problems(config) -> Iterator[str]:
    """What is wrong with the lengths: verl packs micro-batches up to some tokens, and stops at a longer response."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {
        "actor.ppo_max_token_len_per_gpu": actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu,
        "rollout.log_prob_max_token_len_per_gpu": rollout.log_prob_use_dynamic_bsz
        and rollout.log_prob_max_token_len_per_gpu,
    }
    both, shared = config.data.max_prompt_length + config.data.max_response_length, ranks(config)[0]
    for key, tokens in budgets.items():
        if tokens and tokens * shared < both:
            yield (
                f"lengths: max_prompt_length + max_response_length = {both} tokens do not fit into "
                f"{key}={tokens} on {shared} GPUs."
            )
    longest, of_vllm_0_4_1 = longest_sequence(config), IS_PATCHED_CHECKOUT and rollout.name == "vllm"
    if of_vllm_0_4_1 and rollout.enable_chunked_prefill and rollout.max_num_batched_tokens < longest:
        yield (
            f"lengths: the {longest} tokens of max_prompt_length + max_response_length, or of max_model_len, do not "
            f"fit into rollout.max_num_batched_tokens={rollout.max_num_batched_tokens}, as verl's rollout asks with "
            "enable_chunked_prefill. Raise the one or switch off the other."
        )
    if (rollout.get("max_model_len") or both) < both:
        yield (
            f"lengths: the engine would end every response at {ROLLOUT}.max_model_len={rollout.max_model_len} tokens "
            f"with its prompt, and max_prompt_length + max_response_length are {both}. Leave it out."
        )
    penalty = config.reward_model.overlong_buffer if IS_PATCHED_CHECKOUT else None  # verl 0.9 asks for a length itself
    if penalty and penalty.enable and penalty.len < 1:
        yield (
            f"lengths: with reward_model.overlong_buffer.len={penalty.len} no response is penalized, and the reward of "
            "one that was cut is NaN. Set it to the tokens before max_response_length over which the penalty grows."
        )


def parallel_problems(config) -> Iterator[str]:
    """Sizes of groups among which the GPUs, or the model's attention heads, cannot be divided."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    sizes = {f"{ROLLOUT}.tensor_model_parallel_size": rollout.tensor_model_parallel_size}
    if actor.strategy == "megatron":
        sizes[f"{ACTOR}.megatron.tensor_model_parallel_size"] = actor.megatron.tensor_model_parallel_size
    else:
        sizes[f"{ACTOR}.ulysses_sequence_parallel_size"] = ranks(config)[0]
    has = heads(Path(config.actor_rollout_ref.model.path))
    for key, size in sizes.items():
        if size < 1 or gpus(config) % size:
            yield f"parallel: {gpus(config)} GPUs do not divide into groups of {key}={size}."
        elif has and (has[0] % size or (has[1] % size and size % has[1])):
            yield f"parallel: the model's {has[0]} attention heads ({has[1]} of keys) do not divide among {key}={size}."


def rollout_problems(config) -> Iterator[str]:
    """What the engine would refuse once the weights are loaded, and sampling from which nothing can be learned."""
    rollout = config.actor_rollout_ref.rollout
    if not 0 < rollout.gpu_memory_utilization < 1:
        yield f"rollout: {ROLLOUT}.gpu_memory_utilization={rollout.gpu_memory_utilization} is not a share of 1."
    if not 0 < rollout.top_p <= 1:
        yield f"rollout: {ROLLOUT}.top_p={rollout.top_p} is not above 0 and at most 1."
    if IS_PATCHED_CHECKOUT and rollout.name == "vllm" and rollout.free_cache_engine and not rollout.enforce_eager:
        yield f"rollout: verl v0.4.1 takes {ROLLOUT}.enforce_eager=False only with {ROLLOUT}.free_cache_engine=False."
    if rollout.temperature <= 0 or rollout.top_k == 1:
        yield (
            f"rollout: with {ROLLOUT}.temperature={rollout.temperature} and top_k={rollout.top_k} all responses to a "
            "prompt are the same, so that no advantage is other than 0, and a group filter generates for ever."
        )


def saving_problems(config) -> Iterator[str]:
    """A run that never saves: a time limit or a crash would lose all of it."""
    last, every = config.trainer.total_training_steps, config.trainer.save_freq
    if every < 1 and isinstance(last, int) and last > SHORT_TRIAL and not config.trainer.get("val_only"):
        yield (
            f"checkpoint: trainer.save_freq={every} saves nothing in {last} steps. Set it to a number of steps; {last} "
            "saves at the end alone."
        )
