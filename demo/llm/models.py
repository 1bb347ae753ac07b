# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What the tiny language models of demos, tests and benches share: tokenizer, shape, and prompts for verl."""

from pathlib import Path

import pandas
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

PAD, EOS = 0, 1
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def character_tokenizer(characters: list[str]) -> PreTrainedTokenizerFast:
    """One token per character, after SPECIAL."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *characters])}
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


def two_layer_qwen2(vocabulary: int, width: int, intermediate: int, positions: int) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=intermediate,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=positions,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
    )


def write_prompts(file: Path, task: str, pairs: list[tuple[str, str]]) -> None:
    """The parquet file that verl's RLHFDataset reads. pairs: (prompt, what the reward function is given)."""
    rows = [
        {
            "data_source": task,
            "prompt": [{"role": "user", "content": prompt}],
            "reward_model": {"style": "rule", "ground_truth": truth},
        }
        for prompt, truth in pairs
    ]
    pandas.DataFrame(rows).to_parquet(file)
