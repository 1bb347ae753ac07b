# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's experiment with TD-MPC2 and TD-MPC2-ERA. Never trained at size by this project."""

import math
from typing import Any

from recipes.control.sac import DMC
from recipes.control.script import CURVES, Agent, ControlScript, Grid
from recipes.grid import Run
from recipes.run_json import setting
from recipes.whole import LONGEST_EPISODE, Rows

STEPS = 7_000_000  # the agent's; each is two of the environment, 14M in upstream's own results for these tasks
TD_MPC2 = Agent("tdmpc2")
ERA = Agent("tdmpc2_era", ("era_target_entropy=-1", "entropy_coef=0"))


class TDMPC2(ControlScript):
    host = "tdmpc2"
    upstream = "tdmpc2"
    file = "tdmpc2/train.py"
    packages = ("torch", "torchrl", "tensordict", "hydra", "pandas", "gymnasium", "mujoco", "dm_control")
    default_gpus = 1
    harmless = ("device", "compile")
    experiments = {
        # fig. dmc_tdmpc2, and the TD-MPC2 of fig. preview_results
        "tdmpc2": (Grid((TD_MPC2, ERA), DMC, (1, 2, 3), (f"steps={STEPS}", "enable_wandb=false")),),
    }

    def flags(self, task: str, agent: Agent, seed: int) -> tuple[str, ...]:
        return (f"task={task}", f"seed={seed}", f"csv_path={CURVES}", "hydra.run.dir=.", *agent.flags)

    def argv(self, run: Run) -> list[str]:
        on_cpu = () if self.gpus else ("device=cpu", "compile=false")
        return [*super().argv(run), *on_cpu]

    @staticmethod
    def rows(record: dict[str, Any], total: int, column: str = "") -> Rows:
        """One for each evaluation, which waits for the end of an episode; where episodes may end early, for an unknown
        number of steps."""
        evaluations = range(0, total + 1, setting(record, "eval_freq", 50_000))
        if length := record.get("episode_length"):
            ends = (math.ceil(step / length) * length for step in evaluations)
            return Rows(step for step in ends if step <= total)
        return Rows((step for step in evaluations if step <= total - LONGEST_EPISODE), LONGEST_EPISODE)
