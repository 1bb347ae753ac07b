# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The files of prompts of an LLM run, and what verl's reward says to their rows.

verl would cut a prompt that is too long, or with data.truncation=error stop when it comes to it; what its reward does
not score would end the run once the first responses are there.
"""

import contextlib
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .preflight_checkpoint import begins_after
from .preflight_settings import IS_PATCHED_CHECKOUT, generation_batch, listed

VARIABLES = {"train_files": "TRAIN_FILE", "val_files": "TEST_FILE"}
ANY_RESPONSE = "Answer: 1"  # what the reward is asked to score
# The metrics of algorithm.filter_groups that the trainer makes by itself: recipe/dapo of v0.4.1; verl 0.9.
OWN_METRICS = ("seq_reward", "seq_final_reward") if IS_PATCHED_CHECKOUT else ("reward",)
MOST_SOURCES = 100


def data_problems(config, tokenizer) -> Iterator[str]:
    """What is wrong with the files, with their prompts for this tokenizer, and with what they can be trained on for.

    Args:
        tokenizer: None where the model has none; then no prompts are counted and none is scored.
    """
    import pyarrow.parquet

    score = None
    if tokenizer and has_scores(config):
        try:
            score = scorer(config, tokenizer)
        except (Exception, SystemExit) as error:  # of verl's or of a module of the user's
            yield f"reward: verl's reward manager cannot be made: {type(error).__name__}: {error}"
    for key in VARIABLES:
        names, rows = listed(config.data[key]), []
        if not names:
            yield f"data: data.{key} names no file. Set {VARIABLES[key]}."
        for file in (Path(name).expanduser() for name in names if is_readable(name, config)):
            lacks = list(missing_file(key, file)) or list(file_problems(file, config, tokenizer))
            yield from lacks
            if not lacks and score:
                yield from reward_problems(file, config, score, key == "train_files")
            if not lacks:
                rows.append(pyarrow.parquet.read_metadata(file).num_rows)
        if key == "train_files" and names and len(rows) == len(names):
            yield from epoch_problems(sum(rows), config)


def has_scores(config) -> bool:
    """Whether the reward is a function that can be called here: no model of rewards, no process of Ray."""
    from omegaconf import OmegaConf

    of_0_9 = (
        OmegaConf.select(config, "reward.reward_model.enable"),
        OmegaConf.select(config, "reward.reward_manager.name"),
    )
    return not (OmegaConf.select(config, "reward_model.enable") or of_0_9[0] or of_0_9[1] == "remote")


def is_readable(file: str, config) -> bool:
    """Whether the check can look at a file: not at JSON, another machine's, or what an own dataset class reads."""
    is_json = not IS_PATCHED_CHECKOUT and file.endswith((".json", ".jsonl"))
    return not ("://" in file or is_json or config.data.get("custom_cls", {}).get("path"))


def missing_file(key: str, file: Path) -> Iterator[str]:
    if not file.is_file():
        yield f"data: no {file}. Make it with `make llm-data`, or set {VARIABLES[key]} to another."


def file_problems(file: Path, config, tokenizer) -> Iterator[str]:
    """What is wrong with the columns of a file, and with the lengths of its prompts."""
    import pyarrow.parquet

    prompts, most = config.data.prompt_key, config.data.max_prompt_length
    try:
        columns = pyarrow.parquet.read_schema(file).names
    except (OSError, pyarrow.ArrowException) as error:
        yield f"data: {file} is not a parquet file: {error}"
        return
    wanted = (prompts, config.data.get("reward_fn_key", "data_source"), "reward_model")
    if missing := [name for name in wanted if name not in columns]:
        yield f"data: {file} has no column {', '.join(missing)}; it has {', '.join(columns)}."
    elif tokenizer and not config.data.get("filter_overlong_prompts"):
        try:
            longer = long_prompts(file, prompts, most, tokenizer)
        except Exception as error:  # a chat template is a program of the model's
            yield (
                f"data: the tokenizer's chat template fails on {file}, whose column {prompts} is to have lists of "
                f"messages with a role and a content: {type(error).__name__}: {error}"
            )
            return
        if longer:
            yield (
                f"data: {len(longer)} prompts of {file} are longer than data.max_prompt_length={most} tokens, the "
                f"longest has {max(longer)}. Raise that, or leave them out with data.filter_overlong_prompts=True."
            )


def long_prompts(file: Path, key: str, most: int, tokenizer) -> list[int]:
    """The numbers of tokens of the prompts that have more than `most`.

    A prompt without a message, or with one without a content, is counted too: the chat template may fail on it, as it
    would when the training comes to it.
    """
    import pandas
    import pyarrow.compute as pc
    import pyarrow.parquet

    column = pyarrow.parquet.read_table(file, columns=[key])[key]
    contents = pc.struct_field(pc.list_flatten(column), "content")
    if not (pyarrow.types.is_string(contents.type) or pyarrow.types.is_large_string(contents.type)):
        return []  # parts of several kinds, as with images, whose tokens the model's processor counts
    bytes_of = pandas.Series(pc.fill_null(pc.binary_length(contents), most + 1))
    sizes = bytes_of.groupby(pandas.Series(pc.list_parent_indices(column))).sum()
    sizes = sizes.reindex(range(len(column)), fill_value=most + 1)

    def tokens(messages: list[dict]) -> int:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    # A token of a text has at least a byte of it, so that few prompts have to be counted.
    longest = sizes[sizes > most - tokens([{"role": "user", "content": ""}])].index
    return [count for row in longest if (count := tokens(column[row].as_py())) > most]


def epoch_problems(rows: int, config) -> Iterator[str]:
    """Problems or epochs that are over before the run's last step, at which verl would end without an error.

    A group filter may need more batches of v0.4.1's for a step than the one that is counted here.
    """
    batch = generation_batch(config) if IS_PATCHED_CHECKOUT else config.data.train_batch_size
    last, epochs = config.trainer.total_training_steps, config.trainer.total_epochs
    begin = begins_after(config) if IS_PATCHED_CHECKOUT else 0  # a resumed verl 0.9 goes on counting its epochs
    if rows < batch:
        yield f"data: data.train_files has {rows} prompts, and a batch takes {batch}."
    elif isinstance(last, int) and (end := begin + rows // batch * epochs) < last:
        yield (
            f"steps: the training would end after step {end} of {last}, because trainer.total_epochs={epochs} and "
            f"{rows} prompts are {rows // batch} x {batch}. Raise total_epochs."
        )


def scorer(config, tokenizer) -> Callable[[dict], tuple[float, dict]]:
    """A function that scores any response to a row of a file by the run's reward manager, made as verl's trainer does.

    It returns the reward, and by name the values that the manager hands on beside it.
    """
    import numpy
    import torch
    from verl import DataProto

    ids = torch.tensor([tokenizer.encode(ANY_RESPONSE, add_special_tokens=False) or [0]])
    tensors = {"prompts": ids, "responses": ids, "attention_mask": torch.ones_like(ids).repeat(1, 2)}
    if IS_PATCHED_CHECKOUT:
        from verl.trainer.ppo.reward import get_custom_reward_fn
        from verl.workers.reward_manager import get_reward_manager_cls

        with contextlib.redirect_stdout(io.StringIO()):
            manager = get_reward_manager_cls(config.reward_model.get("reward_manager", "naive"))(
                tokenizer=tokenizer,
                num_examine=0,
                compute_score=get_custom_reward_fn(config),
                reward_fn_key=config.data.reward_fn_key,
                max_resp_len=config.data.max_response_length,
                overlong_buffer_cfg=config.reward_model.overlong_buffer,
            )  # as recipe/dapo/main_dapo.py
    else:
        from verl.trainer.ppo.reward import load_reward_manager

        manager = load_reward_manager(config, tokenizer)

    def score(row: dict) -> tuple[float, dict]:
        values = {name: numpy.array([value, None], dtype=object)[:1] for name, value in row.items()}
        batch = DataProto.from_dict(tensors, values)
        if IS_PATCHED_CHECKOUT:
            found = manager(batch, return_dict=True)
            extra = {name: of_rows[0] for name, of_rows in found["reward_extra_info"].items()}
            return found["reward_tensor"].sum().item(), extra
        found = manager.loop.run_until_complete(manager.run_single(batch))
        return float(found["reward_score"]), found["reward_extra_info"]

    return score


def reward_problems(file: Path, config, score: Callable, is_training: bool) -> Iterator[str]:
    """Rows that the reward does not score with a number, or without the metric of the group filter.

    The first row of each data_source is looked at, and the first without a ground_truth.
    """
    source, groups = config.data.get("reward_fn_key", "data_source"), config.algorithm.filter_groups
    for row in first_rows(file, source):
        about, truth = f"the first row of {file} with {source} {row[source]!r}", ground_truth(row["reward_model"])
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                reward, returned = score(row)
        except (Exception, SystemExit) as error:  # each reward fails in its own way
            yield (
                f"reward: verl's reward does not score {about} and ground_truth {short(truth)}: "
                f"{type(error).__name__}: {error}. verl's own rewards, whose ground_truth is a text, are in "
                "verl/utils/reward_score/__init__.py; custom_reward_function is for others."
            )
            continue
        if not math.isfinite(reward):
            yield f"reward: the reward of {about} is {reward}, which would make all weights NaN."
        known = (*numbers(returned), *OWN_METRICS)
        if is_training and groups.enable and groups.metric not in known:
            yield (
                f"reward: the reward does not return algorithm.filter_groups.metric={groups.metric} for {about}. "
                f"Set it to one of {', '.join(known)}."
            )


def numbers(returned: dict[str, Any]) -> list[str]:
    """The names of those values that have a mean."""
    import numpy

    return [name for name, value in returned.items() if isinstance(value, (bool, int, float, numpy.number))]


def first_rows(file: Path, source: str) -> list[dict]:
    """Of each data_source the first row, and the first without a ground truth, as the reward gets them."""
    import pyarrow.parquet

    names = pyarrow.parquet.read_schema(file).names
    columns = [source, "reward_model", *({"extra_info"} & {*names})]
    table = pyarrow.parquet.read_table(file, columns=columns)
    kinds = table.select([source, "reward_model"]).to_pandas()
    kinds["lacks"] = [ground_truth(of_row) is None for of_row in kinds["reward_model"]]
    first = kinds.drop_duplicates([source, "lacks"]).index[:MOST_SOURCES]
    return [table.slice(row, 1).to_pylist()[0] for row in first]


def ground_truth(reward_model: Any) -> Any:
    """What the column reward_model has for a row; None where it has none."""
    return reward_model.get("ground_truth") if isinstance(reward_model, dict) else None


def short(value: Any) -> str:
    return repr(value) if len(repr(value)) < 60 else f"{repr(value)[:60]}..."
