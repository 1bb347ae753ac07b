"""python -m tools.smoke.llm [SCRIPT ...]: the run scripts of the LLM recipes on this CPU, a few steps each with a tiny model.

The scripts are run as they are, with hydra overrides as their arguments; demo/llm/cpu_python stands for python. Stage 1 is
killed on the way and started again, and stage 2 goes on from its checkpoint.
"""

from demo.runner import environment

if __name__ == "__main__":
    environment.restart_if_needed()

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from demo.llm import bands, run
from demo.llm.config import quoted
from demo.runner.errors import DemoError
from demo.runner.start import Stopped, check, only_one, stop_on_signals

RECIPE = "recipe/era"
STAGE1, STAGE2 = (f"run_era_stage{stage}_qwen2.5_math_7b.sh" for stage in (1, 2))
METRICS_FILE, LOG_FILE = run.METRICS_FILE, run.LOG_FILE
STEPS = 2
STAGE1_STEPS, SAVE_FREQ, KILL_AFTER = 20, 5, 7  # so many steps after the kill that it cannot come too late
SHRINK = 32  # batches are a 32nd of the paper's; the number of mini-batches stays
PAPER_BATCH, PAPER_GENERATION = 256, 768
POLL_SECONDS = 0.02

# For verl's source package, which lacks DAPO's trainer.
STAND_IN = '''"""Not DAPO's trainer, which verl's source package lacks: verl's own, which has no dynamic sampling."""

from verl.trainer.main_ppo import run_ppo
'''


@dataclass(frozen=True)
class Tree:
    """A checkout in which the scripts can run, and whether its trainer is DAPO's, with dynamic sampling."""

    path: Path
    dapo: bool


@dataclass(frozen=True)
class Outcome:
    """What is left of a run.

    exit_code: 0, or -9 of a run that was killed on purpose, or that of a failure.
    steps: the training steps of this run.
    metrics: of each step in the folder, by name; of a repeated step the later values.
    resumed: the checkpoint that the run went on from.
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
    """The checkout itself, or one made of it in `folder` whose recipe.dapo is verl's own trainer."""
    if (checkout / "recipe/dapo/main_dapo.py").exists():
        return Tree(checkout, True)
    shutil.copytree(checkout / RECIPE, folder / RECIPE)
    (folder / "verl").symlink_to((checkout / "verl").resolve())
    (folder / "recipe/dapo").mkdir()
    (folder / "recipe/dapo/main_dapo.py").write_text(STAND_IN)
    return Tree(folder, False)


def scripts(checkout: Path) -> list[str]:
    """Stage 1 and 2 first, since the second needs the first."""
    names = sorted(file.name for file in (checkout / RECIPE).glob("run_*.sh"))
    return [STAGE1, STAGE2, *(name for name in names if name not in (STAGE1, STAGE2))]


def overrides(tree: Tree, mini_batch: int) -> list[str]:
    """What differs from the script on this machine, for the tiny model."""
    values = {
        "data.max_prompt_length": 1,
        "data.max_response_length": bands.RESPONSE_LENGTH,
        "data.train_batch_size": PAPER_BATCH // SHRINK,
        "data.gen_batch_size": PAPER_GENERATION // SHRINK,
        "+data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.use_remove_padding": False,  # needs flash attention, and that CUDA
        "+actor_rollout_ref.model.override_config._attn_implementation": "sdpa",
        "+actor_rollout_ref.seed": 1,
        "actor_rollout_ref.actor.ppo_mini_batch_size": mini_batch,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp32",
        "actor_rollout_ref.rollout.name": "hf",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "custom_reward_function.path": Path(bands.__file__).resolve(),
        # it would draw random numbers after a resumption that an uninterrupted run does not draw
        "trainer.val_before_train": False,
        "trainer.save_freq": SAVE_FREQ,
    }
    if not tree.dapo:
        # verl's own trainer trains on all that it generates, and calls the reward manager without DAPO's arguments.
        values |= {"data.gen_batch_size": PAPER_BATCH // SHRINK, "reward_model.reward_manager": "naive"}
    return [f"{key}={quoted(value)}" for key, value in values.items()]


def mini_batch(tree: Tree, script: str, variables: dict[str, str]) -> int:
    """The script's own, as its dry run prints it, shrunk."""
    command = ["bash", tree.path / RECIPE / script]
    dry_run = subprocess.run(command, env={**os.environ, **variables, "DRY_RUN": "1"}, capture_output=True, text=True)
    if dry_run.returncode != 0:
        raise DemoError(f"{script} ended with exit code {dry_run.returncode} in its dry run:\n{dry_run.stderr}")
    sizes = re.findall(r"ppo_mini_batch_size=(\d+)", dry_run.stdout)
    return int(sizes[-1] if sizes else PAPER_BATCH) // SHRINK


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
    """Runs a script until it ends, or kills it with all its processes while it works on the step after `kill_after`.

    Args:
        inputs: folder with the model and the data, by demo.bigram.write.
        folder: of the checkpoints, metrics and log. The same one again: the run is resumed.
        added: further hydra overrides.
        steps: the step with which the run ends, stage 1's included in stage 2.
        stage1: the checkpoint that stage 2 goes on from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    variables = {
        "CPU_PYTHON": sys.executable,
        "PYTHON": str(run.ROOT / "demo/llm/cpu_python"),
        "CUDA_VISIBLE_DEVICES": "0",  # the check before the run counts it as one GPU
        "NNODES": "1",
        "GPUS_PER_NODE": "1",
        "MODEL_PATH": str((inputs / "model").resolve()),
        "TRAIN_FILE": str((inputs / "train.parquet").resolve()),
        "TEST_FILE": str((inputs / "validation.parquet").resolve()),
        "CKPTS_DIR": str(folder),
        "VERL_FILE_LOGGER_PATH": str(folder / METRICS_FILE),
        "LOGGER": "[console,file]",
        "TOTAL_STEPS": str(steps),
        "DRY_RUN": "",
        "CHECK_ONLY": "",
        **({"STAGE1_CKPT": str(stage1.resolve())} if stage1 else {}),
    }
    command = ["bash", str(tree.path / RECIPE / script), *overrides(tree, mini_batch(tree, script, variables)), *added]
    began, finished, killed = time.monotonic(), [], False
    with (folder / LOG_FILE).open("w") as log, run.launch(command, tree.path, log, **variables) as process:
        lines = run.new_lines(folder / METRICS_FILE)
        next(lines)  # what a run before this one has left
        running = True
        while running and not killed:
            running = process.poll() is None  # asked before the last look at the file
            finished += [json.loads(line)["step"] for line in next(lines)]
            killed = running and kill_after is not None and kill_after <= max(finished, default=0)
            time.sleep(POLL_SECONDS if running else 0)
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


def line(script: str, *cells: str) -> str:
    return f"{script:<45}" + "".join(f"{cell:>9}" for cell in cells[:-1]) + f"  {cells[-1]}"


def row(result: Outcome, runs: Path) -> str:
    """Of the table. Checkpoints are told from the folder `runs`."""
    seconds = f"{result.seconds:.0f}"
    if result.failed:
        return line(result.script, "-", seconds, "-", "-", "-", f"FAILED with exit code {result.exit_code}")
    first, last = result.steps[0], result.steps[-1]
    values = result.metrics[last]
    resumed = str(Path(result.resumed).relative_to(runs.resolve())) if result.resumed else "the beginning"
    killed = ", killed in the next step" if result.killed else ""
    numbers = (f"{values[name]:z.3f}" for name in ("actor/pg_loss", "actor/grad_norm", "era/response_entropy"))
    return line(result.script, f"{first}-{last}", seconds, *numbers, resumed + killed)


def smoke(checkout: Path, out: Path, chosen: list[str]) -> list[Outcome]:
    """Runs the scripts one after the other and prints the table. Returns the runs that failed."""
    from demo.llm import bigram

    inputs, copy, runs = (run.fresh(out / name) for name in ("inputs", "tree", "runs"))
    bigram.write(inputs)
    where = tree(checkout, copy)
    if not where.dapo:
        print(
            "This checkout is verl's source package, which lacks DAPO's trainer: verl's own stands for it, without dynamic sampling.\n"
        )
    print(line("script", "steps", "seconds", "loss", "gradient", "H_resp", "from"), flush=True)
    results = []

    def add(script: str, **settings) -> None:
        in_place = sys.stdout.isatty()
        if in_place:
            print(f"{script} ...", end="", flush=True)
        results.append(run_script(where, script, inputs, runs / script.removesuffix(".sh"), **settings))
        print(("\r\033[K" if in_place else "") + row(results[-1], runs), flush=True)

    for script in chosen:
        if script == STAGE1:
            add(script, steps=STAGE1_STEPS, kill_after=KILL_AFTER)
            add(script, steps=STAGE1_STEPS)
        elif script == STAGE2:
            add(
                script,
                steps=STAGE1_STEPS + STEPS,
                stage1=runs / STAGE1.removesuffix(".sh") / f"global_step_{STAGE1_STEPS}",
            )
        else:
            add(script)
    return [result for result in results if result.failed]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.smoke.llm", description=__doc__)
    parser.add_argument(
        "scripts", nargs="*", metavar="SCRIPT", help="run_*.sh of the checkout's recipe/era; default: all"
    )
    parser.add_argument("--checkout", default="checkouts/verl", type=Path, help="verl with the ERA overlay")
    parser.add_argument("--out", default="results/smoke", type=Path, help="folder of the results")
    return parser.parse_args(arguments)


def choose(checkout: Path, names: list[str]) -> list[str]:
    """The scripts with these names, in the order of the runs; all for none. Stage 2 brings stage 1 along."""
    known = scripts(checkout)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DemoError(
            f"no script {', '.join(unknown)} in {checkout / RECIPE}. There are:\n    " + "\n    ".join(known)
        )
    wanted = {*names, *([STAGE1] if STAGE2 in names else [])} if names else set(known)
    return [name for name in known if name in wanted]


def main() -> int:
    stop_on_signals()
    arguments = parse()
    try:
        check(arguments.checkout, arguments.out)
        chosen = choose(arguments.checkout, arguments.scripts)
        print(
            f"Each run script of {arguments.checkout / RECIPE} trains a model of 65,000 parameters on this CPU for {STEPS} steps: half a\n"
            f"minute, nearly all of it the start of Ray and verl. Stage 1 has {STAGE1_STEPS} steps, is killed (kill -9) on the way and started again.\n"
            f"Checkpoints, metrics and logs: {arguments.out}/runs. Of the last step: actor/pg_loss (on-policy the mean of -A, whatever ERA scales),\n"
            "actor/grad_norm, and the response entropy in nats.\n",
            flush=True,
        )
        with only_one(arguments.out):
            run.sweep()
            failed = smoke(arguments.checkout, arguments.out, chosen)
    except Stopped as stopped:
        print(f"\nsmoke: stopped by {signal.Signals(stopped.number).name}; nothing is left running", file=sys.stderr)
        return 128 + stopped.number
    except DemoError as error:
        print(f"smoke: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"smoke: {error.strerror or error}: {error.filename or arguments.out}", file=sys.stderr)
        return 1
    for result in failed:
        tail = "\n".join(f"    {text[:300]}" for text in result.log.splitlines()[-15:])
        print(f"\nsmoke: {result.script} failed. The end of its log:\n{tail}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
