"""python -m tools.smoke.control [EXPERIMENT ...]: the paper's control runs on this CPU, 101 steps each.

The recipe runs unchanged, with its check, Ray and train.py. Flags and variables that it takes choose Gymnasium's
Reacher as the task, and tiny networks.
"""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()

import argparse
import sys
import time
from pathlib import Path

from demo.runner.command import need_overlay, only_one
from demo.runner.results import empty
from tools.smoke import recipe
from tools.smoke.recipe import RECIPE, choose

FLAGS = [
    "--no_cuda", "--no_compile", "--total_timesteps", "101", "--eval_interval", "100", "--save_interval", "100",
    "--num_envs", "2", "--num_eval_envs", "2", "--num_updates", "1", "--batch_size", "32", "--buffer_size", "200",
    "--critic_hidden_dim", "32", "--actor_hidden_dim", "32", "--v_min", "-20", "--v_max", "5",
]  # fmt: skip
TIME_FLAGS = ["--total_timesteps", "301"]  # the experiment "time" needs two rows of the log
UNSET = (
    *("AGENT", "GPUS_PER_RUN", "RAY_ADDRESS", "SLURM", "RESUME", "WANDB", "RUN_INDEX"),
    *("DRY_RUN", "CHECK_ONLY", "ENVIRONMENT_TO_COME"),
)


def run_experiment(checkout: Path, experiment: str, out: Path) -> int:
    variables = {**dict.fromkeys(UNSET, ""), "TASKS": "Gym-Reacher-v4", "SEED": "1", "OUTPUT": str(out.resolve())}
    return recipe.launch(checkout, experiment, FLAGS + (TIME_FLAGS if experiment == "time" else []), variables)


def smoke(arguments: argparse.Namespace) -> int:
    checkout, out = arguments.checkout, arguments.out
    need_overlay(checkout, "fasttd3", f"{RECIPE}/launch.py", "fast_td3/train.py")
    chosen = choose(checkout, arguments.names)
    print(
        f"Each run of {checkout / RECIPE} trains tiny networks on Gymnasium's Reacher on this CPU, for seconds, most "
        f"of which is the start.\nA run that two experiments share is trained once. Runs: {out}/runs. The returns mean "
        "nothing.",
        flush=True,
    )
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    with only_one(out):
        runs = empty(out / "runs")
        for name in chosen:
            began = time.monotonic()
            print(f"\n== {name}", flush=True)
            code = run_experiment(checkout, name, runs)
            failed = failed or code != 0
            print(f"== {name}: {time.monotonic() - began:.0f} s{'  FAILED' if code else ''}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(recipe.run(smoke, __doc__, "experiment", "FastTD3", "results/smoke-control"))
