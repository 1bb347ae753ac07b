"""The paper's experiment with TD-MPC2 and TD-MPC2-ERA. Never trained at size by this project."""

from pathlib import Path

from host import CURVES, Agent, Host, Part, Run
from sac import DMC

TD_MPC2 = Agent("tdmpc2")
ERA = Agent("tdmpc2_era", ("era_target=-1", "entropy_coef=0"))


class TDMPC2(Host):
    upstream = "tdmpc2"
    script = "tdmpc2/train.py"
    packages = ("torch", "torchrl", "tensordict", "hydra", "pandas", "gymnasium", "mujoco", "dm_control")
    task_pattern = r"[a-z]\w*-[a-z][\w-]*"
    task_examples = "tasks like dog-run or humanoid-walk"
    # The agent's; each is two of the environment, 14M in upstream's own results for these tasks.
    steps_flag, default_steps = "steps", 7_000_000
    evaluation = ("eval_freq", 50_000)
    default_gpus = 1
    files = ("logs", ".hydra", "train.log")
    harmless = ("device", "compile")
    experiments = {
        # fig. dmc_tdmpc2, and the TD-MPC2 of fig. preview_results
        "tdmpc2": (Part((TD_MPC2, ERA), DMC, (1, 2, 3), (f"steps={default_steps}", "enable_wandb=false")),),
    }

    def flags(self, task: str, seed: int) -> tuple[str, ...]:
        return (f"task={task}", f"seed={seed}", f"csv_path={CURVES}", "hydra.run.dir=.")

    def words(self, run: Run, folder: Path) -> list[str]:
        on_cpu = () if self.gpus else ("device=cpu", "compile=false")
        return [*super().words(run, folder), *on_cpu]
