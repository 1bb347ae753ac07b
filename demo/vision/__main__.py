"""python -m demo.vision [--seeds 1 2 3]: timm's own train.py, as a baseline and with ERA, from the same seeds."""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()  # before the imports below, which a user's PYTHONPATH could supply

import argparse
import json
import sys
import textwrap
from pathlib import Path

from demo.llm import run as runs
from demo.llm.curves import write_csv
from demo.runner.errors import DemoError
from demo.runner.progress import Line, clock
from demo.runner.start import exit_code, need_overlay, need_packages, need_room, only_one, stop_on_signals, whole_number
from demo.vision import data, training
from demo.vision.settings import CLASSES, MODEL, Run

PICTURE_FILE = "entropy.png"
NUMBERS_FILE = "runs.csv"
NEEDED_PACKAGES = (
    "torch",
    "torchvision",
    "yaml",
    "safetensors",
    "huggingface_hub",
    "sklearn",
    "PIL",
    "matplotlib",
    "psutil",
)
NEEDED_DISK_MB = 150  # the results of six runs take 30 MB, two runs at work as much


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo.vision", description=__doc__)
    parser.add_argument(
        "--seeds",
        default=[1, 2, 3],
        type=whole_number(0),
        nargs="+",
        metavar="SEED",
        help="a baseline and an ERA run for each",
    )
    parser.add_argument("--epochs", default=15, type=whole_number(1), help="of each run")
    parser.add_argument("--min-entropy", default=0.6, type=float, metavar="H0", help="ERA's H0 in nats")
    parser.add_argument("--checkout", default="checkouts/timm", type=Path, help="timm with the ERA overlay")
    parser.add_argument("--out", default="results/demo-vision", type=Path, help="folder of the results")
    arguments = parser.parse_args(arguments)
    twice = sorted({seed for seed in arguments.seeds if arguments.seeds.count(seed) > 1})
    if twice:
        parser.error(f"argument --seeds: {', '.join(map(str, twice))} given twice; each seed once")
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Finds what would stop the demo half-way. From then on `import timm` gives the checkout's."""
    need_packages(NEEDED_PACKAGES, "demo-vision")
    need_overlay(arguments.checkout, "timm", "timm/__init__.py", "timm/layers/era.py", "timm/utils/era.py")
    need_room(arguments.out, NEEDED_DISK_MB)
    sys.path.insert(0, str(arguments.checkout.resolve()))
    from timm.layers import EntropyRegularizingActivation

    try:
        EntropyRegularizingActivation(CLASSES, arguments.min_entropy)
    except ValueError as error:
        raise DemoError(f"--min-entropy: {error}. The paper has 0.6 for ten classes") from None


def train(wanted: list[Run], checkout: Path, out: Path) -> dict[Run, dict]:
    """Trains what is not there yet, the runs of a seed side by side. Returns each run's run.json."""
    line, key = Line("runs"), training.key(checkout)
    waiting = []
    for run in wanted:
        if runs.finished(out / run.folder, key) is not None:
            line.show(f"{run.label}: {run.epochs} epochs, reused from {out / run.folder}", last=True)
            continue
        waiting.append(run)
        difference = runs.difference(out / run.folder, key, training.CODE_NAME)
        if difference:
            again = "training again, and keeping it until the new one is finished"
            line.show(f"{run.label}: {out / run.folder} differs in {difference}: {again}", last=True)
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

    if waiting:
        line.show("starting timm (some ten seconds)", last=not line.in_place)
    for seed in dict.fromkeys(run.seed for run in waiting):
        training.train([run for run in waiting if run.seed == seed], checkout, out, key, on_epoch)
    return {run: runs.finished(out / run.folder, key) for run in wanted}


def demo(arguments: argparse.Namespace) -> None:
    check(arguments)
    from demo.vision import report

    own_loop = training.script(arguments.checkout).name != "train.py"
    trainer = "a small loop of the demo's (demo/vision/loop.py)" if own_loop else "timm's own train.py"
    if own_loop:
        print(
            f"{arguments.checkout} has no train.py: it was made from timm's source package, which lacks it. So a loop of the "
            "demo's takes its place."
        )
    print(
        f"A tiny network ({MODEL}) learns {data.COUNTS['train']} handwritten digits on this CPU with {trainer}, once without and once "
        f"with ERA (H0 {arguments.min_entropy:g}),\n{arguments.epochs} epochs, seed {', '.join(map(str, arguments.seeds))}. Logs and results: "
        f"{arguments.out}\nBelow, top-1 (%) and entropy (nats) are those of the {data.COUNTS['validation']} validation images.",
        flush=True,
    )
    wanted = [Run(h0, seed, arguments.epochs) for seed in arguments.seeds for h0 in (None, arguments.min_entropy)]
    with only_one(arguments.out):
        data.write(arguments.out / data.FOLDER)
        finished = train(wanted, arguments.checkout, arguments.out)
        results = [report.Result.read(run, arguments.out, info) for run, info in finished.items()]
        sentences = report.findings(results)
        if own_loop:
            sentences.append(
                "Trained by the demo's own loop, not by timm's train.py, so this shows nothing about that script."
            )
        report.picture(results, arguments.out / PICTURE_FILE)
        write_csv(arguments.out / NUMBERS_FILE, report.rows(results))
        (arguments.out / "summary.json").write_text(json.dumps(report.record(results, sentences), indent=2) + "\n")
    print(f"\n{report.table(results)}\n")
    print("\n".join(textwrap.fill(sentence, 118, break_on_hyphens=False) for sentence in sentences))
    print(
        f"\npicture  {arguments.out / PICTURE_FILE}\nnumbers  {arguments.out}/{{summary.json,{NUMBERS_FILE}}}, "
        f"{arguments.out}/*/{training.SUMMARY_FILE}\nlogs     {arguments.out}/*/{training.LOG_FILE}"
    )


def main() -> int:
    stop_on_signals()
    return exit_code(demo, parse())


if __name__ == "__main__":
    sys.exit(main())
