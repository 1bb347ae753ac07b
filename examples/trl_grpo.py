# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""GRPO with ERA in TRL, on sums that have many right answers.

pip install '.[trl]'
python3 -m examples.trl_grpo --model Qwen/Qwen2.5-0.5B-Instruct --low 0.45
"""

import argparse
import re

import torch
from datasets import Dataset

from era.trl import EraGRPOConfig, EraGRPOTrainer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct", help="a name on the hub, or a folder")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--low", type=float, default=0.45, help="omega_low in nats: 30 %% of step 1's era/response_entropy")
parser.add_argument("--k", type=float, default=2.0, help="1 only logs ERA's metrics, to choose omega_low by")
parser.add_argument("--out", default="results/trl_grpo")
options = parser.parse_args()


def reward(completions, total, **_):
    """1 for two whole numbers with the right sum, such as "7 + 4", and else 0."""
    found = [re.match(r"\s*(\d+)\s*\+\s*(\d+)", text) for text in completions]
    return [float(bool(pair) and int(pair[1]) + int(pair[2]) == n) for pair, n in zip(found, total)]


totals = list(range(10, 60))
dataset = Dataset.from_dict({"prompt": [f"Two whole numbers whose sum is {n}: " for n in totals], "total": totals})
arguments = EraGRPOConfig(
    output_dir=options.out,
    max_steps=options.steps,
    num_generations=8,
    per_device_train_batch_size=32,
    max_completion_length=16,
    learning_rate=1e-6,
    logging_steps=1,
    report_to=[],
    bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
    era_enable=True,  # stderr says "ERA is on", with the settings
    era_low=options.low,
    era_k=options.k,
)
trainer = EraGRPOTrainer(model=options.model, args=arguments, reward_funcs=reward, train_dataset=dataset)
trainer.train()
first, last = (row["era/response_entropy"] for row in (trainer.state.log_history[0], trainer.state.log_history[-2]))
print(f"response entropy {first:.3f} nats in step 1, {last:.3f} in the last; omega_low is {options.low}")
