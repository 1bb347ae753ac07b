"""CPU time of a step of PPO and of PPO-ERA in the paper's code, as ratios.

    python -m tools.bench.ppo --checkout checkouts/drl-code-pytorch [--rounds 5] [--steps 20000] [--csv FILE]

Each turn trains once and takes the CPU time between the first evaluation and the last, so neither imports nor the
recording of --fast count. The arms take turns and are compared turn by turn. The arm `head` has ERA's layer and no
activation, so ERA beside it is the activation's own cost, and beside `parameter` all that PPO-ERA adds.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tools.bench import tables

ARMS = {"parameter": (), "head": ("--std", "head"), "era": ("--std", "era")}
MODES = {"upstream": (), "fast": ("--fast",)}
TASK = "HalfCheetah-v4"
EVERY = 5000  # steps between two evaluations, upstream's


def cpu_seconds_per_step(script: Path, steps: int, flags: tuple[str, ...]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, script, "--env", TASK, "--max_train_steps", str(steps), "--csv_path", "train.csv"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *flags], cwd=folder, env=env, check=True, capture_output=True)
        with open(Path(folder) / "train.csv", newline="") as file:
            rows = list(csv.DictReader(file))
    first, last = ([float(row[name]) for name in ("cpu_seconds", "global_step")] for row in (rows[0], rows[-1]))
    return (last[0] - first[0]) / (last[1] - first[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm, at least 2")
    parser.add_argument("--steps", type=int, default=4 * EVERY, help=f"of a turn, at least {2 * EVERY}")
    parser.add_argument("--csv", type=Path, help="also write a row per arm to this file")
    args = parser.parse_args()
    script = args.checkout.resolve() / "5.PPO-continuous/PPO_continuous_main.py"
    if not (script.parent / "era_ppo.py").is_file():
        parser.error(f"{args.checkout} is not a checkout with the overlay: python3 apply.py apply drl-code-pytorch")
    if args.rounds < 2 or args.steps < 2 * EVERY:
        parser.error(f"at least 2 rounds of at least {2 * EVERY} steps are needed")
    machine = {**tables.machine_of("cpu"), "threads": 1, "mujoco": version("mujoco"), "task": TASK, "steps": args.steps}
    print(f"CPU time of a step, {TASK}, {args.rounds} rounds of {args.steps} steps, evaluations included")
    print(", ".join(f"{name} {value}" for name, value in machine.items() if value is not None))
    print(f"\n| {'code':<9}| {'sigma':<10}| {'ms':>6} | {'x parameter':>11} | {'p20 - p80':>13} | {'x head':>6} |")
    print("|----------|-----------|-------:|------------:|--------------:|-------:|")
    written = []
    for mode, own in MODES.items():
        times = {arm: [] for arm in ARMS}
        for turn in range(args.rounds):
            for arm in list(ARMS)[:: 1 if turn % 2 == 0 else -1]:
                times[arm].append(cpu_seconds_per_step(script, args.steps, (*own, *ARMS[arm])))
        against = {base: tables.summarise(times, {}, dict.fromkeys(ARMS, base)) for base in ("parameter", "head")}
        for row, beside_head in zip(against["parameter"], against["head"]):
            spread = f"{row['seconds_ratio_p20']:.3f} - {row['seconds_ratio_p80']:.3f}"
            print(
                f"| {mode:<9}| {row['arm']:<10}| {1000 * row['seconds']:6.3f} | {row['seconds_ratio']:11.3f} | "
                f"{spread:>13} | {beside_head['seconds_ratio']:6.3f} |",
                flush=True,
            )
            row["head_ratio"] = beside_head["seconds_ratio"]
            written.append(tables.rounded({**machine, "rounds": args.rounds, "code": mode, **row}))
    if args.csv:
        tables.write_csv(args.csv, written)


if __name__ == "__main__":
    main()
