"""The commands of experiments: in which order, with which variables, and which folders they write."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.errors import LedgerError
from ledger.experiments import ROOT, Entry, Experiment, Ledger, Run

LARGEST_SEED = 2**31 - 1  # the demos'; timm's and FastTD3's are twice as large
TRACKER = "latest_checkpointed_iteration.txt"  # verl writes the number of a complete checkpoint into it
SLURM_SCRIPT = "recipe/era/slurm_ray.sbatch"
# verl v0.4.1 draws the order of the training data from it (main_ppo.create_rl_sampler; 1 without it), and nothing else can be
# seeded: FSDPVLLMShardingManager puts the sampling's random state at 1000 + rank. rollout.seed must stay away: vLLM takes it
# as the seed of each request, so that all responses to a prompt would be the same.
SEED_OVERRIDE = "+data.seed={}"
# Length of a demo where STEPS or EPOCHS says nothing.
DEMO_LENGTHS = {"demo": ("STEPS", 150), "demo-vision": ("EPOCHS", 15), "demo-control": ("STEPS", 6000)}

_LEDGERS = "the ledger chooses it. Leave it out, or use make alone for other runs than the ledger's"
_SEEDS = "--seeds chooses the seeds. Leave it out"
# Variables of the user's that would make another run of a step than the one that is recorded, and why they are refused.
REFUSED = {
    "llm": {"TOTAL_STEPS": _LEDGERS, "STAGE1_CKPT": _LEDGERS},
    "evaluation": {"CKPT": _LEDGERS, "OUT": _LEDGERS, "SETS": _LEDGERS},
    "vision": {"SEED": _SEEDS, "H0": _LEDGERS, "AUG": _LEDGERS, "NUM_CLASSES": _LEDGERS},
    "control": {
        "SEED": _SEEDS,
        "TASKS": _LEDGERS,
        "AGENT": _LEDGERS,
        "RUN_INDEX": _LEDGERS,
        "SLURM": "--slurm submits a Slurm array. Leave it out",
    },
    "demo": {"SEED": _SEEDS, "TASK": _LEDGERS},
}
# Of one training alone: several would write to one place.
OF_ONE_TRAINING = ("CKPTS_DIR", "VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR")


@dataclass(frozen=True)
class Step:
    """One command, run in the folder `at`.

    kind: "llm", "evaluation", "vision", "control" or "demo". variables: what it adds to the environment.
    base, folders: its runs are the folders base/<...>, and its records lie in base/records. seeds: () where none is named.
    goal: the checkpoint with which it is finished (LLM). waits: for the Slurm job of the step before.
    """

    run: Run
    kind: str
    experiments: tuple[str, ...]
    command: tuple[str, ...]
    variables: Mapping[str, str]
    at: Path
    base: Path
    folders: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    goal: Path | None = None
    note: str = ""
    submits: bool = False
    waits: bool = False

    @property
    def upstream(self) -> str:
        return self.run.upstream_name

    @property
    def finished(self) -> bool:
        """verl's own check refuses to start a run that has reached its last step."""
        try:
            text = (self.goal.parent / TRACKER).read_text(errors="replace").strip() if self.goal else ""
            return text.isdecimal() and int(text) >= self.run.steps and self.goal.is_dir()
        except OSError:
            return False

    @property
    def shell(self) -> str:
        """To be pasted into a shell."""
        words = [*(f"{name}={shlex.quote(value)}" for name, value in self.variables.items()), shlex.join(self.command)]
        return f"cd {shlex.quote(str(self.at))} && {' '.join(words)}"


@dataclass(frozen=True)
class Wish:
    """What steps are made for: the entries of one experiment, the seeds that were asked for, and the user's environment."""

    ledger: Ledger
    experiment: Experiment
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    environment: Mapping[str, str]
    slurm: bool

    def given(self, name: str) -> str:
        """An empty variable is one that is not given."""
        return self.environment.get(name, "")

    def step(
        self, run: Run, kind: str, variables: Mapping[str, str], base: Path, folders: Iterable[str], **more
    ) -> Step:
        command, ids = tuple(shlex.split(run.command)), tuple(entry.id for entry in self.entries)
        seeds = more.pop("seeds", self.seeds)
        return Step(run, kind, ids, command, variables, ROOT, base, tuple(dict.fromkeys(folders)), seeds, **more)


def steps(
    ledger: Ledger,
    entries: Iterable[Entry],
    seeds: Iterable[int] | None,
    environment: Mapping[str, str],
    slurm: bool = False,
) -> list[Step]:
    """In their order, each command once. Raises LedgerError for what cannot be run."""
    wanted = _seeds(seeds)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.experiment.cannot:
            raise LedgerError(f"{entry.experiment.id} cannot be run: {entry.experiment.cannot}")
        both = [ledger.experiments[name] for name in entry.experiment.gain]
        for each in [other for experiment in both for other in experiment.entries] or [entry]:
            groups.setdefault(each.experiment.id, []).append(each)
    found: dict[tuple, Step] = {}
    for chosen in groups.values():
        wish = Wish(ledger, chosen[0].experiment, tuple(chosen), wanted, environment, slurm)
        for step in _steps_of(wish):
            key = step.command, tuple(step.variables.items())
            earlier = found.get(key)
            found[key] = replace(earlier, experiments=(*earlier.experiments, *step.experiments)) if earlier else step
    _refuse(list(found.values()), environment)
    return list(found.values())


def _seeds(seeds: Iterable[int] | None) -> tuple[int, ...]:
    wanted = tuple(dict.fromkeys(seeds or ()))
    for seed in wanted:
        if not 0 <= seed <= LARGEST_SEED:
            raise LedgerError(f"seed {seed}: a whole number from 0 to {LARGEST_SEED} expected. Nothing was started.")
    return wanted


def _refuse(found: list[Step], environment: Mapping[str, str]) -> None:
    problems = {}
    for step in found:
        problems |= {name: why for name, why in REFUSED[step.kind].items() if environment.get(name)}
    if is_on(environment, "DRY_RUN"):
        problems["DRY_RUN"] = "--dry-run prints the commands. Leave it out"
    trainings = [step for step in found if step.kind == "llm"]
    if len(trainings) > 1:
        names = ", ".join(_named(step.run.id, *step.seeds) for step in trainings)
        why = f"it is of one training, and these are {len(trainings)} ({names}). Leave it out, or run one at a time"
        problems |= {name: why for name in OF_ONE_TRAINING if environment.get(name)}
    if problems:
        lines = "\n".join(f"  - {name}={environment[name]}: {why}." for name, why in problems.items())
        raise LedgerError(f"This cannot start; nothing was changed:\n{lines}")


def _steps_of(wish: Wish) -> list[Step]:
    experiment, ledger = wish.experiment, wish.ledger
    if experiment.run and not ledger.runs[experiment.run].folder:
        return _DOMAINS[_kind(ledger.runs[experiment.run])](wish, ledger.runs[experiment.run])
    return _llm(wish)


def _kind(run: Run) -> str:
    return "demo" if run.group == "demo" else run.domain


def is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "") not in ("", "0")


def checkouts(environment: Mapping[str, str]) -> Path:
    return ROOT / (environment.get("CHECKOUTS") or "checkouts")


def made_environment(upstream: str) -> Path | None:
    """Of the GPU runs, if make has set it up."""
    folder = ROOT / f".venv/{upstream}-gpu"
    return folder if (folder / "installed").is_file() else None


def data_home(environment: Mapping[str, str]) -> Path:
    """The Makefile's RAY_DATA_HOME."""
    return ROOT / (environment.get("RAY_DATA_HOME") or Path(environment.get("HOME") or Path.home()) / "verl")


# LLM


def _llm(wish: Wish) -> list[Step]:
    *trained, last = runs = wish.ledger.runs_of(wish.experiment)
    if not wish.experiment.evaluation:
        trained, last = runs, None
    if not trained:
        return [_weights(wish, last)]
    found = []
    for seed in wish.seeds or (None,):
        found += [_training(wish, run, seed) for run in trained]
        found += [_evaluation(wish, last, trained[-1], seed)] if last and not wish.slurm else []
    if last and wish.slurm:
        found[-1] = replace(
            found[-1], note="The evaluation is run by the same command without --slurm, once the jobs are done."
        )
    return found


def _named(folder: str, seed: int | None = None) -> str:
    return folder if seed is None else f"{folder}-seed{seed}"


def _checkpoints(wish: Wish, run: Run, seed: int | None) -> Path:
    return ROOT / (wish.given("CKPTS_DIR") or data_home(wish.environment) / "ckpts/ERA" / _named(run.folder, seed))


def _training(wish: Wish, run: Run, seed: int | None) -> Step:
    folder = _checkpoints(wish, run, seed)
    variables = {"CKPTS_DIR": str(folder)}
    if run.after:
        earlier = wish.ledger.runs[run.after]
        variables["STAGE1_CKPT"] = str(_checkpoints(wish, earlier, seed) / f"global_step_{earlier.steps}")
    if seed is not None:
        variables["ARGS"] = f"{wish.given('ARGS')} {SEED_OVERRIDE.format(seed)}".strip()
    goal, seeds = folder / f"global_step_{run.steps}", () if seed is None else (seed,)
    step = wish.step(run, "llm", variables, folder.parent, [folder.name], seeds=seeds, goal=goal)
    return _submitted(step, wish) if wish.slurm else step


def _submitted(step: Step, wish: Wish) -> Step:
    """The script of slurm_ray.sbatch takes hydra overrides as its arguments, and not ARGS."""
    try:
        added = shlex.split(step.variables.get("ARGS") or wish.given("ARGS"))
    except ValueError:
        raise LedgerError(
            f"ARGS={wish.given('ARGS')} cannot be read as words of the shell: put what is special there in quotes, and end each. Nothing was changed."
        ) from None
    variables = {name: value for name, value in step.variables.items() if name != "ARGS"}
    made = made_environment(step.upstream)
    if made and not wish.given("PYTHON"):  # without make there is nobody to choose it
        variables["PYTHON"] = str(made / "bin/python")
    command = ("sbatch", "--parsable", SLURM_SCRIPT, script_of(step.command[-1]), *added)
    checkout = checkouts(wish.environment) / step.upstream
    return replace(step, command=command, variables=variables, at=checkout, submits=True, waits=bool(step.run.after))


def script_of(target: str) -> str:
    """The run script behind a target of the Makefile."""
    return re.search(rf"^{re.escape(target)}: RUN = (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]


def _evaluation(wish: Wish, run: Run, trained: Run, seed: int | None) -> Step:
    home = data_home(wish.environment)
    name = _named(wish.experiment.folder, seed)
    variables = {
        "CKPT": str(_checkpoints(wish, trained, seed) / f"global_step_{trained.steps}"),
        "MODEL_PATH": str(home / "models/ERA" / _named(trained.folder, seed)),
        "OUT": str(home / "eval" / name),
        **_evaluation_variables(wish, run),
    }
    return wish.step(run, "evaluation", variables, home / "eval", [name], seeds=() if seed is None else (seed,))


def _weights(wish: Wish, run: Run) -> Step:
    if wish.seeds or wish.slurm:
        what = "no seed" if wish.seeds else "nothing to submit"
        raise LedgerError(
            f"{wish.experiment.id} evaluates weights that are there already: there is {what}. Nothing was started."
        )
    home, name = data_home(wish.environment), wish.experiment.folder
    model = ROOT / (wish.given("MODEL_PATH") or home / "models" / name)
    variables = {"MODEL_PATH": str(model), "OUT": str(home / "eval" / name), **_evaluation_variables(wish, run)}
    return wish.step(run, "evaluation", variables, home / "eval", [name])


def _evaluation_variables(wish: Wish, run: Run) -> dict[str, str]:
    """The user's flags of evaluate.py come last and win."""
    variables = dict(run.variables)
    if "EVAL" in variables and wish.given("EVAL"):
        variables["EVAL"] += f" {wish.given('EVAL')}"
    return variables


# Image classification and continuous control


def _grid(wish: Wish, run: Run) -> tuple[dict[str, str], list[str], tuple[int, ...], str]:
    """Variables that choose a part of the run, its folders, its seeds, and what else it trains, in words."""
    variables = dict(wish.experiment.select)
    if wish.experiment.over:
        variables[wish.experiment.over_name] = " ".join(str(entry.value) for entry in wish.entries)
    if wish.seeds:
        variables["SEED"] = " ".join(map(str, wish.seeds))
    seeds = wish.seeds or run.seeds
    if variables.keys() - {"SEED"}:
        names, note = [entry.folder for entry in wish.entries], ""
    else:
        names = _all_of(wish.ledger, run)
        note = (
            f"{run.command} trains all of its runs, which cannot be chosen one by one: {', '.join(names)}."
            if len(names) > 1
            else ""
        )
    return variables, [f"{name}-seed{seed}" for seed in seeds for name in names], seeds, note


def _all_of(ledger: Ledger, run: Run) -> list[str]:
    experiments = [experiment for experiment in ledger.experiments.values() if experiment.run == run.id]
    return list(dict.fromkeys(entry.folder for experiment in experiments for entry in experiment.entries))


def _output(wish: Wish, run: Run) -> Path:
    return ROOT / (wish.given("OUTPUT") or checkouts(wish.environment) / run.upstream_name / "output/era")


def _vision(wish: Wish, run: Run) -> list[Step]:
    if wish.slurm:
        raise LedgerError(
            f"{run.command} is for one node and does not submit itself (docs/vision/recipes.md): start it in a job of your own. Nothing was started."
        )
    variables, folders, seeds, note = _grid(wish, run)
    return [wish.step(run, "vision", variables, _output(wish, run), folders, seeds=seeds, note=note)]


def _control(wish: Wish, run: Run) -> list[Step]:
    variables, folders, seeds, note = _grid(wish, run)
    variables |= {"SLURM": "1"} if wish.slurm else {}
    return [
        wish.step(run, "control", variables, _output(wish, run), folders, seeds=seeds, note=note, submits=wish.slurm)
    ]


# Demos


def _demo(wish: Wish, run: Run) -> list[Step]:
    """`make demo` takes one seed, the others several."""
    if wish.slurm:
        raise LedgerError(f"{run.command} runs on this machine's CPU: there is nothing to submit. Nothing was started.")
    variable, default = DEMO_LENGTHS[run.id]
    length, base = wish.given(variable) or str(default), ROOT / "results" / run.id
    arms = [name.removeprefix("demo/") for name in _all_of(wish.ledger, run)]
    seeds = wish.seeds or run.seeds
    found = []
    for some in [(seed,) for seed in seeds] if run.id == "demo" else [seeds]:
        variables = {"SEED": " ".join(map(str, some))} if wish.seeds else {}
        folders = [_demo_folder(run.id, arm, variable.lower(), length, seed) for seed in some for arm in arms]
        note = f"{run.command} trains all of its runs: {', '.join(arms)}."
        found.append(wish.step(run, "demo", variables, base, folders, seeds=some, note=note))
    return found


def _demo_folder(demo: str, arm: str, unit: str, length: str, seed: int) -> str:
    if demo == "demo":
        task, _, arm = arm.rpartition("-")
        return f"{task}-seed{seed}-{unit}{length}/{arm}"
    return f"{arm}-{unit}{length}-seed{seed}"


_DOMAINS: dict[str, Callable[[Wish, Run], list[Step]]] = {"vision": _vision, "control": _control, "demo": _demo}
