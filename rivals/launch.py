# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Trains the runs of docs/rivals/llm.md, trl.md or vision.md, and chooses settings by the rule written there.

Repeating the command skips finished runs and starts interrupted ones over, except that trl's go on from a checkpoint.
Settings come from the environment:

  OUTPUT      folder of the runs: results/rivals
  JOBS        runs at a time: as many as this machine has cores
  CHECKOUTS   folder of apply.py's checkouts, for llm: checkouts
  DRY_RUN=1   print the commands of the next stage and stop
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from recipes import run_json
from rivals import llm, records, trl, vision
from rivals.rule import FRESH_SEEDS, TUNING_SEEDS, choose

PROJECT = records.PROJECT
LOG = "log.txt"
Runs = dict[str, list[str]]  # the name of each run's folder, and the module and flags that train it


def runs(module: str, task: str, settings: Mapping[str, Iterable[str]], seeds: Iterable[int], *flags: str) -> Runs:
    """Seed by seed, so that the first runs already compare all methods."""
    found = {}
    for seed in seeds:
        for method, setting in ((method, setting) for method, values in settings.items() for setting in values):
            words = [module, *flags, "--method", method, "--setting", setting, "--seed", str(seed)]
            found[f"{task}-{method}-{setting}-seed{seed}"] = words
    return found


def llm_runs(task: str, settings: Mapping[str, Iterable[str]], seeds: Iterable[int]) -> Runs:
    return runs("rivals.llm_run", task, settings, seeds, "--task", task)


def llm_stages(output: Path) -> Iterator[Runs]:
    """The runs of each stage, which is asked for once the runs of the stages before it are finished."""
    for tuned_on, task, off_policy in llm.PARTS:
        settings = llm.settings(off_policy)
        yield llm_runs(tuned_on, settings, TUNING_SEEDS)
        scores = llm.measures(records.gather(output)["llm/samples"]).score
        chosen = choose(scores[tuned_on], settings)
        yield llm_runs(task, {method: [setting] for method, setting in chosen.items()}, FRESH_SEEDS)
    # Beside the protocol, for a picture in docs/when-to-use.md.
    yield llm_runs("chain-single", {"grpo": ["1"], "era": ["0.3"]}, [1])


def vision_stages(output: Path) -> Iterator[Runs]:
    yield runs("rivals.vision_run", vision.TASK, vision.METHODS, TUNING_SEEDS)
    scores = vision.scores(vision.measures(records.gather(output)["vision/measures"]))
    settings = {}  # the arms of a method may have chosen the same setting
    for arm, setting in choose(scores, vision.settings()).items():
        settings.setdefault(vision.ARMS[arm], {})[setting] = None
    yield runs("rivals.vision_run", vision.TASK, settings, FRESH_SEEDS)


def trl_stages(output: Path) -> Iterator[Runs]:
    for found in ({task: trl.WARM_UP for task in trl.TASKS}, trl.TASKS):
        of_tasks = (runs("rivals.trl_run", task, found[task], trl.SEEDS, "--task", task) for task in found)
        yield {name: words for stage in of_tasks for name, words in stage.items()}


STAGES = {"llm": llm_stages, "trl": trl_stages, "vision": vision_stages}


def is_finished(folder: Path) -> bool:
    return run_json.read(folder).get("finished") is True


def train(folder: Path, command: list[str]) -> int:
    """Returns the exit code. The output goes to LOG in the folder, which is emptied first if it has no checkpoint."""
    if not any(folder.glob("checkpoint-*")):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    with open(folder / LOG, "a") as log:
        return subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT).returncode


def train_stage(left: dict[Path, list[str]], jobs: int) -> None:
    """Trains the runs that are left. Once all have ended, exits with an error if any failed."""
    failed = []
    pool = ThreadPoolExecutor(jobs)
    try:
        training = {pool.submit(train, folder, command): folder for folder, command in left.items()}
        for number, done in enumerate(as_completed(training), 1):
            folder = training[done]
            if done.result() or not is_finished(folder):
                failed.append(folder)
            ended = f"failed, see {folder / LOG}" if folder in failed else "finished"
            print(f"{number} of {len(left)}: {folder.name} {ended}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    if failed:
        sys.exit(
            f"error: {len(failed)} runs failed, and the next ones need them. Repeat the command to start them over."
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m rivals.launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("domain", choices=STAGES)
    domain, given = parser.parse_args().domain, os.environ.get
    output = Path(given("OUTPUT") or PROJECT / "results/rivals").absolute()
    jobs = given("JOBS") or str(run_json.hardware()["cores"])
    if not jobs.isdigit() or not int(jobs):
        parser.error(f"JOBS={jobs}: a number of runs, above 0, expected.")
    checkout = Path(given("CHECKOUTS") or PROJECT / "checkouts", "verl").absolute()
    os.environ["CHECKOUTS"] = str(checkout.parent)  # for runs, which start in other folders
    if domain == "llm" and not (checkout / "verl/utils/era.py").is_file():
        parser.error(f"{checkout} is not verl with the overlay. Run: python3 apply.py apply verl")
    for stage in STAGES[domain](output):
        left = {output / name: [sys.executable, "-m", *words] for name, words in stage.items()}
        left = {folder: command for folder, command in left.items() if not is_finished(folder)}
        if left and given("DRY_RUN", "0") != "0":
            for folder, command in left.items():
                at = shlex.quote(str(folder))
                print(f"mkdir -p {at} && cd {at} && PYTHONPATH={PROJECT} OMP_NUM_THREADS=1 {shlex.join(command)}")
            print("note: the runs of a next stage need these.", file=sys.stderr)
            return
        if left:
            print(
                f"{len(left)} of {len(stage)} runs to train, in {output}; each writes {LOG} and its steps as CSV",
                flush=True,
            )
        train_stage(left, int(jobs))
    print(f"All runs of docs/rivals/{domain}.md are finished, in {output}.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped. Repeating the command skips finished runs and starts the others over.")
