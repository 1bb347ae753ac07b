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
from llm_helpers import load

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
def run_script(patched_verl, home):
    """run_script(name, *overrides, **environment), started in its HOME."""

    def run(name, *overrides, **env):
        return subprocess.run(
            ["bash", patched_verl / f"recipe/era/run_{name}.sh", *overrides],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHON": sys.executable, **env},
            capture_output=True,
            text=True,
            timeout=900,
        )

    return run


@pytest.fixture(scope="module")
def overrides_of(run_script):
    """overrides_of(name, **environment): those of the dry run, as the shell would hand them to Python."""

    def run(name, **env):
        result = run_script(name, DRY_RUN="1", **env)
        assert result.returncode == 0, result.stderr
        command = result.stdout.split(" && ", 1)[1].strip().replace(sys.executable, "print", 1)
        script = f"print() {{ printf '%s\\0' \"$@\"; }}; export -f print; {command}"
        words = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        words = words.split("\0")[:-1]
        assert words[:2] == ["-m", "recipe.era.main_era"] and words[3] == "--config-name=era_math"
        return words[4:]

    return run


@pytest.fixture
def compose(patched_verl, monkeypatch):
    """compose(overrides): verl's whole configuration, by dotted key."""
    import hydra
    from omegaconf import OmegaConf

    monkeypatch.chdir(patched_verl)

    def settings(overrides):
        with hydra.initialize_config_dir(str(patched_verl / "recipe/era/config"), version_base=None):
            config = hydra.compose("era_math", overrides)

        def setting(key):
            value = OmegaConf.select(config, key, throw_on_missing=True)
            return OmegaConf.to_object(value) if OmegaConf.is_config(value) else value

        return setting

    return settings


@pytest.fixture(scope="module")
def preflight(patched_verl):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(patched_verl / "recipe/era")  # as for a script: it imports run_checks
        return load(patched_verl / "recipe/era/preflight.py", "era_preflight")


@pytest.fixture(scope="module")
def run_checks(preflight):
    """The module of what the check of verl 0.9's recipes has as well."""
    return sys.modules[preflight.gpu_problems.__module__]


def test_every_run_of_the_paper_has_a_script(patched_verl):
    scripts = [script.stem.removeprefix("run_") for script in (patched_verl / "recipe/era").glob("run_*.sh")]
    assert sorted(scripts) == sorted(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_scripts_set_the_papers_values(name, overrides_of, compose, preflight):
    """And ERA, the losses and verl accept them together."""
    overrides = overrides_of(name, RAY_DATA_HOME="/data home")
    setting = compose(overrides)
    steps, differs = RUNS[name]
    own = {
        "trainer.total_training_steps": steps,
        "trainer.experiment_name": name,
        "trainer.default_local_dir": f"{{data_home}}/ckpts/ERA/{name}",
    }
    for key, value in {**SHARED, **differs, **own}.items():
        assert setting(key) == (value.format(data_home="/data home") if isinstance(value, str) else value), key
    assert preflight.read_settings(overrides)[1] == []


def test_dry_run_prints_the_command_alone(run_script, patched_verl, home):
    result = run_script("era_stage1_qwen2.5_math_7b", "trainer.save_freq=50", DRY_RUN="1")
    words, folder = shlex.split(result.stdout), f"{home}/verl/ckpts/ERA/era_stage1_qwen2.5_math_7b"
    loggers = [f"TENSORBOARD_DIR={folder}/tensorboard", f"VERL_FILE_LOGGER_PATH={folder}/metrics.jsonl"]
    assert words[:8] == ["cd", str(patched_verl), "&&", *loggers, sys.executable, "-m", "recipe.era.main_era"]
    assert words[-1] == "trainer.save_freq=50", "the user's overrides come last and win"
    assert result.stderr == "" or "lacks recipe/dapo" in result.stderr


@pytest.mark.parametrize("path", ["/two\\\\", "/a\\'b\\", '/a"b`c$d, {x} (1)=é', "relative"])
def test_paths_reach_hydra_as_they_are(overrides_of, compose, preflight, home, path):
    """Relative to the caller, and whatever hydra's grammar makes of the characters; before there is hydra, too."""
    overrides = overrides_of("grpo_qwen2.5_math_7b", MODEL_PATH=path, CKPTS_DIR=path)
    expected = str(home / path)
    assert compose(overrides)("actor_rollout_ref.model.path") == expected
    assert preflight.named_settings(overrides)["actor_rollout_ref.model.path"] == expected


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
    setting = compose(overrides_of("gspo_qwen2.5_math_7b", **{name: str(value) for name, (_, value) in given.items()}))
    assert [setting(key) for key, _ in given.values()] == [2, 4, "/m", "/t", "/v", "/c", 7, ["console"]]


def test_help(run_script):
    result = run_script("gspo_qwen2.5_math_7b", "trainer.save_freq=5", "-h")
    assert (result.returncode, result.stderr) == (0, "")
    assert all(said in result.stdout for said in ("[hydra overrides", "GSPO (table:moremodels)", "MODEL_PATH"))
    assert "shellcheck" not in result.stdout and "settings=(" not in result.stdout


# The check before a run


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


@pytest.fixture
def check(ready, preflight, overrides_of, patched_verl, monkeypatch):
    """check(*overrides, script=...): what the check finds."""
    monkeypatch.chdir(patched_verl)
    # A tree from the source package lacks recipe/dapo, and this Python lacks packages; others test these.
    monkeypatch.setattr(preflight, "recipe_problems", lambda: [])
    monkeypatch.setattr(preflight, "packages_problems", lambda settings: [])

    def problems(*overrides, script="era_stage1_qwen2.5_math_7b", **env):
        env = {**ready, **env}
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", env["CUDA_VISIBLE_DEVICES"])
        return preflight.find_problems([*overrides_of(script, **env), *overrides], environment_to_come=False)

    return problems


@pytest.mark.parametrize(
    "users, as_paper", [((), True), (("trainer.save_freq=5", "+data.seed=7"), True), (("data.seed=7", "x.lr=1"), False)]
)
def test_run_json_of_a_start(run_checks, overrides_of, patched_verl, tmp_path, users, as_paper):
    overrides = [*overrides_of("grpo_qwen2.5_math_7b", CKPTS_DIR=str(tmp_path / "my ckpts")), *users]
    run_checks.write_record(overrides, len(users), patched_verl, is_papers=True)
    record = json.loads((tmp_path / "my ckpts/run.json").read_text())
    expected = {"host": "verl", "agent": "grpo_qwen2.5_math_7b", "task": "Qwen2.5-Math-7B", "total_steps": 1100}
    expected |= {"added": list(users), "as_paper": as_paper, "modified": False, "finished": False}
    assert expected.items() <= record.items() and record["command"] == overrides
    assert record["seed"] == (7 if users else None) and len(record["commit"]) == 40


@pytest.fixture
def without_hydra(preflight, monkeypatch):
    find_spec = importlib.util.find_spec
    missing = ("hydra", "torch", "pyarrow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: None if name in missing else find_spec(name))


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


def test_before_there_is_hydra_what_the_overrides_name_is_checked(check, without_hydra, tmp_path):
    assert check() == []
    stage2 = {"script": "era_stage2_qwen2.5_math_7b", "STAGE1_CKPT": str(tmp_path / "none/global_step_600")}
    missing = {"MODEL_PATH": "/none", "TRAIN_FILE": "/none 1.parquet", "NNODES": "4", "CUDA_VISIBLE_DEVICES": ""}
    found = check("data.val_files='/none 2.parquet'", "trainer.save_freq=abc", "a=[", **stage2, **missing)
    for part in (
        "4 x 8 GPUs",
        "no /none/config.json",
        "no /none 1.",
        "no /none 2.",
        "save_freq is 'abc'",
        "none/global",
    ):
        assert any(part in problem for problem in found), found
    assert len(found) == 6


COUNT = "expected a whole number >= 1"
FOLLOWED = {  # override: what the check says
    "trainer.n_gpus_per_node=16": "the run wants 1 x 16 GPUs (NNODES x GPUS_PER_NODE), this machine has 8",
    "trainer.nnodes=2": "RAY_ADDRESS names no Ray cluster",
    "trainer.n_gpus_per_node=0": f"trainer.n_gpus_per_node is 0, {COUNT}",
    "trainer.n_gpus_per_node=7": "= 2048 responses do not divide among 7 GPUs",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=3": "into groups of actor_rollout_ref.rollout.t",
    f"{ACTOR}ulysses_sequence_parallel_size=3": f"do not divide into groups of {ACTOR}ulysses",
    "data.train_batch_size=32": f"=32 prompts do not divide into mini-batches of {ACTOR}ppo_mini_batch_size=256",
    "data.gen_batch_size=100": "data.gen_batch_size=100 prompts do not divide among 8 GPUs",
    "data.gen_batch_size=1024": "has 768 rows, a generation batch needs 1024",
    "data.max_response_length=30720": f"= 32768 tokens do not fit into {ACTOR}ppo_max_token_len_per_gpu=30720",
    "data.max_response_length=8193": "verl wants actor_rollout_ref.rollout.max_num_batched_tokens=10240 to hold",
    "data.max_response_length=31000": "max_position_embeddings 32768, prompts and responses need 33048. Lower data.",
    "data.val_files=[/none1.parquet,'/none 2.parquet']": "no /none 2.parquet",
    "actor_rollout_ref.model.path=/nowhere/m": "no /nowhere/m/config.json",
    "trainer.logger=bogus": "is 'bogus', expected one or a list of wandb, mlflow, swanlab, vemlp_wandb, "
    "tensorboard, console, clearml, file (LOGGER)",
    "trainer.default_local_dir=null": "trainer.default_local_dir is not set, expected a folder (CKPTS_DIR)",
    "trainer.save_freq=abc": "trainer.save_freq is 'abc', expected a whole number",
    f"{ACTOR}checkpoint.load_contents=3": "load_contents is 3, expected a list of model, optimizer, extra",
    "data.train_batch_sise=3": "train_batch_sise",
    f"{ERA}k=0.5": f"{ERA}k is 0.5",
    "a=[": "settings: a=[: ",
    f"~{LOSS[:-1]}": "an override deletes or replaces what verl needs",
    f"{ACTOR}loss_agg_mode=token_mean": "loss_agg_mode is 'token_mean', expected one of token-mean, "
    "seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm",
}


@pytest.mark.parametrize("override", FOLLOWED)
def test_overrides_are_followed_and_hide_nothing_else(check, override):
    found = check(override, "data.val_files=/none/v.parquet" if "val_files" not in override else "trainer.test_freq=5")
    assert any(FOLLOWED[override] in problem for problem in found), found
    assert "val_files" in override or any("no /none/v.parquet. Set TEST_FILE" in problem for problem in found)


def test_changes_that_fit_together_are_taken(check):
    sizes = ("data.train_batch_size=32", f"{ACTOR}ppo_mini_batch_size=32", "data.gen_batch_size=96")
    assert check(*sizes, "data.max_response_length=1024", "trainer.n_gpus_per_node=4") == []


def test_mini_batches_are_not_rounded_down(check):
    """32 responses of a mini-batch on 6 ranks would become 30 in verl."""
    sizes = ("data.train_batch_size=252", f"{ACTOR}ppo_mini_batch_size=4", "data.gen_batch_size=768")
    (found,) = check(*sizes, "trainer.n_gpus_per_node=6", f"{ERA}k=1.0")
    assert "=4 x actor_rollout_ref.rollout.n=8 = 32 responses do not divide among 6 data-parallel ranks." in found


def test_a_single_node_is_offered_where_there_are_gpus(check):
    assert "set NNODES=1" in check(NNODES="4")[0]
    assert "NNODES=1" not in check(NNODES="4", CUDA_VISIBLE_DEVICES="")[0]


def test_a_loss_of_ones_own_is_taken(preflight, compose):
    own = [f"{LOSS}loss_mode=mine", f"{ERA}k=1.0"]
    assert "loss_mode is 'mine', expected one of" in preflight.read_settings(own)[1][0]
    assert preflight.read_settings([*own, "actor_rollout_ref.model.external_lib=my.lib"])[1] == []


@pytest.mark.parametrize("present", [True, False])
def test_packages_are_those_that_the_settings_need(preflight, run_checks, monkeypatch, compose, overrides_of, present):
    lacking = {"vllm", "tensorboard", "flash_attn", *(() if present else run_checks.MODULES)}
    base = overrides_of("grpo_qwen2.5_math_7b")

    def lacks(*overrides):
        settings, _ = preflight.read_settings([*base, *overrides])
        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda name, *args: None if name in lacking else "there")
            (found,) = preflight.packages_problems(settings)
        return set(re.search(r" lacks (.*?)\. ", found)[1].split(", "))

    sdpa = "+actor_rollout_ref.model.override_config._attn_implementation=sdpa"
    padded = "actor_rollout_ref.model.use_remove_padding=False"
    assert lacks() == lacks(sdpa) == lacks(padded) == lacking
    assert lacks(sdpa, padded) == lacking - {"flash_attn"}
    assert lacks("actor_rollout_ref.rollout.name=hf") == lacking - {"vllm"}
    assert lacks("trainer.logger=[console,file]") == lacking - {"tensorboard"}
    assert lacks("trainer.logger=wandb") == lacking - {"tensorboard"}, "wandb is there"


def test_the_check_looks_at_packages_unless_the_environment_is_to_come(run_script, ready, tmp_path):
    bare = {**ready, "PYTHON": f"{tmp_path}/bare"}
    (tmp_path / "bare").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    (tmp_path / "bare").chmod(0o755)
    for switches in ({"CHECK_ONLY": "1"}, {"CHECK_ONLY": "0", "DRY_RUN": "0"}):  # 0 turns a switch off
        result = run_script("grpo_qwen2.5_math_7b", **switches, **bare)
        assert result.returncode == 1 and result.stdout == "" and "Traceback" not in result.stderr
        packages = next(line for line in result.stderr.splitlines() if "packages: " in line)
        assert {"hydra", "vllm", "flash_attn", "tensorboard", "LOGGER"} <= set(re.findall(r"\w+", packages))
    assert "packages" not in run_script("grpo_qwen2.5_math_7b", CHECK_ONLY="1", ENVIRONMENT_TO_COME="1", **bare).stderr


def test_a_python_that_is_not_there(run_script):
    result = run_script("grpo_qwen2.5_math_7b", PYTHON="nope/python")
    expected = r"error: there is no Python at /.*/nope/python\. Activate .*\n"
    assert result.returncode == 1 and re.fullmatch(expected, result.stderr)
    result = run_script("grpo_qwen2.5_math_7b", PYTHON="/nope/python", DRY_RUN="1")
    assert result.returncode == 0 and "note: there is no Python at /nope/python\n" in result.stderr


def test_a_python_that_ray_cannot_start_is_named(preflight, monkeypatch):
    for folder, odd in (("my clone", " "), ("(me)", "()"), ("it's", "'"), ("Prüf-Ordner", "")):
        monkeypatch.setattr(preflight.sys, "executable", f"/home/{folder}/bin/python3.11")
        found = preflight.python_problems()
        assert len(found) == bool(odd) and all(folder in problem and repr(odd) in problem for problem in found)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"max_position_embeddings": "x"}'])
def test_a_damaged_model_configuration(check, tmp_path, content):
    (tmp_path / "model/config.json").write_bytes(content)
    assert "not a model configuration" in check()[0]


def test_damaged_files(check, tmp_path):
    (tmp_path / "model/model.safetensors").unlink()
    assert "holds no weights" in check()[0]
    (tmp_path / "model/model.safetensors").touch()
    whole = (tmp_path / "data.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    assert "cut.parquet is not a whole parquet file" in check(TRAIN_FILE=str(tmp_path / "cut.parquet"))[0]
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [1] * 768}), tmp_path / "other.parquet")
    assert "lacks verl's columns data_source, reward_model" in check(TRAIN_FILE=str(tmp_path / "other.parquet"))[0]


# Checkpoints: stage 2, and resuming


def write_checkpoint(folder, world_size, leave_out=()):
    names = [
        f"actor/{kind}_world_size_{world_size}_rank_{rank}.pt"
        for kind in ("model", "optim", "extra_state")
        for rank in range(world_size)
    ]
    for name in {*names, "data.pt"} - {*leave_out}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / name, "w") as archive:  # the format of torch.save
            archive.writestr("archive/data.pkl", b"tensor")


def test_stage_2_starts_from_a_whole_stage_1_checkpoint(check, tmp_path):
    def stage2(checkpoint="global_step_600", **env):
        return check(script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=str(tmp_path / "stage1" / checkpoint), **env)

    assert f"checkpoint: no {tmp_path}/stage1/global_step_600. Run stage 1" in stage2()[0]
    assert "is not named global_step_" in stage2("last")[0]
    write_checkpoint(tmp_path / "stage1/global_step_600", 8)
    assert stage2() == stage2("global_step_600/") == []
    assert "was written by 8 GPUs and loads only on as many; this run has 4" in stage2(GPUS_PER_NODE="4")[0]
    lost = "actor/optim_world_size_8_rank_3.pt"
    write_checkpoint(tmp_path / "stage1/global_step_590", 8, leave_out=["data.pt", lost])
    said = f"global_step_590 is incomplete: 2 of 25 files are missing or cut off, such as {lost}"
    assert said in stage2("global_step_590")[0]
    shard = tmp_path / "stage1/global_step_600/actor/model_world_size_8_rank_7.pt"
    shard.write_bytes(shard.read_bytes()[:-10])
    assert f"is incomplete: 1 of 25 files are missing or cut off, such as actor/{shard.name}" in stage2()[0]


def test_stage_2_resumes_from_its_own_checkpoint(check, overrides_of, ready, tmp_path):
    def stage2():
        return check(script="era_stage2_qwen2.5_math_7b", STAGE1_CKPT=str(tmp_path / "stage1/global_step_600"))

    write_checkpoint(tmp_path / "ckpts/global_step_610", 8)
    (tmp_path / "ckpts/latest_checkpointed_iteration.txt").write_text("610")
    assert "trainer.resume_mode=resume_path" not in overrides_of("era_stage2_qwen2.5_math_7b", **ready)
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
    for content, said in {
        b"": "says ''",  # killed between verl's opening and writing it
        b"\xff\xfe1": "latest_checkpointed_iteration.txt says ",
        b"40": "there is no such checkpoint beside it",  # verl would start from scratch
        b"30": "global_step_30 is incomplete",
    }.items():
        tracker.write_bytes(content)
        assert said in check()[0]
    write_checkpoint(tmp_path / "ckpts/global_step_600", 8)
    tracker.write_text("600")
    assert "nothing is left to do. Raise TOTAL_STEPS" in check()[0], "verl would do one step more"
    assert check(TOTAL_STEPS="700") == []
    tracker.unlink()
    tracker.mkdir()
    assert "latest_checkpointed_iteration.txt cannot be read: Is a directory" in check()[0]


def test_clusters(run_checks, monkeypatch):
    monkeypatch.setattr(run_checks, "cluster_gpus", lambda address: {"auto": [8, 8, 0], "10.0.0.1:6379": None}[address])

    def problems(address, nnodes=2, gpus_per_node=8, environment_to_come=False):
        return run_checks.cluster_problems(address, "all of them", nnodes, gpus_per_node, environment_to_come)

    assert problems("auto") == []
    assert "have 8, 8, 0" in problems("auto", 1, 16)[0], "16 GPUs on one node are not 2 x 8"
    assert "no Ray cluster answers at RAY_ADDRESS=10.0.0.1:6379" in problems("10.0.0.1:6379")[0]
    assert "is a dashboard's address" in problems("http://127.0.0.1:8265")[0]
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *args: name != "ray" and find_spec(name, *args) or None
    )
    assert "has no ray" in problems("auto")[0]
    assert problems("auto", environment_to_come=True) == []


def test_a_cluster_that_is_not_there_is_named_at_once(run_checks, capfd):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for form in (address, f"ray://{address}", "127.0.0.1:99999999"):
            assert run_checks.cluster_gpus(form) is None
            assert capfd.readouterr().err == f"asking the Ray cluster at {form} ...\n"


# A Ray cluster and Slurm


@pytest.fixture
def ray_cluster(tmp_path_factory):
    """A Ray cluster of this machine, started elsewhere than the run, without its variables in the environment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    folder = tmp_path_factory.mktemp("r")
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    command = [os.path.join(os.path.dirname(sys.executable), "ray"), "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=2", "--num-gpus=2", "--include-dashboard=false"]
    command += ["--disable-usage-stats", "--object-store-memory=80000000", f"--plasma-directory={folder}"]
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
def test_an_existing_cluster_gets_the_loggers_environment(ray_cluster, patched_verl, run_checks, tmp_path):
    if not (
        patched_verl / "recipe/dapo"
    ).exists():  # a tree from the source package lacks a name that the probe replaces
        (tmp_path / "recipe/dapo").mkdir(parents=True)
        (tmp_path / "recipe/dapo/main_dapo.py").write_text("run_ppo = None\n")
    assert run_checks.cluster_gpus(ray_cluster) == [2]
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    given = {
        "TENSORBOARD_DIR": "/shared/t b",
        "VERL_FILE_LOGGER_PATH": "/shared/m.jsonl",
        "WANDB_MODE": "offline",
        "OTHER": "1",
    }
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{patched_verl}:{tmp_path}", **given}
    # As `ray job submit --runtime-env-json` hands them over: the same variable twice is an error of Ray's by default.
    job = {"runtime_env": {"env_vars": {"TENSORBOARD_DIR": "/shared/t b"}}, "metadata": {}}
    command = [sys.executable, probe, f"--config-path={patched_verl}/recipe/era/config", "--config-name=era_math"]
    command += ["trainer.experiment_name=probe", f"trainer.default_local_dir={tmp_path}/run of a probe"]
    for more in ({}, {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}):
        result = subprocess.run(
            command,
            cwd=patched_verl,
            env={**env, "RAY_ADDRESS": ray_cluster, **more},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert result.returncode == 0, result.stderr
        seen = re.search(r"^task (\{.*\}) probe$", result.stdout, re.MULTILINE)
        assert seen and eval(seen[1]) == {**given, "NCCL_DEBUG": "WARN", "OTHER": None}, result.stdout
    assert list((tmp_path / "run of a probe").glob("hydra/*/.hydra/config.yaml"))
    assert not (patched_verl / "outputs").exists()


STAND_INS = {
    "scontrol": '[[ "$*" == "show hostnames node[1-4]" ]] && printf "%s\\n" node1 node2 node3 node4 || exit 1',
    "srun": """line=$(printf " %q" "$@"); echo "srun$line" >> "$RECORD"
        while [[ "$1" == --* ]]; do shift; done; exec "$@" """,
    "hostname": 'echo "fe80::1 10.0.0.1 192.168.0.1"',
    "ray": '[[ "$*" != *"${RAY_FAILS:-never}"* ]] || exit 7; while true; do sleep 0.1; done',
    # The steps that start Ray run in the background: nobody has joined before they are there.
    "python": """[[ "$1" == -c ]] || exit 9
        while [[ "$*" == *Alive* ]] && (($(grep -c "/ray start" "$RECORD") < 4)); do sleep 0.1; done
        echo "${JOINED:-4}" """,
}
RUN_PROBE = """{ printf "run RAY_ADDRESS=%s NNODES=%s GPUS_PER_NODE=%s" "$RAY_ADDRESS" "$NNODES" "$GPUS_PER_NODE"
    printf " PYTHON=%s MODEL_PATH=%s" "$PYTHON" "$MODEL_PATH"; printf " <%s>" "$@"; echo; } >> "$RECORD"
exit "${STATUS:-0}"
"""


@pytest.fixture
def slurm(patched_verl, tmp_path):
    """slurm(*arguments, **environment): the job script on the first of its nodes, with stand-ins for Slurm and Ray.

    srun runs what it is given, here; ray start and the count of nodes are recorded and answered.
    """
    tools = tmp_path / "environment/bin"
    tools.mkdir(parents=True)
    record = tmp_path / "record"
    for name, body in STAND_INS.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    checkout = tmp_path / "check out"
    (checkout / "recipe/era").mkdir(parents=True)
    (checkout / "recipe/era/run_probe.sh").write_text(RUN_PROBE)
    job = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RECORD": str(record),
        "PYTHON": str(tools / "python"),
        "SLURM_JOB_ID": "1",
        "SLURM_SUBMIT_DIR": str(checkout),
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_JOB_NODELIST": "node[1-4]",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_CPUS_ON_NODE": "64",
    }

    def submit(*arguments, **env):
        record.write_text("")
        # It returns when the last process has closed its output: none of Ray's is left behind.
        command = ["bash", patched_verl / "recipe/era/slurm_ray.sbatch", *arguments]
        result = subprocess.run(command, cwd="/", env={**job, **env}, capture_output=True, text=True, timeout=900)
        return result, record.read_text().splitlines()

    return submit


def test_slurm_starts_ray_on_all_nodes_and_then_the_run(slurm, tmp_path):
    tools = tmp_path / "environment/bin"
    result, record = slurm(
        "recipe/era/run_probe.sh", "data.train_files=[a b]", "x='y'", MODEL_PATH="/m m", RAY_ADDRESS="left", STATUS="3"
    )
    assert result.returncode == 3, "the run's own status: " + result.stderr
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
    expected = f"run RAY_ADDRESS=10.0.0.1:6379 NNODES=4 GPUS_PER_NODE=8 PYTHON={tools}/python MODEL_PATH=/m m"
    assert record[run] == f"{expected} <data.train_files=[a b]> <x='y'>"
    # The steps that start Ray run beside each other and beside this one; only these have an order.
    (step,) = (i for i, line in enumerate(record) if line.startswith("srun") and "run_probe.sh" in line)
    asked = [i for i, line in enumerate(record) if line.startswith("srun") and "Alive" in line]
    assert "--nodelist=node1" in record[step] and asked and asked[-1] < step < run


def test_slurm_ends_where_ray_does_not_start(slurm):
    result, record = slurm("run_probe.sh", JOINED="3", RAY_FAILS="--head")
    assert result.returncode == 1 and "Ray ended on a node" in result.stderr
    assert not any(line.startswith("run ") for line in record)
    result, record = slurm("run_probe.sh", JOINED="3", RAY_START_SECONDS="0")
    assert result.returncode == 1 and "only 3 of 4 nodes joined the Ray cluster at 10.0.0.1:6379" in result.stderr
    assert not any(line.startswith("run ") for line in record)


SLURM_PROBLEMS = [  # what is said, arguments, environment
    ("with the name of a run script: run_probe.sh", (), {}),
    ("no recipe/era/run_none.sh", ("run_none.sh",), {}),
    ("this is a Slurm job: sbatch", ("run_probe.sh",), {"SLURM_JOB_ID": ""}),
    ("there is no Python at /none", ("run_probe.sh",), {"PYTHON": "/none"}),
    ("is not of an environment with Ray", ("run_probe.sh",), {"PYTHON": "/bin/sh"}),
    ("it lacks what Slurm tells a job (SLURM_JOB_NODELIST)", ("run_probe.sh",), {"SLURM_JOB_NODELIST": ""}),
]


def test_slurm_says_what_is_wrong(slurm):
    for said, arguments, env in SLURM_PROBLEMS:
        result, record = slurm(*arguments, **env)
        assert result.returncode == 1 and result.stderr.startswith("error: ") and said in result.stderr, result.stderr
        assert record == [], "nothing was started"
