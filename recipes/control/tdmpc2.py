# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's experiment with TD-MPC2 and TD-MPC2-ERA. Never trained at size by this project."""

from recipes.control.sac import DMC
from recipes.control.script import CURVES, Agent, ControlScript, Grid
from recipes.grid import Run

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
