"""The model that both runs start from: a two-layer Qwen2, taught the format of the task by a short supervised warm-up.

The warm-up stops once about four of ten sampled answers are right: far enough for every group of answers to hold both
right and wrong ones, early enough for the policy to be still undecided (response entropy about 2.2 nats).
"""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from demo.llm import chain
from demo.runner.errors import DemoError

TARGET_ACCURACY = 0.4
MAX_UPDATES = 1000
CHECK_EVERY = 10
BATCH = 128
LEARNING_RATE = 2e-3
TRAIN_PROMPTS = 6400
PAD, EOS = 0, 1


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *chain.ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )


def make_model(vocabulary_size: int) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=vocabulary_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return Qwen2ForCausalLM(config)


def sampled_accuracy(model, tokenizer, starts: list[int]) -> float:
    """The share of right answers, one sampled per start value."""
    prompts = torch.tensor([tokenizer.encode(chain.prompt(start)) for start in starts])
    sequences = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        do_sample=True,
        top_k=0,
        max_new_tokens=chain.RESPONSE_LENGTH,
    )
    answers = tokenizer.batch_decode(sequences[:, prompts.shape[1] :], skip_special_tokens=True)
    return sum(map(chain.is_right, starts, answers)) / len(starts)


def warm_up(model, tokenizer, task: chain.Task, seed: int, progress: Callable[[int, float], None]) -> float:
    """Maximum-likelihood training on demonstrations until TARGET_ACCURACY. Returns the accuracy reached."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / 20))
    accuracy = 0.0
    for update in range(1, MAX_UPDATES + 1):
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
            progress(update, accuracy)
            if accuracy >= TARGET_ACCURACY:
                return accuracy
    raise DemoError(
        f"the warm-up reached a sampled accuracy of {accuracy:.2f} in {MAX_UPDATES} updates, expected "
        f"{TARGET_ACCURACY}: try another seed"
    )


def write_model(folder: Path, task: chain.Task, seed: int, progress: Callable[[int, float], None]) -> float:
    """Trains from the seed and writes model and tokenizer. Returns the sampled accuracy."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer))
    accuracy = warm_up(model, tokenizer, task, seed, progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return accuracy


def write_prompts(file: Path, task: str, starts: list[int]) -> None:
    """The parquet file that verl's RLHFDataset reads."""
    rows = [
        {
            "data_source": task,
            "prompt": [{"role": "user", "content": chain.prompt(start)}],
            "reward_model": {"style": "rule", "ground_truth": f"{start:02d}"},
        }
        for start in starts
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def write_data(folder: Path, task: str, seed: int) -> None:
    write_prompts(folder / "train.parquet", task, random.Random(seed).choices(chain.STARTS, k=TRAIN_PROMPTS))
    write_prompts(folder / "validation.parquet", task, list(chain.VALIDATION_STARTS))
