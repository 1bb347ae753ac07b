"""timm's trainings: summary.csv, command.txt and log.txt of overlays/timm/recipes/era.

An epoch a row, from 0; here they are counted from 1. train.py writes its header once more on resuming, and an epoch twice if its
checkpoint was not written: the later row counts. A run is finished when it has the epochs of its schedule (--epochs of its command), or
those after which the recipe ends it: the runs of time/, and those that ImageNet's sweep has alone. One that it shares with the main
results is finished at its schedule's end; for the sweep Experiment.until says where it is looked at.
"""

import math
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from statistics import fmean, harmonic_mean

from ledger.readers import recipes
from ledger.readers.reading import SECONDS, TIMED, TRAINING, Z95, Problems, Reading, Wanted, digest_of, timed_or_not
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


def read(folder: Path, wanted: Wanted) -> list[Reading]:
    file = folder / FILE
    problems = Problems(file)
    name, seed = timed_or_not(folder)
    needed = wanted.by(TRAINING, name)
    log = read_csv(file, "epoch", COLUMNS, problems)
    good = are_in_order(log, problems, first=0) and bool(log.steps)
    curves = curves_of(
        log, [ACCURACIES.get(metric, metric) for metric in needed if metric != SECONDS], problems, shift=1, say=good
    )
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
        kind=TRAINING, name=name, seed=seed, folder=str(folder), finished=bool(total and steps >= total), steps=steps, total=total, values=values,
        intervals=over_images, interval_of="images" if over_images else "", curves=curves, used=good and as_recipe,
    )  # fmt: skip
    return [Reading(result, problems.all() + command_problems, digest_of(file))]


def intervals(name: str, values: Mapping[str, float]) -> dict[str, float]:
    """Of ImageNet's accuracies, binomial; runs with a number of classes in their name are on a data set of their own."""
    if not name.startswith("imagenet") or "classes" in name:
        return {}
    shares = {metric: values[metric] / 100 for metric in ACCURACIES if metric in values}
    return {metric: 100 * Z95 * math.sqrt(share * (1 - share) / IMAGENET_IMAGES) for metric, share in shares.items()}


def seconds_of_a_step(folder: Path) -> float | None:
    """Mean over the epochs without the first, in which cuDNN chooses its kernels, if there are more.

    The log has a step's seconds with three digits after the point and its images per second with more, so with the command's
    images per step the time is taken from these."""
    file = folder / LOG
    found = (
        {int(epoch): (float(seconds), float(rate)) for epoch, seconds, rate in STEP.findall(file.read_bytes())}
        if file.is_file()
        else {}
    )
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
