# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The check before an LLM run: what it refuses, what it lets pass, and what it writes."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from demo.llm import models

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
ERA = ACTOR + "era."
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
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(preflight.check_gpu_environment, "problems", lambda framework, unused: [])
    monkeypatch.setattr(preflight, "find_spec", lambda name: True)  # recipe.dapo, which the source package lacks
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    write_prompts(tmp_path / "data.parquet", *["a", "b?", "c d"] * 512)
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
    "data.max_response_length=8193": "the 10241 tokens of max_prompt_length + max_response_length",
    "data.max_response_length=30721": "need 32769 positions, and",
    "+actor_rollout_ref.model.override_config.max_position_embeddings=4096": "=4096, but vLLM reads 32768 from",
    "actor_rollout_ref.model.path=/nowhere": "no /nowhere/config.json",
    "data.val_files=[/none1.parquet,'/none 2.parquet']": "no /none 2.parquet. Make it with `make llm-data`",
    f"{ERA}k=0.5": f"{ERA}k",
    "data.train_batch_sise=3": "train_batch_sise",
    # What verl would find out about on the cluster, after it has generated, or never.
    "trainer.nnodes=many": "settings: trainer.nnodes is 'many', not a number.",
    f"{ACTOR}optim.lr=1e-6x": "optim.lr is '1e-6x', not a number.",
    "algorithm.filter_groups.enable=Flase": "filter_groups.enable is 'Flase', not true or false.",
    f"{ROLLOUT}max_model_len=4096": "would end every response at actor_rollout_ref.rollout.max_model_len=4096 tokens",
    f"{ROLLOUT}max_model_len=40000": "need 40000 positions, and",
    f"{ROLLOUT}temperature=0": "all responses to a prompt are the same",
    f"{ROLLOUT}top_k=1": "all responses to a prompt are the same",
    f"{ROLLOUT}gpu_memory_utilization=85": "gpu_memory_utilization=85 is not a share of 1.",
    f"{ROLLOUT}tensor_model_parallel_size=8": "28 attention heads (4 of keys) do not divide among",
    f"{ROLLOUT}tensor_model_parallel_size=3": "8 GPUs do not divide into groups of",
    f"{ROLLOUT}name=vlm": "names: actor_rollout_ref.rollout.name=vlm is none of vllm,",
    f"{ACTOR}ulysses_sequence_parallel_size=8": "28 attention heads (4 of keys) do not divide among",
    f"{ACTOR}strategy=fsdp2": "strategy=fsdp2 is none of fsdp, megatron.",
    f"{ACTOR}optim.warmup_style=linear": "warmup_style=linear is none of constant, cosine.",
    f"{ACTOR}loss_agg_mode=token_mean": "Invalid loss_agg_mode: token_mean",
    f"{ACTOR}policy_loss.loss_mode=gspoo": "loss_mode=gspoo: Unsupported loss mode: gspoo. Supported modes are:",
    f"{ACTOR}use_dynamic_bsz=False": "[actor_rollout_ref.actor] Please set at least one of",  # verl's own words
    "algorithm.adv_estimator=gpro": "adv_estimator=gpro: Unknown advantage estimator",
    "algorithm.adv_estimator=gae": "the run trains a critic (algorithm.adv_estimator), and critic.model.path has no",
    "algorithm.filter_groups.metric=accuracy": "does not return algorithm.filter_groups.metric=accuracy for the first",
    "algorithm.filter_groups.metric=pred": "Set it to one of score, acc, seq_reward, seq_final_reward.",  # a text
    "reward_model.reward_manager=dapoo": "reward manager cannot be made: ValueError: Unknown reward manager: dapoo",
    "reward_model.reward_manager=naive": "reward manager cannot be made: TypeError: ",  # recipe/dapo gives it a length
    "custom_reward_function.path=/none.py": "Reward function file '/none.py' not found.",
    "data.gen_batch_size=770": "the 770 prompts of a generation",
    "trainer.total_epochs=100": "would end after step 200 of 600, because trainer.total_epochs=100 and 1536",
    "trainer.save_freq=-1": "trainer.save_freq=-1 saves nothing in 600 steps.",
    "trainer.resume_mode=atuo": "resume_mode=atuo is none of auto, disable, resume_path.",
    "trainer.logger=[console,filee]": "trainer.logger has filee; verl has wandb,",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-Math-7B": "MODEL_PATH names another folder, not a name on a hub.",
    "actor_rollout_ref.model.path='~/model'": "no ~/model/config.json",  # which verl does not expand
    "trainer.nnodes=null": "settings: trainer.nnodes is null, not a whole number of at least 1.",
    f"{ROLLOUT}n=0": "rollout.n is 0, not a whole number of at least 1.",
    "trainer.test_freq=null": "settings: trainer.test_freq is null, not a number.",
    f"{ROLLOUT}top_p=1.5": "top_p=1.5 is not above 0 and at most 1.",
    f"{ROLLOUT}enforce_eager=False": "enforce_eager=False only with actor_rollout_ref.rollout.free_cache_engine=False.",
    "reward_model.overlong_buffer.enable=True": "with reward_model.overlong_buffer.len=0 no response is penalized",
    "data.val_files=[]": "data: data.val_files names no file. Set TEST_FILE.",
}


@pytest.mark.parametrize("override", MISSING)
def test_what_is_missing_is_named(check, override):
    assert MISSING[override] in check(override)


ALLOWED = {
    "a longer context than is used": (f"{ROLLOUT}max_model_len=32000", f"{ROLLOUT}max_num_batched_tokens=32000"),
    "a model that verl copies": ("actor_rollout_ref.model.path=hdfs://cluster/model",),
    "files that verl copies": ("data.train_files=hdfs://cluster/train", "data.val_files=[hdfs://cluster/val]"),
    "what a dataset of one's own reads": (
        "data.custom_cls.path=/mine.py",
        "data.train_files=mine",
        "data.val_files=mine",
    ),
    "no graphs, no cache that is freed": (f"{ROLLOUT}enforce_eager=False", f"{ROLLOUT}free_cache_engine=False"),
    "a penalty with a length": ("reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=4096"),
}


@pytest.mark.parametrize("overrides", ALLOWED.values(), ids=ALLOWED)
def test_what_verl_can_do_is_not_refused(check, overrides):
    assert check(*overrides) == ""


def test_a_slash_at_the_end_of_the_models_path(check, model):
    """verl stops at it; the script removes it from MODEL_PATH."""
    assert check(MODEL_PATH=f"{model}/") == ""


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
        ({"max_position_embeddings": 8192, "rope_scaling": {**YARN, "rope_type": "deepseek_yarn"}}, 8192),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
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
    assert "Look at ARGS" not in said
    for content in ("{", '{"max_position_embeddings": "32768"}', '{"rope_scaling": "yarn"}', "[]"):
        (folder / "config.json").write_text(content)
        assert f"model: {folder}/config.json, or" in check(MODEL_PATH=str(folder))


def test_prompts_that_verl_would_cut_are_counted(check, tmp_path):
    write_prompts(tmp_path / "long.parquet", "a" * 2046, "a" * 2045 + "é", "b" * LONG, *["c"] * 768)
    said = check(TRAIN_FILE=str(tmp_path / "long.parquet"))
    assert "1 prompts of" in said and f"max_prompt_length=2048 tokens, the longest has {LONG}" in said
    assert check("data.filter_overlong_prompts=True", TRAIN_FILE=str(tmp_path / "long.parquet")) == ""


@pytest.mark.parametrize("prompt", [None, [], [{"role": "user", "content": None}]])
def test_a_prompt_that_the_chat_template_cannot_take_is_named(check, changed_model, tmp_path, prompt):
    """verl would come to it after hours."""
    import pyarrow.parquet

    tokenizer = models.character_tokenizer([*"abcd? "])
    tokenizer.chat_template = "{% for message in messages %}{{ message['role'] + message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder := changed_model())
    table = pyarrow.parquet.read_table(tmp_path / "data.parquet")
    prompts = [*table["prompt"].to_pylist()[1:], prompt]
    table = table.set_column(0, "prompt", pyarrow.array(prompts, table["prompt"].type))
    pyarrow.parquet.write_table(table, tmp_path / "other.parquet")
    said = check(TRAIN_FILE=f"{tmp_path}/other.parquet", MODEL_PATH=str(folder))
    assert f"data: the tokenizer's chat template fails on {tmp_path}/other.parquet, whose" in said


def test_a_file_that_verl_cannot_train_on_is_named(check, tmp_path):
    import pyarrow.parquet

    file = tmp_path / "other.parquet"
    file.write_text("no parquet")
    assert f"{file} is not a parquet file" in check("data.filter_overlong_prompts=True", TEST_FILE=str(file))
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a"], "data_source": ["a"]}), file)
    assert "has no column prompt, reward_model; it has question, data_source." in check(TEST_FILE=str(file))
    write_prompts(file, *"abc", prompt="a text")
    assert f"{file}, whose column prompt is to have lists of messages" in check(TEST_FILE=str(file))
    write_prompts(file, *"abc")
    assert "data.train_files has 3 prompts, and a batch takes 768." in check(TRAIN_FILE=str(file))
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(file)[:0], file)
    assert "data.train_files has 0 prompts, and a batch takes 768." in check(TRAIN_FILE=str(file))
    assert check(TEST_FILE=str(file)) == "", "verl says so before it loads the model"
    write_prompts(file, *"abc")
    assert check(TEST_FILE=str(file)) == ""


UNSCORED = [
    ({"data_source": "mine"}, "NotImplementedError: Reward function is not implemented for data_source='mine'."),
    ({"reward_model": {"ground_truth": None}}, "ground_truth None: AttributeError: 'NoneType' object has no"),
    ({"reward_model": {"ground_truth": 1}}, "ground_truth 1: AttributeError: 'int' object has no attribute"),
    ({"reward_model": {"truth": "1"}}, "KeyError: 'ground_truth'"),
    ({"reward_model": "1"}, "ground_truth None: TypeError: string indices must be integers"),
]
NO_METRIC = ({"data_source": "openai/gsm8k"}, "does not return algorithm.filter_groups.metric=acc")  # a number alone


@pytest.mark.parametrize("columns, says", UNSCORED)
def test_rows_that_the_reward_does_not_score_are_named(check, tmp_path, columns, says):
    write_prompts(tmp_path / "other.parquet", "a", **columns)
    assert says in check(TEST_FILE=f"{tmp_path}/other.parquet")


@pytest.mark.parametrize("columns, says", [*UNSCORED[:2], NO_METRIC])
def test_the_first_row_of_each_kind_is_scored(check, tmp_path, columns, says):
    """Here it is the last one of the training file."""
    import pyarrow.parquet

    file = tmp_path / "both.parquet"
    write_prompts(file, "a", **columns)
    parts = [pyarrow.parquet.read_table(name) for name in (tmp_path / "data.parquet", file)]
    pyarrow.parquet.write_table(pyarrow.concat_tables(parts, promote_options="permissive"), file)
    assert says in check(TRAIN_FILE=str(file))
    by_reward = check("algorithm.filter_groups.metric=seq_reward", TRAIN_FILE=str(file))
    assert (by_reward == "") == ("metric" in says)


def test_a_reward_of_ones_own_scores_what_verl_does_not(check, tmp_path):
    write_prompts(tmp_path / "mine.parquet", "a", data_source="mine")
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, **_):\n    return {'score': 1.0, 'acc': True}\n"
    )
    own = f"custom_reward_function.path={tmp_path}/reward.py"
    assert check(own, TEST_FILE=f"{tmp_path}/mine.parquet") == ""


def test_a_reward_that_is_no_number_or_ends_python_is_named(check, tmp_path):
    def said(body):
        (tmp_path / "reward.py").write_text(f"import sys\ndef compute_score(*_, **__):\n    {body}\n")
        return check(f"custom_reward_function.path={tmp_path}/reward.py")

    assert "with data_source 'math_dapo' is nan, which would make all weights NaN." in said(
        "return {'score': float('nan'), 'acc': True}"
    )
    assert "and ground_truth '1': SystemExit: ended." in said("sys.exit('ended')")
    (tmp_path / "reward.py").write_text("import sys\nsys.exit()")
    assert "cannot be made: SystemExit: " in check(f"custom_reward_function.path={tmp_path}/reward.py")


def test_places_that_cannot_be_written_are_named_and_nothing_is_left_there(check, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert f"CKPTS_DIR={tmp_path}/file/x cannot be written: " in check(CKPTS_DIR=f"{tmp_path}/file/x")
    for name, place in {"TENSORBOARD_DIR": "file/t", "VERL_FILE_LOGGER_PATH": "file/m.jsonl"}.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, f"{tmp_path}/{place}")
            assert f"folders: {name}={tmp_path}/file" in check()
            assert check("trainer.logger=[console]") == ""
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path))
    assert f"VERL_FILE_LOGGER_PATH={tmp_path} is not a file" in check()
    assert "trainer.rollout_data_dir=/proc/x cannot be written" in check("trainer.rollout_data_dir=/proc/x")
    assert sorted(os.listdir(tmp_path)) == ["data.parquet", "file"]


def test_weights_and_biases_wants_a_key_only_where_it_is_online(check, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    logger = "trainer.logger=[console,wandb]"
    assert "logger: wandb has no key. Call `wandb login`" in check(logger)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert check(logger) == ""


def test_gpus_without_kernels_are_named(check, monkeypatch):
    """torch 2.6 for CUDA 12.4 ends at sm_90: no Blackwell."""
    built = ["sm_50", "sm_80", "sm_90"]
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "B200")
    for capability, runs in {(9, 0): True, (8, 6): True, (8, 9): True, (7, 0): False, (10, 0): False}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index, found=capability: found)
        said = check()
        assert (said == "") == runs
        arch = f"sm_{capability[0]}{capability[1]}"
        assert runs or f"has kernels for sm_50 sm_80 sm_90, and none for the B200 ({arch})." in said
        assert said.count("none for the B200") <= 1, "eight GPUs of a kind are one sentence"
    with monkeypatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "none")  # on a login node
        assert check() == ""
    built.append("compute_90")
    assert check() == "", "PTX runs on what is newer"


TRAINING = """
import pathlib, sys, hydra
@hydra.main(config_path=None, version_base=None)
def main(config):
    folder = pathlib.Path(config.trainer.default_local_dir)
    (folder / "latest_checkpointed_iteration.txt").write_text("4")
    if config.trainer.experiment_name == "fails":
        raise KeyError("its own")
main()
"""


def test_a_training_that_ends_before_its_last_step_ends_with_an_error(patched_verl, tmp_path):
    """By the recipe's configuration, and whatever it is that ends: here a program that says that it saved step 4."""
    (tmp_path / "training.py").write_text(TRAINING)
    command = [sys.executable, tmp_path / "training.py", f"--config-path={patched_verl}/recipe/era/config"]
    command += ["--config-name=era_math", f"trainer.default_local_dir={tmp_path}"]

    def run(*overrides):
        env = os.environ | {"PYTHONPATH": str(patched_verl)}
        result = subprocess.run([*command, *overrides], cwd=patched_verl, env=env, capture_output=True, text=True)
        return result.returncode, result.stderr

    code, said = run("trainer.total_training_steps=5")
    assert code == 1 and "error: the training ended before step 5" in said and "is of step 4." in said
    for whole in ("trainer.total_training_steps=4", "trainer.total_training_steps=null"):
        assert run(whole) == (0, "")
    assert run("trainer.total_training_steps=5", "trainer.save_freq=-1") == (0, ""), "nothing says how far it came"
    code, said = run("trainer.total_training_steps=5", "trainer.experiment_name=fails")
    assert code == 1 and "its own" in said and "before step 5" not in said


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
    for kind, rank in itertools.product(("model", "optim", "extra_state"), range(ranks)):
        (checkpoint / f"actor/{kind}_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"weights")
    torch.save({"step": 1}, checkpoint / "data.pt")
    step = checkpoint.name.removeprefix("global_step_")
    (checkpoint.parent / "latest_checkpointed_iteration.txt").write_text(step)


def test_stage_2_starts_from_stage_1_and_resumes_from_its_own_checkpoint(check, tmp_path):
    stage1 = tmp_path / "stage1/global_step_600"

    def stage2(*added):
        return check(*added, script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=f"{stage1}/")

    assert f"checkpoint: no {stage1}. Run stage 1" in stage2()
    save(stage1)
    assert stage2() == ""
    for mode in ("auto", "disable"):
        said = stage2(f"trainer.resume_mode={mode}")
        assert f"would be ignored with trainer.resume_mode={mode}: the run would begin with" in said
    save(tmp_path / "ckpts/global_step_450")
    assert "another run's. Set CKPTS_DIR" in stage2()
    save(tmp_path / "ckpts/global_step_610")
    shutil.rmtree(stage1)
    assert stage2() == "", "stage 1's checkpoint is no longer needed"
    assert "does not end in the name of a step's folder" in stage2(
        "trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/ckpts/global_step_610/"
    )


def test_a_run_never_starts_from_scratch_in_place_of_its_checkpoint(check, tmp_path):
    save(tmp_path / "ckpts/global_step_600")
    assert "has reached step 600 of 600: nothing is left to train." in check(MODEL_PATH="/nowhere")
    assert "has reached step 600 of 500: nothing" in check(TOTAL_STEPS="500")
    assert check("trainer.val_only=True", "trainer.save_freq=-1") == "", "it is evaluated, and nothing is trained"
    (tmp_path / "ckpts/global_step_600/actor/model_world_size_8_rank_3.pt").unlink()
    assert "global_step_600 lacks actor/model_world_size_8_rank_3.pt." in check(), (
        "half a checkpoint is not a run's end"
    )
    assert "lacks actor/model_world_size_4_rank_0.pt and 11 more" in check(GPUS_PER_NODE="4")
    save(tmp_path / "ckpts/global_step_20")
    assert check() == ""
    for content in (b"", b"\xff\xfe1", b"40"):  # killed between opening and writing it; a folder that was removed
        (tmp_path / "ckpts/latest_checkpointed_iteration.txt").write_bytes(content)
        assert "there is no such checkpoint" in check()


DAMAGES = {
    "data.pt is missing": (lambda step: (step / "data.pt").unlink(), "lacks data.pt. Without it verl would take the"),
    "data.pt is cut": (
        lambda step: (step / "data.pt").write_bytes((step / "data.pt").read_bytes()[:-100]),
        "data.pt is empty or was cut short",
    ),
    "an optimizer is missing": (
        lambda step: (step / "actor/optim_world_size_8_rank_1.pt").unlink(),
        "lacks actor/optim_world_size_8_rank_1.pt. A checkpoint loads on as many GPUs as wrote it, here 8",
    ),
    "a random state is missing": (
        lambda step: (step / "actor/extra_state_world_size_8_rank_0.pt").unlink(),
        "lacks actor/extra_state_world_size_8_rank_0.pt. A checkpoint loads",
    ),
    "a model is empty": (
        lambda step: (step / "actor/model_world_size_8_rank_7.pt").write_bytes(b""),
        "model_world_size_8_rank_7.pt is empty or was cut short",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_whole_is_not_resumed(check, tmp_path, damage):
    """And the newest whole one is named, if there is one."""
    do, says = DAMAGES[damage]
    save(tmp_path / "ckpts/global_step_20")
    do(tmp_path / "ckpts/global_step_20")
    said = check()
    assert says in said and "names the checkpoint to resume: remove it to start from scratch." in said
    for step in (5, 10, 20):
        shutil.rmtree(tmp_path / f"ckpts/global_step_{step}", ignore_errors=True)
        save(tmp_path / f"ckpts/global_step_{step}")
    do(tmp_path / "ckpts/global_step_20")
    assert "names the checkpoint to resume: write 10, the newest whole one, into it." in check()
    only_weights = check(f"{ACTOR}checkpoint.load_contents=[model]")
    assert (only_weights == "") == ("is missing" in damage and "data" not in damage), "the rest would not be read"


def test_a_run_that_has_ended_needs_no_optimizer(check, tmp_path):
    save(tmp_path / "ckpts/global_step_600")
    for file in (tmp_path / "ckpts/global_step_600/actor").glob("optim_*"):
        file.unlink()
    assert "has reached step 600 of 600" in check()
    assert "lacks actor/optim_world_size_8_rank_0.pt and 7 more" in check(TOTAL_STEPS="700")


def test_steps_that_verl_would_not_train_are_refused(check, tmp_path):
    for steps in ("x", "0", "-5", "600.5"):
        assert f"(TOTAL_STEPS) is {steps if steps != 'x' else repr(steps)}, not a whole" in check(TOTAL_STEPS=steps)
    save(tmp_path / "stage1/global_step_600")

    def stage2(folder, **variables):
        return check(script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=str(folder), **variables)

    assert check("trainer.save_freq=-1", TOTAL_STEPS="10") == "", "a trial"
    assert "saves nothing in 11 steps" in check("trainer.save_freq=-1", TOTAL_STEPS="11")
    assert "after step 600, and TOTAL_STEPS=600 counts" in stage2(
        tmp_path / "stage1/global_step_600", TOTAL_STEPS="600"
    )
    assert "does not end in the name of a step's folder" in stage2(tmp_path / "stage1")
    (tmp_path / "empty/global_step_600").mkdir(parents=True)
    assert "lacks actor/model_world_size_8_rank_0.pt and 24 more" in stage2(tmp_path / "empty/global_step_600")


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
