"""python -m tools.smoke.llm [SCRIPT ...]: the LLM recipe's run scripts on this CPU, a few steps each with a tiny model.

The scripts run unchanged, with hydra overrides as their arguments and demo/llm/cpu_python as their python. Stage 1 is
killed halfway and started again, and stage 2 continues from its checkpoint.
"""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from demo.llm import bands, training
from demo.llm.checks import check
from demo.llm.config import quoted
from demo.llm.ray_folder import sweep
from demo.llm.training import METRICS_FILE
from demo.runner.command import only_one
from demo.runner.environment import ROOT
from demo.runner.errors import DemoError
from demo.runner.processes import end_of, follow, new_lines
from demo.runner.results import empty
from demo.runner.training import LOG_FILE
from tools.smoke import recipe

RECIPE = "recipe/era"
STAGE1, STAGE2 = (f"run_era_stage{stage}_qwen2.5_math_7b.sh" for stage in (1, 2))
STEPS = 2
STAGE1_STEPS, SAVE_FREQ, KILL_AFTER = 20, 5, 7  # enough steps after the kill for it not to come too late
SHRINK = 32  # the paper's batches are divided by it; the number of mini-batches stays
PAPER_BATCH, PAPER_GENERATION = 256, 768
POLL_SECONDS = 0.02

# For verl's source package, which lacks DAPO's trainer.
STAND_IN = '''"""In place of DAPO's trainer, which verl's source package lacks: verl's own, without dynamic sampling."""

from verl.trainer.main_ppo import run_ppo
'''


@dataclass(frozen=True)
class Tree:
    """A checkout in which the scripts can run. dapo: whether its trainer is DAPO's, with dynamic sampling."""

    path: Path
    dapo: bool


@dataclass(frozen=True)
class Outcome:
    """What a run left.

    exit_code: -9 if the run was killed on purpose.
    steps: the training steps of this run.
    metrics: by step and name, of all steps in the folder; the later values of a step that was repeated.
    resumed: the checkpoint that the run continued from.
    """

    script: str
    exit_code: int
    killed: bool
    seconds: float
    steps: list[int]
    metrics: dict[int, dict[str, float]]
    resumed: str | None
    log: str

    @property
    def failed(self) -> bool:
        return not self.killed and (self.exit_code != 0 or not self.steps)


def tree(checkout: Path, folder: Path) -> Tree:
    """The checkout itself, or one made from it in `folder` whose recipe.dapo is verl's own trainer."""
    if (checkout / "recipe/dapo/main_dapo.py").exists():
        return Tree(checkout, True)
    shutil.copytree(checkout / RECIPE, folder / RECIPE)
    (folder / "verl").symlink_to((checkout / "verl").resolve())
    (folder / "recipe/dapo").mkdir()
    (folder / "recipe/dapo/main_dapo.py").write_text(STAND_IN)
    return Tree(folder, False)


def scripts(checkout: Path) -> list[str]:
    """Stages 1 and 2 come first."""
    names = sorted(file.name for file in (checkout / RECIPE).glob("run_*.sh"))
    return [STAGE1, STAGE2, *(name for name in names if name not in (STAGE1, STAGE2))]


def overrides(tree: Tree, mini_batch: int) -> list[str]:
    """What differs from the script, for this machine and the tiny model."""
    values = {
        "data.max_prompt_length": 1,
        "data.max_response_length": bands.RESPONSE_LENGTH,
        "data.train_batch_size": PAPER_BATCH // SHRINK,
        "data.gen_batch_size": PAPER_GENERATION // SHRINK,
        "+data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.use_remove_padding": False,  # it needs flash attention, which needs CUDA
        "+actor_rollout_ref.model.override_config._attn_implementation": "sdpa",
        "+actor_rollout_ref.seed": 1,
        "actor_rollout_ref.actor.ppo_mini_batch_size": mini_batch,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp32",
        "actor_rollout_ref.rollout.name": "hf",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "custom_reward_function.path": Path(bands.__file__).resolve(),
        # after a resumption it would draw random numbers that an uninterrupted run does not draw
        "trainer.val_before_train": False,
        "trainer.save_freq": SAVE_FREQ,
    }
    if not tree.dapo:
        # verl's own trainer trains on all that it generates, and calls the reward manager without DAPO's arguments.
        values |= {"data.gen_batch_size": PAPER_BATCH // SHRINK, "reward_model.reward_manager": "naive"}
    return [f"{key}={quoted(value)}" for key, value in values.items()]


def mini_batch(tree: Tree, script: str, variables: dict[str, str]) -> int:
    """The script's own, as its dry run prints it, divided by SHRINK."""
    command = ["bash", tree.path / RECIPE / script]
    dry_run = subprocess.run(command, env={**os.environ, **variables, "DRY_RUN": "1"}, capture_output=True, text=True)
    if dry_run.returncode != 0:
        raise DemoError(f"{script} ended with exit code {dry_run.returncode} in its dry run:\n{dry_run.stderr}")
    sizes = re.findall(r"ppo_mini_batch_size=(\d+)", dry_run.stdout)
    return int(sizes[-1] if sizes else PAPER_BATCH) // SHRINK


def environment_of(inputs: Path, folder: Path) -> dict[str, str]:
    """What every script is told by environment variables."""
    return {
        "CPU_PYTHON": sys.executable,
        "PYTHON": str(ROOT / "demo/llm/cpu_python"),
        "CUDA_VISIBLE_DEVICES": "0",  # the recipe's check counts this as one GPU
        "NNODES": "1",
        "GPUS_PER_NODE": "1",
        "MODEL_PATH": str((inputs / "model").resolve()),
        "TRAIN_FILE": str((inputs / "train.parquet").resolve()),
        "TEST_FILE": str((inputs / "validation.parquet").resolve()),
        "CKPTS_DIR": str(folder),
        "VERL_FILE_LOGGER_PATH": str(folder / METRICS_FILE),
        "LOGGER": "[console,file]",
        "DRY_RUN": "",
        "CHECK_ONLY": "",
    }


def run_script(
    tree: Tree,
    script: str,
    inputs: Path,
    folder: Path,
    *added: str,
    steps: int = STEPS,
    stage1: Path | None = None,
    kill_after: int | None = None,
) -> Outcome:
    """Runs a script until it ends, or kills it and all its processes during the step after `kill_after`.

    Args:
        inputs: folder with the model and the data, from demo.llm.bigram.write.
        folder: of the checkpoints, metrics and log. With that of an earlier run, the run is resumed.
        added: more hydra overrides.
        steps: the step after which the run ends; stage 2 counts stage 1's steps too.
        stage1: the checkpoint that stage 2 continues from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    variables = environment_of(inputs, folder) | {"TOTAL_STEPS": str(steps)}
    if stage1:
        variables["STAGE1_CKPT"] = str(stage1.resolve())
    command = ["bash", str(tree.path / RECIPE / script), *overrides(tree, mini_batch(tree, script, variables)), *added]
    began, finished, killed = time.monotonic(), [], False
    with (folder / LOG_FILE).open("w") as log, training.launch(command, tree.path, log, **variables) as process:
        metrics_lines = new_lines(folder / METRICS_FILE)
        next(metrics_lines)  # of an earlier run
        for lines in follow(process, metrics_lines):
            finished += [json.loads(line)["step"] for line in lines]
            killed = kill_after is not None and kill_after <= max(finished, default=0) and process.poll() is None
            if killed:
                break
            time.sleep(POLL_SECONDS)
    log = (folder / LOG_FILE).read_text(errors="replace")
    resumed = re.findall(r"Resuming from (.*)", log)
    return Outcome(
        script,
        process.returncode,
        killed,
        time.monotonic() - began,
        finished,
        metrics(folder / METRICS_FILE),
        resumed[-1] if resumed else None,
        log,
    )


def metrics(file: Path) -> dict[int, dict[str, float]]:
    steps = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        row = json.loads(line)
        steps.setdefault(row["step"], {}).update(row["data"])
    return dict(sorted(steps.items()))


def table_line(script: str, *cells: str) -> str:
    return f"{script:<45}" + "".join(f"{cell:>9}" for cell in cells[:-1]) + f"  {cells[-1]}"


def row(outcome: Outcome, runs: Path) -> str:
    """A line of the table. It names checkpoints relative to the folder `runs`."""
    seconds = f"{outcome.seconds:.0f}"
    if outcome.failed:
        return table_line(outcome.script, "-", seconds, "-", "-", "-", f"FAILED with exit code {outcome.exit_code}")
    first, last = outcome.steps[0], outcome.steps[-1]
    values = outcome.metrics[last]
    numbers = (f"{values[name]:z.3f}" for name in ("actor/pg_loss", "actor/grad_norm", "era/response_entropy"))
    resumed = str(Path(outcome.resumed).relative_to(runs.resolve())) if outcome.resumed else "the beginning"
    killed = ", killed in the next step" if outcome.killed else ""
    return table_line(outcome.script, f"{first}-{last}", seconds, *numbers, resumed + killed)


def choose(checkout: Path, names: list[str]) -> list[str]:
    """The scripts with these names, in the order of the runs, all of them by default. Stage 2 brings stage 1 along."""
    if STAGE2 in names:
        names = [STAGE1, *names]
    return recipe.selected(names, scripts(checkout), "script")


def run_all(checkout: Path, out: Path, chosen: list[str]) -> list[Outcome]:
    """Runs the scripts one by one and prints the table. Returns the runs that failed."""
    from demo.llm import bigram

    inputs, copy, runs = (empty(out / name) for name in ("inputs", "tree", "runs"))
    bigram.write(inputs)
    where = tree(checkout, copy)
    if not where.dapo:
        print(
            "This checkout is verl's source package, which lacks DAPO's trainer. It is replaced by verl's own, without "
            "dynamic sampling.\n"
        )
    print(table_line("script", "steps", "seconds", "loss", "gradient", "H_resp", "from"), flush=True)
    outcomes = []

    def add(script: str, **settings) -> None:
        in_place = sys.stdout.isatty()
        if in_place:
            print(f"{script} ...", end="", flush=True)
        outcomes.append(run_script(where, script, inputs, runs / script.removesuffix(".sh"), **settings))
        print(("\r\033[K" if in_place else "") + row(outcomes[-1], runs), flush=True)

    for script in chosen:
        if script == STAGE1:
            add(script, steps=STAGE1_STEPS, kill_after=KILL_AFTER)
            add(script, steps=STAGE1_STEPS)
        elif script == STAGE2:
            checkpoint = runs / STAGE1.removesuffix(".sh") / f"global_step_{STAGE1_STEPS}"
            add(script, steps=STAGE1_STEPS + STEPS, stage1=checkpoint)
        else:
            add(script)
    return [outcome for outcome in outcomes if outcome.failed]


def smoke(arguments: argparse.Namespace) -> int:
    checkout, out = arguments.checkout, arguments.out
    check(checkout, out)
    chosen = choose(checkout, arguments.names)
    print(
        f"Each run script of {checkout / RECIPE} trains a model of 65,000 parameters on this CPU for {STEPS} steps: "
        f"half a\nminute, most of which is the start of Ray and verl. Stage 1 has {STAGE1_STEPS} steps, is killed "
        f"halfway (kill -9) and started again.\nCheckpoints, metrics and logs: {out}/runs. Of the last step: "
        "actor/pg_loss (on-policy the mean of -A, whatever ERA scales),\nactor/grad_norm, and the response entropy in "
        "nats.\n",
        flush=True,
    )
    with only_one(out):
        sweep()
        failed = run_all(checkout, out, chosen)
    for outcome in failed:
        print(f"\nsmoke: {outcome.script} failed. The end of its log:\n{end_of(outcome.log)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(recipe.run(smoke, __doc__, "script", "verl", "results/smoke"))
