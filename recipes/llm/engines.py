# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What draws the responses of an evaluation: vLLM, or transformers for trying a command."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

VLLM = ("0.8.5", "0.27.1")  # written for the first, tried with the second (docs/llm/evaluation.md)


class Completion(NamedTuple):
    text: str
    finish_reason: str  # "stop": an end-of-sequence token; "length": cut at the limit of tokens
    tokens: int  # with the end-of-sequence token


# A function of the prompts as token ids, a seed for each, and the protocol, which gives each prompt's completions.
Engine = Callable[[list[list[int]], list[int], dict], Iterable[list[Completion]]]


def vllm_engine(args: argparse.Namespace, context_length: int) -> Engine:
    """vLLM on this machine's GPUs. It adds a sample's number to the seed of its prompt."""
    from vllm import LLM, SamplingParams, __version__

    if not __version__.startswith(VLLM):
        print(
            f"note: this was written for vllm {VLLM[0]} and tried with {VLLM[1]}, not with {__version__}.",
            file=sys.stderr,
        )
    config = json.loads((args.model / "config.json").read_text())
    stored = config.get("dtype") or config.get("torch_dtype") or "auto"  # transformers 5 or 4 wrote it
    llm = LLM(
        model=str(args.model),
        dtype=stored if args.dtype == "auto" else args.dtype,  # vLLM's "auto" makes 16 bits of 32
        max_model_len=context_length,
        tensor_parallel_size=args.tensor_parallel,
        seed=args.seed,
    )

    def generate(prompts, seeds, protocol):
        samples = protocol["samples"]
        kept = ("temperature", "top_p", "max_tokens", "stop", "stop_token_ids")
        settings = {key: protocol[key] for key in kept if key in protocol}
        if protocol["protocol"] == "release":  # each sample is a request of its own, without a seed of its own
            prompts = [ids for ids in prompts for _ in range(samples)]
            parameters = SamplingParams(n=1, **settings)
        else:
            parameters = [SamplingParams(n=samples, seed=seed, **settings) for seed in seeds]
        results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], parameters)
        outputs = [output for result in results for output in result.outputs]
        for first in range(0, len(outputs), samples):
            of_prompt = outputs[first : first + samples]
            yield [Completion(drawn.text, drawn.finish_reason, len(drawn.token_ids)) for drawn in of_prompt]

    return generate


def transformers_engine(args: argparse.Namespace, context_length: int) -> Engine:
    """transformers' generate, one prompt after the other, on a GPU if there is one: for trying a command."""
    import torch
    from tqdm import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=args.dtype).to(device).eval()
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}  # as vLLM does
    # The model's own defaults (a repetition penalty, a top-k) are not in the protocol; vLLM leaves them out too.
    model.generation_config = GenerationConfig(eos_token_id=sorted(ends) or None, pad_token_id=min(ends, default=0))

    def completion(tokens: list[int], protocol: dict) -> Completion:
        stops = ends.union(protocol.get("stop_token_ids") or [])
        end = next((i + 1 for i, token in enumerate(tokens) if token in stops), None)
        text = tokenizer.decode(tokens[:end], skip_special_tokens=True)
        first = min((text.find(stop) for stop in protocol.get("stop", []) if stop in text), default=None)
        return Completion(text[:first], "length" if end is None and first is None else "stop", end or len(tokens))

    def generate(prompts, seeds, protocol):
        draws = {"do_sample": True, "temperature": protocol["temperature"], "top_p": protocol["top_p"], "top_k": 0}
        for ids, seed in zip(tqdm(prompts), seeds):
            torch.manual_seed(seed)
            inputs = torch.tensor([ids], device=device)
            sequences = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=protocol["max_tokens"],
                num_return_sequences=protocol["samples"],
                **(draws if protocol["temperature"] > 0 else {"do_sample": False}),
            )
            yield [completion(row, protocol) for row in sequences[:, len(ids) :].tolist()]

    return generate


ENGINES = {"vllm": vllm_engine, "transformers": transformers_engine}
