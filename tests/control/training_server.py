"""Runs FastTD3's scripts in forks of one process, because their imports take longer than a tiny run.

Reads jobs from stdin, one JSON object per line: {"argv": [script, ...], "cwd": folder, "env": {...}, "compiled": bool}.
Two run at a time. Each leaves in its folder stdout.txt, stderr.txt, witness.pt (what the training script does not save)
and, when it is done, exit_code.
"""

import json
import multiprocessing
import os
import random
import runpy
import sys
import time
import traceback
from pathlib import Path

import gymnasium  # noqa: F401
import numpy as np
import stable_baselines3.common.vec_env  # noqa: F401
import tensordict  # noqa: F401
import torch
import torch._dynamo.utils
import torch.distributed as dist
import torch.multiprocessing
import tqdm  # noqa: F401
import tyro  # noqa: F401
import wandb  # noqa: F401
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

fork = multiprocessing.get_context("fork")


class Witness:
    """Counts each optimizer's steps, in the order of their first steps: the critic's, then the actor's."""

    def __init__(self, hooked: bool):
        self.optimizers, self.steps = [], []
        if hooked:
            register_optimizer_step_post_hook(self.count)

    def count(self, optimizer, *_):
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
            self.steps.append(0)
        self.steps[[optimizer is known for known in self.optimizers].index(True)] += 1

    def save(self, path: str):
        what = {
            "steps": self.steps,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "parameters": [
                [p.detach() for group in optimizer.param_groups for p in group["params"]]
                for optimizer in self.optimizers
            ],
            "random": (torch.get_rng_state(), np.random.get_state(), random.getstate()),
            "graph_breaks": dict(torch._dynamo.utils.counters["graph_break"]),
        }
        torch.save(what, path)


def two_ranks_on_cpu(witness: Witness) -> None:
    """Lets train_multigpu.py, which needs NCCL and GPUs, run as two processes on a CPU."""

    class OnCpu(DistributedDataParallel):
        def __init__(self, module, device_ids):
            super().__init__(module)

    def all_reduce(tensor, op=dist.ReduceOp.SUM, **kwargs):  # gloo has no average
        if op != dist.ReduceOp.AVG:
            return reduce(tensor, op=op, **kwargs)
        reduce(tensor, **kwargs)
        tensor /= dist.get_world_size()

    def rank(number, main, args):
        os.environ["WALK_RADIUS"] = os.environ.get(f"WALK_RADIUS_{number}", "1.5")
        main(number, *args)
        witness.save(f"witness.{number}.pt")

    reduce, initialize = dist.all_reduce, dist.init_process_group
    dist.all_reduce = all_reduce
    dist.init_process_group = lambda backend, **kwargs: initialize("gloo", **kwargs)
    torch.nn.parallel.DistributedDataParallel = OnCpu
    torch.cuda.device_count, torch.cuda.set_device = lambda: 2, lambda number: None
    torch.multiprocessing.spawn = lambda main, args, nprocs: torch.multiprocessing.start_processes(
        rank, (main, args), nprocs, start_method="fork"
    )


def compile_only_what_era_touches() -> None:
    """Dynamo's graphs do not depend on the backend; this one needs no C compiler. AdamW would take most of the time."""
    compile_ = torch.compile
    torch.compile = lambda function, mode: (
        compile_(function, backend="aot_eager") if function.__name__ in ("update_pol", "explore") else function
    )
    torch.optim.AdamW.step = torch._dynamo.disable(torch.optim.AdamW.step)


def run(job):
    os.chdir(job["cwd"])
    for fd, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.environ.update(job["env"])
    witness = Witness(hooked=not job["compiled"])
    if job["compiled"]:
        compile_only_what_era_touches()
    if job["argv"][0].endswith("train_multigpu.py"):
        two_ranks_on_cpu(witness)
    sys.argv = job["argv"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as Python does for a script
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        witness.save("witness.pt")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    Path("exit_code.tmp").write_text(str(code))
    os.rename("exit_code.tmp", "exit_code")


torch.set_num_threads(1)
running = []
for line in sys.stdin:
    while len(running) == 2:
        time.sleep(0.02)
        running = [process for process in running if process.is_alive()]
    running.append(fork.Process(target=run, args=(json.loads(line),)))
    running[-1].start()
