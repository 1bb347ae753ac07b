# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl 0.9 on a CPU: what stands for GPUs (cpu) and for rollout servers (sampling), and the demo's trainer process."""

# What differs from verl's ppo_trainer.yaml in every run on one CPU.
CPU_OVERRIDES = {
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    # verl's default is flash attention, which needs CUDA
    "+actor_rollout_ref.model.override_config.attn_implementation": "eager",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp32",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype": "fp32",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype": "fp32",
    "actor_rollout_ref.rollout.name": "cpu",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.calculate_log_probs": False,  # sampling.py returns none
    "data.dataloader_num_workers": 0,
    "reward.num_workers": 1,
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
}
