# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Runs the LLM recipe's scripts on this CPU, a few steps each with a tiny model (bigram.py, bands.py).

The scripts run unchanged, with hydra overrides as their arguments and cpu_python as their python: through their own
check, Ray, verl's DAPO trainer and FSDP worker.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import bands

from demo.llm.config import for_hydra
from demo.llm.training import environment
from recipes.processes import process_group

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECIPE = "recipe/era"
STAGE1, STAGE2 = (f"run_era_stage{stage}_qwen2.5_math_7b.sh" for stage in (1, 2))
SCRIPTS = sorted(file.name for file in (ROOT / "overlays/verl" / RECIPE).glob("run_*.sh"))
STEPS = 2
STAGE1_STEPS, SAVE_FREQ, KILL_AFTER = 20, 5, 7  # enough steps after the kill for it not to come too late
SHRINK = 32  # the paper's batches are divided by it; the number of mini-batches stays
PAPER_BATCH, PAPER_GENERATION = 256, 768
METRICS_FILE, LOG_FILE = "metrics.jsonl", "log.txt"


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


def overrides(mini_batch: int) -> list[str]:
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
    return [f"{key}={for_hydra(value)}" for key, value in values.items()]


def mini_batch(file: Path, variables: dict[str, str]) -> int:
    """The script's own, as its dry run prints it, divided by SHRINK."""
    environment = {**os.environ, **variables, "DRY_RUN": "1"}
    printed = subprocess.run(["bash", file], env=environment, capture_output=True, text=True, check=True).stdout
    sizes = re.findall(r"ppo_mini_batch_size=(\d+)", printed)
    return int(sizes[-1] if sizes else PAPER_BATCH) // SHRINK


def variables_of(inputs: Path, folder: Path) -> dict[str, str]:
    """What every script is told by environment variables."""
    return {
        "CPU_PYTHON": sys.executable,
        "PYTHON": str(HERE / "cpu_python"),
        "CUDA_VISIBLE_DEVICES": "0",  # Ray refuses to be told of a GPU that this hides
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
    checkout: Path,
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
        inputs: folder with the model and the data, from bigram.write.
        folder: of the checkpoints, metrics and log. With that of an earlier run, the run is resumed.
        added: more hydra overrides.
        steps: the step after which the run ends; stage 2 counts stage 1's steps too.
        stage1: the checkpoint that stage 2 continues from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    file, metrics_file, log_file = checkout / RECIPE / script, folder / METRICS_FILE, folder / LOG_FILE
    variables = variables_of(inputs, folder) | {"TOTAL_STEPS": str(steps)}
    if stage1:
        variables["STAGE1_CKPT"] = str(stage1.resolve())
    command = ["bash", str(file), *overrides(mini_batch(file, variables)), *added]
    began, before, killed = time.monotonic(), len(lines_of(metrics_file)), False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ray, log_file.open("w") as log:
        with process_group(command, environment(checkout, ray, metrics_file) | variables, log) as process:
            while process.poll() is None and not killed:
                time.sleep(0.02)
                killed = kill_after is not None and kill_after <= max(steps_of(metrics_file, before), default=0)
    text = log_file.read_text(errors="replace")
    resumed = re.findall(r"Resuming from (.*)", text)
    return Outcome(
        script,
        process.returncode,
        killed,
        time.monotonic() - began,
        steps_of(metrics_file, before),
        metrics(metrics_file),
        resumed[-1] if resumed else None,
        text,
    )


def lines_of(file: Path) -> list[dict]:
    """The complete lines of a file of JSON lines."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def steps_of(file: Path, before: int) -> list[int]:
    return [line["step"] for line in lines_of(file)[before:]]


def metrics(file: Path) -> dict[int, dict[str, float]]:
    steps = {}
    for line in lines_of(file):
        steps.setdefault(line["step"], {}).update(line["data"])
    return dict(sorted(steps.items()))
