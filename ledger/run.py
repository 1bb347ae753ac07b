# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The commands of entries, in their order, and `run`, which starts one after the other.

The make targets do the work: they check, resume, lock their folders and write run.json. What the user's environment has
(GPUS, OUTPUT, ARGS, ...) reaches them; the variables that choose the entry win."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.paper import ROOT, Entry, Paper, Run, UserError

TRACKER = "latest_checkpointed_iteration.txt"  # verl's, beside its checkpoints
SLURM_SCRIPT = "recipe/era/slurm_ray.sbatch"  # in verl's checkout
# verl v0.4.1 draws the order of the training data from it (main_ppo.create_rl_sampler; 1 without it), and nothing else
# can be seeded: FSDPVLLMShardingManager sets the sampling's random state to 1000 + rank. rollout.seed must not be set:
# vLLM takes it as the seed of each request, so that all responses to a prompt would be the same.
SEED_OVERRIDE = "+data.seed={}"


@dataclass(frozen=True)
class Step:
    """One command, started in the folder `at`, with what it adds to the environment.

    goal: the last checkpoint, with steps: a training that has reached it is not started again. job_before: it waits for
    the Slurm job of the step before. note: for the user."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    at: Path = ROOT
    goal: Path | None = None
    steps: int = 0
    job_before: bool = False
    note: str = ""

    @property
    def is_finished(self) -> bool:
        """verl refuses to start a training that has reached its last step."""
        tracker = self.goal.parent / TRACKER if self.goal else None
        reached = tracker.read_text().strip() if tracker and tracker.is_file() else ""
        return reached.isdecimal() and int(reached) >= self.steps and self.goal.is_dir()

    @property
    def shell(self) -> str:
        """The line to paste into a shell."""
        words = [*(f"{name}={shlex.quote(value)}" for name, value in self.variables.items()), shlex.join(self.command)]
        return f"cd {shlex.quote(str(self.at))} && {' '.join(words)}"


def run(paper: Paper, entries: Sequence[Entry], seeds: Sequence[int], dry_run: bool, slurm: bool) -> int:
    """The exit code of the first command that fails, or 0."""
    planned, job = steps(paper, entries, seeds, os.environ, slurm), ""
    for step in planned:
        if step.note:
            print(f"# {step.note}")
        if step.is_finished:
            print(f"# finished, {step.goal} is there: {step.shell}", flush=True)
        elif dry_run:
            print(step.shell)
        else:
            print(f"== {step.shell}", flush=True)
            if step.job_before and job:
                step = replace(step, command=("sbatch", f"--dependency=afterok:{job}", *step.command[1:]))
            code, job = _start(step)
            if code:
                print(f"It ended with exit code {code}. The same command again continues what is not finished.")
                return code
    if dry_run:
        print("Not checked: environment, data and GPUs. The commands do that when they start.", file=sys.stderr)
    return 0


def _start(step: Step) -> tuple[int, str]:
    """Exit code, and the job that sbatch names. Ctrl-C reaches the command itself, which is of this process group."""
    submits = step.command[0] == "sbatch"
    pipe = subprocess.PIPE if submits else None
    with subprocess.Popen(step.command, cwd=step.at, env={**os.environ, **step.variables}, stdout=pipe) as process:
        while True:
            try:
                printed = process.communicate()[0] or b""
                break
            except KeyboardInterrupt:
                continue  # it ends what it has started, and then itself
    job = printed.decode().strip().partition(";")[0]
    if job:
        print(f"submitted as job {job}", flush=True)
    code = process.returncode
    return 128 - code if code < 0 else code, job


def steps(
    paper: Paper, entries: Iterable[Entry], seeds: Sequence[int], environment: Mapping[str, str], slurm: bool = False
) -> list[Step]:
    """In their order, each command once."""
    rows: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.cannot:
            raise UserError(f"{entry.id} cannot be run: {entry.cannot}")
        for each in [other for row in entry.gain for other in paper.row(row)] or [entry]:
            rows.setdefault(each.row, []).append(each)
    user = User(paper, environment, tuple(dict.fromkeys(seeds)), slurm)
    made = [step for row in rows.values() for step in user.steps(row)]
    return list({(step.command, tuple(step.variables.items())): step for step in made}.values())


@dataclass(frozen=True)
class User:
    """The user's environment, and the seeds that the command line names."""

    paper: Paper
    environment: Mapping[str, str]
    seeds: tuple[int, ...] = ()
    slurm: bool = False

    def given(self, name: str, default: str = "") -> str:
        """An empty variable counts as not given."""
        return self.environment.get(name) or default

    def steps(self, entries: Sequence[Entry]) -> Iterator[Step]:
        """Of one row."""
        first = entries[0]
        if first.place.domain != "llm":
            yield self._grid(entries)
        elif first.weights:
            yield self._evaluation(first, self.paper.runs[first.evaluation], None, None)
        else:
            yield from self._llm(first)

    # LLM

    def home(self) -> Path:
        return data_home(self.environment)

    def _llm(self, entry: Entry) -> Iterator[Step]:
        trainings = self.paper.trainings(entry)
        for seed in self.seeds or (None,):
            for training in trainings:
                yield self._training(training, seed)
            if entry.evaluation and not self.slurm:
                yield self._evaluation(entry, self.paper.runs[entry.evaluation], trainings[-1], seed)

    def _checkpoint(self, training: Run, seed: int | None) -> Path:
        folder = self.home() / "ckpts/ERA" / _with_seed(training.folder, seed)
        return folder / f"global_step_{training.steps}"

    def _training(self, training: Run, seed: int | None) -> Step:
        goal = self._checkpoint(training, seed)
        variables = {"CKPTS_DIR": str(goal.parent)}
        if training.after:
            variables["STAGE1_CKPT"] = str(self._checkpoint(self.paper.runs[training.after], seed))
        added = [] if seed is None else [SEED_OVERRIDE.format(seed)]
        if not self.slurm:
            if added:
                variables["ARGS"] = " ".join([self.given("ARGS"), *added]).strip()
            return Step(("make", training.id), variables, goal=goal, steps=training.steps)
        # slurm_ray.sbatch takes the run script and hydra's overrides as its arguments, and not ARGS.
        words = [*shlex.split(self.given("ARGS")), *added]
        made = ROOT / ".venv/verl-gpu"
        if (made / "installed").is_file() and not self.given("PYTHON"):  # without make nothing else chooses it
            variables["PYTHON"] = str(made / "bin/python")
        command = ("sbatch", "--parsable", SLURM_SCRIPT, f"run_{training.folder}.sh", *words)
        note = "Once the jobs are done, the same command without --slurm runs the evaluation."
        waits = bool(training.after)
        return Step(
            command, variables, checkouts(self.environment) / "verl", goal, training.steps, waits, "" if waits else note
        )

    def _evaluation(self, entry: Entry, evaluation: Run, trained: Run | None, seed: int | None) -> Step:
        variables = dict(evaluation.variables)
        if self.given("EVAL") and "EVAL" in variables:  # the user's flags of evaluate.py come last and win
            variables["EVAL"] += f" {self.given('EVAL')}"
        variables["OUT"] = str(self.home() / "eval" / _with_seed(entry.folder, seed))
        target = evaluation.target or evaluation.id
        if trained is None:
            model = ROOT / self.given("MODEL_PATH", str(self.home() / "models" / entry.weights))
            return Step(("make", target), {"MODEL_PATH": str(model), **variables})
        variables["CKPT"] = str(self._checkpoint(trained, seed))
        variables["MODEL_PATH"] = str(self.home() / "models/ERA" / _with_seed(trained.folder, seed))
        return Step(("make", "llm-merge", target), variables)

    # Vision and control

    def _grid(self, entries: Sequence[Entry]) -> Step:
        """One command for all seeds and entries."""
        training = self.paper.runs[entries[0].run]
        if self.slurm and entries[0].place.domain == "vision":
            raise UserError(
                f"make {training.id} is for one node: start it in a job of your own (docs/vision/recipes.md)"
            )
        variables: dict[str, str] = {}
        for entry in entries:
            for name, value in entry.variables.items():
                variables[name] = " ".join(dict.fromkeys([*variables.get(name, "").split(), value]))
        note = "" if variables else f"make {training.id} trains all of its variants."
        if self.seeds:
            variables["SEED"] = " ".join(map(str, self.seeds))
        if self.slurm:
            variables["SLURM"] = "1"
        return Step(("make", training.id), variables, note=note)


def _with_seed(name: str, seed: int | None) -> str:
    return name if seed is None else f"{name}-seed{seed}"


def data_home(environment: Mapping[str, str]) -> Path:
    """The Makefile's RAY_DATA_HOME."""
    return ROOT / (environment.get("RAY_DATA_HOME") or Path(environment.get("HOME") or Path.home()) / "verl")


def checkouts(environment: Mapping[str, str]) -> Path:
    return ROOT / (environment.get("CHECKOUTS") or "checkouts")


def results_folders(environment: Mapping[str, str]) -> list[Path]:
    """Where the recipes write by default, and OUTPUT, as far as they exist."""
    home, made = data_home(environment), checkouts(environment)
    places = [home / "ckpts/ERA", home / "eval", ROOT / "results/control"]
    places += [made / name / "output/era" for name in ("timm", "fasttd3")]
    places += [ROOT / environment["OUTPUT"]] if environment.get("OUTPUT") else []
    return [place for place in places if place.is_dir()]
