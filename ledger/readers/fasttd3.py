"""FastTD3's trainings: train.csv, log.txt, command.txt and models/ of overlays/fasttd3/recipes/era.

A row for every 100 steps. A training is finished when its final model is whole and train.csv reaches the last step
that train.py logs. Copies often leave models/ behind: without it train.csv and the settings that train.py prints into
log.txt decide alone. Those in a folder time/ are compared by the time of a step, from the first row on, before which
the networks are compiled.
"""

import re
import zipfile
from collections.abc import Set
from pathlib import Path

import numpy as np

from ledger.readers import recipes
from ledger.readers.run_folder import (
    SECONDS,
    TIMED,
    TRAINING,
    Needs,
    Problems,
    RunFolder,
    digest_of,
    name_and_seed,
    names_of,
)
from ledger.readers.tables import Log, are_in_order, curves_of, read_csv, series
from ledger.results import Result

FILE, COMMAND, LOG, MODELS = "train.csv", "command.txt", "log.txt", "models"
AGENT = re.compile(r"-fast(td3|sac_era)(-|$)")  # in the name of a folder
STEP, INTERVAL = "global_step", 100  # steps between two rows
TOTAL = re.compile(rb"\btotal_timesteps=([1-9]\d{0,14})\b")


def recognises(folder: Path, names: Set[str]) -> bool:
    """By the agent in the folder's name: the agents of recipes/control have a train.csv of another form."""
    return FILE in names and AGENT.search(names_of(folder)[1]) is not None


def read(folder: Path, needs: Needs) -> list[RunFolder]:
    file = folder / FILE
    problems = Problems(file)
    name, seed = name_and_seed(folder)
    needed = needs.metrics(TRAINING, name)
    log = read_csv(file, STEP, ["seconds", *sorted(needed)], problems)
    used = are_in_order(log, problems, first=INTERVAL, every=INTERVAL, resumes=False) and bool(log.steps)
    total = total_steps(folder / LOG)
    finished = is_finished(folder, log.last_step, total)
    if total is None:
        what = f"has no {LOG} beside it that says for how many steps it was started"
        problems.add(f"{what}, so it does not count as finished")
    seconds = seconds_of_a_step(log, problems) if name.startswith(TIMED) else None
    log.columns.pop("seconds", None)
    curves = curves_of(log, needed - {SECONDS}, problems, say=finished and used)
    values = {} if seconds is None else {SECONDS: seconds}
    as_recipe, command_problems = recipes.fasttd3(folder / COMMAND, name, seed)
    result = Result(
        TRAINING, name, seed, str(folder), finished, log.last_step, total, values, curves=curves,
        used=used and as_recipe,
    )  # fmt: skip
    return [RunFolder(result, problems.all() + command_problems, digest_of(file), f"{total} steps" if total else "")]


def total_steps(log: Path) -> int | None:
    found = TOTAL.findall(log.read_bytes()) if log.is_file() else []
    return int(found[-1]) if found else None


def is_finished(folder: Path, steps: int, total: int | None) -> bool:
    if total is None or steps < (total - 1) // INTERVAL * INTERVAL:
        return False
    return not (folder / MODELS).is_dir() or any(map(zipfile.is_zipfile, (folder / MODELS).glob("*_final.pt")))


def seconds_of_a_step(log: Log, problems: Problems) -> float | None:
    points = series("seconds", log.columns["seconds"], problems) if "seconds" in log.columns else None
    if points is None or len(points[0]) < 2:
        problems.add("has no time of a step: two rows with seconds are needed")
        return None
    steps, seconds = points
    if seconds[-1] <= seconds[0] or (np.diff(seconds) < 0).any():
        problems.add("has no time of a step: its seconds do not grow")
        return None
    return float((seconds[-1] - seconds[0]) / (steps[-1] - steps[0]))
