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
"""What an evaluation needs: packages, benchmarks, a model, and a folder for its answers.

All that is wrong is named at once, before anything starts.
"""

import importlib.util
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prepare_data import MATH_AFTER, TRAIN_AFTER, TRAIN_BEFORE

from evaluation.protocol import PROTOCOLS, Protocol, protocol_of


class Problem(NamedTuple):
    index: int
    messages: list  # of {"role", "content"}
    ground_truth: str
    choices: int  # number of options, 0 for mathematics


class Benchmark(NamedTuple):
    name: str
    file: Path
    problems: list[Problem]
    protocol: Protocol


class Stop(Exception):
    """Ends the run; its arguments say what was wrong, and what to do."""


def packages_problems(engine: str) -> Iterator[str]:
    wanted = {
        "math_verify": "math-verify[antlr4_9_3]==0.8.0",
        "pebble": "pebble==5.1.3",
        "pyarrow": "pyarrow",
        "transformers": "transformers",
        "torch": "torch",
    }
    missing = [requirement for module, requirement in wanted.items() if importlib.util.find_spec(module) is None]
    if missing:
        yield (
            f"packages: {', '.join(missing)} not installed in {sys.prefix}: {shlex.join(['pip', 'install', *missing])}"
        )
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        yield (
            f"engine: vllm is not installed in {sys.prefix}. Install vllm 0.8.5, as verl v0.4.1 "
            "does, or give --engine transformers, which also runs without a GPU."
        )


def where_benchmarks_are(folder: Path) -> str:
    """What to do about a path in `folder` that is not a benchmark."""
    if any((folder / "eval").glob("*.parquet")):
        return f"There are benchmarks in {folder / 'eval'}: give that as --data."
    return "Make the benchmarks with recipe/era/prepare_data.py."


def data_files(paths: list[Path], problems: list[str]) -> list[Path]:
    """The files, in order and once; what is wrong with the paths goes into `problems`."""
    files = []
    for path in paths:
        found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not found:
            problems.append(f"data: no *.parquet in {path}. {where_benchmarks_are(path)}")
        files += found
    for file in files:
        if not file.is_file():
            problems.append(f"data: no {file}. {where_benchmarks_are(file.parent)}")
    return [file for file in dict.fromkeys(files) if file.is_file()]


def read_problem(row: dict) -> tuple[str, Problem]:
    """(benchmark, problem) of a row. Raises ValueError with what is wrong in it."""
    messages, extra = row["prompt"], row["extra_info"] or {}
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) and message.get("role") and message.get("content") for message in messages)
    ):
        raise ValueError("prompt is not a list of messages with role and content")
    truth = (row["reward_model"] or {}).get("ground_truth")
    if not isinstance(truth, str) or not truth.strip():
        raise ValueError("reward_model.ground_truth is empty or no text")
    name, index, kind, choices = (extra.get(key) for key in ("benchmark", "index", "kind", "choices"))
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"extra_info.benchmark is {name!r}, expected a name such as aime24")
    if not isinstance(index, int):
        raise ValueError(f"extra_info.index is {index!r}, expected a whole number")
    if kind not in ("math", "choice"):
        raise ValueError(f'extra_info.kind is {kind!r}, expected "math" or "choice"')
    if kind == "math":
        return name, Problem(index, messages, truth, 0)
    if not isinstance(choices, int) or not 2 <= choices <= 26:
        raise ValueError(f"extra_info.choices is {choices!r}, expected a number of options from 2 to 26")
    letters = [chr(ord("A") + i) for i in range(choices)]
    if truth not in letters:
        raise ValueError(f"reward_model.ground_truth is {truth!r}, expected a letter from A to {letters[-1]}")
    return name, Problem(index, messages, truth, choices)


def is_training_file(schema) -> bool:
    """Whether a pyarrow.Schema is a training file's: like a benchmark's, without its name."""
    import pyarrow

    if not {"data_source", "extra_info"} <= set(schema.names):
        return False
    extra = schema.field("extra_info").type
    return pyarrow.types.is_struct(extra) and extra.get_field_index("benchmark") < 0


AGAIN = "Make it again with recipe/era/prepare_data.py."


def read_benchmark(file: Path, overrides: dict, limit: int | None, problems: list[str]) -> Benchmark | None:
    """The benchmark of a file, or None with the reasons added to `problems`."""
    rows = read_rows(file, problems)
    if rows is None:
        return None
    found, wrong = [], []
    for number, row in enumerate(rows):
        try:
            found.append(read_problem(row))
        except (ValueError, AttributeError, TypeError) as error:
            wrong.append(f"row {number}: {error}")
    names = sorted({name for name, _ in found})
    indices = [problem.index for _, problem in found]
    if len(names) > 1:
        wrong.append(f"it holds several benchmarks: {', '.join(names)}")
    if len(set(indices)) < len(indices):
        wrong.append("extra_info.index names some problems twice")
    if wrong:
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        problems.append(f"data: {file}: {'; '.join(wrong[:3])}{more}. {AGAIN}")
        return None
    protocol = protocol_of(names[0], overrides)
    if protocol is None:
        problems.append(
            f"data: {file} is {names[0]}, for which there is no protocol (known: "
            f"{', '.join(PROTOCOLS)}). Give --samples and --temperature."
        )
        return None
    return Benchmark(names[0], file, [problem for _, problem in found][:limit], protocol)


def with_training_prompt(benchmark: Benchmark, problems: list[str]) -> Benchmark:
    """The problems ask as in training, for a last line "Answer: ...", instead of for a box."""
    if not all(p.messages[-1]["content"].endswith(MATH_AFTER) for p in benchmark.problems):
        problems.append(
            "prompt: --prompt training rewords mathematical problems as prepare_data.py makes "
            f"them, and those of {benchmark.file} do not end with {MATH_AFTER.strip()!r}. Leave "
            "--prompt out, or this benchmark."
        )
        return benchmark

    def reworded(messages: list) -> list:
        *before, last = messages
        content = TRAIN_BEFORE + last["content"].removesuffix(MATH_AFTER) + TRAIN_AFTER
        return [*before, {**last, "content": content}]

    return benchmark._replace(problems=[p._replace(messages=reworded(p.messages)) for p in benchmark.problems])


def read_rows(file: Path, problems: list[str]) -> list[dict] | None:
    """The rows of a file, or None with the reason added to `problems`."""
    import pyarrow
    import pyarrow.parquet

    try:
        if is_training_file(pyarrow.parquet.read_schema(file)):
            problems.append(
                f"data: {file} is a training file: its extra_info names no benchmark. "
                f"{where_benchmarks_are(file.parent)}"
            )
            return None
        table = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        problems.append(f"data: {file} cannot be read as parquet ({reason}). {AGAIN}")
        return None
    needed = ("prompt", "reward_model", "extra_info")
    missing = ", ".join(column for column in needed if column not in table.column_names)
    if missing or not table.num_rows:
        lacks = f"no column {missing}" if missing else "no rows"
        problems.append(f"data: {file} has {lacks}. {AGAIN}")
        return None
    return table.to_pylist()


def has_weights(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in ("model*.safetensors", "pytorch_model*.bin"))


def checkpoint_problem(model: Path) -> str | None:
    """How to merge it, if this is a checkpoint of verl's FSDP workers: no engine loads shards."""
    steps = sorted(
        model.glob("global_step_*"),
        key=lambda path: int(path.name[12:]) if path.name[12:].isdigit() else -1,
    )
    for actor in (model, model / "actor", *(step / "actor" for step in reversed(steps))):
        if not any(actor.glob("model_world_size_*_rank_*.pt")):
            continue
        if has_weights(actor / "huggingface"):
            return (
                f"model: {model} is a verl checkpoint. The model is in {actor / 'huggingface'}: give that as --model."
            )
        target = actor.parent / "merged"
        merge = ["python3", "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
        merge += ["--local_dir", str(actor.absolute()), "--target_dir", str(target.absolute())]
        checkout = Path(__file__).resolve().parents[3]
        return (
            f"model: {model} is a verl checkpoint in shards. Merge it with "
            f"`cd {shlex.quote(str(checkout))} && {shlex.join(merge)}`, then give --model "
            f"{shlex.quote(str(target))}."
        )
    return None


def model_problems(model: Path) -> list[str]:
    if not model.is_dir():
        return [
            f"model: no folder {model}. Download the model into a folder first (a name on a "
            "hub will not do: its checksum goes into the results)."
        ]
    if not (model / "config.json").is_file() and (problem := checkpoint_problem(model)):
        return [problem]
    missing = []
    if not (model / "config.json").is_file():
        missing.append("config.json")
    if not any((model / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        missing.append("a tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    if not has_weights(model):
        missing.append("weights (*.safetensors or pytorch_model*.bin)")
    for index in (
        *model.glob("*.safetensors.index.json"),
        *model.glob("pytorch_model*.bin.index.json"),
    ):
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            missing.append(f"a readable {index.name}")
            continue
        missing += sorted(shard for shard in shards if not (model / shard).is_file())
    return [f"model: {model} lacks {', '.join(missing)}. Download or merge it again."] if missing else []


def gpu_problems(engine: str, tensor_parallel: int) -> list[str]:
    import torch

    found = torch.cuda.device_count()
    if engine == "vllm" and found < tensor_parallel:
        return [
            f"engine: vllm is to use {tensor_parallel} GPUs (--tensor-parallel), this "
            f"machine has {found}. Give --engine transformers where there is none."
        ]
    return []


def out_problems(out: Path) -> list[str]:
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        return [f"out: {there} is not a folder. Give another --out."]
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()  # os.access grants root every folder, /proc too
    except OSError as error:
        return [f"out: {there} cannot be written ({error.strerror}). Give another --out."]
    return []


def context_problems(model: Path, prompts: dict[str, list[list[int]]], max_tokens: int) -> Iterator[str]:
    """Nothing is cut silently: prompt and response must fit into the model's positions."""
    from transformers import AutoConfig

    positions = getattr(AutoConfig.from_pretrained(model), "max_position_embeddings", None)
    longest = max(prompts, key=lambda name: max(map(len, prompts[name])))
    length = max(map(len, prompts[longest]))
    if positions and length >= positions:
        yield (
            f"context: a prompt of {longest} has {length} tokens, the model {positions} positions "
            f"(max_position_embeddings in {model / 'config.json'})."
        )
    elif positions and length + max_tokens > positions:
        yield (
            f"context: {model / 'config.json'} has max_position_embeddings {positions}; the "
            f"longest prompt ({longest}, {length} tokens) and a response of {max_tokens} "
            f"need {length + max_tokens}. "
            f"Give --max-tokens {positions - length}, or set it to 32768 there, as verl's "
            "DAPO recipe asks for Qwen2.5-Math."
        )


def prompt_ids(model: Path, benchmarks: list[Benchmark]) -> dict[str, list[list[int]]]:
    """Token ids of every prompt.

    Without a chat template: the contents of the messages, with an empty line between them.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:  # whatever transformers meets in a damaged file
        raise Stop(
            f"model: the tokenizer in {model} cannot be read ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}). Download it again."
        ) from error

    def encode(messages: list[dict]) -> list[int]:
        if tokenizer.chat_template:
            return tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return tokenizer("\n\n".join(message["content"] for message in messages))["input_ids"]

    return {benchmark.name: [encode(problem.messages) for problem in benchmark.problems] for benchmark in benchmarks}
