# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's LLM runs: what each script sets, what the check before a run says, and a Ray cluster's environment."""

import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.llm import models

# The paper's subsec:impl_llm and the facts of the authors' stage-1 script, written down apart from the recipe.
SHARED = {
    "data.train_batch_size": 256,
    "data.gen_batch_size": 768,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 8192,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.actor.optim.warmup_style": "constant",
    "actor_rollout_ref.actor.optim.weight_decay": 0.0,
    "actor_rollout_ref.actor.grad_clip": 1.0,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "algorithm.use_kl_in_reward": False,
    "algorithm.adv_estimator": "grpo",
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    "algorithm.filter_groups.max_num_gen_batches": -1,
    "reward_model.reward_manager": "dapo",
    "reward_model.overlong_buffer.enable": False,
    "actor_rollout_ref.actor.clip_ratio_low": 1.0,
    "actor_rollout_ref.actor.clip_ratio_high": 1.0,
    "actor_rollout_ref.actor.clip_ratio_c": 10.0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.actor.policy_loss.forking_fraction": 1.0,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 30720,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 30720,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 1.0,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.85,
    "actor_rollout_ref.rollout.val_kwargs.top_p": 0.7,
    "trainer.nnodes": 4,
    "trainer.n_gpus_per_node": 8,
    "trainer.test_freq": 10,
    "trainer.save_freq": 10,
    "trainer.resume_mode": "auto",
    "trainer.logger": ["console", "file", "tensorboard"],
    "actor_rollout_ref.actor.era.enable": True,
    "actor_rollout_ref.actor.era.top_k": None,
    "actor_rollout_ref.actor.era.top_fraction": 0.2,
    "actor_rollout_ref.actor.era.scale_advantages": False,
    "actor_rollout_ref.actor.era.min_advantage": 0.0,
    "actor_rollout_ref.model.path": "{data_home}/models/Qwen2.5-Math-7B",
    "data.train_files": "{data_home}/data/dapo-math-17k.parquet",
    "data.val_files": "{data_home}/data/aime-2024.parquet",
}
ERA = "actor_rollout_ref.actor.era."
LOSS = "actor_rollout_ref.actor.policy_loss."
ACTOR = "actor_rollout_ref.actor."
BASELINE = {ERA + "k": 1.0}
STAGE_1 = {ERA + "low": 0.45, ERA + "high": 3.0, ERA + "k": 2.0, ERA + "top_k": 20}
SMALL = {
    "actor_rollout_ref.model.path": "{data_home}/models/Qwen2.5-Math-1.5B",
    "data.train_files": "{data_home}/data/math-3to5.parquet",
}
GSPO = {
    LOSS + "loss_mode": "gspo",
    ACTOR + "loss_agg_mode": "seq-mean-token-mean",
    ACTOR + "clip_ratio_low": 0.0003,
    ACTOR + "clip_ratio_high": 0.0004,
}
# What differs between the runs: (steps, settings).
RUNS = {
    "era_stage1_qwen2.5_math_7b": (600, STAGE_1),
    "era_stage2_qwen2.5_math_7b": (
        600 + 500,
        {
            **{ERA + "low": 0.2, ERA + "high": float("inf"), ERA + "k": 2.0},
            "trainer.resume_mode": "resume_path",
            "trainer.resume_from_path": "{data_home}/ckpts/ERA/era_stage1_qwen2.5_math_7b/global_step_600",
        },
    ),
    "grpo_qwen2.5_math_7b": (1100, BASELINE),
    "forking_tokens_qwen2.5_math_7b": (1100, {**BASELINE, LOSS + "forking_fraction": 0.2}),
    "kl_cov_qwen2.5_math_7b": (
        1100,
        {
            **BASELINE,
            ACTOR + "ppo_mini_batch_size": 32,
            LOSS + "loss_mode": "kl_cov",
            LOSS + "kl_cov_ratio": 2e-3,
            LOSS + "ppo_kl_coef": 1.0,
        },
    ),
    "clip_cov_qwen2.5_math_7b": (
        1100,
        {
            **BASELINE,
            ACTOR + "ppo_mini_batch_size": 32,
            LOSS + "loss_mode": "clip_cov",
            LOSS + "clip_cov_ratio": 2e-4,
            LOSS + "clip_cov_lb": 1.0,
            LOSS + "clip_cov_ub": 5.0,
        },
    ),
    "grpo_qwen2.5_math_1.5b": (600, {**BASELINE, **SMALL}),
    "era_qwen2.5_math_1.5b": (600, {**STAGE_1, **SMALL}),
    "gspo_qwen2.5_math_7b": (600, {**BASELINE, **GSPO}),
    "gspo_era_qwen2.5_math_7b": (600, {**STAGE_1, **GSPO}),
    "era_no_omega_high_qwen2.5_math_7b": (600, {**STAGE_1, ERA + "high": float("inf")}),
    "era_no_top_k_qwen2.5_math_7b": (600, {**STAGE_1, ERA + "top_k": None}),
    "era_scale_advantages_qwen2.5_math_7b": (600, {**STAGE_1, ERA + "scale_advantages": True}),
    "era_release_gate_qwen2.5_math_7b": (600, {**STAGE_1, ERA + "min_advantage": 1.0}),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def dry_run(patched_verl, home):
    """dry_run(name, *overrides, **environment), started in its HOME: the words that it prints."""

    def run(name, *overrides, **env):
        result = subprocess.run(
            ["bash", patched_verl / f"recipe/era/run_{name}.sh", *overrides],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHON": sys.executable, "DRY_RUN": "1", **env},
            capture_output=True,
            text=True,
        )
        assert (result.returncode, result.stderr) == (0, "")
        printed = f"printf '%s\\0' {result.stdout.replace(' && ', ' and ', 1)}"  # the shell knows its own quotes
        words = subprocess.run(["bash", "-c", printed], capture_output=True, text=True, check=True).stdout
        return words.split("\0")[:-1]

    return run


@pytest.fixture(scope="module")
def overrides_of(dry_run):
    def run(name, *overrides, **env):
        words = dry_run(name, *overrides, **env)
        assert words[6:8] == ["-m", "recipe.era.main_era"] and words[9] == "--config-name=era_math"
        return words[10:]

    return run


@pytest.fixture
def preflight(patched_verl, import_verl, monkeypatch):
    """The check before a run, from the checkout."""
    monkeypatch.chdir(patched_verl)
    return importlib.import_module("recipe.era.preflight")


@pytest.fixture
def compose(preflight):
    """compose(overrides): verl's whole configuration."""
    return lambda overrides: preflight.compose("recipe/era/config", overrides)


def value_of(config, key):
    from omegaconf import OmegaConf

    value = OmegaConf.select(config, key, throw_on_missing=True)
    return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value


def test_every_run_of_the_paper_has_a_script(patched_verl):
    scripts = [script.stem.removeprefix("run_") for script in (patched_verl / "recipe/era").glob("run_*.sh")]
    assert sorted(scripts) == sorted(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_scripts_set_the_papers_values(name, overrides_of, compose, preflight):
    """And ERA and the losses accept them together."""
    config = compose(overrides_of(name, RAY_DATA_HOME="/data home"))
    steps, differs = RUNS[name]
    own = {
        "trainer.total_training_steps": steps,
        "trainer.experiment_name": name,
        "trainer.default_local_dir": f"{{data_home}}/ckpts/ERA/{name}",
    }
    for key, value in {**SHARED, **differs, **own}.items():
        expected = value.format(data_home="/data home") if isinstance(value, str) else value
        assert value_of(config, key) == expected, key
    preflight.era_check()(config)


def test_dry_run_prints_the_command_alone(dry_run, patched_verl, home):
    words = dry_run("era_stage1_qwen2.5_math_7b", "trainer.save_freq=50")
    folder = f"{home}/verl/ckpts/ERA/era_stage1_qwen2.5_math_7b"
    loggers = [f"TENSORBOARD_DIR={folder}/tensorboard", f"VERL_FILE_LOGGER_PATH={folder}/metrics.jsonl"]
    assert words[:8] == ["cd", str(patched_verl), "and", *loggers, sys.executable, "-m", "recipe.era.main_era"]
    assert words[-1] == "trainer.save_freq=50", "the user's overrides come last and win"


@pytest.mark.parametrize("path", ["/two\\\\", "/a\\'b\\", '/a"b`c$d, {x} (1)=é', "relative"])
def test_paths_reach_hydra_as_they_are(overrides_of, compose, home, path):
    """Relative paths start at the caller's folder, and hydra interprets no character in a path."""
    config = compose(overrides_of("grpo_qwen2.5_math_7b", MODEL_PATH=path, CKPTS_DIR=path))
    assert config.actor_rollout_ref.model.path == config.trainer.default_local_dir == str(home / path)


def test_the_environment_overrides_the_run(overrides_of, compose):
    given = {
        "NNODES": ("trainer.nnodes", 2),
        "GPUS_PER_NODE": ("trainer.n_gpus_per_node", 4),
        "MODEL_PATH": ("actor_rollout_ref.model.path", "/m"),
        "TRAIN_FILE": ("data.train_files", "/t"),
        "TEST_FILE": ("data.val_files", "/v"),
        "CKPTS_DIR": ("trainer.default_local_dir", "/c"),
        "TOTAL_STEPS": ("trainer.total_training_steps", 7),
        "LOGGER": ("trainer.logger", "[console]"),
    }
    config = compose(overrides_of("gspo_qwen2.5_math_7b", **{name: str(value) for name, (_, value) in given.items()}))
    assert [value_of(config, key) for key, _ in given.values()] == [2, 4, "/m", "/t", "/v", "/c", 7, ["console"]]


# The check before a run


QWEN_MATH_7B = Path(__file__).with_name("qwen2.5-math-7b.json")
LONG = 3000  # characters of the longest prompt, each of which is a token


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of Qwen2.5-Math-7B as `make llm-model` leaves it, with a small tokenizer and no weights."""
    folder = tmp_path_factory.mktemp("models") / "Qwen2.5-Math-7B"
    models.character_tokenizer([*"abcd? "]).save_pretrained(folder)
    settings = json.loads(QWEN_MATH_7B.read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 32768}))
    (folder / "model.safetensors").touch()
    return folder


def write_prompts(file, *contents, **columns):
    import pyarrow.parquet

    row = {"data_source": "math_dapo", "reward_model": {"ground_truth": "1"}}
    rows = [{"prompt": [{"role": "user", "content": content}], **row, **columns} for content in contents]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


@pytest.fixture
def check(preflight, overrides_of, model, tmp_path, monkeypatch, capsys):
    """check(*overrides, script=..., **environment): what is said of a run that lacks nothing on one node of 8 GPUs."""
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(preflight.check_gpu_environment, "problems", lambda framework, unused: [])
    monkeypatch.setattr(preflight, "find_spec", lambda name: True)  # recipe.dapo, which the source package lacks
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    write_prompts(tmp_path / "data.parquet", *["a", "b?", "c d"] * 256)
    files = dict.fromkeys(("TRAIN_FILE", "TEST_FILE"), f"{tmp_path}/data.parquet")
    ready = {"NNODES": "1", "MODEL_PATH": str(model), "CKPTS_DIR": f"{tmp_path}/ckpts", **files}

    def run(*added, script="era_stage1_qwen2.5_math_7b", options=(), **env):
        overrides = overrides_of(script, *added, **{**ready, **env})
        code = preflight.main([*options, "recipe/era/config", "--", *overrides])
        said = capsys.readouterr()
        named = "".join(line for line in said.err.splitlines(True) if not line.startswith("ERA is on: "))
        assert code == (preflight.FINISHED if said.out else bool(named))
        return said.out + named

    return run


MISSING = {
    "trainer.nnodes=2": "GPUs: the run wants 2 x 8",
    "trainer.n_gpus_per_node=16": "this machine has 8",
    f"{ACTOR}ppo_mini_batch_size=100": "do not divide into mini-batches",
    "trainer.n_gpus_per_node=6": "do not divide among 6 data-parallel ranks",  # verl would round 2048 down to 2046
    "data.max_response_length=30720": "32768 tokens do not fit into actor.ppo_max_token_len_per_gpu=30720",
    "data.max_response_length=8193": "10241 tokens do not fit into rollout.max_num_batched_tokens=10240",
    "data.max_response_length=30721": "need 32769 positions, and",
    "+actor_rollout_ref.model.override_config.max_position_embeddings=4096": "=4096, but vLLM reads 32768 from",
    "actor_rollout_ref.model.path=/nowhere": "no /nowhere/config.json",
    "data.val_files=[/none1.parquet,'/none 2.parquet']": "no /none 2.parquet. Make it with `make llm-data`",
    f"{ERA}k=0.5": f"{ERA}k",
    "data.train_batch_sise=3": "train_batch_sise",
    "trainer.nnodes=many": "settings: ",
}


@pytest.mark.parametrize("override", MISSING)
def test_what_is_missing_is_named(check, override):
    assert MISSING[override] in check(override)


def test_all_that_is_missing_is_named_at_once(check):
    said = check(NNODES="4", MODEL_PATH="/nowhere", TRAIN_FILE="/none.parquet", TOTAL_STEPS="1")
    assert said.count("\n  - ") == 3


@pytest.fixture
def changed_model(model, tmp_path):
    """changed_model(**settings): a copy of the model's folder with other settings in its config.json."""

    def change(**settings):
        folder = shutil.copytree(model, tmp_path / "changed", dirs_exist_ok=True)
        (folder / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | settings))
        return folder

    return change


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    "settings, has",
    [
        ({}, None),
        (json.loads(QWEN_MATH_7B.read_text()), 4096),
        ({"max_position_embeddings": 10240}, None),
        ({"max_position_embeddings": 10239}, 10239),
        ({"rope_scaling": YARN}, None),  # 16,384: of the original ones, not of max_position_embeddings
        ({"rope_scaling": {**YARN, "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 4096),
        ({"max_position_embeddings": None, "text_config": {"max_position_embeddings": 4096}}, 4096),
    ],
)
def test_a_model_with_too_few_positions_is_refused(check, changed_model, settings, has):
    """Qwen2.5-Math has 4,096: the run would end after the cluster is up and the weights are loaded."""
    said = check(MODEL_PATH=str(changed_model(**settings)))
    if has is None:
        assert said == ""
    else:
        assert f"need 10240 positions, and {changed_model(**settings)}/config.json has {has} (" in said
        assert "`make llm-model`" in said


def test_an_incomplete_model_is_named(check, changed_model):
    folder = changed_model()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1", "b": "part-2"}}')
    (folder / "part-1").touch()
    assert f"{folder} lacks part-2 of model.safetensors.index.json" in check(MODEL_PATH=str(folder))
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").unlink()
    said = check(MODEL_PATH=str(folder))
    assert "has no weights" in said and f"the tokenizer of {folder} cannot be loaded" in said
    for content in ("{", '{"max_position_embeddings": "32768"}', '{"rope_scaling": "yarn"}', "[]"):
        (folder / "config.json").write_text(content)
        assert f"model: {folder}/config.json, or" in check(MODEL_PATH=str(folder))


def test_prompts_that_verl_would_cut_are_counted(check, tmp_path):
    write_prompts(tmp_path / "long.parquet", "a" * 2046, "a" * 2045 + "é", "b" * LONG, *["c"] * 768)
    said = check(TRAIN_FILE=str(tmp_path / "long.parquet"))
    assert "1 prompts of" in said and f"max_prompt_length=2048 tokens, the longest has {LONG}" in said
    assert check("data.filter_overlong_prompts=True", TRAIN_FILE=str(tmp_path / "long.parquet")) == ""


def test_a_file_that_verl_cannot_train_on_is_named(check, tmp_path):
    import pyarrow.parquet

    file = tmp_path / "other.parquet"
    file.write_text("no parquet")
    assert f"{file} is not a parquet file" in check("data.filter_overlong_prompts=True", TEST_FILE=str(file))
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a"], "data_source": ["a"]}), file)
    assert "has no column prompt, reward_model; it has question, data_source." in check(TEST_FILE=str(file))
    write_prompts(file, *"abc", prompt="a text")
    assert f"the column prompt of {file} holds no lists of messages" in check(TEST_FILE=str(file))
    write_prompts(file, *"abc")
    assert f"{file} has 3 prompts, and a batch takes 768." in check(TRAIN_FILE=str(file))
    assert check(TEST_FILE=str(file)) == ""


@pytest.mark.parametrize(
    "overrides, unused",
    [
        ((), set()),
        (("actor_rollout_ref.rollout.name=hf", "trainer.logger=[console]"), {"vllm", "tensorboard"}),
        (("+actor_rollout_ref.model.override_config._attn_implementation=sdpa",), {"flash-attn"}),
    ],
)
def test_a_package_that_only_the_cluster_would_miss_is_named(check, preflight, monkeypatch, overrides, unused):
    def problems(framework, without):
        assert framework == "verl" and without == unused
        return ["no flash-attn"]

    monkeypatch.setattr(preflight.check_gpu_environment, "problems", problems)
    assert f"packages: {sys.executable}: no flash-attn. Set PYTHON" in check(*overrides)


def test_nothing_is_said_where_all_is_there(check, tmp_path):
    assert check() == "" and not (tmp_path / "ckpts").exists()
    smaller = ("data.train_batch_size=32", f"{ACTOR}ppo_mini_batch_size=32", "data.gen_batch_size=96")
    assert check(*smaller, "trainer.n_gpus_per_node=4", "data.max_response_length=1024") == ""


def test_a_cluster_is_asked_by_verl(check, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert check("trainer.nnodes=2") == ""


def save(checkpoint, ranks=8):
    """A checkpoint as far as the check looks at it, and verl's file that names it."""
    (checkpoint / "actor").mkdir(parents=True)
    for rank in range(ranks):
        (checkpoint / f"actor/model_world_size_{ranks}_rank_{rank}.pt").touch()
    step = checkpoint.name.removeprefix("global_step_")
    (checkpoint.parent / "latest_checkpointed_iteration.txt").write_text(step)


def test_stage_2_starts_from_stage_1_and_resumes_from_its_own_checkpoint(check, tmp_path):
    stage1 = tmp_path / "stage1/global_step_600"

    def stage2():
        return check(script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=f"{stage1}/")

    assert f"checkpoint: no {stage1}. Run stage 1" in stage2()
    save(stage1)
    assert stage2() == ""
    save(tmp_path / "ckpts/global_step_450")
    assert "another run's. Set CKPTS_DIR" in stage2()
    save(tmp_path / "ckpts/global_step_610")
    shutil.rmtree(stage1)
    assert stage2() == "", "stage 1's checkpoint is no longer needed"


def test_a_run_never_starts_from_scratch_in_place_of_its_checkpoint(check, tmp_path):
    save(tmp_path / "ckpts/global_step_600")
    assert "has reached step 600 of 600: nothing is left to train." in check(MODEL_PATH="/nowhere")
    assert "has reached step 600 of 500: nothing" in check(TOTAL_STEPS="500")
    (tmp_path / "ckpts/global_step_600/actor/model_world_size_8_rank_3.pt").unlink()
    assert "global_step_600 lacks actor/model_world_size_8_rank_3.pt." in check(), (
        "half a checkpoint is not a run's end"
    )
    assert "lacks actor/model_world_size_4_rank_0.pt and 3 more" in check(GPUS_PER_NODE="4")
    save(tmp_path / "ckpts/global_step_20")
    assert check() == ""
    for content in (b"", b"\xff\xfe1", b"40"):  # killed between opening and writing it; a folder that was removed
        (tmp_path / "ckpts/latest_checkpointed_iteration.txt").write_bytes(content)
        assert "there is no such checkpoint" in check()


def test_steps_that_verl_would_not_train_are_refused(check, tmp_path):
    for steps in ("x", "0", "-5", "600.5"):
        assert f"(TOTAL_STEPS) is {steps if steps != 'x' else repr(steps)}, not a whole" in check(TOTAL_STEPS=steps)
    save(tmp_path / "stage1/global_step_600")

    def stage2(folder, **variables):
        return check(script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=str(folder), **variables)

    assert "after step 600, and TOTAL_STEPS=600 counts" in stage2(
        tmp_path / "stage1/global_step_600", TOTAL_STEPS="600"
    )
    assert "is not the folder of a step" in stage2(tmp_path / "stage1")
    (tmp_path / "empty/global_step_600").mkdir(parents=True)
    assert "lacks actor/model_world_size_8_rank_0.pt and 7 more" in stage2(tmp_path / "empty/global_step_600")


@pytest.mark.parametrize(
    "users, as_paper",
    [
        ((), True),
        (("trainer.save_freq=5", "+data.seed=7", "actor_rollout_ref.rollout.gpu_memory_utilization=0.7"), True),
        # v0.4.1 averages the loss over the tokens of a micro-batch.
        (("+data.seed=7", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480"), False),
    ],
)
def test_run_json_of_a_start(check, tmp_path, users, as_paper):
    assert check(*users, script="grpo_qwen2.5_math_7b", options=("--record", "grpo", "--added", str(len(users)))) == ""
    record = json.loads((tmp_path / "ckpts/run.json").read_text())
    expected = {"host": "verl", "agent": "grpo_qwen2.5_math_7b", "task": "Qwen2.5-Math-7B", "total_steps": 1100}
    expected |= {"entry": "grpo", "added": list(users), "as_paper": as_paper, "modified": False, "finished": False}
    assert expected.items() <= record.items() and len(record["command"]) == 10 + len(users)
    assert record["seed"] == (7 if users else None) and len(record["commit"]) == 40


def test_harmless_overrides_are_settings_of_verl(preflight, compose, overrides_of):
    """A misspelt one would take runs out of the report."""
    from omegaconf import OmegaConf

    config, unknown = compose(overrides_of("grpo_qwen2.5_math_7b")), object()
    added = [key for key in preflight.HARMLESS if OmegaConf.select(config, key, default=unknown) is unknown]
    assert added == ["data.seed", "data.dataloader_num_workers"], "verl reads these by get"


def test_a_python_without_verl_is_named(patched_verl, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    result = subprocess.run(
        ["bash", patched_verl / "recipe/era/run_grpo_qwen2.5_math_7b.sh"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": str(bare)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and "packages: " in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("check, exit_code", [(0, 0), (1, 1), (3, 0)])
def test_a_script_starts_what_its_check_lets_through(patched_verl, tmp_path, check, exit_code):
    """3: the run has reached its last step, and nothing is left to train."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\necho "$2" >> "{tmp_path}/started"\n[[ $2 != *preflight ]] || exit {check}\n')
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": str(python)}
    script = patched_verl / "recipe/era/run_grpo_qwen2.5_math_7b.sh"
    for variables, starts in (({"CHECK_ONLY": "1"}, False), ({}, check == 0)):
        (tmp_path / "started").unlink(missing_ok=True)
        result = subprocess.run(["bash", script], env=environment | variables, capture_output=True, text=True)
        assert result.returncode == exit_code
        started = (tmp_path / "started").read_text().split()
        assert started == ["recipe.era.preflight", *(["recipe.era.main_era"] if starts else [])]
        assert ("Nothing is missing" in result.stdout) == (check == 0 and bool(variables))


# A Ray cluster


@pytest.fixture
def ray_cluster(tmp_path_factory):
    """A Ray cluster of this machine, started elsewhere than the run, without its variables in the environment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    folder = tmp_path_factory.mktemp("r")
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    command = [os.path.join(os.path.dirname(sys.executable), "ray"), "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    command += ["--object-store-memory=80000000", f"--plasma-directory={folder}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 900
        while "Ray runtime started" not in (folder / "log").read_text():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.5)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()  # --block: ends all of its processes
        process.wait(60)


PROBE = """
import os, ray
import recipe.era.main_era as main_era
def run_ppo(config):
    names = 'TENSORBOARD_DIR', 'VERL_FILE_LOGGER_PATH', 'WANDB_MODE', 'NCCL_DEBUG', 'OTHER'
    task = ray.remote(num_cpus=1)(lambda: {name: os.environ.get(name) for name in names})
    print('task', ray.get(task.remote()), config.trainer.experiment_name)
main_era.run_ppo = run_ppo
main_era.main()
"""


@pytest.mark.slow
def test_an_existing_cluster_gets_the_loggers_environment(ray_cluster, patched_verl, tmp_path):
    if not (patched_verl / "recipe/dapo").exists():  # of the source package: it lacks a name that the probe replaces
        (tmp_path / "recipe/dapo").mkdir(parents=True)
        (tmp_path / "recipe/dapo/main_dapo.py").write_text("run_ppo = None\n")
    (tmp_path / "probe.py").write_text(PROBE)
    given = {"TENSORBOARD_DIR": "/shared/t b", "VERL_FILE_LOGGER_PATH": "/shared/m.jsonl", "WANDB_MODE": "offline"}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{patched_verl}:{tmp_path}"}
    env |= {"RAY_ADDRESS": ray_cluster, **given, "OTHER": "1"}
    # As `ray job submit --runtime-env-json` hands them over: the same variable twice is an error of Ray's by default.
    job = {"runtime_env": {"env_vars": {"TENSORBOARD_DIR": "/shared/t b"}}, "metadata": {}}
    command = [sys.executable, tmp_path / "probe.py"]
    command += [f"--config-path={patched_verl}/recipe/era/config", "--config-name=era_math"]
    command += ["trainer.experiment_name=probe", f"trainer.default_local_dir={tmp_path}/run of a probe"]
    for more in ({}, {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}):
        result = subprocess.run(command, cwd=patched_verl, env={**env, **more}, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        seen = re.search(r"^task (\{.*\}) probe$", result.stdout, re.MULTILINE)
        assert seen and eval(seen[1]) == {**given, "NCCL_DEBUG": "WARN", "OTHER": None}, result.stdout
    assert list((tmp_path / "run of a probe").glob("hydra/*/.hydra/config.yaml"))
    assert not (patched_verl / "outputs").exists()
