"""python -m demo.vision [--seeds 1 2 3]: timm's own train.py, as a baseline and with ERA, from the same seeds."""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()  # before the imports below, which a user's PYTHONPATH could supply

import argparse
import sys
from pathlib import Path

from demo.runner import tables
from demo.runner.command import Needs, add_folders, add_seeds, check, exit_code, only_one, whole_number
from demo.runner.errors import DemoError
from demo.runner.progress import Line, clock
from demo.runner.results import finished
from demo.runner.training import missing, train_by_seed
from demo.vision import data, training
from demo.vision.settings import CLASSES, MODEL, Run

NEEDS = Needs(
    target="demo-vision",
    packages=("torch", "torchvision", "yaml", "safetensors", "huggingface_hub", "sklearn", "PIL", "matplotlib"),
    megabytes=150,  # the results of six runs take 30 MB, two runs in progress as much
    upstream="timm",
    files=("timm/__init__.py", "timm/layers/era.py", "timm/utils/era.py"),
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.vision", description=__doc__)
    add_seeds(parser, [1, 2, 3], "a baseline and an ERA run for each")
    parser.add_argument("--epochs", default=15, type=whole_number(1), help="of each run")
    parser.add_argument("--min-entropy", default=0.6, type=float, metavar="H0", help="ERA's H0 in nats")
    add_folders(parser, "timm", "results/demo-vision")
    parser.add_argument("--check", action="store_true", help="check these arguments and stop")
    return parser.parse_args(arguments)


def check_min_entropy(checkout: Path, min_entropy: float) -> None:
    """From here on `import timm` gives the checkout's timm."""
    sys.path.insert(0, str(checkout.resolve()))
    from timm.layers import EntropyRegularizingActivation

    try:
        EntropyRegularizingActivation(CLASSES, min_entropy)
    except ValueError as error:
        raise DemoError(f"--min-entropy: {error}. The paper has 0.6 for ten classes") from None


def train(wanted: list[Run], checkout: Path, out: Path) -> dict[Run, dict]:
    """Trains the runs that are not finished, those of a seed side by side. Returns each run's run.json."""
    line, key = Line("runs"), training.key(checkout)
    waiting = missing(wanted, out, key, training.UPSTREAM, line)
    latest, total = {}, sum(run.epochs for run in waiting)

    def on_epoch(run: Run, row: dict) -> None:
        latest[run] = row
        done = sum(row["epoch"] for row in latest.values())
        if row["epoch"] == run.epochs:
            smallest = row["eval_entropy_min"]
            line.show(f"{run.label}: top-1 {row['eval_top1']:.1f} %, smallest entropy {smallest:.3f}", last=True)
        working = [
            f"{run.label}: {row['epoch']}/{run.epochs} ({row['eval_top1']:.1f} %)"
            for run, row in latest.items()
            if row["epoch"] < run.epochs
        ]
        if working:
            left = clock(line.seconds() / done * (total - done))
            line.show(f"{left} left  epoch {', '.join(working)}", done)

    train_by_seed(waiting, lambda run: training.prepare(run, checkout, out, on_epoch), key, training.UPSTREAM, line)
    return {run: finished(out / run.folder, key) for run in wanted}


def introduce(arguments: argparse.Namespace, own_loop: bool) -> None:
    trainer = "a small loop of its own (demo/vision/loop.py)" if own_loop else "timm's own train.py"
    if own_loop:
        print(
            f"{arguments.checkout} has no train.py: it was made from timm's source package, which lacks it. The demo "
            "trains with a loop of its own instead."
        )
    print(
        f"A tiny network ({MODEL}) learns {data.COUNTS['train']} handwritten digits on this CPU with {trainer}, once "
        f"without and once with ERA (H0 {arguments.min_entropy:g}),\n{arguments.epochs} epochs, seed "
        f"{', '.join(map(str, arguments.seeds))}. Logs and results: {arguments.out}\nBelow, top-1 (%) and entropy "
        f"(nats) are those of the {data.COUNTS['validation']} validation images.",
        flush=True,
    )


def demo(arguments: argparse.Namespace) -> None:
    if arguments.check:
        return
    out = arguments.out
    check(NEEDS, arguments.checkout, out)
    check_min_entropy(arguments.checkout, arguments.min_entropy)
    from demo.vision import report

    own_loop = training.script(arguments.checkout).name != "train.py"
    introduce(arguments, own_loop)
    wanted = [Run(h0, seed, arguments.epochs) for seed in arguments.seeds for h0 in (None, arguments.min_entropy)]
    with only_one(out):
        data.write(out / data.FOLDER)
        trained = train(wanted, arguments.checkout, out)
        results = [report.Result.read(run, out, info) for run, info in trained.items()]
        findings = report.findings(results)
        if own_loop:
            findings.append(
                "Trained by the demo's own loop, not by timm's train.py, so this shows nothing about that script."
            )
        tables.end(report, results, findings, out, "entropy.png", training.SUMMARY_FILE)


if __name__ == "__main__":
    sys.exit(exit_code(demo, parse()))
