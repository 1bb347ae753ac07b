"""The recipes on verl 0.9.1: what each script sets, what verl and ERA say to it, and its start on this CPU."""

import json
import os
import shlex
import subprocess
import sys

import environment
import pytest

environment.require()

from test_trainer import train, workers  # noqa: E402

RECIPES = environment.ROOT / "recipes/llm/verl-0.9"
FSDP, MEGATRON = "era_qwen3_8b", "era_qwen3_8b_megatron"
ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
# The paper's subsec:impl_llm as in tests/llm/test_recipe.py, under verl 0.9's names.
SHARED = {
    "data.train_batch_size": 256,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 8192,
    "data.truncation": "left",
    f"{ACTOR}ppo_mini_batch_size": 256,
    f"{ACTOR}ppo_epochs": 1,
    f"{ACTOR}optim.lr": 1e-6,
    f"{ACTOR}optim.lr_warmup_steps_ratio": 0.0,
    f"{ACTOR}optim.weight_decay": 0.0,
    f"{ACTOR}optim.clip_grad": 1.0,
    f"{ACTOR}entropy_coeff": 0,
    f"{ACTOR}use_kl_loss": False,
    f"{ACTOR}clip_ratio_low": 1.0,
    f"{ACTOR}clip_ratio_high": 1.0,
    f"{ACTOR}clip_ratio_c": 10.0,
    f"{ACTOR}loss_agg_mode": "token-mean",
    f"{ACTOR}policy_loss.loss_mode": "vanilla",
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 8,
    f"{ROLLOUT}temperature": 1.0,
    f"{ROLLOUT}top_p": 1,
    f"{ROLLOUT}top_k": -1,
    f"{ROLLOUT}val_kwargs.top_p": 0.7,
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    "algorithm.filter_groups.max_num_gen_batches": 0,  # no limit, as -1 in v0.4.1
    "reward.reward_manager.name": "dapo",
    "trainer.total_training_steps": 600,
    "trainer.resume_mode": "auto",
    "trainer.use_v1": True,
    f"{ACTOR}era.enable": True,
    f"{ACTOR}era.low": 0.45,
    f"{ACTOR}era.high": 3.0,
    f"{ACTOR}era.k": 2.0,
    f"{ACTOR}era.top_fraction": 0.2,
    f"{ACTOR}era.scale_advantages": False,
    f"{ACTOR}era.min_advantage": 0.0,
}
OWN = {
    FSDP: {f"{ACTOR}strategy": "fsdp", f"{ACTOR}era.top_k": 20, f"{ACTOR}grad_clip": 1.0},
    MEGATRON: {f"{ACTOR}strategy": "megatron", f"{ACTOR}era.top_k": None, f"{ACTOR}optim.lr_decay_style": "constant"},
}
FOLLOWED = {  # override: what the check says
    f"{ACTOR}ppo_mini_batch_size=100": "256 prompts do not divide into mini-batches",
    f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size=3": "do not divide into groups of",
    "data.max_response_length=30000": "tokens do not fit into",
    "trainer.logger=bogus": "trainer.logger is 'bogus', expected one or a list of wandb",
    "data.train_batch_sise=3": "train_batch_sise",
    f"{ACTOR}era.k=0.5": "era.k is 0.5",
    f"{ACTOR}loss_agg_mode=median": "Invalid loss_agg_mode: median",
    "trainer.use_v1=False": "trainer.use_v1=False",
}
# In place of the recipe's values, for this machine, a model of 50 tokens and its task.
TINY = """
data.train_batch_size=8 data.max_prompt_length=8 data.max_response_length=8
actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.actor.ppo_mini_batch_size=8
actor_rollout_ref.actor.ppo_max_token_len_per_gpu=400 actor_rollout_ref.actor.optim.lr=5e-3
actor_rollout_ref.actor.era.low=3.0 actor_rollout_ref.actor.era.high=9.0
actor_rollout_ref.rollout.name=cpu actor_rollout_ref.rollout.tensor_model_parallel_size=1
algorithm.filter_groups.metric=reward trainer.save_freq=-1 trainer.test_freq=-1
"""

FIND = """
import json, sys
import preflight
for overrides in json.loads(sys.argv[1]):
    print("ANSWER", json.dumps([preflight.read_settings(overrides)[0], preflight.find_problems(overrides, True)]))
"""


def start(name, *overrides, **variables):
    """The script, with the Python of this environment and verl 0.9.1."""
    return subprocess.run(
        ["bash", RECIPES / f"run_{name}.sh", *overrides],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/home/me",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(environment.tree_of("0.9.1")),
            "CUDA_VISIBLE_DEVICES": "",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=900,
    )


def overrides_of(name, **variables):
    """Those of the dry run."""
    result = start(name, DRY_RUN="1", **variables)
    assert result.returncode == 0, result.stderr
    words = shlex.split(result.stdout)
    assert words[:3] == ["cd", str(environment.ROOT), "&&"] and words[6:8] == ["-m", "era.verl.main_ppo"]
    assert words[8:10] == [f"--config-dir={RECIPES}/config", "--config-name=era_math"]
    return words[10:]


def write_inputs(folder):
    """A model's configuration and data with which nothing of a run on one node of 8 GPUs is missing but packages."""
    import pandas

    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 40960}))
    (folder / "model.safetensors").touch()
    rows = [{"data_source": "math_dapo", "prompt": [{"role": "user", "content": "?"}], "reward_model": {}}]
    pandas.DataFrame(rows * 256).assign(reward_model='{"ground_truth": "1"}').to_parquet(folder / "data.parquet")
    files = dict.fromkeys(("TRAIN_FILE", "TEST_FILE"), str(folder / "data.parquet"))
    gpus = {"NNODES": "1", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    return {"MODEL_PATH": str(folder), "CKPTS_DIR": str(folder / "checkpoints"), **files, **gpus}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def answers(inputs):
    """answers(script, override): verl's whole configuration by dotted key, and what the check says of it."""
    cases = [(FSDP, ""), (MEGATRON, ""), *((FSDP, override) for override in FOLLOWED)]
    base = {name: overrides_of(name, **inputs) for name in (FSDP, MEGATRON)}
    given = json.dumps([[*base[name], *([override] if override else [])] for name, override in cases])
    result = environment.run(["-c", FIND], given, verl=environment.tree_of("0.9.1"), environment=inputs, folder=RECIPES)
    assert result.returncode == 0, result.stderr[-3000:]
    found = [line.removeprefix("ANSWER ") for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    return dict(zip(cases, map(json.loads, found)))


@pytest.mark.parametrize("name", OWN)
def test_scripts_set_the_papers_values(answers, inputs, name):
    settings, _ = answers[name, ""]
    variables = {
        "actor_rollout_ref.model.path": inputs["MODEL_PATH"],
        "data.train_files": inputs["TRAIN_FILE"],
        "trainer.experiment_name": name,
    }
    expected = {**SHARED, **OWN[name], **variables}
    assert {key: settings[key] for key in expected} == expected


@pytest.mark.parametrize("name", [FSDP, MEGATRON])
def test_verl_and_era_take_them(answers, name):
    assert answers[name, ""][1] == []


@pytest.mark.parametrize("override", FOLLOWED)
def test_overrides_are_followed(answers, override):
    problems = answers[FSDP, override][1]
    assert any(FOLLOWED[override] in problem for problem in problems), problems


@pytest.mark.parametrize("name, packages", [(FSDP, {"vllm", "flash_attn"}), (MEGATRON, {"vllm", "megatron.bridge"})])
def test_all_that_is_missing_is_named_before_a_start(name, packages, tmp_path):
    result = start(name, HOME=str(tmp_path))
    assert result.returncode == 1 and "Traceback" not in result.stderr and "ray init" not in result.stdout
    missing = [
        "GPUs: the run wants 4 x 8 GPUs",
        "models/Qwen3-8B/config.json",
        "dapo-math-17k.parquet",
        "make llm-data",
    ]
    for text in (*missing, "aime-2024.parquet", *packages, "nothing was changed"):
        assert text in result.stderr, result.stderr
    assert os.listdir(tmp_path) == []


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
