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
"""Evaluate a model as the paper's LLM tables and pass@k figure do: sample, grade, summarize.

    python recipe/era/evaluate.py --model DIR --data FILE_OR_DIR ... --out DIR
                                  [--engine vllm|transformers]

The same command goes on where it stopped. ERA acts only in training: the responses are drawn from
the original policy, the model as it is stored.
"""

import argparse
import fcntl
import importlib.metadata
import importlib.util
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
    with_training_prompt,
)
from evaluation.protocol import (
    MAX_TOKENS,
    PROMPTS,
    PROTOCOLS,
    Protocol,
    is_as_paper,
    protocol_problems,
)
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


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    instead = "instead of the benchmark's protocol"
    add("--model", required=True, type=Path, help="folder of the model, in Hugging Face's format")
    data = "benchmarks made by prepare_data.py, or folders of them"
    add("--data", required=True, type=Path, nargs="+", metavar="FILE_OR_DIR", help=data)
    out = "folder for the samples and the summary; an earlier one is continued"
    add("--out", required=True, type=Path, help=out)
    engines = "vllm on GPUs (the default); transformers anywhere"
    add("--engine", choices=["vllm", "transformers"], default="vllm", help=engines)
    add("--samples", type=whole_number, help=f"per problem, {instead}")
    temperature = number_between(0, math.inf, True)
    add("--temperature", type=temperature, help=f"{instead}; 0 is greedy")
    add("--top-p", type=number_between(0, 1, False), help=instead)
    pass_at = "k of pass@k (default: the powers of two up to the number of samples)"
    add("--pass-at", type=whole_number, nargs="+", metavar="K", help=pass_at)
    asks = "for the answer in \\boxed{} (the default), or on a last line as the training data does"
    add("--prompt", choices=PROMPTS, default=PROMPTS[0], help=asks)
    most = f"of a response (default: {MAX_TOKENS}, the paper's in training)"
    add("--max-tokens", type=whole_number, default=MAX_TOKENS, help=most)
    seed = "with the benchmark, the problem and the sample's number it makes each sample's seed"
    add("--seed", type=int, default=0, help=seed)
    add("--limit", type=whole_number, help="only the first problems of each benchmark")
    dtypes = ["auto", "bfloat16", "float16", "float32"]
    dtype = "of the model (default: what its config.json says)"
    add("--dtype", choices=dtypes, default="auto", help=dtype)
    size = "samples generated between two writes (default: 512 with vllm, 8 with transformers)"
    add("--batch-size", type=whole_number, help=size)
    gpus = "GPUs that vllm splits the model over"
    add("--tensor-parallel", type=whole_number, default=1, help=gpus)
    seconds = "after which the grading of an answer is given up (default: 20)"
    add("--grader-seconds", type=number_between(0, math.inf, False), default=20.0, help=seconds)
    args = parser.parse_args(argv)
    args.model, args.out = args.model.expanduser(), args.out.expanduser()
    args.data = [path.expanduser() for path in args.data]
    return args


# The run


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Samples done and the time left on stderr.

    On a terminal one line that is written over, else a new line at most every 30 s.
    """

    def __init__(self, total: int, done: int):
        self.total, self.done, self.start = total, done, done
        self.began = self.last = time.monotonic()

    def add(self, benchmark: str, samples: list[dict]) -> None:
        self.done += len(samples)
        now = time.monotonic()
        left = int((now - self.began) / (self.done - self.start) * (self.total - self.done))
        terminal, last = sys.stderr.isatty(), self.done == self.total
        if not (terminal or last or now - self.last >= 30):
            return
        self.last = now
        right = sum(sample["correct"] for sample in samples)
        text = (
            f"{benchmark}  {self.done}/{self.total} samples  {left // 60}:{left % 60:02d} left  "
            f"{right} of the last {len(samples)} right"
        )
        end = "" if terminal and not last else "\n"
        print(f"\r\033[K{text}" if terminal else text, end=end, file=sys.stderr, flush=True)


def batches(items: list, size: int) -> Iterator[list]:
    return (items[i : i + size] for i in range(0, len(items), size))


def load_engine(args: argparse.Namespace, longest_prompt: int):
    from evaluation.generation import TransformersEngine, VLLMEngine

    try:
        if args.engine == "vllm":
            return VLLMEngine(args.model, args.dtype, longest_prompt + args.max_tokens, args.tensor_parallel)
        return TransformersEngine(args.model, args.dtype)
    except Exception as error:  # whatever the library meets in a damaged or unknown model
        raise Stop(
            f"model: {args.engine} cannot load {args.model} ({type(error).__name__}: "
            f"{error}). Download or merge it again, or try the other --engine in another "
            "--out."
        ) from error


def check_ground_truths(benchmark: Benchmark, grader) -> None:
    """Name the answers of the data that are only text to math-verify: they match only that text."""
    truths = [problem for problem in benchmark.problems if not problem.choices]
    good = grader.are_mathematics(problem.ground_truth for problem in truths)
    bad = [problem for problem, is_good in zip(truths, good) if not is_good]
    if bad:
        say(
            f"{benchmark.name}: {len(bad)} answers of {benchmark.file} are not mathematics to "
            "math-verify; only the same text counts as right:"
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
            problems = [(benchmark.problems[position], sample) for position, sample in batch]
            seeds = [sample_seed(args.seed, benchmark.name, problem.index, sample) for problem, sample in problems]
            requests = [Request(prompts[position], seed) for (position, _), seed in zip(batch, seeds)]
            completions = engine.generate(requests, sampling)
            grades = grader.grade(
                (done.text, problem.ground_truth, problem.choices, done.finish_reason == "length")
                for done, (problem, _) in zip(completions, problems)
            )
            samples = [
                {
                    "benchmark": benchmark.name,
                    "index": problem.index,
                    "sample": sample,
                    "seed": seed,
                    **completion._asdict(),
                    "ground_truth": problem.ground_truth,
                    **grade._asdict(),
                }
                for (problem, sample), seed, completion, grade in zip(problems, seeds, completions, grades)
            ]
            file.write("".join(json.dumps(sample) + "\n" for sample in samples))
            file.flush()
            progress.add(benchmark.name, samples)


def write_summary(out: Path, pass_at: list[int] | None) -> dict[str, dict]:
    """Of every benchmark in the folder, those of earlier runs too."""
    benchmarks = {}
    found = earlier_settings(out)
    order = list(PROTOCOLS)
    for name in sorted(found, key=lambda n: (order.index(n) if n in order else len(order), n)):
        n = found[name]["samples"]
        samples, _ = read_samples(out / f"{name}.samples.jsonl", found[name])
        powers = [2**i for i in range(n.bit_length())] if n > 1 else []
        ks = [k for k in sorted(set(pass_at)) if k <= n] if pass_at else powers
        benchmarks[name] = {
            "protocol": {key: found[name][key] for key in ("samples", "temperature", "top_p", "max_tokens", "prompt")},
            "as_paper": is_as_paper(name, found[name]),
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


def read_inputs(args: argparse.Namespace) -> list[Benchmark]:
    """The benchmarks. Raises Stop with all that is wrong with packages, model, data and out."""
    problems = [*packages_problems(args.engine), *model_problems(args.model)]
    files = data_files(args.data, problems)
    given = {key: getattr(args, key) for key in Protocol._fields}
    overrides = {key: value for key, value in given.items() if value is not None}
    benchmarks = {}
    for file in files if importlib.util.find_spec("pyarrow") else []:
        benchmark = read_benchmark(file, overrides, args.limit, problems)
        if benchmark is None:
            continue
        problems += protocol_problems(benchmark.name, benchmark.protocol, args.pass_at)
        if args.prompt == "training":
            benchmark = with_training_prompt(benchmark, problems)
        if benchmark.name in benchmarks:
            other = benchmarks[benchmark.name].file
            problems.append(f"data: {other} and {file} are both {benchmark.name}. Give one of them.")
        benchmarks[benchmark.name] = benchmark
    refuse(problems + out_problems(args.out))
    return list(benchmarks.values())


def lock(out: Path):
    """The open lock file of the folder, held until this process ends, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    file = (out / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refuse([f"out: another evaluation is writing into {out}. Wait for it, or give another --out."])
    return file


def find_missing(benchmark: Benchmark, settings: dict, args) -> list[tuple[int, int]]:
    """The (position, sample) that are yet to be made. Writes the settings beside the first ones."""
    file = args.out / f"{benchmark.name}.settings.json"
    if not file.exists():
        written = {
            "settings": settings,
            "model": str(args.model.absolute()),
            "data": str(benchmark.file.absolute()),
            "versions": versions(),
        }
        write_whole(file, json.dumps(written, indent=1) + "\n")
    samples, notice = continue_samples(args.out / f"{benchmark.name}.samples.jsonl", settings)
    if notice:
        say(notice)
    there = {(sample["index"], sample["sample"]) for sample in samples}
    return [
        (position, sample)
        for position, problem in enumerate(benchmark.problems)
        for sample in range(benchmark.protocol.samples)
        if (problem.index, sample) not in there
    ]


def run(args: argparse.Namespace) -> None:
    benchmarks = read_inputs(args)
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
    held = lock(args.out)  # noqa: F841  closing the file would release it
    refuse(list(settings_problems(args.out, now, earlier_settings(args.out))))

    missing = {b.name: find_missing(b, now[b.name], args) for b in benchmarks}
    total = sum(len(b.problems) * b.protocol.samples for b in benchmarks)
    done = total - sum(map(len, missing.values()))
    if done:
        say(f"{done} of {total} samples are already there")
    if total > done:
        grader = Grader(args.grader_seconds)
        try:
            unfinished = [benchmark for benchmark in benchmarks if missing[benchmark.name]]
            for benchmark in unfinished:
                check_ground_truths(benchmark, grader)
            engine = load_engine(args, max(len(ids) for batch in prompts.values() for ids in batch))
            progress = Progress(total, done)
            for b in unfinished:
                evaluate(b, prompts[b.name], missing[b.name], engine, grader, args, progress)
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


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        run(args)
    except Stop as error:
        say("This evaluation cannot start; no sample was changed:")
        say("\n".join(f"  - {problem}" for problem in error.args))
        return 1
    except KeyboardInterrupt:
        say(f"\nStopped. {what_is_kept(args.out)}")
        return 130
    except OSError as error:
        say(f"\nThe system refuses: {error}. {what_is_kept(args.out)}")
        return 1
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        say(
            "\nOut of memory: give a smaller --batch-size, or with vllm a larger "
            f"--tensor-parallel. {what_is_kept(args.out)}\n{error}"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
