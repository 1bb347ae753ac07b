# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.launch trl: trains the runs of docs/rivals/trl-hold.md in TRL, with llm-hold those in verl.

The same command again skips finished runs and starts interrupted ones over, except that trl's go on from a checkpoint.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from recipes import PROJECT, UserError, grid, launch_options
from rivals import llm, records, trl

Runs = dict[str, list[str]]  # the name of each run's folder, and the module and flags that train it


def runs(module: str, task: str, settings: Mapping[str, Iterable[str]], seeds: Iterable[int]) -> Runs:
    """A run for each seed, method and setting, seed by seed, so that the first ones already compare all methods."""
    named = {}
    for seed in seeds:
        for method, setting in ((method, setting) for method, values in settings.items() for setting in values):
            words = [module, "--task", task, "--method", method, "--setting", setting, "--seed", str(seed)]
            named[f"{task}-{method}-{setting}-seed{seed}"] = words
    return named


def llm_hold_stages() -> list[Runs]:
    trained = {}
    for task in llm.HOLD_SHARE:
        trained |= runs("rivals.llm_run", task, llm.hold_settings(task), llm.HOLD_SEEDS)
    return [trained]


def trl_stages() -> list[Runs]:
    warm_ups, trained = {}, {}
    for task, methods, seeds in trl.HOLD:
        warm_ups |= runs("rivals.trl_run", task, trl.WARM_UP, seeds)
        trained |= runs("rivals.trl_run", task, methods, seeds)
    return [warm_ups, trained]


# The runs of a stage start once those of the stages before it are finished.
STAGES = {"llm-hold": llm_hold_stages, "trl": trl_stages}


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


def chosen(domain: str, options: launch_options.LaunchOptions) -> Iterator[Runs]:
    """The stages, of which TASKS, SEED and ARMS choose runs; a warm-up is no arm, and whatever is chosen needs it."""
    stages, tasks, seeds, wanted = STAGES[domain](), options.only_tasks, options.only_seeds, options.only_arms
    arms = {f"{method}-{setting}" for _, _, method, setting, _ in (words[::2] for words in stages[-1].values())}
    if unknown := [arm for arm in wanted or () if arm not in arms]:
        raise UserError(f"ARMS: {domain} has no {' '.join(unknown)}. There are: {' '.join(sorted(arms))}")

    def is_chosen(words: list[str]) -> bool:
        _, task, method, setting, seed = words[::2]
        return (
            (not tasks or task in tasks)
            and (not seeds or int(seed) in seeds)
            and (not wanted or method in trl.WARM_UP or f"{method}-{setting}" in wanted)
        )

    for stage in stages:
        yield {name: words for name, words in stage.items() if is_chosen(words)}


def start(domain: str, added: list[str]) -> None:
    script = Stages(domain)
    if added:
        raise UserError(f"{' '.join(added)}: the protocol has no further flags.")
    if domain == "llm-hold" and not (script.checkouts / "verl/verl/utils/era/language.py").is_file():
        raise UserError(f"{script.checkouts}/verl is not verl with the overlay. Run: python3 apply.py apply verl")
    stages = list(chosen(domain, script.options))
    if not stages[-1]:
        raise UserError(f"TASKS, SEED and ARMS choose no run of {domain}; DRY_RUN=1 without them prints all.")
    for stage in stages:
        script.runs = [grid.Run(script.output / name, "", "", 0, tuple(words)) for name, words in stage.items()]
        if script.options.dry_run:
            grid.print_commands(script, script.runs)
        elif not grid.finish(script, script.runs):
            return
    if not script.options.dry_run:
        print(f"All runs of {domain} are finished, in {script.output}.")


if __name__ == "__main__":
    sys.exit(grid.main(launch_options.RIVALS, __doc__, STAGES, start))
