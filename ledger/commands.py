"""The commands of experiments: in which order, with which variables, and which folders they write."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ledger.errors import LedgerError
from ledger.ledger import CONTROL_HOSTS, ROOT, Entry, Experiment, Ledger, Run

LARGEST_SEED = 2**31 - 1  # the demos'; timm's and FastTD3's are twice as large
TRACKER = "latest_checkpointed_iteration.txt"  # verl writes the number of a complete checkpoint into it
SLURM_SCRIPT = "recipe/era/slurm_ray.sbatch"
# verl v0.4.1 draws the order of the training data from it (main_ppo.create_rl_sampler; 1 without it), and nothing else
# can be seeded: FSDPVLLMShardingManager sets the sampling's random state to 1000 + rank. rollout.seed must not be set:
# vLLM takes it as the seed of each request, so that all responses to a prompt would be the same.
SEED_OVERRIDE = "+data.seed={}"

_LEDGERS = "the ledger chooses it. Leave it out, or use make alone for other runs than the ledger's"
_SEEDS = "--seeds chooses the seeds. Leave it out"
_ARRAY = "--slurm submits a Slurm array. Leave it out"
# The user's variables that would make a step another run than the one that is recorded, and why they are refused.
REFUSED = {
    "llm": dict.fromkeys(("TOTAL_STEPS", "STAGE1_CKPT"), _LEDGERS),
    "evaluation": dict.fromkeys(("CKPT", "OUT", "SETS"), _LEDGERS),
    "vision": {"SEED": _SEEDS, **dict.fromkeys(("H0", "AUG", "NUM_CLASSES"), _LEDGERS)},
    "control": {"SEED": _SEEDS, **dict.fromkeys(("TASKS", "AGENT", "RUN_INDEX"), _LEDGERS), "SLURM": _ARRAY},
}
# For one training alone: several would write to one place.
OF_ONE_TRAINING = ("CKPTS_DIR", "VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR")


@dataclass(frozen=True)
class Step:
    """One command, started in the folder `at`.

    kind: "llm", "evaluation", "vision", or "control". variables: what it adds to the environment.
    base, folders: its results are the folders base/<...>, and its records are in base/records. seeds: () without any.
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
    def applies(self) -> bool:
        """Whether the command patches the checkout itself."""
        return self.upstream in CONTROL_HOSTS

    @property
    def finished(self) -> bool:
        """verl refuses to start a training that has reached its last step."""
        try:
            text = (self.goal.parent / TRACKER).read_text(errors="replace").strip() if self.goal else ""
            return text.isdecimal() and int(text) >= self.run.steps and self.goal.is_dir()
        except OSError:
            return False

    @property
    def shell(self) -> str:
        """The line to paste into a shell."""
        words = [*(f"{name}={shlex.quote(value)}" for name, value in self.variables.items()), shlex.join(self.command)]
        return f"cd {shlex.quote(str(self.at))} && {' '.join(words)}"


@dataclass(frozen=True)
class Request:
    """What steps are made from: entries of one experiment, the seeds on the command line, the user's environment."""

    ledger: Ledger
    experiment: Experiment
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    environment: Mapping[str, str]
    slurm: bool

    def given(self, name: str) -> str:
        """An empty variable counts as not given."""
        return self.environment.get(name, "")

    def step(
        self, run: Run, kind: str, variables: Mapping[str, str], base: Path, folders: Iterable[str], **more
    ) -> Step:
        more.setdefault("seeds", self.seeds)
        command, ids = tuple(shlex.split(run.command)), tuple(entry.id for entry in self.entries)
        return Step(run, kind, ids, command, variables, ROOT, base, tuple(dict.fromkeys(folders)), **more)


def steps(
    ledger: Ledger,
    entries: Iterable[Entry],
    seeds: Iterable[int] | None,
    environment: Mapping[str, str],
    slurm: bool = False,
) -> list[Step]:
    """In their order, each command once. Raises LedgerError for what cannot be run."""
    chosen_seeds = tuple(dict.fromkeys(seeds or ()))
    for seed in chosen_seeds:
        if not 0 <= seed <= LARGEST_SEED:
            raise LedgerError(f"seed {seed}: a whole number from 0 to {LARGEST_SEED} expected. Nothing was started.")
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.experiment.cannot:
            raise LedgerError(f"{entry.experiment.id} cannot be run: {entry.experiment.cannot}")
        compared = [ledger.experiments[name] for name in entry.experiment.gain]
        for each in [other for experiment in compared for other in experiment.entries] or [entry]:
            groups.setdefault(each.experiment.id, []).append(each)
    found: dict[tuple, Step] = {}
    for group in groups.values():
        for step in _steps_of(Request(ledger, group[0].experiment, tuple(group), chosen_seeds, environment, slurm)):
            key = step.command, tuple(step.variables.items())
            same = found.get(key)
            found[key] = replace(same, experiments=(*same.experiments, *step.experiments)) if same else step
    _refuse(list(found.values()), environment)
    return list(found.values())


def _refuse(found: list[Step], environment: Mapping[str, str]) -> None:
    problems = {}
    for step in found:
        problems |= {name: why for name, why in REFUSED[step.kind].items() if environment.get(name)}
    if is_on(environment, "DRY_RUN"):
        problems["DRY_RUN"] = "--dry-run prints the commands. Leave it out"
    trainings = [step for step in found if step.kind == "llm"]
    if len(trainings) > 1:
        names = ", ".join(_with_seed(step.run.id, *step.seeds) for step in trainings)
        why = f"it is for one training, and these are {len(trainings)} ({names}). Leave it out, or run one at a time"
        problems |= {name: why for name in OF_ONE_TRAINING if environment.get(name)}
    if problems:
        lines = "\n".join(f"  - {name}={environment[name]}: {why}." for name, why in problems.items())
        raise LedgerError(f"This cannot start; nothing was changed:\n{lines}")


def _steps_of(request: Request) -> list[Step]:
    run = request.ledger.runs.get(request.experiment.run)
    if run is None or run.domain == "llm":
        return _llm(request)
    return [_grid(request, run)]


def is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "") not in ("", "0")


def checkouts(environment: Mapping[str, str]) -> Path:
    return ROOT / (environment.get("CHECKOUTS") or "checkouts")


def default_output(upstream: str, environment: Mapping[str, str]) -> Path:
    """Where the recipes of vision and control write without OUTPUT."""
    return ROOT / "results/control" if upstream in CONTROL_HOSTS else checkouts(environment) / upstream / "output/era"


def gpu_environment(upstream: str) -> Path | None:
    """The virtual environment for its runs on GPUs, if make has set it up."""
    folder = ROOT / f".venv/{upstream}-gpu"
    return folder if (folder / "installed").is_file() else None


def data_home(environment: Mapping[str, str]) -> Path:
    """The Makefile's RAY_DATA_HOME."""
    return ROOT / (environment.get("RAY_DATA_HOME") or Path(environment.get("HOME") or Path.home()) / "verl")


# ----------------------------------------------------------------------------------------------------------------- LLM


def _llm(request: Request) -> list[Step]:
    runs = list(request.ledger.runs_of(request.experiment))
    evaluation = runs.pop() if request.experiment.evaluation else None
    if not runs:
        return [_evaluation_of_weights(request, evaluation)]
    found = []
    for seed in request.seeds or (None,):
        found += [_training(request, run, seed) for run in runs]
        if evaluation and not request.slurm:
            found.append(_evaluation(request, evaluation, runs[-1], seed))
    if evaluation and request.slurm:
        note = "Once the jobs are done, the same command without --slurm runs the evaluation."
        found[-1] = replace(found[-1], note=note)
    return found


def _with_seed(name: str, seed: int | None = None) -> str:
    return name if seed is None else f"{name}-seed{seed}"


def _checkpoints(request: Request, run: Run, seed: int | None) -> Path:
    default = data_home(request.environment) / "ckpts/ERA" / _with_seed(run.folder, seed)
    return ROOT / (request.given("CKPTS_DIR") or default)


def _last_checkpoint(request: Request, run: Run, seed: int | None) -> Path:
    return _checkpoints(request, run, seed) / f"global_step_{run.steps}"


def _training(request: Request, run: Run, seed: int | None) -> Step:
    goal = _last_checkpoint(request, run, seed)
    variables = {"CKPTS_DIR": str(goal.parent)}
    if run.after:
        variables["STAGE1_CKPT"] = str(_last_checkpoint(request, request.ledger.runs[run.after], seed))
    if seed is not None:
        variables["ARGS"] = f"{request.given('ARGS')} {SEED_OVERRIDE.format(seed)}".strip()
    seeds = () if seed is None else (seed,)
    step = request.step(run, "llm", variables, goal.parent.parent, [goal.parent.name], seeds=seeds, goal=goal)
    return _submitted(step, request) if request.slurm else step


def _submitted(step: Step, request: Request) -> Step:
    """slurm_ray.sbatch takes the run script and hydra overrides as its arguments, and not ARGS."""
    try:
        overrides = shlex.split(step.variables.get("ARGS") or request.given("ARGS"))
    except ValueError:
        what = f"ARGS={request.given('ARGS')} cannot be split into words as a shell would: check its quotes"
        raise LedgerError(f"{what}. Nothing was changed.") from None
    variables = {name: value for name, value in step.variables.items() if name != "ARGS"}
    environment = gpu_environment(step.upstream)
    if environment and not request.given("PYTHON"):  # without make nothing else chooses it
        variables["PYTHON"] = str(environment / "bin/python")
    command = ("sbatch", "--parsable", SLURM_SCRIPT, f"run_{step.run.folder}.sh", *overrides)
    checkout = checkouts(request.environment) / step.upstream
    return replace(step, command=command, variables=variables, at=checkout, submits=True, waits=bool(step.run.after))


def _evaluation(request: Request, run: Run, trained: Run, seed: int | None) -> Step:
    home, name = data_home(request.environment), _with_seed(request.experiment.folder, seed)
    variables = {
        "CKPT": str(_last_checkpoint(request, trained, seed)),
        "MODEL_PATH": str(home / "models/ERA" / _with_seed(trained.folder, seed)),
        "OUT": str(home / "eval" / name),
        **_evaluation_variables(request, run),
    }
    return request.step(run, "evaluation", variables, home / "eval", [name], seeds=() if seed is None else (seed,))


def _evaluation_of_weights(request: Request, run: Run) -> Step:
    if request.seeds or request.slurm:
        what = "no seed" if request.seeds else "nothing to submit"
        why = f"{request.experiment.id} evaluates published weights: there is {what}"
        raise LedgerError(f"{why}. Nothing was started.")
    home, name = data_home(request.environment), request.experiment.folder
    model = ROOT / (request.given("MODEL_PATH") or home / "models" / name)
    variables = {"MODEL_PATH": str(model), "OUT": str(home / "eval" / name), **_evaluation_variables(request, run)}
    return request.step(run, "evaluation", variables, home / "eval", [name])


def _evaluation_variables(request: Request, run: Run) -> dict[str, str]:
    """The user's flags of evaluate.py come last and win."""
    variables = dict(run.variables)
    if "EVAL" in variables and request.given("EVAL"):
        variables["EVAL"] += f" {request.given('EVAL')}"
    return variables


# ------------------------------------------------------------------------------------------------- vision and control


def _grid(request: Request, run: Run) -> Step:
    """One command for all seeds, with the variables that choose a part of what it trains."""
    if request.slurm and run.domain == "vision":
        why = f"{run.command} is for one node and does not submit itself (docs/vision/recipes.md)"
        raise LedgerError(f"{why}: start it in a job of your own. Nothing was started.")
    experiment = request.experiment
    # What is over a variable of the recipe gets its values; else they stand in braces in `select`.
    variables = {
        name: _joined(entry.fill(text) for entry in request.entries) for name, text in experiment.select.items()
    }
    note = ""
    if experiment.over and not any(f"{{{experiment.over_name}}}" in text for text in experiment.select.values()):
        variables[experiment.over_name] = _joined(str(entry.value) for entry in request.entries)
    names = [entry.folder for entry in request.entries] if variables else _all_folders(request.ledger, run)
    if not variables and len(names) > 1:
        note = f"{run.command} trains all of its runs, which cannot be chosen one by one: {', '.join(names)}."
    if request.seeds:
        variables["SEED"] = " ".join(map(str, request.seeds))
    if request.slurm:
        variables["SLURM"] = "1"
    seeds = request.seeds or run.seeds
    folders = [f"{name}-seed{seed}" for seed in seeds for name in names]
    base = ROOT / (request.given("OUTPUT") or default_output(run.upstream_name, request.environment))
    return request.step(run, run.domain, variables, base, folders, seeds=seeds, note=note, submits=request.slurm)


def _joined(words: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(words))


def _all_folders(ledger: Ledger, run: Run) -> list[str]:
    experiments = [experiment for experiment in ledger.experiments.values() if experiment.run == run.id]
    return list(dict.fromkeys(entry.folder for experiment in experiments for entry in experiment.entries))
