"""Runs of TD-MPC2, as small as they go, in processes of their own."""

import importlib.util
import os
import subprocess
import sys

import pytest

TINY = (
    *("enc_dim=16", "mlp_dim=16", "latent_dim=16", "num_q=2", "batch_size=8"),
    *("num_samples=16", "num_elites=4", "num_pi_trajs=2", "iterations=1", "eval_episodes=1"),
    *("device=cpu", "compile=false", "enable_wandb=false", "hydra.run.dir=."),
)


def require():
    """Skip the calling module where packages are missing."""
    missing = [name for name in ("torchrl", "dm_control", "hydra") if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"needs the packages of TD-MPC2, {', '.join(missing)}: make test-control", allow_module_level=True)


def run(tree, script, *arguments, folder):
    """A script of upstream or of ours, with its arguments, in this folder."""
    environment = os.environ | {"PYTHONPATH": str(tree / "tdmpc2"), "OMP_NUM_THREADS": "1", "MUJOCO_GL": "disable"}
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900)
