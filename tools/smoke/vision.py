"""python -m tools.smoke.vision [EXPERIMENT ...]: the paper's runs for image classification on this CPU, an epoch each.

The recipe runs unchanged, with its check, distributed_train.sh and train.py. Flags and variables that it takes choose a
tiny model and generated images, and bf16, because a convolution in fp16 takes a CPU 500 times as long. There is one
process because train.py cannot use more on a CPU.
"""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()

import argparse
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from demo.runner.command import need_overlay, only_one
from demo.runner.errors import DemoError
from demo.runner.processes import end_of
from demo.runner.results import empty
from tools.smoke import recipe
from tools.smoke.recipe import RECIPE, choose

CLASSES, SIDE = 10, 32
IMAGES = {"train": 4, "validation": 2}  # per class
FLAGS = [
    "--dataset=", "--model", "test_resnet", "--img-size", str(SIDE), "--device", "cpu", "-b", "8", "--workers", "1",
    "--epochs", "1", "--log-interval", "1", "--checkpoint-hist", "1", "--amp-dtype", "bfloat16",
]  # fmt: skip
UNSET = ("H0", "AUG", "EPOCHS", "NUM_CLASSES", "DRY_RUN", "CHECK_ONLY", "ENVIRONMENT_TO_COME")


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


def run_experiment(checkout: Path, experiment: str, images: Path, out: Path, log: Path) -> Outcome:
    variables = dict.fromkeys(UNSET, "")
    variables |= {"GPUS": "1", "SEED": "42", "DATA_DIR": str(images.resolve()), "OUTPUT": str(out.resolve())}
    if experiment.startswith("imagenet"):
        variables["NUM_CLASSES"] = str(CLASSES)  # the recipe's check wants 1,000 classes without it
    began = time.monotonic()
    with log.open("w") as stream:
        exit_code = recipe.launch(checkout, experiment, FLAGS, variables, stream)
    return Outcome(experiment, exit_code, time.monotonic() - began, log.read_text(errors="replace"))


def check(checkout: Path) -> None:
    need_overlay(checkout, "timm", f"{RECIPE}/launch.py")
    if not (checkout / "train.py").is_file():
        raise DemoError(
            f"{checkout} has no train.py: it was made from timm's source package, which lacks it, because git could "
            "not reach upstream. Make it from git: python apply.py apply timm --source git --checkouts <an empty "
            "folder>. Nothing was changed."
        )


def run_all(checkout: Path, out: Path, chosen: list[str]) -> list[Outcome]:
    """Runs the experiments one by one and prints a line for each, then the recipe's table. Returns the failed ones."""
    images, runs, logs = (empty(out / name) for name in ("images", "runs", "logs"))
    write_images(images)
    outcomes = []
    for name in chosen:
        outcome = run_experiment(checkout, name, images, runs, logs / f"{name}.txt")
        outcomes.append(outcome)
        failed = f"  FAILED with exit code {outcome.exit_code}" if outcome.exit_code else ""
        print(f"{name:<26}{outcome.log.count('== '):>3} trained{outcome.seconds:>6.0f} s{failed}", flush=True)
    table = subprocess.run([sys.executable, checkout / RECIPE / "results.py", runs], capture_output=True, text=True)
    print(f"\n{table.stdout or table.stderr}", end="")
    return [outcome for outcome in outcomes if outcome.exit_code]


def smoke(arguments: argparse.Namespace) -> int:
    checkout, out = arguments.checkout, arguments.out
    check(checkout)
    chosen = choose(checkout, arguments.names)
    print(
        f"Each run of {checkout / RECIPE} trains timm's test_resnet (0.5 million parameters) on "
        f"{CLASSES * IMAGES['train']} generated images for one\nepoch on this CPU: some seconds, most of which is the "
        "start. A run that two experiments share is trained once.\n"
        f"Checkpoints and summaries: {out}/runs. The accuracies mean nothing.\n",
        flush=True,
    )
    out.mkdir(parents=True, exist_ok=True)
    with only_one(out):
        failed = run_all(checkout, out, chosen)
    for outcome in failed:
        print(f"\nsmoke: {outcome.experiment} failed. The end of its log:\n{end_of(outcome.log)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(recipe.run(smoke, __doc__, "experiment", "timm", "results/smoke-vision"))
