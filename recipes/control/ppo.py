# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's experiments with PPO and PPO-ERA in the code it names, DRL-code-pytorch, and control arms it lacks."""

import math
import zipfile
from pathlib import Path

from era.gaussian_defaults import PPO_TARGET
from recipes.control.script import CURVES, Agent, ControlScript, Grid
from recipes.grid import Run

TASKS = ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4")
CHEETAH = TASKS[:1]
FIVE_SEEDS, TEN_SEEDS = tuple(range(1, 6)), tuple(range(1, 11))

NO_BONUS = ("--entropy_coef", "0")  # under ERA its gradient is 0 unless ln sigma is clipped
# The sigma of a Gaussian that has ERA's target: ln sigma = -0.3 - ln sqrt(2 pi e)
LOW_NOISE = ("--log_std_init", f"{PPO_TARGET - math.log(2 * math.pi * math.e) / 2:.5f}", *NO_BONUS)
BASELINE = Agent("ppo")
PPO_ERA = Agent("ppo_era", ("--std", "era", "--era_target_entropy", str(PPO_TARGET), *NO_BONUS))
# The two values of EAPO's authors for MuJoCo, chosen before the runs.
EAPO_FLAGS = ("--eapo_tau", "0.02", "--eapo_lambda", "0.001", *NO_BONUS)
EAPO = Agent("eapo", (*EAPO_FLAGS, "--max_train_steps", "4000000"))
CONTROLS = (
    Agent("ppo_constant", ("--std", "constant", *LOW_NOISE)),
    Agent("ppo_head", ("--std", "head", *LOW_NOISE)),
    Agent("ppo_parameter", ("--std", "parameter", *LOW_NOISE)),
    # The paper's listing adds h_0 where its equation subtracts: read literally, -0.3 gives this target.
    Agent("ppo_era_0.3", ("--std", "era", "--era_target_entropy", str(-PPO_TARGET), *NO_BONUS)),
)
# Not the paper's targets: the noise of a nearly deterministic policy, and two thirds of PPO's initial noise.
MIS_SET = tuple(
    Agent(f"ppo_era_{target}", ("--std", "era", "--era_target_entropy", target, *NO_BONUS))
    for target in ("-2.0", "1.0")
)
# The paper names no values; these are round ones, and DAPO's 0.28.
CLIPS = ("0.24", "0.28", "0.4")
SCOPES = ("0.2", "0.5", "0.8", "1.0")
# Selecting states by entropy needs a sigma that depends on the state: share 1.0 is that sigma alone, for comparison.
LLM_TECHNIQUES = (
    *(Agent(f"ppo_clip_{high}", ("--epsilon_high", high)) for high in CLIPS),
    *(Agent(f"ppo_scope_{share}", ("--std", "head", "--selective", share)) for share in SCOPES),
)


class PPO(ControlScript):
    host = "ppo"
    upstream = "drl-code-pytorch"
    file = "5.PPO-continuous/PPO_continuous_main.py"
    packages = ("torch", "numpy", "gymnasium", "mujoco", "tensorboard")
    experiments = {
        # fig. gym_ppo, and the control arms: HalfCheetah with all arms first
        "ppo": (
            Grid((BASELINE, PPO_ERA, *CONTROLS), CHEETAH, FIVE_SEEDS),
            Grid((BASELINE, PPO_ERA), TASKS[1:], FIVE_SEEDS),
        ),
        # fig. compare_eapo; its PPO-ERA is that of "ppo"
        "eapo": (Grid((EAPO,), TASKS, FIVE_SEEDS),),
        # Not in the paper: EAPO as long as PPO-ERA, and PPO without the bonus that EAPO leaves out.
        "eapo-3m": (
            Grid(
                (BASELINE, PPO_ERA, Agent("eapo_3m", EAPO_FLAGS), Agent("ppo_no_bonus", NO_BONUS)),
                CHEETAH,
                (1, 2, 3),
            ),
        ),
        # fig. ablation_llm_tricks
        "llm-techniques": (Grid((BASELINE, *LLM_TECHNIQUES), CHEETAH, TEN_SEEDS),),
        # Not in the paper, docs/rivals/control.md: targets far from the paper's.
        "ppo-targets": (Grid(MIS_SET, CHEETAH, FIVE_SEEDS),),
    }

    def flags(self, task: str, agent: Agent, seed: int) -> tuple[str, ...]:
        return ("--env", task, "--seed", str(seed), "--csv_path", CURVES, "--fast", *agent.flags)

    def checkpoint(self, run: Run) -> Path | None:
        """The checkpoint, which the script finds by itself; it writes the first one a minute after its start.

        A truncated file does not count, and is set aside with the rest of the run.
        """
        file = run.folder / "checkpoint.pt"
        return file if file.is_file() and zipfile.is_zipfile(file) else None
