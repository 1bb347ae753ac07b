# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The model that both runs start from: a two-layer Qwen2 that a short supervised warm-up has taught the task's format.

The warm-up stops once about four of ten sampled answers are right: late enough for every group of answers to have both
right and wrong ones, early enough for the policy to be undecided still (response entropy about 2.2 nats).
"""

import random
import sys
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM
from transformers.utils import logging

from demo.llm import chain, models
from demo.llm.models import EOS

TARGET_ACCURACY = 0.4
MAX_UPDATES = 1000
CHECK_EVERY = 10
BATCH = 128
LEARNING_RATE = 2e-3
TRAIN_PROMPTS = 6400


def make_tokenizer() -> PreTrainedTokenizerFast:
    return models.character_tokenizer(list(chain.ALPHABET))


def make_model(vocabulary: int) -> Qwen2ForCausalLM:
    return models.two_layer_qwen2(vocabulary, width=128, intermediate=256, positions=64)


def sample(model, tokenizer, starts: list[int], **how) -> tuple[torch.Tensor, list[str]]:
    """Token ids (starts, prompt + response) and text of an answer to each start value. how: settings of `generate`."""
    prompts = torch.tensor([tokenizer.encode(chain.prompt(start)) for start in starts])
    sequences = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=0,
        max_new_tokens=chain.RESPONSE_LENGTH,
        **how,
    )
    return sequences, tokenizer.batch_decode(sequences[:, prompts.shape[1] :], skip_special_tokens=True)


def sampled_accuracy(model, tokenizer, starts: list[int]) -> float:
    """The share of right answers, one sampled per start value."""
    _, answers = sample(model, tokenizer, starts)
    return sum(map(chain.is_right, starts, answers)) / len(starts)


def warm_up(model, tokenizer, task: chain.Task, seed: int) -> float:
    """Maximum-likelihood training on demonstrations until TARGET_ACCURACY. Returns the accuracy reached."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / 20))
    form = "{desc}: {n_fmt} updates{postfix}"  # without an estimate of the time left: MAX_UPDATES is seldom reached
    updates = tqdm(range(1, MAX_UPDATES + 1), "warm-up", leave=False, disable=None, bar_format=form)
    for update in updates:
        starts = rng.choices(chain.STARTS, k=BATCH)
        texts = [chain.prompt(start) + chain.demonstration(start, rng, task.plus_one) for start in starts]
        tokens = torch.tensor([tokenizer.encode(text) + [EOS] for text in texts])
        labels = tokens.clone()
        labels[:, : chain.PROMPT_LENGTH] = -100
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % CHECK_EVERY == 0:
            accuracy = sampled_accuracy(model, tokenizer, rng.choices(chain.STARTS, k=512))
            updates.set_postfix_str(f"{accuracy:.0%} right")
            if accuracy >= TARGET_ACCURACY:
                updates.close()
                return accuracy
    sys.exit(
        f"the warm-up reached a sampled accuracy of {accuracy:.2f} in {MAX_UPDATES} updates, expected "
        f"{TARGET_ACCURACY}: try another seed"
    )


def write_model(folder: Path, task: chain.Task, seed: int) -> float:
    """Trains from the seed and writes model and tokenizer. Returns the sampled accuracy."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer))
    accuracy = warm_up(model, tokenizer, task, seed)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return accuracy


def write_data(folder: Path, task: str, seed: int) -> None:
    for name, starts in {
        "train": random.Random(seed).choices(chain.STARTS, k=TRAIN_PROMPTS),
        "validation": chain.VALIDATION_STARTS,
    }.items():
        pairs = [(chain.prompt(start), f"{start:02d}") for start in starts]
        models.write_prompts(folder / f"{name}.parquet", task, pairs)
