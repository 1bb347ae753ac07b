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
"""How each benchmark is sampled."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The paper names neither for its evaluation.
MAX_TOKENS = 8192  # of its training (subsec:impl_llm)
PROMPTS = ("boxed", "training")  # where a problem asks for its answer; the first is the default


class Protocol(NamedTuple):
    samples: int  # per problem
    temperature: float  # 0 is greedy
    top_p: float = 1.0  # the paper names none


GREEDY, AVG_AT_16 = Protocol(1, 0.0), Protocol(16, 0.7)  # sec:results_llms
PROTOCOLS = {
    "aime24": AVG_AT_16,
    "aime25": AVG_AT_16,
    "amc23": AVG_AT_16,
    "math500": GREEDY,
    "minerva": GREEDY,
    "olympiadbench": GREEDY,
    "arc_c": GREEDY,
    "gpqa_diamond": GREEDY,
    "mmlu_pro": GREEDY,
}


def protocol_of(name: str, overrides: dict) -> Protocol | None:
    """The benchmark's protocol with the overrides.

    None for an unknown benchmark without both samples and temperature.
    """
    if name in PROTOCOLS:
        return PROTOCOLS[name]._replace(**overrides)
    return Protocol(**overrides) if {"samples", "temperature"} <= overrides.keys() else None


def is_as_paper(name: str, settings: dict) -> bool | None:
    """Whether a benchmark's settings are the paper's; more samples of the same kind are, too.

    None for a benchmark that the paper does not have.
    """
    if name not in PROTOCOLS:
        return None
    samples, temperature, top_p = PROTOCOLS[name]
    pinned = json.loads((Path(__file__).parent.parent / "datasets.json").read_text())[name]["pin"]
    expected = {
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": MAX_TOKENS,
        "prompt": PROMPTS[0],
        "problems": pinned["rows"],
    }
    is_same = all(settings.get(key) == value for key, value in expected.items())
    return is_same and settings["samples"] >= samples


def protocol_problems(name: str, protocol: Protocol, pass_at: list[int] | None) -> Iterator[str]:
    samples, temperature, _ = protocol
    if temperature == 0 and samples > 1:
        yield (
            f"protocol: {name} is greedy, and {samples} greedy samples are all the same. Give "
            "--temperature 0.7, or leave --samples out."
        )
    if pass_at and max(pass_at) > samples:
        yield (
            f"protocol: pass@{max(pass_at)} of {name} needs at least as many samples per problem, "
            f"and it has {samples}. Give --samples {max(pass_at)} --temperature 0.7, a smaller "
            "--pass-at, or leave this benchmark out."
        )
