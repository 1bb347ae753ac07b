# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m demo.vision [--seeds 1 2 3]: one of timm's networks on digits, as a baseline and with ERA."""

import argparse
import sys
from pathlib import Path

from demo.runner.command import at_least, introduce, make_parser, need_files, run, seed_number
from demo.vision.settings import CLASSES, EPOCHS_FILE, MIN_ENTROPY, MODEL, Settings


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser("demo.vision", __doc__)
    parser.set_defaults(checkout=Path("checkouts/timm"), out=Path("results/demo-vision"))
    parser.add_argument("--seeds", default=[1, 2, 3], type=seed_number, nargs="+", help="two runs for each")
    parser.add_argument("--epochs", default=15, type=at_least(1), help="of each run")
    return parser.parse_args(arguments)


def prepare(run: Settings, checkout: Path, out: Path, images: Path):
    """The run's Training."""
    from demo.runner.training import Training, begin, csv_rows, environment
    from recipes import PROJECT

    folder = out / run.folder
    words = map(str, ("demo.vision.loop", images.resolve(), run.min_entropy, run.seed, run.epochs))
    return Training(
        label=f"{run.name}, seed {run.seed}",
        folder=folder,
        command=[sys.executable, "-m", *words],
        environment=environment(checkout, PROJECT, HF_HUB_OFFLINE="1"),  # nothing is to be downloaded
        rows=lambda: csv_rows(folder / EPOCHS_FILE),
        length=run.epochs,
        show=lambda rows: "top-1 {:.1f} %, smallest entropy {:.3f}".format(
            *rows[["top-1, %", "smallest entropy, nats"]].iloc[-1]
        ),
        record=begin("timm", "digits", run.name, run.seed, run.epochs, checkout),
    )


def demo(arguments: argparse.Namespace) -> None:
    checkout, out = arguments.checkout, arguments.out
    need_files(checkout, "timm/__init__.py", "timm/layers/era.py", advice="python3 apply.py apply timm")
    from demo.runner.training import train
    from demo.vision import data, report
    from era.discrete import EntropyRegularizingActivation

    introduce(
        f"timm's {MODEL} learns {data.COUNTS['train']} handwritten digits on this CPU, without and with ERA (H0 = "
        f"{MIN_ENTROPY:g} nats): {arguments.epochs} epochs, seed {', '.join(map(str, arguments.seeds))}.",
        out,
    )
    images, runs = data.write(out / "images"), []
    for seed in dict.fromkeys(arguments.seeds):
        pair = [Settings(h0, seed, arguments.epochs) for h0 in (None, MIN_ENTROPY)]
        train([prepare(run, checkout, out, images) for run in pair], arguments.fresh)
        runs += pair
    report.end(runs, EntropyRegularizingActivation(CLASSES, MIN_ENTROPY), out)


if __name__ == "__main__":
    run(demo, parse())
