# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""CPU time and peak memory of TRL's GRPOTrainer with ERA and without, as ratios in one run.

    python -m tools.bench.trl [--csv FILE]

Measured without a GPU, in fp32 and under bf16's autocast, for a Qwen2 of two layers with a head of full size:

    old log-probs    the pass over a generation batch before several updates
    update           loss and backward pass of a micro-batch
    step             generation, reward, what is scored, loss and backward pass

Every response of positive advantage is scaled, half of the tokens, which is asserted. Each arm is compared with its own
baseline, turn by turn. CPU time is used because other processes change it less than wall time.
"""

import math
import tempfile
import time
from functools import partial

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from demo.llm import models
from era.trl import EraGRPOConfig, EraGRPOTrainer
from tools.bench import measure

PROMPT, GROUP = "0123", 4
ARMS = measure.trainer_arms(**{"2 iterations": {"num_iterations": 2}, "KL loss": {"beta": 0.1}})
cost = partial(measure.cost, clock=time.process_time)


def write_model(folder, args):
    """Write a model of two layers that never ends a response."""
    torch.manual_seed(0)
    model = models.two_layer_qwen2(args.vocabulary, args.width, 4 * args.width, positions=args.tokens + len(PROMPT))
    model.generation_config.suppress_tokens = [models.EOS]  # all responses are of full length
    model.save_pretrained(folder)


def reward(completion_ids, **_):
    """Half of a group is better than the other."""
    return [float(i % GROUP < GROUP / 2) for i in range(len(completion_ids))]


def build(arm, folder, args, dtype):
    """The arm's trainer, on a model of its own."""
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": args.responses,
        "num_generations": GROUP,
        "max_completion_length": args.tokens // args.responses,
        "gradient_checkpointing": False,
        "bf16": dtype == "bfloat16",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        **arm.settings,
    }
    trainer_class, config_class = (GRPOTrainer, GRPOConfig) if arm.era is None else (EraGRPOTrainer, EraGRPOConfig)
    if arm.era is not None:
        era = {"enable": True, "low": 99.0, "high": math.inf, **arm.era}
        settings |= {f"era_{name}": value for name, value in era.items()}
    trainer = trainer_class(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=reward,
        args=config_class(**settings),
        train_dataset=Dataset.from_dict({"prompt": [PROMPT] * args.responses}),
        processing_class=models.character_tokenizer(list("0123456789")),
    )
    trainer.processing_class.chat_template = None
    trainer.current_gradient_accumulation_steps = 1  # set by train()
    trainer.model.train()
    return trainer


def take_turn(arm, trainer, rows):
    """The costs of a step and of its passes, the first of which only some arms have."""
    batch = {}
    torch.manual_seed(0)

    def step():
        batch.update(trainer._generate_and_score_completions(rows))
        update()

    def update():
        trainer._compute_loss(trainer.model, batch).backward()

    def old_log_probs():
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        trainer._era_sampled = []  # where ERA keeps what it finds; without ERA nobody reads it
        with torch.no_grad():
            trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, torch.ones_like(ids), batch["completion_ids"].size(1)
            )
        trainer._era_sampled = None

    costs = {}
    for name, run in {"step": step, "update": update, "old log-probs": old_log_probs}.items():
        if run is not old_log_probs or "old_per_token_logps" in batch:
            costs[name] = cost(run)
            trainer.model.zero_grad()
    arm.check_scaled(trainer._metrics["train"].pop("era/scaled_token_fraction", []), share=0.5)
    return costs


ARGUMENTS = {
    "--tokens": {"type": int, "default": 128, "help": "of all responses"},
    "--responses": {"type": int, "default": 8, "help": f"a multiple of {GROUP}"},
    **measure.VOCABULARY,
    "--width": {"type": int, "default": 256},
    **measure.DTYPES,
}


def tables(args):
    """A table for each dtype and pass."""
    transformers.logging.disable_progress_bar()
    rows = [{"prompt": PROMPT} for _ in range(args.responses)]
    baselines = {name: arm.baseline for name, arm in ARMS.items()}
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, args)
        for dtype in args.dtypes:
            arms = {name: partial(take_turn, arm, build(arm, folder, args, dtype), rows) for name, arm in ARMS.items()}
            for pass_, table in measure.compare(arms, args.turns, ratio=baselines).items():
                yield table, {"pass": f"{pass_} {dtype}"}


if __name__ == "__main__":
    measure.main(__doc__, ARGUMENTS, tables, turns=3)
