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

from tools.bench import measure


class Script(NamedTuple):
    """A training script and its arms, of which the first is the baseline, and the second that of second_ratio.

    Attributes:
        file: within the checkout.
        seconds: the column of its log that is the clock.
        flags: those of all arms, in one string.
        steps_flag: the flag of the number of steps.
        steps: how many a turn measures, between the first row of the log and the last.
        steps_before: how many come before the first row.
        arms: the flags of each arm.
    """

    file: str
    seconds: str
    flags: str
    steps_flag: str
    steps: int
    steps_before: int
    arms: dict[str, str]


SCRIPTS = {
    "fasttd3": Script(
        file="fast_td3/train.py",
        seconds="seconds",
        flags="--no_use_wandb --no_compile --no_cuda --env_name Gym-Humanoid-v5 --num_envs 4 --num_eval_envs 1 "
        "--batch_size 256 --buffer_size 1000 --num_updates 2 --eval_interval 0 --save_interval 0 "
        "--render_interval 0 --csv_path train.csv",
        steps_flag="--total_timesteps",
        steps=100,
        steps_before=101,
        arms={
            "FastTD3": "--agent fasttd3",
            "FastTD3 without delay": "--agent fasttd3 --policy_frequency 1",
            "FastSAC-ERA": "--agent fastsac_era",
            "FastSAC-ERA, learned delta": "--agent fastsac_era --era_learn_delta",
            "FastSAC-ERA, tanh": "--agent fastsac_era --era_distribution tanh",
            "FastSAC-ERA, clipped": "--agent fastsac_era --era_distribution clipped",
            "FastSAC-ERA, batch level": "--agent fastsac_era --era_level batch",
        },
    ),
    "ppo": Script(
        file="5.PPO-continuous/PPO_continuous_main.py",
        seconds="cpu_seconds",
        flags="--env HalfCheetah-v4 --csv_path train.csv",
        steps_flag="--max_train_steps",
        steps=15_000,
        steps_before=5_000,
        arms={
            "parameter": "",
            "head": "--std head",
            "era": "--std era",
            "eapo": "--eapo_tau 0.02 --entropy_coef 0",
        },
    ),
}
ARGUMENTS = {
    "script": {"choices": SCRIPTS},
    **measure.CHECKOUT,
    "--arms": {"nargs": "+", "metavar": "ARM", "help": "beside the two baselines (default: all)"},
    "--steps": {"type": int, "help": "of a turn: as many as lie between rows, or multiples of that"},
}


def take_turn(script: Script, checkout: Path, flags: list[str]) -> dict[str, measure.Cost]:
    """Train once; the seconds of a step between the first row of the log and the last."""
    command = [sys.executable, str(checkout / script.file), *script.flags.split(), *flags]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}\nerror: {script.file} ended with exit code {done.returncode}; see above.")
        rows = pd.read_csv(Path(folder) / "train.csv")[[script.seconds, "global_step"]]
    seconds, steps = rows.iloc[-1] - rows.iloc[0]
    return {"step": {"seconds": seconds / steps}}


def tables(args):
    """The script's table."""
    script, checkout = SCRIPTS[args.script], args.checkout.resolve()
    first, second, *more = script.arms
    steps = args.steps or script.steps
    flags = [*args.flags, script.steps_flag, str(steps + script.steps_before)]
    arms = {
        name: partial(take_turn, script, checkout, [*script.arms[name].split(), *flags])
        for name in (first, second, *[name for name in more if name in (args.arms or more)])
    }
    rows = measure.compare(arms, args.turns, warm_up=False, ratio=first, second_ratio=second)["step"]
    yield rows, {"steps": steps, "flags": " ".join(flags)}


if __name__ == "__main__":
    measure.main(__doc__, ARGUMENTS, tables, turns=3, takes_flags=True)
