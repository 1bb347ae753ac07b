# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's experiments with FastTD3 and FastSAC-ERA."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from recipes import run_json, whole
from recipes.control.script import CURVES, Agent, ControlScript, Grid, code_of
from recipes.grid import LOG, Run

# tab. continuous_envs2
TASKS = tuple(
    f"h1hand-{task}-v0" for task in ("balance_simple", "hurdle", "pole", "push", "stair", "slide", "walk", "run")
)
TWO_TASKS, FIVE_SEEDS, TEN_SEEDS = ("h1hand-walk-v0", "h1hand-run-v0"), tuple(range(1, 6)), tuple(range(1, 11))
SHORT = ("--total_timesteps", "2000", "--eval_interval", "0", "--save_interval", "0")


def era(name: str = "", *flags: str) -> Agent:
    return Agent(f"fastsac_era{name}", ("--agent", "fastsac_era", *flags))


FASTTD3 = Agent("fasttd3", ("--agent", "fasttd3"))
FASTTD3_NO_DELAY = Agent("fasttd3-no_delay", ("--agent", "fasttd3", "--policy_frequency", "1"))
TANH, LEARNED, BATCH = ("--era_distribution", "tanh"), "--era_learn_delta", ("--era_level", "batch")
# Fig. ablation_distribution: era() is the truncated one with constant delta.
DISTRIBUTIONS = (era(), era("-learned", LEARNED), era("-tanh", *TANH), era("-tanh-learned", *TANH, LEARNED))


class FastTD3(ControlScript):
    """FastTD3's train.py, whose interrupted runs start over: a checkpoint has neither replay buffer nor optimizers."""

    host = upstream = "fasttd3"
    file = "fast_td3/train.py"
    packages = ("torch", "tensordict", "tyro", "wandb", "tqdm", "gymnasium", "mujoco", "stable_baselines3")
    default_gpus = 1
    cpus = 16  # for 128 environment processes: what each of 8 GPUs has on a node with 128 CPUs
    apart = one_at_a_time = ("time",)
    harmless = (
        *("--device_rank", "--project", "--use_wandb", "--no_use_wandb"),
        *("--render_interval", "--save_interval"),
    )
    experiments = {
        # fig. hb_fastsac
        "humanoidbench": (Grid((FASTTD3, era()), TASKS, TEN_SEEDS),),
        "distribution": (Grid(DISTRIBUTIONS, TWO_TASKS, FIVE_SEEDS),),
        # fig. batch_era
        "batch": (Grid((FASTTD3, era(), era("-batch", *BATCH)), TWO_TASKS, FIVE_SEEDS),),
        # fig. time_continuous
        "time": (Grid((FASTTD3, FASTTD3_NO_DELAY, era()), TASKS, (1,), SHORT),),
    }

    def __init__(self, name: str, added: Sequence[str] = ()):
        super().__init__(name, added)
        last = [word for word in added if word.replace("-", "_") in ("__cuda", "__no_cuda")][-1:]
        if last and "no" in last[0]:
            self.gpus = 0

    def default_output(self) -> Path:
        return self.root / "output/era"

    def flags(self, task: str, agent: Agent, seed: int) -> tuple[str, ...]:
        own = ("--seed", str(seed), "--exp_name", agent.name, "--csv_path", CURVES)
        return ("--env_name", task, *agent.flags, *own)

    def argv(self, run: Run) -> list[str]:
        python, script, *flags = super().argv(run)
        # Without wandb nobody would see the videos that train.py renders.
        return [python, script, "--no_use_wandb", "--render_interval", "0", *flags]

    def variables(self, run: Run) -> dict[str, str]:
        about = run_json.for_script(**self.about(run))
        # Its progress bar goes into log.txt, every 10 seconds.
        return {"PYTHONPATH": self.python_path(), "TQDM_MININTERVAL": "10", **about}

    def code(self) -> dict:
        return code_of(self.root, self.checkouts / "humanoid-bench")

    def is_finished(self, run: Run) -> bool:
        """Whether the final model, which train.py writes last, and the whole curve are there."""
        models = filter(Path.is_file, run.folder.glob("models/*_final.pt"))
        return any(map(zipfile.is_zipfile, models)) and not self.incomplete_because(run)

    def incomplete_because(self, run: Run) -> str:
        return whole.incomplete_because(run.folder, run_json.read(run.folder).get("total_steps") or self.steps(run))

    def steps(self, run: Run) -> int | None:
        """How many steps the run was asked for, from its log: train.py prints its settings at its start."""
        log = run.folder / LOG
        printed = re.findall(r"\btotal_timesteps=(\d+)", log.read_text(errors="replace")) if log.is_file() else []
        return int(printed[-1]) if printed else None

    def record(self, run: Run) -> dict:
        packages = ("torch", "tensordict", "torchrl", "gymnasium", "mujoco", "numpy", "ray")
        return run_json.begin(
            self.host, run.task, run.seed, None, packages, command=list(run.command), **self.about(run)
        )

    def complete_record(self, run: Run) -> None:
        record = run_json.read(run.folder)
        if record and not record.get("finished"):
            run_json.finish(run.folder, {**record, "total_steps": self.steps(run)})
