"""python -m demo.control [--seeds 1] [--steps 6000]: FastTD3's own train.py, as FastTD3 and as FastSAC-ERA."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from demo.control.settings import ARMS, CURVES_FILE, FLAGS, LOG_INTERVAL, PINNED, TARGET_ENTROPY, TASK, VERSIONS, Run
from demo.runner.command import (
    add_folders,
    add_seeds,
    add_switches,
    exit_code,
    introduce,
    need_overlay,
    only_one,
    whole_number,
)
from demo.runner.environment import ROOT, cleaned
from demo.runner.processes import new_rows

NEEDED = ("fast_td3/train.py", "fast_td3/era_training.py", "fast_td3/environments/gymnasium_env.py")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.control", description=__doc__)
    add_seeds(parser, [1], f"{len(ARMS)} runs for each")
    steps = f"of each run's environments, a multiple of {LOG_INTERVAL}"
    parser.add_argument("--steps", default=6000, type=whole_number(2 * LOG_INTERVAL), help=steps)
    parser.add_argument("--fasttd3", default=PINNED, choices=VERSIONS, help="the version of FastTD3 in the checkout")
    add_folders(parser, "FastTD3", "results/demo-control")
    add_switches(parser)
    arguments = parser.parse_args(arguments)
    if arguments.steps % LOG_INTERVAL:
        parser.error(f"argument --steps: expected a multiple of {LOG_INTERVAL}, got {arguments.steps}")
    return arguments


def prepare(run: Run, checkout: Path, out: Path):
    """The run's Training."""
    from demo.runner.training import Training, begin

    folder, scripts = out / run.folder, checkout.resolve() / "fast_td3"
    command = ["-m", "demo.runner.child", str(scripts / "train.py"), f"--csv_path={CURVES_FILE}", *run.flags()]
    return Training(
        label=run.label,
        folder=folder,
        command=[sys.executable, *command],
        environment=cleaned(dict(os.environ), scripts, ROOT)
        | {
            "OMP_NUM_THREADS": "1",  # several runs on two cores
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # otherwise torch starts a pool of processes for nothing
        },
        rows=_rows(folder / CURVES_FILE),
        length=run.rows,
        unit=f"rows of {CURVES_FILE}",
        show=lambda row: f"step {row['global_step']}, return {row['eval_avg_return']}",
        record=begin("fasttd3", TASK, run.arm, run.seed, run.steps, checkout),
    )


def _rows(file: Path) -> Iterator[list[dict[str, str]]]:
    """Each item: the rows that train.py added to its file since the previous item, each with the latest return."""
    latest = "-"
    for rows in new_rows(file):
        for row in rows:
            if row["eval_avg_return"]:
                latest = f"{float(row['eval_avg_return']):.0f}"
            row["eval_avg_return"] = latest
        yield rows


def demo(arguments: argparse.Namespace) -> None:
    if arguments.check:
        return
    need_overlay(arguments.checkout, "fasttd3", *NEEDED)
    from demo.control import report
    from demo.runner.training import train

    out, seeds = arguments.out, list(dict.fromkeys(arguments.seeds))
    introduce(
        f"{TASK} on this CPU with FastTD3's own train.py ({arguments.fasttd3}): {arguments.steps} steps of "
        f"{FLAGS['num_envs']} environments, seed {', '.join(map(str, seeds))}, as FastTD3, as FastTD3 without the "
        f"delay of its policy updates, as FastSAC-ERA (ERA, H0 = {TARGET_ENTROPY:g} nats per action dimension), and as "
        "FastSAC-ERA with a learned residual (ERA+delta).",
        out,
    )
    with only_one(out):
        for seed in seeds:
            runs = [Run(arm, seed, arguments.steps, arguments.fasttd3) for arm in ARMS]
            train([prepare(run, arguments.checkout, out) for run in runs], arguments.fresh)
        report.end([Run(arm, seed, arguments.steps, arguments.fasttd3) for arm in ARMS for seed in seeds], out)


if __name__ == "__main__":
    sys.exit(exit_code(demo, parse()))
