#!/usr/bin/env bash
# GRPO with ERA in verl 0.9: Qwen2.5-0.5B-Instruct on GSM8K, one GPU.
#
#   pip install '.[verl]'        # in a clone of this project, in an environment with vLLM
#   bash examples/verl_0.9.sh --cfg job -p actor_rollout_ref.actor.era    # prints ERA's settings, and trains nothing
#   bash examples/verl_0.9.sh                                             # trains
#
# The data are those of verl's examples/data_preprocess/gsm8k.py. Not run on a GPU: the tests check the settings.
# With actor_rollout_ref.actor.era.k=1 behind the command it is GRPO, which logs ERA's metrics.
set -eo pipefail
data=${DATA:-$HOME/data/gsm8k}
settings=(
    algorithm.adv_estimator=grpo
    data.train_files="$data/train.parquet"
    data.val_files="$data/test.parquet"
    data.train_batch_size=128
    data.max_prompt_length=512
    data.max_response_length=512
    actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}"
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=128 # one update a step
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
    trainer.n_gpus_per_node=1
    trainer.nnodes=1
    trainer.total_epochs=3
    "trainer.logger=[console]"
    actor_rollout_ref.actor.era.enable=True
    actor_rollout_ref.actor.era.low=0.45 # nats: 30 % of step 1's era/response_entropy
    actor_rollout_ref.actor.era.k=2.0
)
exec python3 -m era.verl.main_ppo "${settings[@]}" "$@"
