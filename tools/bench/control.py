# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time of a step of FastTD3's train.py and of FastSAC-ERA's, as ratios, and the activation's share of it.

    python -m tools.bench.control --checkout checkouts/fasttd3 [--turns 3] [--device cuda] [--csv FILE]

Each turn trains once, for some hundred steps of the real train.py with upstream's networks, and takes the time between
the first row of its log, before which everything is compiled, and the last; the environments' time is part of it.

Removing FastTD3's delay doubles the policy updates, with or without ERA, so all arms are compared with FastTD3 without
delay too. The activation (ln sigma from the head's output, and its gradient in a policy update) is also measured alone,
for each target action and each policy update of a step. OMP_NUM_THREADS sets the number of threads.
"""

import csv
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import gymnasium
import torch

from era import continuous
from tools.bench import tables

ARMS = {
    "fasttd3": ("FastTD3", ["--agent", "fasttd3"]),
    "no-delay": ("FastTD3 without delay", ["--agent", "fasttd3", "--policy_frequency", "1"]),
    "era": ("FastSAC-ERA", ["--agent", "fastsac_era"]),
    "era-delta": ("FastSAC-ERA, learned delta", ["--agent", "fastsac_era", "--era_learn_delta"]),
    "era-tanh": ("FastSAC-ERA, tanh", ["--agent", "fastsac_era", "--era_distribution", "tanh"]),
    "era-clipped": ("FastSAC-ERA, clipped", ["--agent", "fastsac_era", "--era_distribution", "clipped"]),
    "era-batch": ("FastSAC-ERA, batch level", ["--agent", "fastsac_era", "--era_level", "batch"]),
}
LOG_INTERVAL, UPDATES = 100, 2  # train.py's
TARGET, LOW, HIGH = -0.5, -8.0, 0.0
COLUMNS = {
    "ms": ("seconds", 1e3, 1),
    "x FastTD3": ("ratio", 1, 3),
    "p20-p80": ("ratio", 1, 3, True),
    "x no delay": ("no_delay_ratio", 1, 3),
    "alone, %": ("activation_share", 100, 2),
}


def seconds_per_step(args, mode, flags):
    """Of one training."""
    sizes = {
        "env_name": f"Gym-{args.task}",
        "num_envs": args.num_envs,
        "num_eval_envs": 1,
        "batch_size": args.batch_size,
        "buffer_size": 1000,
        "num_updates": UPDATES,
        "total_timesteps": args.steps + LOG_INTERVAL + 1,
        "eval_interval": 0,
        "save_interval": 0,
        "render_interval": 0,
        "csv_path": "train.csv",
    }
    switches = ["--no_use_wandb", "--compile" if mode == "compiled" else "--no_compile"]
    switches += ["--cuda" if args.device == "cuda" else "--no_cuda"]
    command = [sys.executable, args.checkout / "fast_td3/train.py", *switches, *flags]
    command += [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}\nerror: train.py ended with exit code {done.returncode}; its output is above.")
        with open(Path(folder) / "train.csv", newline="") as file:
            first, *_, last = csv.DictReader(file)
    return (float(last["seconds"]) - float(first["seconds"])) / (int(last["global_step"]) - int(first["global_step"]))


def activation_seconds(args, mode):
    """Of a step's calls of the activation."""
    dim = gymnasium.make(args.task).action_space.shape[0]
    pre_std = torch.randn(args.batch_size, dim, device=args.device, requires_grad=True)
    gradient = torch.randn_like(pre_std)
    log_std = partial(continuous.state_level_log_std, target_entropy=dim * TARGET, log_std_min=LOW, log_std_max=HIGH)
    log_std = torch.compile(log_std) if mode == "compiled" else log_std

    def calls():
        for _ in range(UPDATES):
            log_std(pre_std)
            torch.autograd.grad(log_std(pre_std), pre_std, gradient)

    calls()
    return tables.seconds_of(calls, args.device, 100)


def main():
    parser = tables.parser(__doc__, turns=3)
    tables.add_checkout(parser, "FastTD3", "fast_td3/era_training.py")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager"])
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=list(ARMS), help="beside FastTD3 with and without delay"
    )
    parser.add_argument(
        "--task", default="Humanoid-v5", help="of Gymnasium (default: Humanoid-v5, 17 action dimensions)"
    )
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=LOG_INTERVAL, help=f"of a turn, a multiple of {LOG_INTERVAL}")
    args = parser.parse_args()
    names = [name for name in ARMS if name in ("fasttd3", "no-delay", *args.arms)]
    machine, written = tables.machine(args.device), []
    for mode in args.modes:
        arms = {name: partial(seconds_per_step, args, mode, ARMS[name][1]) for name in names}
        arms["activation"] = partial(activation_seconds, args, mode)
        seconds = tables.take_turns(arms, args.turns)
        alone = seconds.pop("activation")
        table = tables.ratios(seconds, dict.fromkeys(names, "fasttd3"))
        table = table.join(
            tables.ratios(seconds, dict.fromkeys(names, "no-delay"), "no_delay_ratio").filter(like="no_")
        )
        shares = {name: [part / step for part, step in zip(alone, seconds[name])] for name in names if "era" in name}
        table = table.join(tables.spread(tables.pd.DataFrame(shares), "activation_share"))
        title = f"{args.task}, {args.num_envs} environments, batch {args.batch_size}, {mode}; the activation alone"
        tables.show(title, table.rename(index={name: title for name, (title, _) in ARMS.items()}), COLUMNS)
        shape = {"task": args.task, "num_envs": args.num_envs, "batch_size": args.batch_size, "mode": mode}
        written.append(table.assign(**shape, steps=args.steps, turns=args.turns, **machine))
        tables.write_csv(args.csv, written)


if __name__ == "__main__":
    main()
