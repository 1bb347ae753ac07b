# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The recipes on verl 0.9.1: what each script sets, what the check before a run says, and a start on this CPU."""

import os
import shlex
import subprocess
import sys

import environment
import pytest
from environment import train, workers
from omegaconf import OmegaConf
from paper_settings import SHARED as PAPER

environment.require()


from demo.llm import models  # noqa: E402

RECIPES = environment.ROOT / "recipes/llm/verl-0.9"
FSDP, MEGATRON = "era_qwen3_8b", "era_qwen3_8b_megatron"
ACTOR = "actor_rollout_ref.actor."
# The paper's values as for v0.4.1, but for what 0.9 names otherwise, the model, and what follows from its size.
OTHER = """
data.gen_batch_size data.train_files data.val_files trainer.logger reward_model.reward_manager
reward_model.overlong_buffer.enable algorithm.filter_groups.max_num_gen_batches
actor_rollout_ref.model.path actor_rollout_ref.rollout.gpu_memory_utilization
actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu actor_rollout_ref.actor.ulysses_sequence_parallel_size
actor_rollout_ref.actor.ppo_max_token_len_per_gpu actor_rollout_ref.actor.optim.warmup_style
actor_rollout_ref.actor.grad_clip actor_rollout_ref.actor.policy_loss.forking_fraction
actor_rollout_ref.actor.era.top_k
"""
SHARED = {key: value for key, value in PAPER.items() if key not in OTHER.split()} | {
    "algorithm.filter_groups.max_num_gen_batches": 0,  # no limit, as -1 in v0.4.1
    "reward.reward_manager.name": "dapo",
    "data.truncation": "left",
    "actor_rollout_ref.actor.optim.clip_grad": 1.0,
    "actor_rollout_ref.rollout.top_k": -1,
    "trainer.total_training_steps": 600,
    "trainer.use_v1": True,
    **{f"{ACTOR}era.low": 0.45, f"{ACTOR}era.high": 3.0, f"{ACTOR}era.k": 2.0, f"{ACTOR}era.top_k": 20},
}
OWN = {
    FSDP: {f"{ACTOR}strategy": "fsdp", f"{ACTOR}grad_clip": 1.0},
    MEGATRON: {f"{ACTOR}strategy": "megatron", f"{ACTOR}optim.lr_decay_style": "constant"},
}
# With these, in one run, the check says all of this.
MISTAKES = [f"{ACTOR}ppo_mini_batch_size=100", "data.max_response_length=30000", f"{ACTOR}era.top_fraction=2"]
MISTAKES += [f"{ACTOR}optim.lr=1e-6x", f"{ACTOR}policy_loss.loss_mode=gspoo", "algorithm.filter_groups.metric=accuracy"]
MISTAKES += ["trainer.total_epochs=1", "actor_rollout_ref.rollout.name=vlm"]
SAID = (
    *("do not divide into mini-batches", "actor.ppo_max_token_len_per_gpu=24576", "era.top_fraction is 2"),
    *("optim.lr is '1e-6x', not a number.", "loss_mode=gspoo: Unsupported loss mode: gspoo."),
    "filter_groups.metric=accuracy for the first row of",
    "Set it to one of acc, reward.",  # GSM8K's reward is a number alone, which verl 0.9's manager names acc
    "NotImplementedError: Reward function is not implemented for data_source='mine'",
    *("would end after step 1 of 600", "actor_rollout_ref.rollout.name=vlm is none of vllm, sglang"),
)
# In place of the recipe's values, for this machine, a model of 50 tokens and its task.
TINY = """
data.train_batch_size=8 data.max_prompt_length=8 data.max_response_length=8
actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.actor.ppo_mini_batch_size=8
actor_rollout_ref.actor.ppo_max_token_len_per_gpu=400 actor_rollout_ref.actor.optim.lr=5e-3
actor_rollout_ref.actor.era.low=3.0 actor_rollout_ref.actor.era.high=9.0
actor_rollout_ref.rollout.name=cpu actor_rollout_ref.rollout.tensor_model_parallel_size=1
algorithm.filter_groups.metric=reward trainer.save_freq=-1 trainer.test_freq=-1
"""


def start(name, *overrides, **variables):
    """The script, with the Python of this environment and verl 0.9.1."""
    own = {"HOME": "/home/me", "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    own |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(environment.tree_of("0.9.1"))}
    command = ["bash", RECIPES / f"run_{name}.sh", *overrides]
    return subprocess.run(command, env={**own, **variables}, capture_output=True, text=True, timeout=3600)


def overrides_of(name, **variables):
    """The overrides that the dry run prints."""
    result = start(name, DRY_RUN="1", **variables)
    assert result.returncode == 0, result.stderr
    words = shlex.split(result.stdout)
    assert words[:3] == ["cd", str(environment.ROOT), "&&"] and words[6:8] == ["-m", "era.verl.main_ppo"]
    assert words[8:10] == [f"--config-dir={RECIPES}/config", "--config-name=era_math"]
    return words[10:]


@pytest.mark.parametrize("name", OWN)
def test_scripts_set_the_papers_values(verl, name):
    """And era.verl accepts them."""
    from recipes.llm import preflight

    check = preflight.verl_check()
    config = preflight.compose(RECIPES / "config", overrides_of(name, RAY_DATA_HOME="/data home"))
    check(config.copy())
    variables = {
        "actor_rollout_ref.model.path": "/data home/models/Qwen3-8B",
        "data.train_files": "/data home/data/dapo-math-17k.parquet",
        "trainer.experiment_name": name,
    }
    for key, value in {**SHARED, **OWN[name], **variables}.items():
        assert OmegaConf.select(config, key) == value, key


@pytest.mark.parametrize("name", OWN)
def test_all_that_is_missing_is_named_before_a_start(name, tmp_path):
    model, files, home = tmp_path / "model", {"train": "openai/gsm8k", "test": "mine"}, tmp_path / "home"
    models.character_tokenizer([*"ab"]).save_pretrained(model)
    (model / "config.json").write_text('{"max_position_embeddings": 40000, "model_type": "qwen2"}')
    for file, source in files.items():
        models.write_prompts(tmp_path / f"{file}.parquet", source, [("a", "1")] * 256)
    given = {f"{file.upper()}_FILE": f"{tmp_path}/{file}.parquet" for file in files}
    home.mkdir()
    result = start(name, *MISTAKES, HOME=str(home), MODEL_PATH=str(model), **given)
    assert result.returncode == 1 and "Traceback" not in result.stderr and "ray init" not in result.stdout
    for said in SAID:
        assert said in result.stderr, result.stderr
    assert os.listdir(home) == []


@pytest.mark.slow
def test_the_fsdp_script_trains_on_this_machine(tmp_path):
    """Its own settings through verl's V1 trainer, but for what this machine cannot: GPUs, vLLM, 8 billion weights."""
    given = {"NNODES": "1", "GPUS_PER_NODE": "1", "TOTAL_STEPS": "2", "LOGGER": "[console,file]"}
    given |= {"VERL_FILE_LOGGER_PATH": f"{tmp_path}/log.jsonl"}
    files = dict.fromkeys(("TRAIN_FILE", "TEST_FILE"), f"{tmp_path}/task.parquet")
    own = overrides_of(FSDP, MODEL_PATH=str(tmp_path), CKPTS_DIR=f"{tmp_path}/checkpoints", **files, **given)
    configuration = [f"--config-dir={RECIPES}/config", "--config-name=era_math"]
    steps, printed = train(tmp_path, *own, *TINY.split(), *configuration)
    assert workers(printed) == ("EraActorRolloutRefWorker", "EraTrainer", "sync", "ReplayBuffer")
    assert [step["training/global_step"] for step in steps] == [1, 2]
    assert all(3 < step["era/response_entropy"] < 4 for step in steps)
