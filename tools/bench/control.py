# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time of a step of the training scripts of FastTD3 and of the paper's PPO, with ERA and without, as ratios.

    python -m tools.bench.control fasttd3 --checkout checkouts/fasttd3 [--turns 3] [--csv FILE] [flags of train.py]
    python -m tools.bench.control ppo --checkout checkouts/drl-code-pytorch [flags of PPO_continuous_main.py]

Each turn trains once and takes the time between the first row of its log and the last, so neither imports nor
compilation count; the environments' time is part of it. PPO's is CPU time. Flags of the script go to all arms, such as
--batch_size 4096 --compile --cuda, or PPO's --fast. OMP_NUM_THREADS sets the number of threads.

Removing FastTD3's delay doubles the policy updates, with or without ERA, so all arms are compared with FastTD3 without
delay too (second_ratio). PPO's arm `head` has ERA's layer and no activation, so ERA's second_ratio is the activation's
own cost, and its ratio all that PPO-ERA adds; `eapo` is EAPO.
"""

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tools.bench import tables


class Host(NamedTuple):
    """How a host's script trains. The first arm is the baseline, the second that of second_ratio.

    Attributes:
        seconds: the column of train.csv that is the clock.
        steps: how many a turn measures, between the first row and the last.
        before: the steps before the first row. `steps_flag` gets the sum of both.
    """

    script: str
    seconds: str
    arms: dict[str, list[str]]
    flags: str
    steps_flag: str
    steps: int
    before: int


ERA = ["--agent", "fastsac_era"]
HOSTS = {
    "fasttd3": Host(
        "fast_td3/train.py",
        "seconds",
        {
            "FastTD3": ["--agent", "fasttd3"],
            "FastTD3 without delay": ["--agent", "fasttd3", "--policy_frequency", "1"],
            "FastSAC-ERA": ERA,
            "FastSAC-ERA, learned delta": [*ERA, "--era_learn_delta"],
            "FastSAC-ERA, tanh": [*ERA, "--era_distribution", "tanh"],
            "FastSAC-ERA, clipped": [*ERA, "--era_distribution", "clipped"],
            "FastSAC-ERA, batch level": [*ERA, "--era_level", "batch"],
        },
        "--no_use_wandb --no_compile --no_cuda --env_name Gym-Humanoid-v5 --num_envs 4 --num_eval_envs 1 "
        "--batch_size 256 --buffer_size 1000 --num_updates 2 --eval_interval 0 --save_interval 0 "
        "--render_interval 0 --csv_path train.csv",
        "--total_timesteps",
        100,
        101,
    ),
    "ppo": Host(
        "5.PPO-continuous/PPO_continuous_main.py",
        "cpu_seconds",
        {
            "parameter": [],
            "head": ["--std", "head"],
            "era": ["--std", "era"],
            "eapo": ["--eapo_tau", "0.02", "--entropy_coef", "0"],
        },
        "--env HalfCheetah-v4 --csv_path train.csv",
        "--max_train_steps",
        15_000,
        5_000,
    ),
}


def take_turn(host: Host, checkout: Path, flags: list[str]) -> dict:
    command = [sys.executable, str(checkout / host.script), *host.flags.split(), *flags]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}\nerror: {host.script} ended with exit code {done.returncode}; see above.")
        rows = pd.read_csv(Path(folder) / "train.csv")[[host.seconds, "global_step"]]
    seconds, steps = rows.iloc[-1] - rows.iloc[0]
    return {"step": {"seconds": seconds / steps}}


def main() -> None:
    parser = tables.parser(__doc__, turns=3)
    parser.add_argument("host", choices=HOSTS)
    parser.add_argument("--checkout", type=Path, required=True, help="with the ERA overlay")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="beside the two baselines (default: all)")
    parser.add_argument("--steps", type=int, help="of a turn: as many as lie between rows, or multiples of that")
    args, flags = parser.parse_known_args()
    host = HOSTS[args.host]
    names = [name for number, name in enumerate(host.arms) if number < 2 or name in (args.arms or host.arms)]
    steps = args.steps or host.steps
    flags += [host.steps_flag, str(steps + host.before)]
    arms = {name: partial(take_turn, host, args.checkout.resolve(), [*host.arms[name], *flags]) for name in names}
    written = tables.Tables(args.csv)
    table = tables.compare(arms, args.turns, warm_up=False, ratio=names[0], second_ratio=names[1])["step"]
    title = f"{host.script}, {args.turns} turns of {steps} steps; {' '.join(flags)}"
    written.add(title, table, host=args.host, steps=steps, turns=args.turns, flags=" ".join(flags))


if __name__ == "__main__":
    main()
