"""A language model of 65,000 parameters, written down instead of trained: a bigram table in the shape of a Qwen2.

The layers write nothing to the residual stream, the embeddings are one-hot, and so the head's columns are the log-probs
of each token's successors. All of it can be trained from there.
"""

import itertools
import math
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from demo.llm import bands

SPECIAL = ["<pad>", bands.END, "<unk>"]
VOCABULARY = [
    *SPECIAL,
    *bands.BANDS,
    *(token for tokens in bands.BANDS.values() for token in tokens if token != bands.END),
]
WIDTH = 64  # at least one dimension for each token
UNLIKELY = -20.0  # the logit of what does not follow: a probability of 2e-9
TRAIN_PROMPTS = 240


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token=bands.END,
        unk_token="<unk>",
        padding_side="left",
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )


def make_model() -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=VOCABULARY.index(bands.END),
        pad_token_id=VOCABULARY.index("<pad>"),
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(len(VOCABULARY), WIDTH))
        # The norm before the head turns a one-hot vector into one of length sqrt(WIDTH).
        model.lm_head.weight.copy_(successors().T / math.sqrt(WIDTH))
    return model


def successors() -> torch.Tensor:
    """(WIDTH, len(VOCABULARY)) log-probs, up to a constant, of what follows each token."""
    table = torch.full((WIDTH, len(VOCABULARY)), UNLIKELY)
    for band, tokens in bands.BANDS.items():
        for before in (band, *tokens):
            for after, probability in tokens.items():
                table[VOCABULARY.index(before), VOCABULARY.index(after)] = math.log(probability)
    return table


def write(folder: Path, seed: int = 1) -> None:
    """Model and tokenizer in `folder/model`, and verl's parquet files `train` and `validation` beside it."""
    torch.manual_seed(seed)
    model = make_model()
    model.save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    write_prompts(folder / "train.parquet", TRAIN_PROMPTS)
    write_prompts(folder / "validation.parquet", len(bands.BANDS))


def write_prompts(file: Path, count: int) -> None:
    rows = [
        {
            "data_source": "bands",
            "prompt": [{"role": "user", "content": band}],
            "reward_model": {"style": "rule", "ground_truth": band},
        }
        for band in itertools.islice(itertools.cycle(bands.BANDS), count)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
