"""python -m tools.smoke.control [EXPERIMENT ...]: the paper's runs of FastTD3 and FastSAC-ERA on this CPU, 101 steps each.

The recipe is run as it is, through its own check, Ray and train.py, with Gymnasium's Reacher in place of the tasks and tiny
networks: only flags and variables that it takes are set.
"""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from demo.llm import run
from demo.runner.errors import DemoError
from demo.runner.start import Stopped, need_overlay, only_one, stop_on_signals

RECIPE = "recipes/era"
FLAGS = [
    "--no_cuda", "--no_compile", "--total_timesteps", "101", "--eval_interval", "100", "--save_interval", "100", "--num_envs", "2",
    "--num_eval_envs", "2", "--num_updates", "1", "--batch_size", "32", "--buffer_size", "200", "--critic_hidden_dim", "32",
    "--actor_hidden_dim", "32", "--v_min", "-20", "--v_max", "5",
]  # fmt: skip
TIME_FLAGS = ["--total_timesteps", "301"]  # two rows of the log are needed
SECONDS_TO_END = 90


def experiments(checkout: Path) -> list[str]:
    """Those of the recipe, in its order."""
    code = "import runs; print(*runs.EXPERIMENTS)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=checkout / RECIPE, capture_output=True, text=True, check=True
    ).stdout.split()


def choose(checkout: Path, names: list[str]) -> list[str]:
    known = experiments(checkout)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DemoError(f"no experiment {', '.join(unknown)}. There are:\n    " + "\n    ".join(known))
    return [name for name in known if name in names] if names else known


def run_experiment(checkout: Path, experiment: str, out: Path) -> int:
    """Starts the recipe's launcher and waits for it; it ends its processes when it is asked to end."""
    given = {
        "PYTHON": sys.executable,
        "TASKS": "Gym-Reacher-v4",
        "SEED": "1",
        "OUTPUT": str(out.resolve()),
        "OMP_NUM_THREADS": "1",
    }
    others = (
        "AGENT",
        "GPUS_PER_RUN",
        "RAY_ADDRESS",
        "SLURM",
        "RESUME",
        "WANDB",
        "RUN_INDEX",
        "DRY_RUN",
        "CHECK_ONLY",
        "ENVIRONMENT_TO_COME",
    )
    command = [
        sys.executable,
        str(checkout.resolve() / RECIPE / "launch.py"),
        experiment,
        *FLAGS,
        *(TIME_FLAGS if experiment == "time" else []),
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, **dict.fromkeys(others, ""), **given},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.smoke.control", description=__doc__)
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT", help="of the checkout's recipes/era; default: all"
    )
    parser.add_argument("--checkout", default="checkouts/fasttd3", type=Path, help="FastTD3 with the ERA overlay")
    parser.add_argument("--out", default="results/smoke-control", type=Path, help="folder of the results")
    return parser.parse_args(arguments)


def main() -> int:
    stop_on_signals()
    arguments = parse()
    failed = []
    try:
        need_overlay(arguments.checkout, "fasttd3", f"{RECIPE}/launch.py", "fast_td3/train.py")
        chosen = choose(arguments.checkout, arguments.experiments)
        print(
            f"Each run of {arguments.checkout / RECIPE} trains tiny networks on Gymnasium's Reacher on this CPU, for seconds, nearly all of them\n"
            f"the start. A run that two experiments share is trained once. Runs: {arguments.out}/runs. The returns mean nothing.",
            flush=True,
        )
        arguments.out.mkdir(parents=True, exist_ok=True)
        with only_one(arguments.out):
            runs = run.fresh(arguments.out / "runs")
            for name in chosen:
                began = time.monotonic()
                print(f"\n== {name}", flush=True)
                if run_experiment(arguments.checkout, name, runs):
                    failed.append(name)
                print(
                    f"== {name}: {time.monotonic() - began:.0f} s" + ("  FAILED" if name in failed else ""), flush=True
                )
    except Stopped as stopped:
        print(f"\nsmoke: stopped by {signal.Signals(stopped.number).name}; nothing is left running", file=sys.stderr)
        return 128 + stopped.number
    except DemoError as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"smoke: {error.strerror or error}: {error.filename or arguments.out}", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
