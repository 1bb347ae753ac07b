# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476), with which the paper trains, for TRL:

    from rivals.trl_dynamic_sampling import DynamicSamplingMixin

    class Mine(DynamicSamplingMixin, EraGRPOTrainer):  # or GRPOTrainer, without ERA
        pass

A group whose answers all have the same reward, as where all are right, trains nothing, nor does one
whose answers are all left out of the loss, as truncated ones may be. Such groups are replaced by
answers to other prompts of the dataset.
"""

import random
from typing import Any

import torch
from torch.utils.data import IterableDataset
from trl.trainer.utils import pad

__all__ = ["DynamicSamplingMixin"]

# What is known to have a row for every answer, (B, ...).
_IDS = ("prompt_ids", "completion_ids")
_TRLS = ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")
_ROWS = ("advantages", "prompt_mask", "completion_mask", "tool_mask", "importance_sampling_ratio")
_KNOWN = {*_IDS, *_TRLS, *_ROWS, "era_scale", "era_dropped", "era_old", "era_rows"}
# What is 1 where there is no token, as in TRL: losses divide by it, or take its logarithm.
_ONE_ON_PADDING = ("tool_mask", "importance_sampling_ratio", "era_scale")


def groups_with_advantage(advantages: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Whether each group's advantages differ, so that it trains: (groups,) bool.

    Equal rewards have equal advantages, but not always 0: their mean may be rounded.

    Args:
        advantages: (groups x num_generations,) or (groups x num_generations, T), a group's answers
            one after the other.
    """
    grouped = advantages.reshape(-1, num_generations, *advantages.shape[1:])
    return (grouped != grouped[:, :1]).flatten(1).any(-1)


def join(batches: list[dict[str, torch.Tensor]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """The rows of all batches, padded as in TRL."""
    joined = {}
    for name in batches[0]:
        columns = [batch[name] for batch in batches]
        if columns[0].dim() == 1:
            joined[name] = torch.cat(columns)
        else:
            value, left = _padding(name, pad_token_id)
            rows = [row for column in columns for row in column]
            joined[name] = pad(rows, value, "left" if left else "right")
    return joined


def _padding(name: str, pad_token_id: int) -> tuple[int, bool]:
    """What a column of the batch is padded with, and whether on its left, as prompts are."""
    value = pad_token_id if name in _IDS else int(name in _ONE_ON_PADDING)
    return value, name.startswith("prompt_")


class DynamicSamplingMixin:
    """Replaces groups that train nothing. Put it first among the bases, before EraMixin.

    Batches are sampled from other prompts of the dataset, until the groups that train fill one.
    After `max_rounds` batches the places that are left keep groups that do not, as in TRL. Where
    all groups of the first batch train, the step is TRL's.

    TRL's metrics, the reward and `frac_reward_zero_std` among them, are of all that was sampled.
    `dynamic_sampling/rounds` is the number of batches, and `dynamic_sampling/filled` the share of
    the update's groups that train.

    Attributes:
        max_rounds: how many batches are sampled at most, 1 or more.

    Raises:
        TypeError: when a class has the mixin behind EraMixin or GRPOTrainer. On construction, a
            dataset that cannot be indexed.
        ValueError: on construction, another max_rounds. In the first step, a batch with more than
            text, or of another trainer than GRPO's.
    """

    max_rounds = 10  # verl's recipe of DAPO has max_num_gen_batches=10

    # What the trainer has, beside which this class stands.
    accelerator: Any
    args: Any
    num_generations: int
    state: Any
    train_dataset: Any
    _tokenizer: Any

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        order = [base.__name__ for base in cls.__mro__]
        before = order[: order.index("DynamicSamplingMixin")]
        if wrong := [name for name in ("EraMixin", "GRPOTrainer") if name in before]:
            raise TypeError(
                f"{cls.__name__}: {wrong[0]} precedes DynamicSamplingMixin, so that groups would "
                "not be replaced, or without what ERA decided for them. Put the mixin first."
            )

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        rounds = self.max_rounds
        if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
            raise ValueError(
                f"{type(self).__name__}: max_rounds={rounds!r}, but it is how many batches are "
                "sampled at most, a whole number from 1 on."
            )
        if isinstance(self.train_dataset, IterableDataset):
            raise TypeError(
                f"{type(self).__name__} draws further prompts from the dataset, and a streamed "
                "one cannot be indexed. Load it without streaming=True."
            )
        self._drawn_at = -1, 0  # a step, and how often prompts were drawn in it

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return output
        group, processes = self.num_generations, self.accelerator.num_processes
        places = len(inputs) * processes // group
        parts, filled, rounds = [], 0, 1
        while True:
            _refuse_more_than_text(output, len(inputs))
            counts = (output["completion_mask"] * output.get("tool_mask", 1)).any(-1)
            advantages, counts = self.accelerator.gather((output["advantages"], counts))
            trains = groups_with_advantage(advantages, group) & counts.view(-1, group).any(-1)
            filled += int(trains.sum())
            if rounds == 1 and filled == places:
                break  # this process needs nothing from the others
            rows = trains.repeat_interleave(group)
            batch = self._of_all_processes(output)
            parts.append({name: column[rows] for name, column in batch.items()})
            if filled >= places or rounds >= self.max_rounds:
                break
            rounds += 1
            output = super()._generate_and_score_completions(self._draw(len(inputs), places))
        metrics = self._metrics["train"]
        metrics["dynamic_sampling/rounds"].append(rounds)
        metrics["dynamic_sampling/filled"].append(min(1.0, filled / places))
        if rounds == 1:
            return output
        parts.append({name: column[~rows] for name, column in batch.items()})
        whole = join(parts, self._tokenizer.pad_token_id)
        whole = {name: column[: places * group] for name, column in whole.items()}
        # As TRL has it: the tokens of the loss in the batch of all processes.
        items = (whole["completion_mask"] * whole.get("tool_mask", 1)).sum()
        first = self.accelerator.process_index * len(inputs)
        own = {name: column[first : first + len(inputs)] for name, column in whole.items()}
        return {**own, "num_items_in_batch": items}

    def _draw(self, size: int, places: int) -> list[dict[str, Any]]:
        """This process's rows of a batch of other prompts.

        All processes make the same draw, and so does a training that was resumed.
        """
        step, number = self._drawn_at
        number = number + 1 if step == self.state.global_step else 1
        self._drawn_at = self.state.global_step, number
        rng = random.Random(f"{self.args.seed}, {self.state.global_step}, {number}")
        every = range(len(self.train_dataset))
        repeats = -(-places // len(every))  # 1, but for a dataset smaller than a batch
        drawn = rng.sample(every, places, counts=[repeats] * len(every))
        first = self.accelerator.process_index * size
        rows = range(first, first + size)
        return [self.train_dataset[drawn[row // self.num_generations]] for row in rows]

    def _of_all_processes(self, output: dict[str, Any]) -> dict[str, torch.Tensor]:
        batch = {}
        for name, column in output.items():
            if name == "num_items_in_batch":
                continue
            if column.dim() > 1:
                value, left = _padding(name, self._tokenizer.pad_token_id)
                column = self.accelerator.pad_across_processes(column, 1, value, pad_first=left)
            batch[name] = self.accelerator.gather(column.contiguous())
        return batch


def _refuse_more_than_text(output: dict[str, Any], size: int) -> None:
    """Raises ValueError where a column of the batch is not known to have a row for each answer."""
    for name, column in output.items():
        if name == "num_items_in_batch":
            continue
        if name not in _KNOWN or not torch.is_tensor(column) or len(column) != size:
            raise ValueError(
                f"DynamicSamplingMixin knows GRPOTrainer's batches of text, and this one has "
                f"{name}, whose rows it cannot replace. Leave the mixin out."
            )
