"""What a grid of recipes/control lacks, before one of its runs starts."""

import os
import re
import shutil
from pathlib import Path

from host import Host, Run, number

# isort: split
import grid
import launching

PROBE = Path(__file__).with_name("probe.py")
SPACE = 20 * 2**20  # of a run's folder, in bytes: curves, log and a checkpoint


def flags_in(words: list[str] | tuple[str, ...]) -> list[str]:
    """Names of `--flag value`, `--flag=value` and `name=value`."""
    return [word.partition("=")[0] for word in words if re.match(r"--\w|[\w.]+=", word)]


def flag_problems(kind: type[Host], name: str, added: list[str]) -> list[str]:
    compared = [flag for part in kind.experiments[name] for agent in part.agents for flag in flags_in(agent.flags)]
    reasons = {
        **dict.fromkeys(compared, f"{name} compares its values"),
        **dict.fromkeys(flags_in(kind().flags("", 0)), "TASKS, SEED or the run's folder does"),
    }
    return [
        f"ARGS: {flag} cannot be set here: {reasons[flag]}."
        for flag in dict.fromkeys(flags_in(added))
        if flag in reasons
    ]


def step_problems(host: Host, runs: list[Run]) -> list[str]:
    """A run is finished when train.csv has a row of its last step."""
    problems = []
    for run in runs:
        steps = host.planned_steps(run)
        if not steps:
            problems.append(f"ARGS: {host.steps_flag}: a number of steps expected.")
        elif host.evaluation:
            flag, default = host.evaluation
            between = number(run, flag, default)
            if not between or steps % between:
                problems.append(
                    f"ARGS: {host.steps_flag} {steps}: a multiple of {flag} ({default} unless you set it) expected. "
                    "Otherwise no evaluation follows the last step, and the run never counts as finished."
                )
    return list(dict.fromkeys(problems))


def question(host: Host, runs: list[Run], here: bool) -> dict:
    """For probe.py. Runs that differ only by their seed are checked once. here: and not in a Slurm job."""
    commands = {(run.task, run.agent): list(run.command) for run in runs}
    return {
        "packages": host.packages,
        "script": str(host.root() / host.script),
        "tasks": sorted({run.task for run in runs}),
        "era": sorted({run.task for run in runs if "era" in run.agent and "batch" not in run.command}),
        "commands": list(commands.values()),
        "here": here,
    }


def space_problems(plan: grid.Grid) -> list[str]:
    """A full disk would end all runs."""
    left = sum(not plan.trainer.is_finished(folder) for _, folder in plan.jobs)
    nearest = next(path for path in (plan.output, *plan.output.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if free >= left * SPACE:
        return []
    return [
        f"OUTPUT: {plan.output} has {free / 2**20:.0f} MiB of free disk space, and the runs that are left ({left}) may "
        f"take {left * SPACE / 2**20:.0f}. Make room, or choose another."
    ]


def find_problems(plan: grid.Grid, python: str | None) -> tuple[list[str], str | None]:
    """Also returns sys.prefix of `python`, which is None if the environment is still to be made."""
    host, problems, prefix = plan.trainer, [], None
    if not (host.root() / host.script).is_file():
        problems.append(
            f"checkout: {host.root()} has no {host.script}. Run: python3 apply.py apply {host.upstream} --checkouts "
            f"{host.checkouts} (make does so itself before the first run)"
        )
    elif python is not None:
        asked = question(host, [run for run, _ in plan.jobs], here=plan.engine != "slurm")
        problems, prefix = grid.environment_problems(python, PROBE, asked, host.variables(), plan.engine)
    here = plan.engine != "slurm" and not os.environ.get("RAY_ADDRESS")
    if host.gpus and here and not launching.local_gpus():
        problems.append(
            "GPUs: this machine has none that CUDA may use. RAY_ADDRESS names a cluster, SLURM=1 submits; "
            "GPUS_PER_RUN=0 trains on the CPU."
        )
    return problems + step_problems(host, [run for run, _ in plan.jobs]) + space_problems(plan), prefix
