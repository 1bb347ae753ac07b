"""ERA beside other methods (docs/rivals/): the tables of all runs that rivals.records writes, as in records/rivals/.

One result for each arm that is reported and each of its fresh seeds; which setting of an arm that is, and its numbers,
are what rivals says. A run by itself, as rivals.launch leaves it, does not tell which setting is chosen: it is named,
and not used.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from ledger.readers.run_folder import TRAINING, Needs, RunFolder, names_of, read_json, split_seed
from ledger.results import Curve, Problem, Result
from rivals import llm, llm_report, records, vision
from rivals.stages import FRESH_SEEDS, TUNING_SEEDS

RUNS, INFO = "runs.csv", "run.json"
LLM_METRICS = ("d@.95", "accuracy", "pass@32", "reward", "H_resp")
ABOVE_FLOOR = "H_resp, last 10 steps, minus omega_low"
DAMAGE = (ArithmeticError, LookupError, TypeError, ValueError, csv.Error)  # what rivals meets in damaged tables


def recognises(folder: Path, names: Set[str]) -> bool:
    return bool(names & {RUNS, INFO}) and bool(names & {llm.SAMPLES, vision.MEASURES})


def read(folder: Path, needs: Needs) -> list[RunFolder]:
    if (folder / INFO).is_file():
        finished = read_json(folder / INFO).get("finished") is True
        how = f"`python -m rivals.records {folder.parent}` writes them to records/rivals"
        problem = Problem(str(folder.parent), None, f"holds runs of rivals/, which are read from tables of all: {how}")
        return [_not_used(folder, *split_seed(names_of(folder)[1]), problem, finished)]
    rows = _llm if (folder / llm.SAMPLES).is_file() else _vision
    try:
        return list(rows(folder))
    except DAMAGE as error:
        what = f"{type(error).__name__}: {error}"
        text = f"the tables are damaged, or lack runs of docs/rivals/ ({what}): none of them is used"
        problem = Problem(str(folder), None, f"{text}. `python -m rivals.records` writes them anew")
        return [_not_used(folder, folder.name, None, problem, finished=False)]


def _not_used(folder: Path, name: str, seed: int | None, problem: Problem, finished: bool) -> RunFolder:
    return RunFolder(Result(TRAINING, f"rivals/{name}", seed, str(folder), finished, 0, used=False), [problem], "")


def _llm(folder: Path) -> Iterator[RunFolder]:
    runs = llm_report.read(folder)
    for task, off_policy in llm_report.PARTS:
        measures = llm_report.MEASURES | llm_report.compared(task)
        part = f"{task}-off-policy" if off_policy else task
        for method, fresh in llm_report.complete(runs, task, off_policy).items():
            for run in fresh:
                values = {name: measures[name][0](run) for name in LLM_METRICS}
                if method == "era":  # a claim is about its floor, whose height depends on the setting
                    values[ABOVE_FLOOR] = run["response_entropy"] - float(run["setting"]) * llm.START[task][0]
                yield _result(folder, f"llm/{part}-{method.removeprefix('off-')}", run, values, llm.STEPS[task])


def _vision(folder: Path) -> Iterator[RunFolder]:
    rows = records.read(folder / vision.MEASURES)
    runs = {records.key(run): run for run in records.read(folder / RUNS)}
    for arm, setting in vision.choose(rows, TUNING_SEEDS).items():
        columns = {
            f"{measure} {images}": vision.values(rows, arm, setting, images, measure, FRESH_SEEDS)
            for images in (vision.TEST, vision.SHIFTED)
            for measure in vision.COLUMNS
        }
        for place, seed in enumerate(FRESH_SEEDS):
            values = {name: column[place] for name, column in columns.items()}
            run = runs[vision.TASK, arm[0], setting, seed]
            yield _result(folder, f"vision/{'-'.join(arm)}", run, values, vision.EPOCHS)


def _result(folder: Path, name: str, run: Mapping, values: Mapping[str, float], steps: int) -> RunFolder:
    finite = {metric: value for metric, value in values.items() if math.isfinite(value)}
    cpu, _, cores = str(run["cpu"]).rpartition(", ")
    # A claim on a bound is tested on a curve: here one of a single point.
    curves = {metric: Curve([steps], [y], [y], [y], 1) for metric, y in finite.items() if metric == ABOVE_FLOOR}
    result = Result(
        TRAINING, f"rivals/{name}", run["seed"], str(folder), True, steps, steps, finite, curves=curves,
        commit=str(run["commit"]), ended=str(run["ended"]), hardware=f"{cores} of {cpu}",
    )  # fmt: skip
    what = f"of {name}, seed {run['seed']}, is not a finite number: it is left out of this result"
    problems = [Problem(str(folder), None, f"{metric} {what}") for metric in values if metric not in finite]
    return RunFolder(result, problems, digest=f"{run['seed']} {values}")
