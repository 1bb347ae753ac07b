"""Runs of FastTD3's real scripts on a CPU, each in a folder of its own."""

import csv
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
# Logging begins at step 100 and happens every 100 steps.
TINY = shlex.split(
    "--no_cuda --no_use_wandb --no_compile --num_envs 2 --total_timesteps 210 --eval_interval 100 --render_interval 0 "
    "--save_interval 100 --batch_size 64 --buffer_size 256 --critic_hidden_dim 32 --actor_hidden_dim 32 "
    "--num_atoms 21 --v_min -30 --v_max 5"
)
WALK = ["--env_name", "h1-walk-v0", *TINY]


class Run:
    """A script in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder

    def wait(self, ok: bool = True, limit: float = 900) -> "Run":
        end = time.monotonic() + limit
        while not (self.folder / "exit_code").exists():
            assert time.monotonic() < end, f"{self.folder}: not done after {limit} s\n{self.err}"
            time.sleep(0.02)
        self.code = int((self.folder / "exit_code").read_text())
        assert not ok or self.code == 0, f"{self.folder}: ended with {self.code}\n{self.out}\n{self.err}"
        return self

    @property
    def out(self) -> str:
        return (self.folder / "stdout.txt").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr.txt").read_text()

    def checkpoint_path(self, step="final") -> Path:
        (path,) = (self.folder / "models").glob(f"*_{step}.pt")
        return path

    def checkpoint(self, step="final") -> dict:
        return torch.load(self.checkpoint_path(step), weights_only=False)

    def witness(self, name: str = "witness.pt") -> dict:
        return torch.load(self.folder / name, weights_only=False)

    def rows(self) -> list:
        """The rows of the curves, without their empty cells."""
        (path,) = (self.folder / "logs").glob("*.csv")
        with open(path, newline="") as file:
            return [{name: float(value) for name, value in row.items() if value != ""} for row in csv.DictReader(file)]


class Scripts:
    def __init__(self, work: Path):
        self.work, self.number = work, 0
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE / "stubs"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHDYNAMO_INLINE_INBUILT_NN_MODULES": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        command = [sys.executable, HERE / "training_server.py"]
        self.server = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, text=True)

    def start(self, tree: Path, *args, script: str = "train.py", compiled: bool = False, **env: str) -> Run:
        """Of a flag given twice the last one counts."""
        self.number += 1
        folder = self.work / str(self.number)
        folder.mkdir()
        argv = [str(tree / "fast_td3" / script), *map(str, args)]
        job = {"argv": argv, "cwd": str(folder), "env": env, "compiled": compiled}
        print(json.dumps(job), file=self.server.stdin, flush=True)
        return Run(folder)
