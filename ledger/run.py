# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The commands of entries as a script for bash, each command once and in order; bash runs it and stops at a failure.

The make targets do the work: they check, resume, lock their folders and write run.json. What the user's environment has
(GPUS, OUTPUT, ARGS, ...) reaches them; the variables that choose the entry win."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence

from ledger.paper import ROOT, Entry, MakeTarget, Paper
from recipes import UserError

# verl v0.4.1 shuffles the training data with this seed (main_ppo.create_rl_sampler; by default 1). Nothing else can be
# seeded: FSDPVLLMShardingManager sets the sampling's random state to 1000 + rank. rollout.seed must not be set: vLLM
# takes it as the seed of each request, so that all responses to a prompt would be the same.
SEED_OVERRIDE = "+data.seed={}"
# A finished run needs neither the environment that trains nor a job. verl writes the file beside its checkpoints.
IS_FINISHED = 'grep -qsx {steps} "{folder}/latest_checkpointed_iteration.txt"'


def run(paper: Paper, entries: Sequence[Entry], seeds: Sequence[int], dry_run: bool, slurm: bool) -> None:
    script = "\n".join(lines(paper, entries, seeds, slurm))
    if dry_run:
        print(script)
    else:
        os.execvp("bash", ["bash", "-exc", script])


def lines(paper: Paper, entries: Iterable[Entry], seeds: Sequence[int] = (), slurm: bool = False) -> list[str]:
    rows: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.cannot:
            raise UserError(f"{entry.id} cannot be run: {entry.cannot}")
        for each in [other for row in entry.gain for other in paper.row(row)] or [entry]:
            rows.setdefault(each.row, []).append(each)
    made = [f"cd {shlex.quote(str(ROOT))}"]
    if any(entries[0].place.domain == "llm" for entries in rows.values()):
        made += ['data=$(realpath -m "${RAY_DATA_HOME:-$HOME/verl}")']
    for of_row in rows.values():
        if of_row[0].place.domain != "llm":
            made.append(_grid(paper, of_row, seeds, slurm))
        elif of_row[0].weights:
            made.append(_evaluation(paper, of_row[0], None))
        else:
            for seed in seeds or [None]:
                made += _trainings(paper, of_row[0], seed, slurm)
    return list(dict.fromkeys(made))


def _trainings(paper: Paper, entry: Entry, seed: int | None, slurm: bool) -> Iterator[str]:
    """The trainings of an LLM with one seed, and its evaluation."""
    trainings = paper.trainings(entry)
    for training in trainings:
        folder = _folder(training, seed)
        variables = {"CKPTS_DIR": folder}
        if training.after:
            before = paper.runs[training.after]
            variables["STAGE1_CKPT"] = f"{_folder(before, seed)}/global_step_{before.steps}"
        is_finished = IS_FINISHED.format(steps=training.steps, folder=folder)
        if slurm:
            yield f"job=$({is_finished} || {_job(training, variables, seed)})"
            continue
        if seed is not None:
            variables["ARGS"] = f"$ARGS {SEED_OVERRIDE.format(seed)}"
        yield f"{is_finished} || {_make([training.id], variables)}"
    if slurm:
        yield "# Once the jobs are done, the same command without --slurm runs the evaluation."
    elif entry.evaluation:
        yield _evaluation(paper, entry, trainings[-1], seed)


def _job(training: MakeTarget, variables: dict[str, str], seed: int | None) -> str:
    """The shell command that submits a training.

    slurm_ray.sbatch takes the run script and hydra's overrides as its arguments, and not ARGS. PYTHON is set here
    because make, which chooses the environment, does not run. A second stage waits until the first has ended, also at a
    time limit; its own check refuses to start without the first one's last checkpoint.
    """
    words = [*shlex.split(os.environ.get("ARGS", "")), *([] if seed is None else [SEED_OVERRIDE.format(seed)])]
    python = ROOT / ".venv/verl-gpu/bin/python"
    if (python.parent.parent / "installed").is_file() and not os.environ.get("PYTHON"):
        variables["PYTHON"] = str(python)
    waits = "${job:+--dependency=afterany:${job%%;*}} " if training.after else ""
    command = f"sbatch --parsable {waits}recipe/era/slurm_ray.sbatch run_{training.folder}.sh {shlex.join(words)}"
    return f'{{ cd "${{CHECKOUTS:-checkouts}}/verl" && {_set(variables)}{command.strip()}; }}'


def _evaluation(paper: Paper, entry: Entry, training: MakeTarget | None, seed: int | None = None) -> str:
    """The evaluation of a training's last checkpoint, or of published weights."""
    evaluation, named = paper.runs[entry.evaluation], "" if seed is None else f"-seed{seed}"
    variables = {**evaluation.variables, "OUT": f"$data/eval/{entry.folder}{named}"}
    if "EVAL" in variables:
        variables["EVAL"] += " $EVAL"  # the user's flags of evaluate.py come last and win
    target = evaluation.target or evaluation.id
    if training is None:
        return _make([target], {"MODEL_PATH": f"${{MODEL_PATH:-$data/models/{entry.weights}}}", **variables})
    checkpoint = f"{_folder(training, seed)}/global_step_{training.steps}"
    model = f"$data/models/ERA/{training.folder}{named}"
    return _make(["llm-merge", target], {"CKPT": checkpoint, "MODEL_PATH": model, **variables})


def _grid(paper: Paper, entries: Sequence[Entry], seeds: Sequence[int], slurm: bool) -> str:
    """One command of vision or control for all seeds and entries of a row."""
    training = paper.runs[entries[0].run]
    values: dict[str, list[str]] = {}
    for entry in entries:
        for name, value in entry.variables.items():
            values.setdefault(name, []).append(value)
    values |= {"SEED": list(map(str, seeds))} if seeds else {}
    values |= {"SLURM": ["1"]} if slurm else {}
    return _make([training.id], {name: " ".join(dict.fromkeys(words)) for name, words in values.items()})


def _folder(training: MakeTarget, seed: int | None) -> str:
    return f"$data/ckpts/ERA/{training.folder}" + ("" if seed is None else f"-seed{seed}")


def _make(targets: Sequence[str], variables: dict[str, str]) -> str:
    return f"{_set(variables)}make {' '.join(targets)}"


def _set(variables: dict[str, str]) -> str:
    return "".join(f'{name}="{value}" ' for name, value in variables.items())
