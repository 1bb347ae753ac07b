"""timm's trainings: summary.csv, command.txt and log.txt of overlays/timm/recipes/era.

One row per epoch, from 0; here they are counted from 1. train.py repeats its header on resuming, and an epoch if its
checkpoint was not written: the later row counts. A training is finished when it has the epochs of its schedule
(--epochs of its command), or those after which the recipe ends it: those in time/, and those that only ImageNet's sweep
has. One that the sweep shares with the main results is finished at the end of its schedule; Experiment.until says where
the sweep looks at it.
"""

import math
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from statistics import fmean, harmonic_mean

from ledger.readers import recipes
from ledger.readers.run_folder import (
    SECONDS,
    TIMED,
    TRAINING,
    Z95,
    Needs,
    Problems,
    RunFolder,
    digest_of,
    name_and_seed,
)
from ledger.readers.tables import are_in_order, curves_of, read_csv
from ledger.results import Result

FILE, COMMAND, LOG = "summary.csv", "command.txt", "log.txt"
ACCURACIES = {"top1": "eval_top1", "top5": "eval_top5"}
COLUMNS = (*ACCURACIES.values(), "eval_entropy_mean", "eval_entropy_min")
IMAGENET_IMAGES = 50_000  # of its validation
# One line of train.py's log, the means over the epoch so far in brackets.
STEP = re.compile(rb"Train: (\d{1,9}) \[.*?Time: [\d.]+s, +[\d.]+/s +\((\d{1,9}\.\d+)s, +(\d{1,9}\.\d+)/s\)")


def recognises(folder: Path, names: Set[str]) -> bool:
    return FILE in names


def read(folder: Path, needs: Needs) -> list[RunFolder]:
    file = folder / FILE
    problems = Problems(file)
    name, seed = name_and_seed(folder)
    needed = needs.metrics(TRAINING, name)
    log = read_csv(file, "epoch", COLUMNS, problems)
    used = are_in_order(log, problems, first=0) and bool(log.steps)
    columns = [ACCURACIES.get(metric, metric) for metric in needed if metric != SECONDS]
    curves = curves_of(log, columns, problems, shift=1, say=used)
    values = {metric: curves[column].y[-1] for metric, column in ACCURACIES.items() if column in curves}
    if name.startswith(TIMED):
        seconds = seconds_of_a_step(folder)
        values |= {} if seconds is None else {SECONDS: seconds}
        if seconds is None and SECONDS in needed:
            problems.add(f"has no {LOG} with the times of steps beside it, which the ledger needs")
    total, as_recipe, command_problems = recipes.timm(folder / COMMAND, name, seed)
    steps = log.last_step + 1 if log.steps else 0
    over_images = intervals(name, values)
    result = Result(
        TRAINING, name, seed, str(folder), bool(total and steps >= total), steps, total, values,
        over_images, "images" if over_images else "", curves, used=used and as_recipe,
    )  # fmt: skip
    return [RunFolder(result, problems.all() + command_problems, digest_of(file))]


def intervals(name: str, values: Mapping[str, float]) -> dict[str, float]:
    """Of ImageNet's accuracies, binomial; a name with a number of classes is of another data set."""
    if not name.startswith("imagenet") or "classes" in name:
        return {}
    shares = {metric: values[metric] / 100 for metric in ACCURACIES if metric in values}
    return {metric: 100 * Z95 * math.sqrt(share * (1 - share) / IMAGENET_IMAGES) for metric, share in shares.items()}


def seconds_of_a_step(folder: Path) -> float | None:
    """Mean over the epochs without the first, in which cuDNN chooses its kernels, if there are more.

    The log has a step's seconds with three decimals and its images per second with more, so the time is taken from the
    latter and the images per step of the command."""
    file = folder / LOG
    lines = STEP.findall(file.read_bytes()) if file.is_file() else []
    found = {int(epoch): (float(seconds), float(rate)) for epoch, seconds, rate in lines}
    counted = [speed for epoch, speed in sorted(found.items()) if epoch > 0 or len(found) == 1]
    if not counted:
        return None
    seconds, rate = fmean(speed[0] for speed in counted), harmonic_mean([speed[1] for speed in counted])
    batch = images_per_step(recipes.words(folder / COMMAND))
    copies = round(seconds * rate / batch) if batch and rate else 0  # of an image: --aug-splits has several
    return copies * batch / rate if copies else seconds or None


def images_per_step(words: Sequence[str]) -> int | None:
    """GPUs x the last -b of the command `./distributed_train.sh GPUS ...`."""
    batches = [value for flag, value in zip(words, words[1:]) if flag in ("-b", "--batch-size")]
    return int(words[1]) * int(batches[-1]) if batches and words[1].isdecimal() and batches[-1].isdecimal() else None
