"""python -m demo.control [--seeds 1] [--steps 6000]: FastTD3's own train.py, as FastTD3 and as FastSAC-ERA."""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()  # before the imports below, which a user's PYTHONPATH could supply

import argparse
import sys
from pathlib import Path

from demo.control import training
from demo.control.settings import ARMS, FLAGS, LOG_INTERVAL, NAMES, PINNED, TARGET_ENTROPY, TASK, VERSIONS, Run
from demo.runner import tables
from demo.runner.command import Needs, add_folders, add_seeds, check, exit_code, only_one, whole_number
from demo.runner.progress import Line, clock
from demo.runner.results import finished
from demo.runner.training import missing, train_by_seed

NEEDS = Needs(
    target="demo-control",
    packages=(
        *("torch", "tensordict", "gymnasium", "mujoco", "stable_baselines3", "tyro", "wandb", "tqdm"),
        *("matplotlib", "scipy"),
    ),
    megabytes=50,  # a run takes 2 MB
    upstream="fasttd3",
    files=("fast_td3/train.py", "fast_td3/era_training.py", "fast_td3/environments/gymnasium_env.py"),
)
LEAST_STEPS = 2 * LOG_INTERVAL


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.control", description=__doc__)
    add_seeds(parser, [1], f"{len(ARMS)} runs for each")
    steps = f"of each run's environments, a multiple of {LOG_INTERVAL}"
    parser.add_argument("--steps", default=6000, type=whole_number(LEAST_STEPS), help=steps)
    parser.add_argument("--fasttd3", default=PINNED, choices=VERSIONS, help="the version of FastTD3 in the checkout")
    add_folders(parser, "FastTD3", "results/demo-control")
    parser.add_argument("--check", action="store_true", help="check these arguments and stop")
    arguments = parser.parse_args(arguments)
    if arguments.steps % LOG_INTERVAL:
        parser.error(f"argument --steps: expected a multiple of {LOG_INTERVAL}, got {arguments.steps}")
    return arguments


def train(wanted: list[Run], checkout: Path, out: Path) -> dict[Run, dict]:
    """Trains the runs that are not finished, those of a seed side by side. Returns each run's run.json."""
    line, key = Line("runs"), training.key(checkout)
    waiting = missing(wanted, out, key, training.UPSTREAM, line)
    steps, returns, total = dict.fromkeys(waiting, 0), {}, sum(run.steps for run in waiting)

    def on_row(run: Run, row: training.Row) -> None:
        steps[run] = row["global_step"]
        if row["eval_avg_return"] is not None:
            returns[run] = row["eval_avg_return"]
        if steps[run] == run.steps:
            line.show(f"{run.label}: return {returns[run]:.0f} at the end", last=True)
        done = sum(steps.values())
        working = [
            f"{NAMES[run.arm]} {step}" + (f" ({returns[run]:.0f})" if run in returns else "")
            for run, step in steps.items()
            if 0 < step < run.steps
        ]
        if working:
            left = clock(line.seconds() / done * (total - done))
            line.show(f"{left} left  seed {run.seed}: {', '.join(working)}", done // LOG_INTERVAL)

    train_by_seed(waiting, lambda run: training.prepare(run, checkout, out, on_row), key, training.UPSTREAM, line)
    return {run: finished(out / run.folder, key) for run in wanted}


def demo(arguments: argparse.Namespace) -> None:
    if arguments.check:
        return
    out = arguments.out
    check(NEEDS, arguments.checkout, out)
    from demo.control import report

    wanted = [Run(arm, seed, arguments.steps, arguments.fasttd3) for seed in arguments.seeds for arm in ARMS]
    print(
        f"{TASK} on this CPU with {wanted[0].host}'s own train.py, {arguments.steps} steps of {FLAGS['num_envs']} "
        f"environments, seed {', '.join(map(str, arguments.seeds))}: as FastTD3,\n"
        "as FastTD3 without the delay of its policy updates, as FastSAC-ERA (ERA, "
        f"H0 {TARGET_ENTROPY:g} nats per action dimension) and as\n"
        "FastSAC-ERA with a learned residual (ERA+delta). Below, in brackets: the return of the last evaluation.\n"
        f"Logs and results: {out}.",
        flush=True,
    )
    with only_one(out):
        trained = train(wanted, arguments.checkout, out)
        results = [report.Result(run, training.curves(out / run.folder), info) for run, info in trained.items()]
        findings = report.findings(results)
        tables.end(report, results, findings, out, "curves.png", training.CURVES_FILE)


if __name__ == "__main__":
    sys.exit(exit_code(demo, parse()))
