# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Two engines with one interface: generate(requests, sampling) returns completions, in order.

Both get the same token ids.
"""

import os
from pathlib import Path
from typing import NamedTuple


class Request(NamedTuple):
    prompt_ids: list[int]
    seed: int  # of this sample only, in [0, 2**31)


class Sampling(NamedTuple):
    temperature: float  # 0 is greedy
    top_p: float
    max_tokens: int


class Completion(NamedTuple):
    text: str
    finish_reason: str  # "stop": an end-of-sequence token; "length": cut at max_tokens
    tokens: int  # with the end-of-sequence token


class VLLMEngine:
    """vLLM 0.8.5, on this machine's GPUs.

    Args:
        dtype: "auto" (what the model's config.json names), "bfloat16", "float16" or "float32".
    """

    batch_size = 512  # vLLM schedules within it; an interruption loses at most this many samples

    def __init__(self, model: Path, dtype: str, context_length: int, tensor_parallel: int):
        # The grader's threads are running, and a fork would copy them half-way.
        os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
        from vllm import LLM, SamplingParams

        self.parameters = SamplingParams
        self.llm = LLM(
            model=str(model),
            dtype=dtype,
            max_model_len=context_length,
            tensor_parallel_size=tensor_parallel,
            seed=0,
        )

    def generate(self, requests: list[Request], sampling: Sampling) -> list[Completion]:
        # A request per sample rather than n samples per request: each has its own seed, and any of
        # them can be the one that is missing.
        parameters = [
            self.parameters(
                n=1,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=request.seed,
            )
            for request in requests
        ]
        outputs = self.llm.generate(
            [{"prompt_token_ids": request.prompt_ids} for request in requests],
            parameters,
            use_tqdm=False,
        )
        return [
            Completion(output.text, output.finish_reason, len(output.token_ids))
            for (output,) in (result.outputs for result in outputs)
        ]


class TransformersEngine:
    """transformers' generate, on a GPU if there is one, else on the CPU."""

    batch_size = 8

    def __init__(self, model: Path, dtype: str):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model = (
            AutoModelForCausalLM.from_pretrained(
                model, torch_dtype="auto" if dtype == "auto" else getattr(torch, dtype)
            )
            .to(self.device)
            .eval()
        )
        ends = self.model.generation_config.eos_token_id
        ends = {self.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}  # as vLLM does
        self.ends = sorted(ends)
        self.padding = next(token for token in (self.tokenizer.pad_token_id, *self.ends, 0) if token is not None)
        # The model's own defaults (a repetition penalty, a top-k) are not in the protocol; vLLM
        # leaves them out too.
        self.model.generation_config = GenerationConfig(eos_token_id=self.ends or None, pad_token_id=self.padding)

    def generate(self, requests: list[Request], sampling: Sampling) -> list[Completion]:
        import torch
        from transformers import LogitsProcessorList

        length = max(len(request.prompt_ids) for request in requests)
        padded = [[self.padding] * (length - len(request.prompt_ids)) + request.prompt_ids for request in requests]
        mask = [[0] * (length - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in requests]
        # Drawn by our processor, whose noise is per request; generate() then takes the largest.
        processors = LogitsProcessorList([seeded_sampling(requests, sampling)] if sampling.temperature > 0 else [])
        with torch.inference_mode():
            sequences = self.model.generate(
                torch.tensor(padded, device=self.device),
                attention_mask=torch.tensor(mask, device=self.device),
                max_new_tokens=sampling.max_tokens,
                do_sample=False,
                logits_processor=processors,
            )
        return [self._completion(row) for row in sequences[:, length:].tolist()]

    def _completion(self, tokens: list[int]) -> Completion:
        end = next((i + 1 for i, token in enumerate(tokens) if token in self.ends), None)
        text = self.tokenizer.decode(tokens[:end], skip_special_tokens=True)
        return Completion(text, "stop" if end else "length", end or len(tokens))


def seeded_sampling(requests: list[Request], sampling: Sampling):
    """A logits processor that makes each row's largest score a draw, by the row's own generator.

    The Gumbel-max trick: argmax of log p - log e, with e exponential, is a draw from p.
    transformers itself draws a batch from one generator, so that a sample would depend on its
    neighbours, and a resumed run would differ from an uninterrupted one.
    """
    import torch
    from transformers import TemperatureLogitsWarper, TopPLogitsWarper

    generators = [torch.Generator().manual_seed(request.seed) for request in requests]
    warpers = [TemperatureLogitsWarper(sampling.temperature)] + (
        [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    )

    def process(input_ids, scores):
        for warper in warpers:
            scores = warper(input_ids, scores)
        # float64, because in float32 one draw of 2**24 is exactly 0, which would make any token of
        # a large vocabulary win.
        noise = torch.stack(
            [
                torch.empty(scores.shape[-1], dtype=torch.float64).exponential_(generator=generator)
                for generator in generators
            ]
        )
        return scores - noise.log().to(scores.device)

    return process
