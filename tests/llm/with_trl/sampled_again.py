# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Trainings with DynamicSamplingMixin, and what is wrong in their batches.

As a script, under torch.distributed.run with the folder of a model: such a training on two processes, whose findings it
prints as JSON.
"""

import json
import math
import random
import sys

import numpy as np
import plain_grpo
import tiny_grpo
import torch
import torch.distributed as dist
from datasets import Dataset
from tiny_grpo import ERA, Era, Plain

from demo.llm import models
from era.language_config import EraConfig
from rivals.trl_dynamic_sampling import DynamicSamplingMixin


class DynamicPlain(DynamicSamplingMixin, Plain):
    pass


class DynamicEra(DynamicSamplingMixin, Era):
    pass


def prompts(count=64):
    """Prompts of several lengths, so that those of two batches are padded to the longer ones."""
    rng = random.Random(0)
    numbers = (rng.choice((rng.randint(1, 9), rng.randint(10, 999))) for _ in range(count))
    return Dataset.from_dict({"prompt": [f"{number}=" for number in numbers]})


class Judge:
    """A reward that is the same for all answers to three of four prompts. It keeps prompts, answers, rewards, and
    whether the answers were ended."""

    __name__ = "judge"

    def __init__(self):
        self.asked = []  # a list for each batch that was sampled

    def __call__(self, prompts, completions, completion_ids, **_):
        rewards = tiny_grpo.reward(completions)
        rewards = [0.3 if int(p.strip("=")) % 4 else one for p, one in zip(prompts, rewards)]
        ended = [ids[-1] in (models.EOS, models.PAD) for ids in completion_ids]
        self.asked.append([*zip(prompts, completions, rewards, ended)])
        return rewards


class OfManyLengths:
    """tiny_grpo's answers, without up to two of their first tokens: where batches are joined, some are padded."""

    def __init__(self):
        self.calls = 0

    def __call__(self, prompts, trainer):
        self.calls += 1
        given = tiny_grpo.answers(prompts, trainer)
        cut = {name: [row[self.calls % 3 :] for row in given[name]] for name in given.keys() - {"prompt_ids"}}
        return {**given, **cut}


def wanted(batches, rows, args, rounds):
    """The batch that is to be trained, from those that were sampled for it: prompt, answer, advantage.

    batches: of all processes, in their order.
    """
    group = args.num_generations
    groups = [batch[i : i + group] for batch in batches[:rounds] for i in range(0, rows, group)]
    differ = [len({reward for _, _, reward, _ in one}) > 1 for one in groups]
    if args.mask_truncated_completions:
        differ = [does and any(ended for *_, ended in one) for one, does in zip(groups, differ)]
    last = len(groups) - rows // group
    trains = [one for one, does in zip(groups, differ) if does]
    others = [one for one, does in zip(groups[last:], differ[last:]) if not does]
    for one in [*trains, *others][: rows // group]:
        rewards = np.array([reward for _, _, reward, _ in one])
        spread = rewards.std(ddof=1)
        for prompt, answer, reward, _ in one:
            yield prompt, answer, round((reward - rewards.mean()) / (spread + 1e-4), 3) + 0.0


def trained(trainer, batches):
    """As `wanted`, from what the loss was given."""
    for batch in batches:
        ids = [[*map(int, row)] for row in batch["prompt_ids"]], [[*map(int, row)] for row in batch["completion_ids"]]
        prompts, answers = (trainer.processing_class.batch_decode(one, skip_special_tokens=True) for one in ids)
        yield from zip(prompts, answers, (round(one, 3) + 0.0 for one in batch["advantages"].tolist()))


def problems(trainer, start, seen, asked):
    """What is wrong in a training.

    Args:
        seen: the micro-batches of each process.
        asked: Judge's of each process.
    """
    args, found = trainer.args, []
    logged = [row for row in trainer.state.log_history if "loss" in row]
    if not all(math.isfinite(row["loss"]) for row in logged):
        found.append("a loss that is not finite")
    rounds = [int(row["dynamic_sampling/rounds"]) for row in logged if "dynamic_sampling/rounds" in row]
    if max(rounds) == 1:
        found.append("no batch was sampled again")
    together = [sum(batches, []) for batches in zip(*asked)]
    starts = range(0, len(together[0]), args.num_generations)
    groups = (batch[start : start + args.num_generations] for batch in together for start in starts)
    if any(len({prompt for prompt, *_ in group}) > 1 for group in groups):
        found.append("a group has several prompts")
    each = args.steps_per_generation
    for step, number in enumerate(rounds):
        batches = [one for of_rank in seen for one in of_rank[step * each : (step + 1) * each]]
        expected = sorted(wanted(together, len(together[0]), args, number))
        together = together[number:]
        if sorted(trained(trainer, batches)) != expected:
            found.append(f"step {step}: another batch")
        tokens = sum(plain_grpo.mask_of(batch).sum().item() for batch in batches)
        for batch in batches:
            left, right = batch["prompt_mask"].diff(), batch["completion_mask"].diff()
            if left.min() < 0 or right.max() > 0:
                found.append(f"step {step}: padded on another side than TRL does")
        if {int(batch["num_items_in_batch"]) for batch in batches} != {int(tokens)}:
            found.append(f"step {step}: num_items_in_batch")
    model, _ = plain_grpo.trained(start, seen, args, getattr(trainer, "era_config", None) or OFF)
    error = plain_grpo.error(tiny_grpo.weights(trainer), model, start)
    return found if error < 2e-6 else [*found, f"the parameters differ by {error}"]


OFF = EraConfig(enable=False)


def main(folder):
    torch.set_num_threads(1)
    judge = Judge()
    # Three groups, the second of them on both processes
    settings = {
        "ddp_backend": "gloo",
        "per_device_train_batch_size": 6,
        "max_steps": 6,
        "train_dataset": prompts(),
        **ERA,
    }
    trainer, start = tiny_grpo.train(DynamicEra, tiny_grpo.load(folder), reward=judge, **settings)
    seen, asked = [None, None], [None, None]
    dist.all_gather_object(seen, trainer.seen)
    dist.all_gather_object(asked, judge.asked)
    if dist.get_rank() == 0:
        print(json.dumps({"problems": problems(trainer, start, seen, asked)}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
