"""python -m demo.control [--seeds 1] [--steps 6000]: FastTD3's own train.py, as FastTD3 and as FastSAC-ERA, from the same seeds."""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()  # before the imports below, which a user's PYTHONPATH could supply

import argparse
import json
import sys
import textwrap
from pathlib import Path

from demo.control import training
from demo.control.settings import ARMS, FLAGS, LOG_INTERVAL, NAMES, TARGET_ENTROPY, TASK, Run
from demo.llm import run as runs
from demo.llm.curves import write_csv
from demo.runner.progress import Line, clock
from demo.runner.start import exit_code, need_overlay, need_packages, need_room, only_one, stop_on_signals, whole_number

PICTURE_FILE = "curves.png"
NUMBERS_FILE = "runs.csv"
NEEDED_PACKAGES = (
    "torch",
    "tensordict",
    "gymnasium",
    "mujoco",
    "stable_baselines3",
    "tyro",
    "wandb",
    "tqdm",
    "matplotlib",
    "scipy",
    "psutil",
)
NEEDED_DISK_MB = 50  # a run takes 2 MB
LEAST_STEPS = 2 * LOG_INTERVAL


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.control", description=__doc__)
    parser.add_argument(
        "--seeds", default=[1], type=whole_number(0), nargs="+", metavar="SEED", help=f"{len(ARMS)} runs for each"
    )
    parser.add_argument(
        "--steps",
        default=6000,
        type=whole_number(LEAST_STEPS),
        help=f"of each run's environments, a multiple of {LOG_INTERVAL}",
    )
    parser.add_argument("--checkout", default="checkouts/fasttd3", type=Path, help="FastTD3 with the ERA overlay")
    parser.add_argument("--out", default="results/demo-control", type=Path, help="folder of the results")
    arguments = parser.parse_args(arguments)
    twice = sorted({seed for seed in arguments.seeds if arguments.seeds.count(seed) > 1})
    if twice:
        parser.error(f"argument --seeds: {', '.join(map(str, twice))} given twice; each seed once")
    if arguments.steps % LOG_INTERVAL:
        parser.error(f"argument --steps: expected a multiple of {LOG_INTERVAL}, got {arguments.steps}")
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Finds what would stop the demo half-way."""
    need_packages(NEEDED_PACKAGES, "demo-control")
    need_overlay(
        arguments.checkout,
        "fasttd3",
        "fast_td3/train.py",
        "fast_td3/era_training.py",
        "fast_td3/environments/gymnasium_env.py",
    )
    need_room(arguments.out, NEEDED_DISK_MB)


def train(wanted: list[Run], checkout: Path, out: Path) -> dict[Run, dict]:
    """Trains what is not there yet, the runs of a seed side by side. Returns each run's run.json."""
    line, key = Line("runs"), training.key(checkout)
    waiting = []
    for run in wanted:
        if runs.finished(out / run.folder, key) is not None:
            line.show(f"{run.label}: {run.steps} steps, reused from {out / run.folder}", last=True)
            continue
        waiting.append(run)
        difference = runs.difference(out / run.folder, key, training.CODE_NAME)
        if difference:
            again = "training again, and keeping it until the new one is finished"
            line.show(f"{run.label}: {out / run.folder} differs in {difference}: {again}", last=True)
    steps, returns = dict.fromkeys(waiting, 0), {}

    def on_row(run: Run, row: training.Row) -> None:
        steps[run] = row["global_step"]
        if row["eval_avg_return"] is not None:
            returns[run] = row["eval_avg_return"]
        if steps[run] == run.steps:
            line.show(f"{run.label}: return {returns[run]:.0f} at the end", last=True)
        done, total = sum(steps.values()), sum(run.steps for run in waiting)
        working = [
            f"{NAMES[run.arm]} {step}" + (f" ({returns[run]:.0f})" if run in returns else "")
            for run, step in steps.items()
            if 0 < step < run.steps
        ]
        if working:
            left = clock(line.seconds() / done * (total - done))
            line.show(f"{left} left  seed {run.seed}: {', '.join(working)}", done // LOG_INTERVAL)

    if waiting:
        line.show("starting FastTD3 (some ten seconds)", last=not line.in_place)
    for seed in dict.fromkeys(run.seed for run in waiting):
        training.train([run for run in waiting if run.seed == seed], checkout, out, key, on_row)
    return {run: runs.finished(out / run.folder, key) for run in wanted}


def demo(arguments: argparse.Namespace) -> None:
    check(arguments)
    from demo.control import report

    print(
        f"{TASK} on this CPU with FastTD3's own train.py, {arguments.steps} steps of {FLAGS['num_envs']} environments, seed "
        f"{', '.join(map(str, arguments.seeds))}: as FastTD3,\nas FastTD3 without the delay of its policy updates, as FastSAC-ERA (ERA, H0 "
        f"{TARGET_ENTROPY:g} nats per action dimension) and as\nFastSAC-ERA with a learned residual (ERA+delta). Below, in brackets: the "
        "return of the last evaluation.\n"
        f"Logs and results: {arguments.out}.",
        flush=True,
    )
    wanted = [Run(arm, seed, arguments.steps) for seed in arguments.seeds for arm in ARMS]
    with only_one(arguments.out):
        finished = train(wanted, arguments.checkout, arguments.out)
        results = [
            report.Result(run, training.curves(arguments.out / run.folder), info) for run, info in finished.items()
        ]
        sentences = report.findings(results)
        report.picture(results, arguments.out / PICTURE_FILE)
        write_csv(arguments.out / NUMBERS_FILE, report.rows(results))
        (arguments.out / "summary.json").write_text(json.dumps(report.record(results, sentences), indent=2) + "\n")
    print(f"\n{report.table(results)}\n")
    print("\n".join(textwrap.fill(sentence, 118, break_on_hyphens=False) for sentence in sentences))
    print(
        f"\npicture  {arguments.out / PICTURE_FILE}\nnumbers  {arguments.out}/{{summary.json,{NUMBERS_FILE}}}, "
        f"{arguments.out}/*/{training.CURVES_FILE}\nlogs     {arguments.out}/*/{training.LOG_FILE}"
    )


def main() -> int:
    stop_on_signals()
    return exit_code(demo, parse())


if __name__ == "__main__":
    sys.exit(main())
