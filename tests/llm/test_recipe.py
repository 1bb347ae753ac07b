# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's LLM runs: what each script sets and starts, and a Ray cluster's environment."""

import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest
from paper_settings import SHARED

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
    preflight.verl_check()(config)


def test_dry_run_prints_the_command_alone(dry_run, patched_verl, home):
    words = dry_run("era_stage1_qwen2.5_math_7b", "trainer.save_freq=50")
    folder = f"{home}/verl/ckpts/ERA/era_stage1_qwen2.5_math_7b"
    loggers = [f"TENSORBOARD_DIR={folder}/tensorboard", f"VERL_FILE_LOGGER_PATH={folder}/metrics.jsonl"]
    assert words[:8] == ["cd", str(patched_verl), "and", *loggers, sys.executable, "-m", "recipe.era.main_era"]
    assert words[-1] == "trainer.save_freq=50", "the user's overrides come last and win"


@pytest.mark.parametrize("path", ["/folder/", "/two\\\\", "/a\\'b\\", '/a"b`c$d, {x} (1)=é', "relative"])
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
