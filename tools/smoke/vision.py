"""python -m tools.smoke.vision [EXPERIMENT ...]: the paper's runs for image classification on this CPU, an epoch each.

The recipe is run as it is, through its own check, distributed_train.sh and train.py, with a tiny model and generated
images: only flags and variables that it takes are set. One process, because train.py has no other way on a CPU.
"""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from demo.llm import run
from demo.runner.errors import DemoError
from demo.runner.start import Stopped, only_one, stop_on_signals

RECIPE = "recipes/era"
CLASSES, SIDE = 10, 32
IMAGES = {"train": 4, "validation": 2}  # per class
FLAGS = [
    "--dataset=", "--model", "test_resnet", "--img-size", str(SIDE), "--device", "cpu", "-b", "8", "--workers", "1", "--epochs", "1",
    "--log-interval", "1", "--checkpoint-hist", "1",
]  # fmt: skip
SECONDS_TO_END = 60


@dataclass(frozen=True)
class Outcome:
    experiment: str
    exit_code: int
    seconds: float
    log: str


def write_images(folder: Path) -> None:
    """Class folders of noise around a colour of the class."""
    draw = random.Random(1)
    for split, count in IMAGES.items():
        for label in range(CLASSES):
            (folder / split / str(label)).mkdir(parents=True)
            for number in range(count):
                image = Image.effect_noise((SIDE, SIDE), 60).convert("RGB")
                colour = Image.new("RGB", image.size, f"hsl({36 * label}, 80%, {draw.randint(30, 70)}%)")
                Image.blend(image, colour, 0.5).save(folder / split / str(label) / f"{number}.png")


def experiments(checkout: Path) -> list[str]:
    """Those of the recipe, in its order."""
    code = "import runs; print(*runs.EXPERIMENTS)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=checkout / RECIPE, capture_output=True, text=True, check=True
    ).stdout.split()


def run_experiment(checkout: Path, experiment: str, images: Path, out: Path, log: Path) -> Outcome:
    """Starts the recipe's launcher and waits for it; it ends its processes when it is asked to end."""
    variables = {
        "PYTHON": sys.executable,
        "GPUS": "1",
        "SEED": "42",
        "DATA_DIR": str(images.resolve()),
        "OUTPUT": str(out.resolve()),
        "NUM_CLASSES": str(CLASSES)
        if experiment.startswith("imagenet")
        else "",  # the check wants 1,000 classes without it
        "OMP_NUM_THREADS": "1",
        **{name: "" for name in ("H0", "AUG", "EPOCHS", "DRY_RUN", "CHECK_ONLY", "ENVIRONMENT_TO_COME")},
    }
    command = [sys.executable, str(checkout.resolve() / RECIPE / "launch.py"), experiment, *FLAGS]
    began = time.monotonic()
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS_TO_END)
    return Outcome(experiment, process.returncode, time.monotonic() - began, log.read_text(errors="replace"))


def check(checkout: Path) -> None:
    if not (checkout / RECIPE / "launch.py").is_file():
        raise DemoError(
            f"{checkout} is not timm with the ERA overlay: no {RECIPE}/launch.py there. Run: python apply.py apply timm"
        )
    if not (checkout / "train.py").is_file():
        raise DemoError(
            f"{checkout} has no train.py: it was made from timm's source package, which lacks it, because git could not reach upstream. "
            "Make it from git: python apply.py apply timm --source git --checkouts <an empty folder>. Nothing was changed."
        )


def choose(checkout: Path, names: list[str]) -> list[str]:
    known = experiments(checkout)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DemoError(f"no experiment {', '.join(unknown)}. There are:\n    " + "\n    ".join(known))
    return [name for name in known if name in names] if names else known


def smoke(checkout: Path, out: Path, chosen: list[str]) -> list[Outcome]:
    """Runs the experiments one after the other and prints a line for each, then the recipe's table. Returns the failed."""
    images, runs, logs = (run.fresh(out / name) for name in ("images", "runs", "logs"))
    write_images(images)
    results = []
    for name in chosen:
        results.append(result := run_experiment(checkout, name, images, runs, logs / f"{name}.txt"))
        trained = result.log.count("== ")
        print(
            f"{name:<26}{trained:>3} trained{result.seconds:>6.0f} s"
            + (f"  FAILED with exit code {result.exit_code}" if result.exit_code else ""),
            flush=True,
        )
    table = subprocess.run([sys.executable, checkout / RECIPE / "results.py", runs], capture_output=True, text=True)
    print(f"\n{table.stdout or table.stderr}", end="")
    return [result for result in results if result.exit_code]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.smoke.vision", description=__doc__)
    parser.add_argument(
        "experiments", nargs="*", metavar="EXPERIMENT", help="of the checkout's recipes/era; default: all"
    )
    parser.add_argument("--checkout", default="checkouts/timm", type=Path, help="timm with the ERA overlay")
    parser.add_argument("--out", default="results/smoke-vision", type=Path, help="folder of the results")
    return parser.parse_args(arguments)


def main() -> int:
    stop_on_signals()
    arguments = parse()
    try:
        check(arguments.checkout)
        chosen = choose(arguments.checkout, arguments.experiments)
        print(
            f"Each run of {arguments.checkout / RECIPE} trains timm's test_resnet (0.5 million parameters) on {CLASSES * IMAGES['train']} generated images for one\n"
            f"epoch on this CPU: some seconds, nearly all of it the start. A run that two experiments share is trained once.\n"
            f"Checkpoints and summaries: {arguments.out}/runs. The accuracies mean nothing.\n",
            flush=True,
        )
        arguments.out.mkdir(parents=True, exist_ok=True)
        with only_one(arguments.out):
            failed = smoke(arguments.checkout, arguments.out, chosen)
    except Stopped as stopped:
        print(f"\nsmoke: stopped by {signal.Signals(stopped.number).name}; nothing is left running", file=sys.stderr)
        return 128 + stopped.number
    except DemoError as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"smoke: {error.strerror or error}: {error.filename or arguments.out}", file=sys.stderr)
        return 1
    for result in failed:
        tail = "\n".join(f"    {text[:300]}" for text in result.log.splitlines()[-15:])
        print(f"\nsmoke: {result.experiment} failed. The end of its log:\n{tail}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
