"""The paper's LLM runs: what each script sets, what it says where something is missing, and its way onto a cluster."""

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import zipfile

import pyarrow
import pyarrow.parquet
import pytest

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


@pytest.fixture
def run_script(patched_verl, tmp_path):
    """run_script(name, *overrides, **environment), started in tmp_path, which is also HOME."""

    def run(name, *overrides, **env):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, **env}
        return subprocess.run(
            ["bash", patched_verl / f"recipe/era/run_{name}.sh", *overrides],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
        )

    return run


def hydra_overrides(dry_run: str) -> list[str]:
    """The overrides as the shell would hand them to Python."""
    command = dry_run.split(" && ", 1)[1].strip()
    words = subprocess.run(
        [
            "bash",
            "-c",
            f"print() {{ printf '%s\\0' \"$@\"; }}; export -f print; {command.replace(sys.executable, 'print', 1)}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    words = words.stdout.split("\0")[:-1]
    assert words[:2] == ["-m", "recipe.era.main_era"] and words[3] == "--config-name=era_math"
    return words[4:]


@pytest.fixture
def compose(patched_verl, monkeypatch):
    """compose(overrides): verl's whole configuration, by dotted key."""
    import hydra
    from omegaconf import OmegaConf

    monkeypatch.chdir(patched_verl)

    def settings(overrides):
        with hydra.initialize_config_dir(str(patched_verl / "recipe/era/config"), version_base=None):
            config = hydra.compose("era_math", overrides)
        return lambda key: (
            OmegaConf.to_object(value)
            if OmegaConf.is_config(value := OmegaConf.select(config, key, throw_on_missing=True))
            else value
        )

    return settings


def test_every_run_of_the_paper_has_a_script(patched_verl):
    scripts = [script.stem.removeprefix("run_") for script in (patched_verl / "recipe/era").glob("run_*.sh")]
    assert sorted(scripts) == sorted(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_scripts_set_the_papers_values(name, run_script, compose, tmp_path):
    result = run_script(name, DRY_RUN="1", RAY_DATA_HOME="/data home")
    assert result.returncode == 0, result.stderr
    setting = compose(hydra_overrides(result.stdout))
    steps, differs = RUNS[name]
    own = {
        "trainer.total_training_steps": steps,
        "trainer.experiment_name": name,
        "trainer.default_local_dir": f"{{data_home}}/ckpts/ERA/{name}",
    }
    for key, value in {**SHARED, **differs, **own}.items():
        assert setting(key) == (value.format(data_home="/data home") if isinstance(value, str) else value), key


@pytest.mark.parametrize("name", RUNS)
def test_runs_go_together_with_era(name, run_script, compose, patched_verl, preflight):
    result = run_script(name, DRY_RUN="1")
    settings, problems = preflight.read_settings(hydra_overrides(result.stdout))
    assert problems == []


def test_dry_run_prints_the_command_alone(run_script, patched_verl, tmp_path):
    result = run_script(
        "era_stage1_qwen2.5_math_7b", "trainer.save_freq=50", DRY_RUN="1", TRAIN_FILE="/data/a b.parquet"
    )
    words = shlex.split(result.stdout)
    assert words[:5] == [
        "cd",
        str(patched_verl),
        "&&",
        f"TENSORBOARD_DIR={tmp_path}/verl/ckpts/ERA/era_stage1_qwen2.5_math_7b/tensorboard",
        f"VERL_FILE_LOGGER_PATH={tmp_path}/verl/ckpts/ERA/era_stage1_qwen2.5_math_7b/metrics.jsonl",
    ]
    assert words[5:8] == [sys.executable, "-m", "recipe.era.main_era"]
    assert words[-1] == "trainer.save_freq=50", "the user's overrides come last and win"
    assert result.stderr == "" or "lacks recipe/dapo" in result.stderr


def test_paths_reach_hydra_as_they_are(run_script, compose, tmp_path):
    """Relative to the caller, and whatever hydra's grammar makes of the characters."""
    result = run_script(
        "grpo_qwen2.5_math_7b", DRY_RUN="yes", TRAIN_FILE="a,b (1)=é'\\.parquet", MODEL_PATH="/m/{x}", CKPTS_DIR="here"
    )
    setting = compose(hydra_overrides(result.stdout))
    assert setting("data.train_files") == f"{tmp_path}/a,b (1)=é'\\.parquet"
    assert setting("actor_rollout_ref.model.path") == "/m/{x}"
    assert f"VERL_FILE_LOGGER_PATH={tmp_path}/here/metrics.jsonl" in result.stdout


def test_the_environment_overrides_the_run(run_script, compose):
    given = {
        "NNODES": "2",
        "GPUS_PER_NODE": "4",
        "MODEL_PATH": "/m",
        "TRAIN_FILE": "/t",
        "TEST_FILE": "/v",
        "CKPTS_DIR": "/c",
        "TOTAL_STEPS": "7",
        "LOGGER": "[console,wandb]",
    }
    setting = compose(hydra_overrides(run_script("gspo_qwen2.5_math_7b", DRY_RUN="1", **given).stdout))
    keys = (
        "trainer.nnodes",
        "trainer.n_gpus_per_node",
        "actor_rollout_ref.model.path",
        "data.train_files",
        "data.val_files",
        "trainer.default_local_dir",
        "trainer.total_training_steps",
        "trainer.logger",
    )
    assert [setting(key) for key in keys] == [2, 4, "/m", "/t", "/v", "/c", 7, ["console", "wandb"]]


# The check before a run


@pytest.fixture
def preflight(patched_verl):
    spec = importlib.util.spec_from_file_location("era_preflight", patched_verl / "recipe/era/preflight.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ready(tmp_path):
    """The environment under which a run on one node of 8 GPUs lacks nothing."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 32768}))
    (model / "model.safetensors").touch()
    columns = {
        "data_source": ["math_dapo"] * 768,
        "prompt": [[{"role": "user", "content": "?"}]] * 768,
        "reward_model": [{"ground_truth": "1"}] * 768,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    return {
        "NNODES": "1",
        "MODEL_PATH": str(model),
        "TRAIN_FILE": str(tmp_path / "data.parquet"),
        "TEST_FILE": str(tmp_path / "data.parquet"),
        "CKPTS_DIR": str(tmp_path / "ckpts"),
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    }


@pytest.fixture(params=["with hydra", "before there is an environment"])
def check(request, ready, preflight, run_script, patched_verl, tmp_path, monkeypatch):
    """check(*overrides, script=...): what the check finds, in both of its ways of reading the settings."""
    if request.param != "with hydra":
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(
            preflight.importlib.util,
            "find_spec",
            lambda name, *args: None if name in ("hydra", "torch", "pyarrow") else find_spec(name, *args),
        )
    monkeypatch.chdir(patched_verl)
    # A tree from the source package lacks recipe/dapo, which has a test of its own.
    monkeypatch.setattr(preflight, "recipe_problem", lambda: [])
    # This Python is not one that trains; what it lacks has a test of its own.
    monkeypatch.setattr(preflight, "packages_problem", lambda settings: [])

    def problems(*overrides, script="era_stage1_qwen2.5_math_7b", **env):
        env = {**ready, **env}
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", env["CUDA_VISIBLE_DEVICES"])
        return preflight.find_problems(
            hydra_overrides(run_script(script, *overrides, DRY_RUN="1", **env).stdout), environment_to_come=False
        )

    problems.has_libraries = request.param == "with hydra"
    return problems


def test_everything_missing_is_named_at_once(run_script):
    result = run_script("era_stage2_qwen2.5_math_7b", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for missing in (
        "GPUs: the run wants 4 x 8 GPUs",
        "Qwen2.5-Math-7B",
        "dapo-math-17k.parquet",
        "aime-2024.parquet",
        "make llm-data",
        "era_stage1_qwen2.5_math_7b/global_step_600",
        "nothing was changed",
    ):
        assert missing in result.stderr, result.stderr


def test_nothing_is_said_where_all_is_there(check, run_script, ready, patched_verl):
    assert check() == []
    result = run_script("era_stage1_qwen2.5_math_7b", CHECK_ONLY="1", ENVIRONMENT_TO_COME="1", **ready)
    if (patched_verl / "recipe/dapo").exists():
        assert (result.returncode, result.stderr) == (0, "")
    else:
        assert result.returncode == 1 and result.stderr.count("  - ") == 1 and "no recipe/dapo" in result.stderr


@pytest.mark.parametrize(
    "override, said",
    [
        ("trainer.n_gpus_per_node=16", "the run wants 1 x 16 GPUs (NNODES x GPUS_PER_NODE), this machine has 8"),
        ("trainer.nnodes=2", "RAY_ADDRESS names no Ray cluster"),
        ("trainer.n_gpus_per_node=0", "trainer.n_gpus_per_node is 0, expected a whole number >= 1"),
        ("trainer.n_gpus_per_node=7", "= 2048 responses do not divide among 7 GPUs"),
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
            "do not divide into groups of actor_rollout_ref.rollout.tensor_model_parallel_size=3",
        ),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=3",
            "do not divide into groups of actor_rollout_ref.actor.ulysses_sequence_parallel_size=3",
        ),
        (
            "data.train_batch_size=32",
            "data.train_batch_size=32 prompts do not divide into mini-batches of actor_rollout_ref.actor.ppo_mini_batch_size=256",
        ),
        ("data.gen_batch_size=100", "data.gen_batch_size=100 prompts do not divide among 8 GPUs"),
        ("actor_rollout_ref.rollout.n=abc", "actor_rollout_ref.rollout.n is 'abc', expected a whole number >= 1"),
        (
            "data.max_response_length=30720",
            "= 32768 tokens do not fit into actor_rollout_ref.actor.ppo_max_token_len_per_gpu=30720",
        ),
        ("data.max_response_length=30720", "verl wants actor_rollout_ref.rollout.max_num_batched_tokens=10240 to hold"),
        ("data.max_response_length=31000", "max_position_embeddings 32768, prompts and responses need 33048"),
        ("data.train_files=/none.parquet", "no /none.parquet"),
        ("data.val_files=[/none1.parquet,'/none 2.parquet']", "no /none 2.parquet"),
        ("actor_rollout_ref.model.path=/nowhere/m", "no /nowhere/m/config.json"),
        (
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=abc",
            "ppo_max_token_len_per_gpu is 'abc', expected a whole number >= 1",
        ),
        (
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=null",
            "ppo_max_token_len_per_gpu is not set, expected a whole number >= 1",
        ),
        (
            "actor_rollout_ref.rollout.max_num_batched_tokens=null",
            "max_num_batched_tokens is not set, expected a whole number >= 1",
        ),
        (
            "trainer.logger=bogus",
            "trainer.logger is 'bogus', expected one or a list of wandb, mlflow, swanlab, vemlp_wandb, tensorboard, console, clearml, file (LOGGER)",
        ),
        ("trainer.logger=[console,flie]", "trainer.logger is ['console', 'flie'], expected"),
        ("data.train_files=[]", "data.train_files is [], expected a file or a list of files (TRAIN_FILE)"),
        ("data.train_files=null", "data.train_files is not set, expected a file or a list of files (TRAIN_FILE)"),
        ("trainer.default_local_dir=null", "trainer.default_local_dir is not set, expected a folder (CKPTS_DIR)"),
        ("trainer.save_freq=abc", "trainer.save_freq is 'abc', expected a whole number"),
        ("trainer.resume_mode=nope", "trainer.resume_mode is 'nope', expected one of auto, disable, resume_path"),
        (
            "actor_rollout_ref.actor.checkpoint.load_contents=3",
            "load_contents is 3, expected a list of model, optimizer, extra",
        ),
        (
            "data.max_prompt_length=40000",
            "max_position_embeddings 32768, prompts and responses need 48192. Lower data.max_prompt_length or data.max_response_length, or take",
        ),
    ],
)
def test_overrides_are_followed(check, override, said):
    found = check(override)
    assert any(said in problem for problem in found), found


def test_a_folder_in_the_place_of_the_checkpoints_number(check, tmp_path):
    (tmp_path / "ckpts/latest_checkpointed_iteration.txt").mkdir(parents=True)
    assert "latest_checkpointed_iteration.txt cannot be read: Is a directory" in check()[0]


def test_a_deleted_setting_is_no_traceback(check):
    assert check("~actor_rollout_ref.rollout.enable_chunked_prefill") == []


@pytest.mark.parametrize(
    "override", ["trainer.total_training_steps=x", "data.gen_batch_size=0", "trainer.resume_mode=nope"]
)
def test_one_wrong_setting_does_not_hide_what_is_missing(check, override):
    found = check(
        override, "data.val_files=/none.parquet", "actor_rollout_ref.model.path=/none", CUDA_VISIBLE_DEVICES=""
    )
    for part in (override.partition("=")[0] + " is ", "no /none.parquet", "no /none/config.json", "GPUs: "):
        assert any(part in problem for problem in found), found


def test_advice_names_what_helps(check):
    found = check(
        "data.train_files=/none1.parquet", "data.val_files=/none2.parquet", CUDA_VISIBLE_DEVICES="", NNODES="4"
    )
    train, test, gpus = (next(problem for problem in found if part in problem) for part in ("none1", "none2", "GPUs"))
    assert "TRAIN_FILE" in train and "TEST_FILE" not in train
    assert "TEST_FILE" in test and "TRAIN_FILE" not in test
    assert "NNODES=1" not in gpus and "set NNODES=1" in check(NNODES="4")[0]


MODULES = {
    "vllm": "actor_rollout_ref.rollout.name=hf",
    "tensorboard": "trainer.logger=[console,file]",
    "flash_attn": None,
}


@pytest.mark.parametrize("present", [True, False])
def test_packages_are_those_that_the_settings_need(preflight, monkeypatch, compose, run_script, present):
    lacking = set(MODULES) if present else {*MODULES, *preflight.MODULES}
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name, *args: None if name in lacking else "there")

    def lacks(*overrides):
        settings = preflight.plain_settings(
            hydra_overrides(run_script("grpo_qwen2.5_math_7b", *overrides, DRY_RUN="1").stdout)
        )
        found = preflight.packages_problem(settings)
        return set(re.search(r" lacks (.*?)\. ", found[0])[1].split(", ")) if found else set()

    attention = (
        "+actor_rollout_ref.model.override_config._attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=False",
    )
    assert lacks() == lacking
    assert lacks("actor_rollout_ref.rollout.name=hf") == lacking - {"vllm"}
    assert lacks("trainer.logger=[console,file]") == lacking - {"tensorboard"}
    assert lacks("trainer.logger=wandb") == lacking - {"tensorboard"}, "wandb is there"
    assert lacks(attention[0]) == lacks(attention[1]) == lacking
    assert lacks(*attention) == lacking - {"flash_attn"}


def test_the_check_looks_at_packages_unless_the_environment_is_to_come(run_script, ready, tmp_path):
    bare = {**ready, "PYTHON": f"{tmp_path}/bare"}
    (tmp_path / "bare").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    (tmp_path / "bare").chmod(0o755)
    for check_only in ("1", "0"):
        result = run_script("grpo_qwen2.5_math_7b", CHECK_ONLY=check_only, **bare)
        assert result.returncode == 1 and "Traceback" not in result.stderr
        packages = next(line for line in result.stderr.splitlines() if "packages: " in line)
        assert {"hydra", "vllm", "flash_attn", "tensorboard"} <= set(
            re.findall(r"\w+", packages)
        ) and "LOGGER" in packages
    assert "packages" not in run_script("grpo_qwen2.5_math_7b", CHECK_ONLY="1", ENVIRONMENT_TO_COME="1", **bare).stderr


def test_a_python_that_is_not_there(run_script):
    result = run_script("grpo_qwen2.5_math_7b", PYTHON="nope/python")
    assert result.returncode == 1 and re.fullmatch(
        r"error: there is no Python at /.*/nope/python\. Activate .*\n", result.stderr
    )
    result = run_script("grpo_qwen2.5_math_7b", PYTHON="/nope/python", DRY_RUN="1")
    assert result.returncode == 0 and "note: there is no Python at /nope/python\n" in result.stderr


def test_zero_turns_a_switch_off(run_script):
    result = run_script("grpo_qwen2.5_math_7b", DRY_RUN="0", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1 and result.stdout == "" and "This run cannot start" in result.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("trainer.save_freq=5", "-h")])
def test_help(run_script, arguments):
    result = run_script("gspo_qwen2.5_math_7b", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert (
        "[hydra overrides" in result.stdout
        and "GSPO (table:moremodels)" in result.stdout
        and "MODEL_PATH" in result.stdout
    )
    assert "shellcheck" not in result.stdout and "settings=(" not in result.stdout


@pytest.mark.parametrize("path", ["/ends in\\", "/two\\\\", "/a\\'b", "/a'b\\", '/a"b`c$d', "/in\\side"])
def test_backslashes_and_quotes_in_paths(run_script, compose, preflight, path):
    overrides = hydra_overrides(run_script("grpo_qwen2.5_math_7b", DRY_RUN="1", MODEL_PATH=path).stdout)
    assert compose(overrides)("actor_rollout_ref.model.path") == path
    assert preflight.plain_settings(overrides)["actor_rollout_ref.model.path"] == path


def test_a_cluster_that_is_not_there_is_named_at_once(preflight, capfd):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for form in (address, f"ray://{address}", "127.0.0.1:99999999"):
            assert preflight.cluster_gpus(form) is None
            assert capfd.readouterr().err == f"asking the Ray cluster at {form} ...\n"


def test_mini_batches_are_not_rounded_down(check):
    """32 responses of a mini-batch on 3 x 8 ranks would become 24 in verl."""
    found = check(
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "data.train_batch_size=252",
        "data.gen_batch_size=768",
        "trainer.n_gpus_per_node=6",
        "actor_rollout_ref.actor.era.k=1.0",
    )
    assert found == [
        "batch: actor_rollout_ref.actor.ppo_mini_batch_size=4 x actor_rollout_ref.rollout.n=8 = 32 responses do not divide among 6 data-parallel ranks."
    ]


def test_changes_that_fit_together_are_taken(check):
    assert (
        check(
            "data.train_batch_size=32",
            "actor_rollout_ref.actor.ppo_mini_batch_size=32",
            "data.gen_batch_size=96",
            "data.max_response_length=1024",
            "trainer.n_gpus_per_node=4",
        )
        == []
    )


def test_mistyped_settings_are_named_without_a_traceback(run_script, ready):
    for override, said in (
        ("data.train_batch_sise=3", "train_batch_sise"),
        ("actor_rollout_ref.actor.era.k=0.5", "actor_rollout_ref.actor.era.k is 0.5"),
        ("a=[", "settings: a=[: "),
        ("~actor_rollout_ref.actor.policy_loss", "an override deletes or replaces what verl needs"),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=null",
            "loss_mode is None, expected one of vanilla, clip_cov, kl_cov, gspo",
        ),
        (
            f"{ACTOR}loss_agg_mode=token_mean",
            "loss_agg_mode is 'token_mean', expected one of token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm",
        ),
    ):
        result = run_script("era_stage1_qwen2.5_math_7b", override, "data.train_files=/none.parquet", **ready)
        assert result.returncode == 1 and "Traceback" not in result.stderr
        assert said in result.stderr and "no /none.parquet" in result.stderr, result.stderr


LOSS_PROBLEMS = {  # overrides: what the check says
    ("policy_loss.forking_fraction=2",): "forking_fraction is 2, expected a number in (0, 1]",
    ("policy_loss.forking_fraction=True",): "forking_fraction is True, expected a number in (0, 1]",
    (
        "policy_loss.forking_fraction=0.2",
        "policy_loss.loss_mode=kl_cov",
    ): "forking_fraction=0.2 does not go together with",
    ("policy_loss.loss_mode=gspo",): "loss_agg_mode is 'token-mean', expected seq-mean-token-mean",
}


@pytest.mark.parametrize("overrides", LOSS_PROBLEMS)
def test_what_the_baselines_refuse_is_named_before_ray_starts(preflight, compose, import_verl, overrides):
    """The check before a run cannot load verl: it says of its own accord what the trainer's check says."""
    import hydra
    from verl.utils import era_checks

    overrides_of_actor = [f"{ACTOR}{override}" for override in (*overrides, "era.k=1.0")]
    _, problems = preflight.read_settings(overrides_of_actor)
    assert len(problems) == 1 and LOSS_PROBLEMS[overrides] in problems[0]
    with hydra.initialize_config_dir(str(preflight.CONFIG.parent), version_base=None):
        config = hydra.compose("era_math", overrides_of_actor)
    with pytest.raises(ValueError):
        era_checks.validate_trainer_config(config)


def test_a_loss_of_ones_own_is_taken(preflight, patched_verl, monkeypatch):
    monkeypatch.chdir(patched_verl)
    own = [f"{LOSS}loss_mode=mine", f"{ACTOR}era.k=1.0"]
    assert "loss_mode is 'mine', expected one of" in preflight.read_settings(own)[1][0]
    assert preflight.read_settings([*own, "actor_rollout_ref.model.external_lib=my.lib"])[1] == []


def test_files_that_are_there_but_no_good(check, ready, tmp_path):
    config = tmp_path / "model/config.json"
    for content in (
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"max_position_embeddings": null}',
        b'{"max_position_embeddings": "x"}',
    ):
        config.write_bytes(content)
        assert "not a model configuration" in check()[0]
    config.write_text(json.dumps({"max_position_embeddings": 4096}))
    assert "max_position_embeddings 4096" in check()[0]
    config.write_text(json.dumps({"max_position_embeddings": 32768}))
    (tmp_path / "model/model.safetensors").unlink()
    assert "holds no weights" in check()[0]
    (tmp_path / "model/model.safetensors").touch()
    whole = (tmp_path / "data.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    assert "cut.parquet is not a whole parquet file" in check(TRAIN_FILE=str(tmp_path / "cut.parquet"))[0]
    if check.has_libraries:
        pyarrow.parquet.write_table(pyarrow.table({"prompt": [1] * 768}), tmp_path / "other.parquet")
        assert "has 768 rows, a generation batch needs 1024" in check("data.gen_batch_size=1024")[0]
        assert "lacks verl's columns data_source, reward_model" in check(TRAIN_FILE=str(tmp_path / "other.parquet"))[0]


def test_the_plain_reader_agrees_with_yaml(preflight):
    from omegaconf import OmegaConf

    config = OmegaConf.to_container(OmegaConf.load(preflight.CONFIG))
    shared = {key: value for key, value in preflight.flattened(config).items() if not isinstance(value, list)}
    read = preflight.plain_settings([])
    numbers = {key: value for key, value in shared.items() if isinstance(value, (int, str, bool))}
    assert len(numbers) > 30 and {key: read[key] for key in numbers} == numbers


def test_clusters(preflight, monkeypatch):
    monkeypatch.setattr(preflight, "cluster_gpus", lambda address: {"auto": [8, 8, 0], "10.0.0.1:6379": None}[address])
    assert preflight.cluster_problem("auto", "2 x 8", 2, 8, False) == []
    assert "have 8, 8, 0" in preflight.cluster_problem("auto", "1 x 16", 1, 16, False)[0], (
        "16 GPUs on one node are not 2 x 8"
    )
    assert (
        "no Ray cluster answers at RAY_ADDRESS=10.0.0.1:6379"
        in preflight.cluster_problem("10.0.0.1:6379", "2 x 8", 2, 8, False)[0]
    )
    assert "is a dashboard's address" in preflight.cluster_problem("http://127.0.0.1:8265", "2 x 8", 2, 8, False)[0]
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        preflight.importlib.util, "find_spec", lambda name, *args: None if name == "ray" else find_spec(name, *args)
    )
    assert "has no ray" in preflight.cluster_problem("auto", "2 x 8", 2, 8, False)[0]
    assert preflight.cluster_problem("auto", "2 x 8", 2, 8, True) == []


# Checkpoints: stage 2, and resuming


def write_checkpoint(folder, world_size, leave_out=()):
    names = [
        f"actor/{kind}_world_size_{world_size}_rank_{rank}.pt"
        for kind in ("model", "optim", "extra_state")
        for rank in range(world_size)
    ]
    for name in [*names, "data.pt"]:
        if name not in leave_out:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(folder / name, "w") as archive:  # the format of torch.save
                archive.writestr("archive/data.pkl", b"tensor")


def test_stage_2_starts_from_a_whole_stage_1_checkpoint(check, tmp_path, run_script, ready):
    def stage2(checkpoint="global_step_600", **env):
        return check(script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=str(tmp_path / "stage1" / checkpoint), **env)

    assert f"checkpoint: no {tmp_path}/stage1/global_step_600. Run stage 1" in stage2()[0]
    assert "is not named global_step_" in stage2("last")[0]
    write_checkpoint(tmp_path / "stage1/global_step_600", 8)
    assert stage2() == []
    assert stage2("global_step_600/") == []
    assert "was written by 8 GPUs and loads on as many alone, this run has 4" in stage2(GPUS_PER_NODE="4")[0]
    write_checkpoint(
        tmp_path / "stage1/global_step_590", 8, leave_out=["data.pt", "actor/optim_world_size_8_rank_3.pt"]
    )
    assert (
        "global_step_590 is incomplete: 2 of 25 files are missing or cut off, such as actor/optim_world_size_8_rank_3.pt"
        in stage2("global_step_590")[0]
    )
    shard = tmp_path / "stage1/global_step_600/actor/model_world_size_8_rank_7.pt"
    shard.write_bytes(shard.read_bytes()[:-10])
    assert (
        "global_step_600 is incomplete: 1 of 25 files are missing or cut off, such as actor/model_world_size_8_rank_7.pt"
        in stage2()[0]
    )


def test_stage_2_resumes_from_its_own_checkpoint(check, run_script, ready, tmp_path):
    def stage2():
        return check(script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=str(tmp_path / "stage1/global_step_600"))

    write_checkpoint(tmp_path / "ckpts/global_step_610", 8)
    (tmp_path / "ckpts/latest_checkpointed_iteration.txt").write_text("610")
    result = run_script("era_stage2_qwen2.5_math_7b", DRY_RUN="1", **ready)
    assert "resume_mode=resume_path" not in result.stdout
    assert stage2() == [], "stage 1's checkpoint is no longer needed"
    write_checkpoint(tmp_path / "ckpts/global_step_450", 8)
    (tmp_path / "ckpts/latest_checkpointed_iteration.txt").write_text("450")
    assert "it is another run's folder. Set CKPTS_DIR to one of its own" in stage2()[0]


def test_resuming_after_a_crash(check, tmp_path):
    tracker = tmp_path / "ckpts/latest_checkpointed_iteration.txt"
    write_checkpoint(tmp_path / "ckpts/global_step_20", 8)
    write_checkpoint(tmp_path / "ckpts/global_step_30", 8, leave_out=["data.pt"])  # killed while it was written
    assert check() == [], "without the file verl starts from scratch"
    tracker.write_text("20")
    assert check() == []
    tracker.write_text("")  # killed between verl's opening and writing it
    assert "latest_checkpointed_iteration.txt says ''" in check()[0]
    tracker.write_bytes(b"\xff\xfe1")
    assert "latest_checkpointed_iteration.txt says " in check()[0]
    tracker.write_text("40")
    assert "there is no such checkpoint beside it" in check()[0], "verl would start from scratch"
    tracker.write_text("30")
    assert "global_step_30 is incomplete" in check()[0]
    write_checkpoint(tmp_path / "ckpts/global_step_600", 8)
    tracker.write_text("600")
    assert "nothing is left to do. Raise TOTAL_STEPS" in check()[0], "verl would do one step more"
    assert check(TOTAL_STEPS="700") == []


def test_a_python_that_ray_cannot_start_is_named(preflight, monkeypatch):
    assert preflight.python_problem() == []
    for path, odd in (
        ("/home/my clone/bin/python", " "),
        ("/home/(me)/bin/python", "()"),
        ("/home/it's/bin/python", "'"),
    ):
        monkeypatch.setattr(preflight.sys, "executable", path)
        (problem,) = preflight.python_problem()
        assert path in problem and repr(odd) in problem
    monkeypatch.setattr(preflight.sys, "executable", "/home/Prüf-Ordner/bin/python3.11")
    assert preflight.python_problem() == []


# Clusters


@pytest.fixture
def ray_cluster(tmp_path_factory):
    """A Ray cluster of this machine, started elsewhere than the run: its environment has none of the run's variables."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    folder = tmp_path_factory.mktemp("r")
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    options = [
        f"--port={port}",
        "--node-ip-address=127.0.0.1",
        "--num-cpus=2",
        "--num-gpus=2",
        "--include-dashboard=false",
        "--disable-usage-stats",
    ]
    command = [
        os.path.join(os.path.dirname(sys.executable), "ray"),
        "start",
        "--head",
        "--block",
        "--object-store-memory=80000000",
        f"--plasma-directory={folder}",
        *options,
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 900
        while "Ray runtime started" not in (folder / "log").read_text():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.5)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()  # --block: ends all of its processes
        process.wait(60)


def test_an_existing_cluster_gets_the_loggers_environment(ray_cluster, patched_verl, preflight, tmp_path):
    if not (
        patched_verl / "recipe/dapo"
    ).exists():  # a tree from the source package: only a name that the probe replaces is missing
        (tmp_path / "recipe/dapo").mkdir(parents=True)
        (tmp_path / "recipe/dapo/main_dapo.py").write_text("run_ppo = None\n")
    assert preflight.cluster_gpus(ray_cluster) == [2]
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import os, ray\n"
        "import recipe.era.main_era as main_era\n"
        "def run_ppo(config):\n"
        "    task = ray.remote(num_cpus=1)(lambda: {name: os.environ.get(name) for name in ('TENSORBOARD_DIR', 'VERL_FILE_LOGGER_PATH', 'WANDB_MODE', 'NCCL_DEBUG', 'OTHER')})\n"
        "    print('task', ray.get(task.remote()), config.trainer.experiment_name)\n"
        "main_era.run_ppo = run_ppo\n"
        "main_era.main()\n"
    )
    given = {
        "TENSORBOARD_DIR": "/shared/t b",
        "VERL_FILE_LOGGER_PATH": "/shared/m.jsonl",
        "WANDB_MODE": "offline",
        "OTHER": "1",
    }
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": f"{patched_verl}:{tmp_path}",
        "RAY_ADDRESS": ray_cluster,
        **given,
    }
    # As `ray job submit --runtime-env-json` hands them over: the same variable twice is an error of Ray's by default.
    job = {
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(
            {"runtime_env": {"env_vars": {"TENSORBOARD_DIR": "/shared/t b"}}, "metadata": {}}
        )
    }
    for more in ({}, job):
        command = [
            sys.executable,
            probe,
            f"--config-path={patched_verl}/recipe/era/config",
            "--config-name=era_math",
            "trainer.experiment_name=probe",
            f"trainer.default_local_dir={tmp_path}/run of a probe",
        ]
        result = subprocess.run(
            command, cwd=patched_verl, env={**env, **more}, capture_output=True, text=True, timeout=900
        )
        assert result.returncode == 0, result.stderr
        expected = {**given, "NCCL_DEBUG": "WARN", "OTHER": None}
        seen = re.search(r"^task (\{.*\}) probe$", result.stdout, re.MULTILINE)
        assert seen and eval(seen[1]) == expected, result.stdout
    assert (
        list((tmp_path / "run of a probe").glob("hydra/*/.hydra/config.yaml"))
        and not (patched_verl / "outputs").exists()
    )


@pytest.fixture
def slurm(patched_verl, tmp_path):
    """slurm(*arguments, **environment): the job script on the first of its nodes, with stand-ins for Slurm and Ray.

    srun runs what it is given, here; ray start and the count of nodes are recorded and answered.
    """
    tools = tmp_path / "environment/bin"
    tools.mkdir(parents=True)
    record = tmp_path / "record"
    stand_ins = {
        "scontrol": '[[ "$*" == "show hostnames node[1-4]" ]] && printf "%s\\n" node1 node2 node3 node4 || exit 1',
        "srun": 'line=$(printf " %q" "$@"); echo "srun$line" >> "$RECORD"; while [[ "$1" == --* ]]; do shift; done; exec "$@"',
        "hostname": 'echo "fe80::1 10.0.0.1 192.168.0.1"',
        "ray": '[[ "$*" != *"${RAY_FAILS:-never}"* ]] || exit 7; while true; do sleep 0.1; done',
        "python": 'if [[ "$1" == -c ]]; then echo "${JOINED:-4}"; else exit 9; fi',
    }
    for name, body in stand_ins.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    checkout = tmp_path / "check out"
    (checkout / "recipe/era").mkdir(parents=True)
    run = checkout / "recipe/era/run_probe.sh"
    run.write_text(
        'printf "run RAY_ADDRESS=%s NNODES=%s GPUS_PER_NODE=%s PYTHON=%s MODEL_PATH=%s" "$RAY_ADDRESS" "$NNODES" "$GPUS_PER_NODE" "$PYTHON" "$MODEL_PATH" >> "$RECORD"; printf " <%s>" "$@" >> "$RECORD"; echo >> "$RECORD"; exit "${STATUS:-0}"\n'
    )

    def submit(*arguments, **env):
        record.write_text("")
        env = {
            **{
                "PATH": f"{tools}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "RECORD": str(record),
                "PYTHON": str(tools / "python"),
            },
            **{
                "SLURM_JOB_ID": "1",
                "SLURM_SUBMIT_DIR": str(checkout),
                "SLURM_JOB_NUM_NODES": "4",
                "SLURM_JOB_NODELIST": "node[1-4]",
                "SLURM_GPUS_ON_NODE": "8",
                "SLURM_CPUS_ON_NODE": "64",
            },
            **env,
        }
        # It returns when the last process has closed its output: none of Ray's is left behind.
        result = subprocess.run(
            ["bash", patched_verl / "recipe/era/slurm_ray.sbatch", *arguments],
            cwd="/",
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
        )
        return result, record.read_text().splitlines()

    return submit


def test_slurm_starts_ray_on_all_nodes_and_then_the_run(slurm, tmp_path):
    tools = tmp_path / "environment/bin"
    result, record = slurm(
        "run_probe.sh", "data.train_files=[a b]", "x='y'", MODEL_PATH="/m m", RAY_ADDRESS="left over"
    )
    assert result.returncode == 0, result.stderr
    starts = [shlex.split(line) for line in record if f"{tools}/ray start" in line]
    assert [words[words.index(f"{tools}/ray") + 2] for words in starts].count("--head") == 1
    assert sorted(word for words in starts for word in words if word.startswith("--nodelist")) == [
        f"--nodelist=node{i}" for i in (1, 2, 3, 4)
    ]
    for words in starts:
        head = "--head" in words
        assert ("--nodelist=node1" in words) == head == ("--node-ip-address=10.0.0.1" in words)
        assert head or "--address=10.0.0.1:6379" in words
        assert {"--overlap", "--nodes=1", "--ntasks=1", "--num-gpus=8", "--num-cpus=64", "--block"} <= set(words)
    run = next(i for i, line in enumerate(record) if line.startswith("run "))
    assert (
        record[run]
        == f"run RAY_ADDRESS=10.0.0.1:6379 NNODES=4 GPUS_PER_NODE=8 PYTHON={tools}/python MODEL_PATH=/m m <data.train_files=[a b]> <x='y'>"
    )
    # The steps that start Ray run beside each other and beside this one: only what follows one another has an order here.
    (step,) = (i for i, line in enumerate(record) if line.startswith("srun") and "run_probe.sh" in line)
    asked = [i for i, line in enumerate(record) if line.startswith("srun") and "Alive" in line]
    assert "--nodelist=node1" in record[step] and asked and asked[-1] < step < run


def test_slurm_passes_the_status_of_the_run_on(slurm):
    result, record = slurm("recipe/era/run_probe.sh", STATUS="3")
    assert result.returncode == 3


def test_slurm_ends_where_ray_does_not_start(slurm):
    result, record = slurm("run_probe.sh", JOINED="3", RAY_FAILS="--head")
    assert result.returncode == 1 and "Ray ended on a node" in result.stderr
    assert not any(line.startswith("run ") for line in record)
    result, record = slurm("run_probe.sh", JOINED="3", RAY_START_SECONDS="0")
    assert result.returncode == 1 and "only 3 of 4 nodes joined the Ray cluster at 10.0.0.1:6379" in result.stderr
    assert not any(line.startswith("run ") for line in record)


def test_slurm_says_what_is_wrong(slurm, tmp_path):
    for said, arguments, env in (
        ("with the name of a run script: run_probe.sh", (), {}),
        ("no recipe/era/run_none.sh", ("run_none.sh",), {}),
        ("this is a Slurm job: sbatch", ("run_probe.sh",), {"SLURM_JOB_ID": ""}),
        ("there is no Python at /none", ("run_probe.sh",), {"PYTHON": "/none"}),
        ("is not of an environment with Ray", ("run_probe.sh",), {"PYTHON": "/bin/sh"}),
        *(
            (
                f"Started by hand, also inside an allocation, it lacks what Slurm tells a job ({name})",
                ("run_probe.sh",),
                {name: ""},
            )
            for name in ("SLURM_SUBMIT_DIR", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_CPUS_ON_NODE")
        ),
    ):
        result, record = slurm(*arguments, **env)
        assert result.returncode == 1 and result.stderr.startswith("error: ") and said in result.stderr, result.stderr
        assert record == [], "nothing was started"


@pytest.mark.parametrize("pattern", ["*.sh", "*.sbatch"])
def test_scripts_are_bash(patched_verl, pattern):
    for script in (patched_verl / "recipe/era").glob(pattern):
        subprocess.run(["bash", "-n", script], check=True)
        assert script.name == "common.sh" or os.access(script, os.X_OK), f"{script} is not executable"
