# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m rivals.llm_trainer RAY_FOLDER [HYDRA OVERRIDES]: the demo's trainer without any negative advantages.

They are 0 before ERA decides, which acts where they are positive.
"""

import sys

from demo.llm import cpu_trainer


def main(ray_folder: str, overrides: list[str]) -> None:
    from verl.trainer.ppo import core_algos

    of_grpo = core_algos.compute_grpo_outcome_advantage

    def without_negative_ones(*args, **kwargs):
        advantages, returns = of_grpo(*args, **kwargs)
        return advantages.clamp(min=0), returns

    core_algos.compute_grpo_outcome_advantage = without_negative_ones  # which the trainer calls in this process
    cpu_trainer.main(ray_folder, overrides)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
