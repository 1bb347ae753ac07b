# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.launch llm: trains the runs of docs/rivals/llm.md by the rule written there.

trl trains those of trl.md, trl-bound.md and trl-hold.md, llm-hold those of trl-hold.md in verl, vision vision.md's.
The same command again skips finished runs and starts interrupted ones over, except that trl's go on from a checkpoint.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from recipes import PROJECT, UserError, grid, launch_options
from rivals import llm, records, trl, vision
from rivals.rule import FRESH_SEEDS, TUNING_SEEDS, choose

Runs = dict[str, list[str]]  # the name of each run's folder, and the module and flags that train it


def runs(module: str, task: str, settings: Mapping[str, Iterable[str]], seeds: Iterable[int], *flags: str) -> Runs:
    """A run for each seed, method and setting, seed by seed, so that the first ones already compare all methods."""
    named = {}
    for seed in seeds:
        for method, setting in ((method, setting) for method, values in settings.items() for setting in values):
            words = [module, *flags, "--method", method, "--setting", setting, "--seed", str(seed)]
            named[f"{task}-{method}-{setting}-seed{seed}"] = words
    return named


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


def llm_hold_stages(output: Path) -> Iterator[Runs]:
    of_tasks = (llm_runs(task, llm.hold_settings(task), llm.HOLD_SEEDS) for task in llm.HOLD_SHARE)
    yield {name: words for stage in of_tasks for name, words in stage.items()}


def vision_stages(output: Path) -> Iterator[Runs]:
    yield runs("rivals.vision_run", vision.TASK, vision.METHODS, TUNING_SEEDS)
    scores = vision.scores(vision.measures(records.gather(output)["vision/measures"]))
    settings = {}  # the arms of a method may have chosen the same setting
    for arm, setting in choose(scores, vision.settings()).items():
        settings.setdefault(vision.ARMS[arm], {})[setting] = None
    yield runs("rivals.vision_run", vision.TASK, settings, FRESH_SEEDS)


def trl_stages(output: Path) -> Iterator[Runs]:
    warm_ups, trained = {}, {}
    for task, methods, seeds in trl.blocks():
        warm_ups |= runs("rivals.trl_run", task, trl.WARM_UP, seeds, "--task", task)
        trained |= runs("rivals.trl_run", task, methods, seeds, "--task", task)
    yield warm_ups
    yield trained


STAGES = {"llm": llm_stages, "llm-hold": llm_hold_stages, "trl": trl_stages, "vision": vision_stages}
METHODS = {
    "llm": [{name: method.settings for name, method in llm.METHODS.items()}],
    "llm-hold": [llm.hold_settings(task) for task in llm.HOLD_SHARE],
    "trl": [methods for _, methods, _ in trl.blocks()],
    "vision": [vision.METHODS],
}


class Stages(grid.TrainingScript):
    """The runs of one stage, in this Python and on this machine's cores."""

    launcher = launch_options.RIVALS
    root, file = PROJECT, "rivals/launch.py"

    def __init__(self, domain: str):
        super().__init__(domain)
        self.output = self.options.output or PROJECT / "results/rivals"

    def argv(self, run: grid.Run) -> list[str]:
        return [self.python, "-m", *run.command]

    def variables(self, run: grid.Run) -> dict[str, str]:
        return {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "CHECKOUTS": str(self.checkouts)}

    def incomplete_because(self, run: grid.Run) -> str:
        return records.incomplete_because(run.folder)

    def checkpoint(self, run: grid.Run) -> Path | None:
        """A checkpoint of one of trl's runs, which find the newest by themselves; the others have none."""
        return next(run.folder.glob("checkpoint-*"), None)


def chosen(domain: str, options: launch_options.LaunchOptions, output: Path) -> Iterator[Runs]:
    """The stages, of which TASKS, SEED and ARMS choose runs; a warm-up is no arm, and whatever is chosen needs it."""
    arms = {f"{method}-{value}" for methods in METHODS[domain] for method in methods for value in methods[method]}
    tasks, seeds, wanted = options.only_tasks, options.only_seeds, options.only_arms
    if unknown := [arm for arm in wanted or () if arm not in arms]:
        raise UserError(f"ARMS: {domain} has no {' '.join(unknown)}. There are: {' '.join(sorted(arms))}")

    def is_chosen(words: list[str]) -> bool:
        given = dict(zip(words[1::2], words[2::2]))
        is_arm = given["--method"] not in trl.WARM_UP
        return (
            (not tasks or given.get("--task") in tasks)
            and (not seeds or int(given["--seed"]) in seeds)
            and (not wanted or not is_arm or f"{given['--method']}-{given['--setting']}" in wanted)
        )

    if not (tasks or seeds or wanted):
        yield from STAGES[domain](output)
        return
    stages = STAGES[domain](output)
    while True:
        try:
            stage = next(stages, None)
        except (ValueError, LookupError) as error:
            raise UserError(
                f"The rule lacks runs that were not chosen: {error} Without ARMS they come first."
            ) from None
        if stage is None:
            return
        yield {name: words for name, words in stage.items() if is_chosen(words)}


def start(domain: str, added: list[str]) -> None:
    script = Stages(domain)
    if added:
        raise UserError(f"{' '.join(added)}: the protocol has no further flags.")
    if domain.startswith("llm") and not (script.checkouts / "verl/verl/utils/era/language.py").is_file():
        raise UserError(f"{script.checkouts}/verl is not verl with the overlay. Run: python3 apply.py apply verl")
    arms = 0
    for stage in chosen(domain, script.options, script.output):
        arms += sum("warm-up" not in words for words in stage.values())
        script.runs = [grid.Run(script.output / name, "", "", 0, tuple(words)) for name, words in stage.items()]
        if script.runs and script.options.dry_run and not all(map(script.is_finished, script.runs)):
            grid.print_commands(script, script.runs)
            print("note: the runs of a next stage need these.", file=sys.stderr)
            return
        if script.runs and not script.options.dry_run and not grid.finish(script, script.runs):
            return
    if not arms:
        raise UserError(f"TASKS, SEED and ARMS choose no run of {domain}; DRY_RUN=1 without them prints all.")
    print(f"All runs of {domain} are finished, in {script.output}.")


if __name__ == "__main__":
    sys.exit(grid.main(launch_options.RIVALS, __doc__, STAGES, start))
