"""The stage-1 script: its command, and what it says where something is missing."""

import json
import os
import shlex
import subprocess
import sys

import pytest

SCRIPT = "recipe/era/run_era_stage1_qwen2.5_math_7b.sh"


@pytest.fixture
def stage1(patched_verl, tmp_path):
    def run(*overrides, **env):
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, **env}
        return subprocess.run(["bash", patched_verl / SCRIPT, *overrides], cwd=tmp_path, env=env, capture_output=True, text=True)

    return run


def test_dry_run_prints_the_command_alone(stage1, patched_verl, tmp_path):
    result = stage1("trainer.save_freq=50", DRY_RUN="1", TRAIN_FILE="/data/a b.parquet")
    assert result.returncode == 0, result.stderr
    words = shlex.split(result.stdout)
    assert words[:2] == ["cd", str(patched_verl)] and words[3:6] == [sys.executable, "-m", "recipe.dapo.main_dapo"]
    for word in ("data.train_files='/data/a b.parquet'", "actor_rollout_ref.actor.era.top_k=20", "trainer.nnodes=4", "trainer.n_gpus_per_node=8", "trainer.total_training_steps=600", "trainer.save_freq=50"):
        assert word in words


def test_paths_reach_hydra_as_they_are(stage1, tmp_path):
    """Relative to the caller, and whatever hydra's grammar makes of the characters."""
    OverridesParser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser
    result = stage1(DRY_RUN="yes", TRAIN_FILE="a,b (1)=é'\\.parquet", MODEL_PATH="/m/{x}")
    command = result.stdout.split(" && ", 1)[1].strip()
    words = subprocess.run(["bash", "-c", f"set -- {command}; printf '%s\\0' \"$@\""], capture_output=True, text=True).stdout.split("\0")[3:-1]
    words = [word for word in words if not word.startswith("--")]
    values = {override.key_or_group: override.value() for override in OverridesParser.create().parse_overrides(words)}
    assert values["data.train_files"] == f"{tmp_path}/a,b (1)=é'\\.parquet"
    assert values["actor_rollout_ref.model.path"] == "/m/{x}"


def test_everything_missing_is_named_at_once(stage1):
    result = stage1(CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for missing in ("GPUs: the run wants 4 x 8 GPUs", "Qwen2.5-Math-7B", "dapo-math-17k.parquet", "aime-2024.parquet", "nothing was changed"):
        assert missing in result.stderr, result.stderr


def test_preflight_passes_where_all_is_there(patched_verl, tmp_path):
    model, data = tmp_path / "model", tmp_path / "train.parquet"
    model.mkdir()
    data.touch()
    (tmp_path / "tree/recipe/era").mkdir(parents=True)
    (tmp_path / "tree/recipe/dapo").mkdir()
    (tmp_path / "tree/recipe/dapo/main_dapo.py").touch()
    preflight = tmp_path / "tree/recipe/era/preflight.py"
    preflight.write_text((patched_verl / "recipe/era/preflight.py").read_text())

    def check(positions=32768, gpus="0,1", nodes=1, per_node=2, trajectories=2048, text=None, more=(), **env):
        (model / "config.json").write_text(text or json.dumps({"max_position_embeddings": positions}))
        command = [sys.executable, preflight, "--nnodes", nodes, "--gpus-per-node", per_node, "--model", model, "--context-length", 10240, "--trajectories", trajectories, "--file", data, *more]
        result = subprocess.run(list(map(str, command)), env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": gpus, **env}, capture_output=True, text=True)
        assert "Traceback" not in result.stderr
        return result.returncode, result.stderr

    assert check() == (0, "")
    assert check(positions=4096)[0] == 1 and "max_position_embeddings 4096" in check(positions=4096)[1]
    assert "not a model configuration" in check(text="{")[1]
    assert "this machine has 1" in check(gpus="0")[1]
    assert "RAY_ADDRESS names no Ray cluster" in check(nodes=2)[1]
    assert "do not divide" in check(trajectories=2047)[1]
    assert "argument --gpus-per-node: '0' is not a whole number" in check(per_node=0)[1]
    assert "is a dashboard's address" in check(RAY_ADDRESS="http://127.0.0.1:8265")[1]
    (tmp_path / "no_ray").mkdir()
    (tmp_path / "no_ray/sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'ray' else find(name, *a)\n"
    )
    without_ray = {"RAY_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(tmp_path / "no_ray")}
    assert "has no ray" in check(nodes=4, **without_ray)[1]
    assert check(nodes=4, more=["--environment-to-come"], **without_ray) == (0, "")
