# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.launch llm|vision: trains the runs of docs/rivals/, and chooses settings by the rule written there.

Repeating the command skips finished runs and starts interrupted ones over. Settings come from the environment:

  OUTPUT      folder of the runs: results/rivals
  JOBS        runs at a time: as many as this machine has cores
  PYTHON      of the environment that trains: this one
  CHECKOUTS   folder of apply.py's checkouts, for llm: checkouts
  DRY_RUN=1   print the commands of the next stage and stop
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CONTROL = str(PROJECT / "recipes/control")
sys.path += [str(PROJECT / "recipes"), CONTROL]
import grid  # noqa: E402
import launching  # noqa: E402
import run_json  # noqa: E402
from host import JOBS, code_of, cores  # noqa: E402

from results import is_finished, steps_done  # noqa: E402
from rivals import llm, records, vision  # noqa: E402
from rivals.rule import FRESH_SEEDS, TUNING_SEEDS, choose  # noqa: E402

sys.path.remove(CONTROL)  # it has an `environments`, which would hide FastTD3's package of this name
OUTPUT = PROJECT / "results/rivals"


@dataclass(frozen=True)
class Run:
    name: str
    task: str
    agent: str  # the method
    command: tuple[str, ...]


def runs(
    module: str, task: str, settings: Mapping[str, Iterable[str]], seeds: Iterable[int], flags: tuple[str, ...] = ()
) -> list[Run]:
    """Seed by seed, so that the first runs already compare all methods."""
    return [
        Run(
            f"{task}-{method}-{setting}-seed{seed}",
            task,
            method,
            (module, *flags, "--method", method, "--setting", setting, "--seed", str(seed)),
        )
        for seed in seeds
        for method, values in settings.items()
        for setting in values
    ]


def llm_runs(task: str, settings: Mapping[str, Iterable[str]], seeds: Iterable[int]) -> list[Run]:
    return runs("rivals.llm_run", task, settings, seeds, ("--task", task))


def llm_stages(output: Path) -> Iterator[list[Run]]:
    """Each is asked for once the runs of those before it are finished."""
    for tuned_on, task, off_policy in llm.PARTS:
        settings = llm.settings(off_policy)
        yield llm_runs(tuned_on, settings, TUNING_SEEDS)
        scores = llm.measures(records.gather(output)["llm/samples"]).score
        chosen = choose(scores[tuned_on], settings)
        yield llm_runs(task, {method: [setting] for method, setting in chosen.items()}, FRESH_SEEDS)
    # Beside the protocol, for a picture in docs/when-to-use.md.
    yield llm_runs("chain-single", {"grpo": ["1"], "era": ["0.3"]}, [1])


def vision_stages(output: Path) -> Iterator[list[Run]]:
    yield runs("rivals.vision_run", vision.TASK, vision.METHODS, TUNING_SEEDS)
    scores = vision.scores(vision.measures(records.gather(output)["vision/measures"]))
    settings = {}  # those of a method's arms may be the same
    for arm, setting in choose(scores, vision.settings()).items():
        settings.setdefault(vision.ARMS[arm], {})[setting] = None
    yield runs("rivals.vision_run", vision.TASK, settings, FRESH_SEEDS)


@dataclass(frozen=True)
class Trainer(grid.Trainer):
    python: str
    steps_of: Mapping[str, int]  # a task's runs
    files: tuple[str, ...]

    def words(self, run: Run, folder: Path) -> list[str]:
        return [self.python, "-m", *run.command]

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}

    def about(self, run: Run) -> dict:
        return {"added": [], "as_paper": False, **code_of()}

    def leftovers(self, folder: Path) -> list[Path]:
        return [path for name in (run_json.FILE, grid.LOG, *self.files) if (path := folder / name).exists()]

    def resumes(self, folder: Path) -> bool:
        return False

    def is_finished(self, folder: Path) -> bool:
        return is_finished(folder)

    def steps(self, folder: Path) -> tuple[int, int | None]:
        return steps_done(folder), run_json.read(folder).get("total_steps")

    def last_return(self, folder: Path) -> float | None:
        return None

    def planned_steps(self, run: Run) -> int | None:
        return self.steps_of[run.task]


# stages; steps of a task's runs; files that they write
DOMAINS = {
    "llm": (llm_stages, llm.STEPS, (llm.CURVES, llm.SAMPLES, "verl")),
    "vision": (vision_stages, {vision.TASK: vision.EPOCHS}, ("train.csv", vision.MEASURES)),
}


def launch(domain: str, added: list[str]) -> None:
    launching.refuse_if_any([f"{word}: the protocol's runs take no flags." for word in added])
    given, problems = launching.read_variables({"JOBS": JOBS})
    checkout = Path(os.environ.get("CHECKOUTS") or PROJECT / "checkouts", "verl")
    if domain == "llm" and not (checkout / "verl/utils/era.py").is_file():
        problems.append(f"checkout: {checkout} is not verl with the overlay. Run: python3 apply.py apply verl")
    launching.refuse_if_any(problems)
    output = Path(os.path.abspath(os.environ.get("OUTPUT") or OUTPUT))
    stages, steps, files = DOMAINS[domain]
    trainer = Trainer(grid.python_that_trains(sys.executable), steps, files)
    for runs_of_stage in stages(output):
        jobs = [(run, output / run.name) for run in runs_of_stage]
        if all(trainer.is_finished(folder) for _, folder in jobs):
            continue
        repeated = "Repeating the command skips finished runs and starts these over."
        at_once = given.get("JOBS", cores())
        plan = grid.Grid(domain, [], jobs, trainer, trainer.python, 0, at_once, "here", output, repeated)
        grid.launch(plan, lambda python: ([], None), lambda folders: [f"{len(folders)} finished"], "train.csv")
        if launching.is_on("DRY_RUN"):
            print(
                "note: DRY_RUN checked neither packages nor earlier runs. These runs decide the next stage's settings.",
                file=sys.stderr,
            )
            return
    print(f"All runs of docs/rivals/{domain}.md are finished, in {output}.")


if __name__ == "__main__":
    after_stop = "; nothing is left running. Repeating the command skips finished runs and goes on with the others."
    sys.exit(launching.main(__doc__, DOMAINS, launch, after_stop))
