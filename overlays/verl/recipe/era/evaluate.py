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
"""Evaluates a model as the paper's LLM tables and pass@k figure do: samples, grades, and summarizes; the same command goes on where it stopped.

    python recipe/era/evaluate.py --model DIR --data FILE_OR_DIR ... --out DIR [--engine vllm|transformers]

ERA acts in training alone: the responses are drawn from the original policy, the model as it is stored.
"""

import argparse
import fcntl
import importlib.metadata
import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from typing import Iterator, Optional

from evaluation import scores
from evaluation.inputs import (
    Benchmark,
    Stop,
    context_problems,
    data_files,
    gpu_problems,
    model_problems,
    out_problems,
    packages_problems,
    prompt_ids,
    read_benchmark,
)
from evaluation.protocol import MAX_TOKENS, PROTOCOLS, Protocol, protocol_problems
from evaluation.samples import (
    continue_samples,
    earlier_settings,
    model_checksum,
    read_samples,
    sample_seed,
    settings_of,
    settings_problems,
    write_whole,
)

# Arguments


def whole_number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 1")
    return int(text)


def number_between(least: float, most: float, least_included: bool):
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least < value <= most or least_included and value == least) or math.isinf(value):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number {'>=' if least_included else '>'} {least:g}"
                + (f" and <= {most:g}" if most < math.inf else "")
            )
        return value

    return number


def parse_arguments(argv: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", required=True, type=Path, help="folder of the model, in Hugging Face's format"
    )
    parser.add_argument(
        "--data",
        required=True,
        type=Path,
        nargs="+",
        metavar="FILE_OR_DIR",
        help="benchmarks made by prepare_data.py, or folders of them",
    )
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        help="folder for the samples and the summary; an earlier one is continued",
    )
    parser.add_argument(
        "--engine",
        choices=["vllm", "transformers"],
        default="vllm",
        help="vllm on GPUs (the default); transformers anywhere",
    )
    parser.add_argument(
        "--samples", type=whole_number, help="per problem, instead of the benchmark's protocol"
    )
    parser.add_argument(
        "--temperature",
        type=number_between(0, math.inf, True),
        help="instead of the benchmark's protocol; 0 is greedy",
    )
    parser.add_argument(
        "--top-p", type=number_between(0, 1, False), help="instead of the benchmark's protocol"
    )
    parser.add_argument(
        "--pass-at",
        type=whole_number,
        nargs="+",
        metavar="K",
        help="k of pass@k (default: the powers of two up to the number of samples)",
    )
    parser.add_argument(
        "--max-tokens",
        type=whole_number,
        default=MAX_TOKENS,
        help=f"of a response (default: {MAX_TOKENS}, the paper's)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the seed of every sample comes from this, the benchmark, the problem and the sample's number",
    )
    parser.add_argument(
        "--limit", type=whole_number, help="only the first problems of each benchmark"
    )
    parser.add_argument(
        "--dtype",
        choices=["auto", "bfloat16", "float16", "float32"],
        default="auto",
        help="of the model (default: what its config.json says)",
    )
    parser.add_argument(
        "--batch-size",
        type=whole_number,
        help="samples generated between two writes (default: 512 with vllm, 8 with transformers)",
    )
    parser.add_argument(
        "--tensor-parallel",
        type=whole_number,
        default=1,
        help="GPUs that vllm splits the model over",
    )
    parser.add_argument(
        "--grader-seconds",
        type=number_between(0, math.inf, False),
        default=20.0,
        help="after which the grading of an answer is given up (default: 20)",
    )
    return parser.parse_args(argv)


# The run


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Samples done and the time left on stderr: one line that is written over on a terminal, else a new line at most every 30 s."""

    def __init__(self, total: int, done: int):
        self.total, self.done, self.start = total, done, done
        self.began = self.last = time.monotonic()

    def add(self, benchmark: str, samples: list[dict]) -> None:
        self.done += len(samples)
        now = time.monotonic()
        left = (now - self.began) / (self.done - self.start) * (self.total - self.done)
        terminal = sys.stderr.isatty()
        if terminal or self.done == self.total or now - self.last >= 30:
            self.last = now
            right = sum(sample["correct"] for sample in samples)
            text = f"{benchmark}  {self.done}/{self.total} samples  {int(left) // 60}:{int(left) % 60:02d} left  {right} of the last {len(samples)} right"
            print(
                f"\r\033[K{text}" if terminal else text,
                end="\n" if not terminal or self.done == self.total else "",
                file=sys.stderr,
                flush=True,
            )


def batches(items: list, size: int) -> Iterator[list]:
    return (items[i : i + size] for i in range(0, len(items), size))


def load_engine(args: argparse.Namespace, longest_prompt: int):
    from evaluation.generation import TransformersEngine, VLLMEngine

    try:
        if args.engine == "vllm":
            return VLLMEngine(
                args.model, args.dtype, longest_prompt + args.max_tokens, args.tensor_parallel
            )
        return TransformersEngine(args.model, args.dtype)
    except Exception as error:  # whatever the library meets in a damaged or unknown model
        raise Stop(
            f"model: {args.engine} cannot load {args.model} ({type(error).__name__}: {error}). Download or merge it again, or try the other --engine in another --out."
        ) from error


def check_ground_truths(benchmark: Benchmark, grader) -> None:
    """Says which mathematical answers of the data are only text to math-verify: against these, a response has to give the same text."""
    truths = [problem for problem in benchmark.problems if not problem.choices]
    bad = [
        problem
        for problem, good in zip(
            truths, grader.are_mathematics(problem.ground_truth for problem in truths)
        )
        if not good
    ]
    if bad:
        say(
            f"{benchmark.name}: {len(bad)} answers of {benchmark.file} are no mathematics to math-verify; only the same text counts as right:"
        )
        for problem in bad:
            say(f"  problem {problem.index}: {problem.ground_truth[:200]}")


def evaluate(
    benchmark: Benchmark,
    prompts: list[list[int]],
    missing: list[tuple[int, int]],
    engine,
    grader,
    args: argparse.Namespace,
    progress: Progress,
) -> None:
    """Generates, grades and writes the missing (position, sample), a batch at a time."""
    from evaluation.generation import Request, Sampling

    sampling = Sampling(benchmark.protocol.temperature, benchmark.protocol.top_p, args.max_tokens)
    with (args.out / f"{benchmark.name}.samples.jsonl").open("a") as file:
        for batch in batches(missing, args.batch_size or engine.batch_size):
            requests = [
                Request(
                    prompts[position],
                    sample_seed(
                        args.seed, benchmark.name, benchmark.problems[position].index, sample
                    ),
                )
                for position, sample in batch
            ]
            completions = engine.generate(requests, sampling)
            problems = [benchmark.problems[position] for position, _ in batch]
            grades = grader.grade(
                (
                    completion.text,
                    problem.ground_truth,
                    problem.choices,
                    completion.finish_reason == "length",
                )
                for completion, problem in zip(completions, problems)
            )
            samples = [
                {
                    "benchmark": benchmark.name,
                    "index": problem.index,
                    "sample": sample,
                    "seed": request.seed,
                    **completion._asdict(),
                    "ground_truth": problem.ground_truth,
                    **grade._asdict(),
                }
                for (_, sample), problem, request, completion, grade in zip(
                    batch, problems, requests, completions, grades
                )
            ]
            file.write("".join(json.dumps(sample) + "\n" for sample in samples))
            file.flush()
            progress.add(benchmark.name, samples)


def write_summary(out: Path, pass_at: Optional[list[int]]) -> dict[str, dict]:
    """Of every benchmark in the folder, those of earlier runs too."""
    benchmarks = {}
    found = earlier_settings(out)
    for name in sorted(
        found,
        key=lambda name: (
            list(PROTOCOLS).index(name) if name in PROTOCOLS else len(PROTOCOLS),
            name,
        ),
    ):
        n = found[name]["samples"]
        samples, _ = read_samples(out / f"{name}.samples.jsonl", found[name])
        ks = (
            [k for k in sorted(set(pass_at)) if k <= n]
            if pass_at
            else [2**i for i in range(n.bit_length())]
            if n > 1
            else []
        )
        benchmarks[name] = {
            "protocol": {
                key: found[name][key] for key in ("samples", "temperature", "top_p", "max_tokens")
            },
            **scores.summarize(samples, found[name]["problems"], n, ks),
        }
    summary = {
        "policy": "original (ERA acts in training alone)",
        "benchmarks": benchmarks,
        "paper_average": scores.paper_average(benchmarks),
    }
    write_whole(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    return benchmarks


def versions() -> dict[str, str]:
    return {
        name: importlib.metadata.version(name)
        for name in ("math-verify", "transformers", "torch", "vllm")
        if importlib.util.find_spec(name.replace("-", "_"))
    }


def refuse(problems: list[str]) -> None:
    if problems:
        raise Stop(*problems)


def run(args: argparse.Namespace) -> None:
    problems = [*packages_problems(args.engine), *model_problems(args.model)]
    files = data_files(args.data, problems)
    overrides = {
        key: value for key in Protocol._fields if (value := getattr(args, key)) is not None
    }
    found = [
        read_benchmark(file, overrides, args.limit, problems)
        for file in files
        if importlib.util.find_spec("pyarrow")
    ]
    benchmarks = [benchmark for benchmark in found if benchmark]
    by_name = {}
    for benchmark in benchmarks:
        problems += protocol_problems(benchmark.name, benchmark.protocol, args.pass_at)
        if benchmark.name in by_name:
            problems.append(
                f"data: {by_name[benchmark.name].file} and {benchmark.file} are both {benchmark.name}. Give one of them."
            )
        by_name[benchmark.name] = benchmark
    refuse(problems + out_problems(args.out))

    from evaluation.grading import Grader

    prompts = prompt_ids(args.model, benchmarks)
    refuse(
        [
            *context_problems(args.model, prompts, args.max_tokens),
            *gpu_problems(args.engine, args.tensor_parallel),
        ]
    )
    say(f"reading {args.model} for its checksum")
    model_sha256 = model_checksum(args.model)
    now = {benchmark.name: settings_of(benchmark, model_sha256, args) for benchmark in benchmarks}
    args.out.mkdir(parents=True, exist_ok=True)
    lock = (args.out / "lock").open("w")  # held until this process ends, however it ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refuse(
            [
                f"out: another evaluation is writing into {args.out}. Wait for it, or give another --out."
            ]
        )
    refuse(list(settings_problems(args.out, now, earlier_settings(args.out))))

    missing, done = {}, 0
    for benchmark in benchmarks:
        settings = args.out / f"{benchmark.name}.settings.json"
        if not settings.exists():
            write_whole(
                settings,
                json.dumps(
                    {
                        "settings": now[benchmark.name],
                        "model": str(args.model.absolute()),
                        "data": str(benchmark.file.absolute()),
                        "versions": versions(),
                    },
                    indent=1,
                )
                + "\n",
            )
        samples, notice = continue_samples(
            args.out / f"{benchmark.name}.samples.jsonl", now[benchmark.name]
        )
        if notice:
            say(notice)
        there = {(sample["index"], sample["sample"]) for sample in samples}
        wanted = [
            (position, sample)
            for position in range(len(benchmark.problems))
            for sample in range(benchmark.protocol.samples)
        ]
        missing[benchmark.name] = [
            (position, sample)
            for position, sample in wanted
            if (benchmark.problems[position].index, sample) not in there
        ]
        done += len(wanted) - len(missing[benchmark.name])
    total = done + sum(map(len, missing.values()))
    if done:
        say(f"{done} of {total} samples are there already")
    if total > done:
        grader = Grader(args.grader_seconds)
        try:
            unfinished = [benchmark for benchmark in benchmarks if missing[benchmark.name]]
            for benchmark in unfinished:
                check_ground_truths(benchmark, grader)
            engine = load_engine(args, max(len(ids) for batch in prompts.values() for ids in batch))
            progress = Progress(total, done)
            for benchmark in unfinished:
                evaluate(
                    benchmark,
                    prompts[benchmark.name],
                    missing[benchmark.name],
                    engine,
                    grader,
                    args,
                    progress,
                )
        finally:
            grader.close()
    print(scores.table(write_summary(args.out, args.pass_at)))
    print(f"\nsamples  {args.out}/*.samples.jsonl\nsummary  {args.out / 'summary.json'}")


def what_is_kept(out: Path) -> str:
    return (
        f"The samples in {out} are kept; the same command goes on from there."
        if any(out.glob("*.samples.jsonl"))
        else "No sample was made."
    )


def main(argv: Optional[list[str]] = None) -> int:
    args = parse_arguments(argv)
    args.model, args.out, args.data = (
        args.model.expanduser(),
        args.out.expanduser(),
        [path.expanduser() for path in args.data],
    )
    try:
        run(args)
    except Stop as error:
        print(
            "This evaluation cannot start; no sample was changed:\n"
            + "\n".join(f"  - {problem}" for problem in error.args),
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped. {what_is_kept(args.out)}", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"\nThe system refuses: {error}. {what_is_kept(args.out)}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        print(
            f"\nOut of memory: give a smaller --batch-size, or with vllm a larger --tensor-parallel. {what_is_kept(args.out)}\n{error}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
