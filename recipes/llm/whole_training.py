# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What happens at the end of an LLM run: a callback of hydra's, which era_math.yaml names."""

import sys

from hydra.experimental.callback import Callback

from .preflight_checkpoint import newest_step


class WholeTraining(Callback):
    """A training that ends before its last step ends with an error.

    verl ends with exit code 0 once its epochs are over, and whatever started it would take that for the end of the run.
    """

    def on_run_end(self, config, job_return, **_) -> None:
        last, saves = config.trainer.total_training_steps, config.trainer.save_freq > 0
        if job_return.status.name != "COMPLETED" or not isinstance(last, int) or config.trainer.get("val_only"):
            return
        if saves and (step := newest_step(config)) < last:
            sys.exit(
                f"error: the training ended before step {last}, because its trainer.total_epochs="
                f"{config.trainer.total_epochs} epochs were over. Its last checkpoint is of step {step}. Raise "
                "total_epochs; the same command then goes on from there."
            )
