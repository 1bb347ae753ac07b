"""PPO's, SAC's and TD-MPC2's trainings: train.csv and run.json of recipes/control.

A row for each evaluation. A training is finished when run.json says so and train.csv reaches the steps that run.json
names. PPO goes on from its own checkpoint and may write rows again: the later one counts.
"""

from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np

from ledger.readers import fasttd3, recipes
from ledger.readers.fasttd3 import FILE, STEP
from ledger.readers.run_folder import TRAINING, Needs, Problems, RunFolder, digest_of, name_and_seed, read_json
from ledger.readers.tables import are_in_order, curves_of, read_csv
from ledger.results import Result

INFO = "run.json"
KINDS = {
    "task": str, "seed": int, "command": list, "total_steps": int, "finished": bool, "hardware": dict,
}  # fmt: skip


def recognises(folder: Path, names: Set[str]) -> bool:
    """Also without run.json, which a copy may lack."""
    return FILE in names and not fasttd3.recognises(folder, names)


def read(folder: Path, needs: Needs) -> list[RunFolder]:
    problems, info_problems = Problems(folder / FILE), Problems(folder / INFO)
    name, seed = name_and_seed(folder)
    info = read_info(folder / INFO, info_problems)
    needed = needs.metrics(TRAINING, name)
    log = read_csv(folder / FILE, STEP, sorted(needed), problems)
    total = info.get("total_steps")
    every = interval(log.steps) or total or 1
    used = are_in_order(log, problems, first=every, every=every) and bool(log.steps)
    finished = bool(total) and info["finished"] and log.last_step >= total
    if total and info["finished"] and not finished:
        problems.add(
            f"ends at step {log.last_step}, and {INFO} says that it finished at {total}: it counts as unfinished"
        )
    as_recipe = bool(info) and recipes.control(info["command"], name, seed, info_problems)
    result = Result(
        TRAINING, name, seed, str(folder), finished, log.last_step, total,
        curves=curves_of(log, needed, problems, say=finished and used), used=used and as_recipe, **provenance(info),
    )  # fmt: skip
    settings = f"{total} steps" if total else ""
    return [RunFolder(result, problems.all() + info_problems.all(), digest_of(folder / FILE), settings)]


def read_info(file: Path, problems: Problems) -> dict:
    """{} and a problem where it is missing, cut short or of something else."""
    info = read_json(file)
    good = {key: type(info.get(key)) is kind for key, kind in KINDS.items()}
    good["command"] &= good["command"] and all(isinstance(word, str) for word in info["command"])
    good["total_steps"] &= good["total_steps"] and info["total_steps"] > 0
    wrong = [key for key, is_good in good.items() if not is_good]
    if wrong:
        what = f"{', '.join(wrong)} cannot be read" if info else "is missing, or is not JSON, or is cut short"
        problems.add(f"{what}, so nothing says how this was trained: the result is not used")
    return {} if wrong else info


def interval(steps) -> int:
    """The smallest between two rows; 0 with one row."""
    between = np.diff(np.unique(np.asarray(steps)))
    return int(between.min()) if len(between) else 0


def provenance(info: Mapping) -> dict[str, str]:
    """Commit of this project, day of the end, hardware: as far as they are words."""
    hardware, texts = info.get("hardware", {}), {"commit": info.get("commit"), "ended": info.get("ended")}
    known = {key: text for key, text in texts.items() if isinstance(text, str)}
    return {**known, "hardware": f"{hardware.get('cores')} cores of {hardware['cpu']}" if hardware.get("cpu") else ""}
