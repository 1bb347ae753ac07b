# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Runs of FastTD3's real scripts on a CPU, each in a fork of this process, as imports outlast a tiny run."""

import csv
import multiprocessing
import os
import random
import runpy
import shlex
import sys
from pathlib import Path

import gymnasium  # noqa: F401
import numpy as np
import stable_baselines3.common.vec_env  # noqa: F401
import tensordict  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing
import tyro  # noqa: F401
import wandb  # noqa: F401
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

STUBS = Path(__file__).with_name("stubs")
# Logging begins at step 100 and happens every 100 steps.
TINY = shlex.split(
    "--env_name h1-walk-v0 --no_cuda --no_use_wandb --no_compile --num_envs 2 --total_timesteps 210 "
    "--eval_interval 100 --render_interval 0 --save_interval 100 --batch_size 64 --buffer_size 256 "
    "--critic_hidden_dim 32 --actor_hidden_dim 32 --num_atoms 21 --v_min -30 --v_max 5"
)


class Run:
    """A script that has ended, in a folder of its own."""

    def __init__(self, folder: Path, code: int):
        self.folder, self.code = folder, code
        self.out, self.err = ((folder / f"{name}.txt").read_text() for name in ("stdout", "stderr"))

    def checkpoint_path(self, step="final") -> Path:
        (path,) = (self.folder / "models").glob(f"*_{step}.pt")
        return path

    def checkpoint(self, step="final") -> dict:
        return torch.load(self.checkpoint_path(step), weights_only=False)

    def witness(self, name: str = "witness.pt") -> dict:
        """What a training script does not save."""
        return torch.load(self.folder / name, weights_only=False)

    def rows(self) -> list:
        """The rows of the curves, without their empty cells."""
        (path,) = (self.folder / "logs").glob("*.csv")
        with open(path, newline="") as file:
            return [{name: float(value) for name, value in row.items() if value != ""} for row in csv.DictReader(file)]


def run(folder: Path, tree: Path, *arguments, script: Path | str = "train.py", ok: bool = True, **variables) -> Run:
    """Run a script to its end, in this folder. Of a flag that comes twice the last one counts."""
    words = [str(tree / "fast_td3" / script), *map(str, arguments)]
    process = multiprocessing.get_context("fork").Process(target=in_child, args=(folder, tree, words, variables))
    process.start()
    process.join(900)
    assert process.exitcode is not None, f"{folder}: not done after 900 s"
    ended = Run(folder, process.exitcode)
    assert not ok or ended.code == 0, f"{folder}: ended with {ended.code}\n{ended.out}\n{ended.err}"
    return ended


def in_child(folder: Path, tree: Path, words: list, variables: dict) -> None:
    """Run the script of `words` in this process, a fork, and write its output and its witness into the folder."""
    os.chdir(folder)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = open(f"{name}.txt", "w", buffering=1)  # noqa: SIM115
        os.dup2(stream.fileno(), descriptor)
        setattr(sys, name, stream)
    os.environ.update(variables, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    torch.set_num_threads(1)
    beside = {path.stem for path in (tree / "fast_td3").iterdir()}
    for name in list(sys.modules):  # which another test may have imported
        if name.split(".")[0] in beside:
            del sys.modules[name]
    sys.path[:0] = [str(Path(words[0]).parent), str(STUBS)]
    sys.argv = words
    optimizers = {}  # in the order of their first steps: the critic's, then the actor's
    register_optimizer_step_post_hook(lambda optimizer, *_: optimizers.setdefault(optimizer))
    if words[0].endswith("train_multigpu.py"):
        two_ranks_on_cpu(optimizers)
    runpy.run_path(words[0], run_name="__main__")
    save_witness(optimizers, "witness.pt")


def save_witness(optimizers, path: str) -> None:
    """Write what a training script does not save: its optimizers, their steps and parameters, and random states."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    what = {
        "optimizers": states,
        "steps": [int(state["state"][0]["step"]) for state in states],
        "parameters": [[p.detach() for group in o.param_groups for p in group["params"]] for o in optimizers],
        "random": (torch.get_rng_state(), np.random.get_state(), random.getstate()),
    }
    torch.save(what, path)


def two_ranks_on_cpu(optimizers) -> None:
    """Let train_multigpu.py, which needs NCCL and GPUs, run as two processes on a CPU."""

    class OnCpu(DistributedDataParallel):
        def __init__(self, module, device_ids):
            super().__init__(module)

    def all_reduce(tensor, op=dist.ReduceOp.SUM, **kwargs):  # gloo has no average
        if op != dist.ReduceOp.AVG:
            return reduce(tensor, op=op, **kwargs)
        reduce(tensor, **kwargs)
        tensor /= dist.get_world_size()

    def rank(number, main, args):
        os.environ["WALK_RADIUS"] = "0.1" if number == 0 else "1.5"  # rank 0's episodes last a step
        main(number, *args)
        save_witness(optimizers, f"witness.{number}.pt")

    reduce, initialize = dist.all_reduce, dist.init_process_group
    dist.all_reduce = all_reduce
    dist.init_process_group = lambda backend, **kwargs: initialize("gloo", **kwargs)
    torch.nn.parallel.DistributedDataParallel = OnCpu
    torch.cuda.device_count, torch.cuda.set_device = lambda: 2, lambda number: None
    torch.multiprocessing.spawn = lambda main, args, nprocs: torch.multiprocessing.start_processes(
        rank, (main, args), nprocs, start_method="fork"
    )
