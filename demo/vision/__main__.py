"""python -m demo.vision [--seeds 1 2 3]: one of timm's networks on digits, as a baseline and with ERA."""

import argparse
import os
import sys
from pathlib import Path

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
from demo.runner.errors import DemoError
from demo.runner.processes import new_rows
from demo.vision.settings import BASELINE, CLASSES, EPOCHS_FILE, MODEL, ON, Run


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.vision", description=__doc__)
    add_seeds(parser, [1, 2, 3], "a baseline and an ERA run for each")
    parser.add_argument("--epochs", default=15, type=whole_number(1), help="of each run")
    parser.add_argument("--min-entropy", default=0.6, type=float, metavar="H0", help="ERA's H0 in nats")
    add_folders(parser, "timm", "results/demo-vision")
    add_switches(parser)
    return parser.parse_args(arguments)


def activation(checkout: Path, min_entropy: float):
    """ERA of the checkout's timm with this H0."""
    sys.path.insert(0, str(checkout.resolve()))
    from timm.layers import EntropyRegularizingActivation

    try:
        return EntropyRegularizingActivation(CLASSES, min_entropy)
    except ValueError as error:
        raise DemoError(f"--min-entropy: {error}. The paper has 0.6 for ten classes") from None


def prepare(run: Run, checkout: Path, out: Path, images: Path):
    """The run's Training."""
    from demo.runner.training import Training, begin

    h0 = "none" if run.min_entropy is None else str(run.min_entropy)
    words = ["demo.vision.loop", str(images.resolve()), h0, str(run.seed), str(run.epochs)]
    return Training(
        label=run.label,
        folder=out / run.folder,
        command=[sys.executable, "-m", *words],
        environment=cleaned(dict(os.environ), checkout.resolve(), ROOT)
        | {
            "OMP_NUM_THREADS": "1",  # two runs on two cores
            "HF_HUB_OFFLINE": "1",  # nothing is to be downloaded
        },
        rows=new_rows(out / run.folder / EPOCHS_FILE),
        length=run.epochs,
        unit="epochs",
        show=lambda row: (
            f"top-1 {float(row['top-1, %']):.1f} %, smallest entropy {float(row['smallest entropy, nats']):.3f}"
        ),
        record=begin("timm", "digits", run.arm, run.seed, run.epochs, checkout),
    )


def demo(arguments: argparse.Namespace) -> None:
    if arguments.check:
        return
    checkout, out, seeds = arguments.checkout, arguments.out, list(dict.fromkeys(arguments.seeds))
    need_overlay(checkout, "timm", "timm/__init__.py", "timm/layers/era.py", "timm/utils/era.py")
    era = activation(checkout, arguments.min_entropy)
    from demo.runner.training import train
    from demo.vision import data, report

    introduce(
        f"timm's smallest ResNet ({MODEL}) learns {data.COUNTS['train']} handwritten digits on this CPU, once without "
        f"and once with ERA (H0 = {arguments.min_entropy:g} nats): {arguments.epochs} epochs, seed "
        f"{', '.join(map(str, seeds))}. Below: top-1 and smallest entropy (nats) of {data.COUNTS['validation']} "
        "validation images.",
        out,
    )
    arms = {BASELINE: None, ON: arguments.min_entropy}
    with only_one(out):
        images = data.write(out / "images")
        for seed in seeds:
            runs = [Run(h0, seed, arguments.epochs) for h0 in arms.values()]
            train([prepare(run, checkout, out, images) for run in runs], arguments.fresh)
        report.end([Run(h0, seed, arguments.epochs) for h0 in arms.values() for seed in seeds], era, out)


if __name__ == "__main__":
    sys.exit(exit_code(demo, parse()))
