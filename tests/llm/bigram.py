"""The model of the smoke runs, with 65,000 parameters: a bigram table, written into the weights of a Qwen2.

The layers add nothing to the residual stream and the embeddings are one-hot, so the head's columns are the log-probs of
each token's successors. All of it can be trained from there.
"""

import itertools
import math
from pathlib import Path

import bands
import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from demo.llm import models

VOCABULARY = [
    *models.SPECIAL,
    *bands.BANDS,
    *(token for tokens in bands.BANDS.values() for token in tokens if token != bands.END),
]
WIDTH = 64  # at least one dimension for each token
UNLIKELY = -20.0  # the logit of what does not follow: a probability of 2e-9
TRAIN_PROMPTS = 240


def make_tokenizer() -> PreTrainedTokenizerFast:
    return models.character_tokenizer(VOCABULARY[len(models.SPECIAL) :])


def make_model() -> Qwen2ForCausalLM:
    model = models.two_layer_qwen2(len(VOCABULARY), WIDTH, intermediate=WIDTH, positions=32768)
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
    for name, count in {"train": TRAIN_PROMPTS, "validation": len(bands.BANDS)}.items():
        pairs = [(band, band) for band in itertools.islice(itertools.cycle(bands.BANDS), count)]
        models.write_prompts(folder / f"{name}.parquet", "bands", pairs)
