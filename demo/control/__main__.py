# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.control [--seeds 1] [--steps 6000]: FastTD3's own train.py, as FastTD3 and as FastSAC-ERA."""

import argparse
import sys
from pathlib import Path

from demo.control.settings import ARMS, CURVES_FILE, FLAGS, LOG_INTERVAL, TARGET_ENTROPY, TASK, Settings
from demo.runner.command import at_least, introduce, make_parser, need_files, run, seed_number

NEEDED = ("fast_td3/train.py", "fast_td3/era_training.py", "fast_td3/environments/gymnasium_env.py")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("demo.control", __doc__)
    parser.set_defaults(checkout=Path("checkouts/fasttd3"), out=Path("results/demo-control"))
    parser.add_argument("--seeds", default=[1], type=seed_number, nargs="+", help=f"{len(ARMS)} runs for each")
    steps = f"of each run's environments, a multiple of {LOG_INTERVAL}"
    parser.add_argument("--steps", default=6000, type=at_least(2 * LOG_INTERVAL), help=steps)
    options = parser.parse_args(arguments)
    if options.steps % LOG_INTERVAL:
        parser.error(f"argument --steps: expected a multiple of {LOG_INTERVAL}, got {options.steps}")
    return options


def prepare(run: Settings, checkout: Path, out: Path):
    """The run's Training."""
    from demo.runner.training import Training, begin, csv_rows, environment
    from recipes import PROJECT

    folder, scripts = out / run.folder, checkout.resolve() / "fast_td3"
    command = ["-m", "recipes.processes", str(scripts / "train.py"), f"--csv_path={CURVES_FILE}", *run.flags()]
    return Training(
        label=f"{run.name}, seed {run.seed}",
        folder=folder,
        command=[sys.executable, *command],
        # otherwise torch starts a pool of processes for nothing
        environment=environment(scripts, PROJECT, TORCHINDUCTOR_COMPILE_THREADS="1"),
        rows=lambda: csv_rows(folder / CURVES_FILE),
        length=run.rows,
        show=lambda rows: f"return {rows['eval_avg_return'].ffill().iloc[-1]:.0f} in the newest evaluation",
        record=begin("fasttd3", TASK, run.arm, run.seed, run.steps + 1, checkout),
    )


def demo(arguments: argparse.Namespace) -> None:
    checkout, out = arguments.checkout, arguments.out
    need_files(checkout, *NEEDED, advice="python3 apply.py apply fasttd3")
    from demo.control import report
    from demo.runner.training import train

    introduce(
        f"{TASK} on this CPU with FastTD3's own train.py: {arguments.steps} steps of {FLAGS['num_envs']} environments, "
        f"seed {', '.join(map(str, arguments.seeds))}, as FastTD3, as FastTD3 without the delay of its policy updates, "
        f"as FastSAC-ERA (ERA, H0 = {TARGET_ENTROPY:g} nats per action dimension), and as FastSAC-ERA with a learned "
        "residual (ERA+delta).",
        out,
    )
    runs = []
    for seed in dict.fromkeys(arguments.seeds):
        arms = [Settings(arm, seed, arguments.steps) for arm in ARMS]
        train([prepare(run, checkout, out) for run in arms], arguments.fresh)
        runs += arms
    report.end(runs, out)


if __name__ == "__main__":
    run(demo, parse())
