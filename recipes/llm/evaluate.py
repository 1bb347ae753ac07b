# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Evaluate a model as the paper's LLM tables and pass@k figure do: sample, grade, summarize.

    python -m recipes.llm.evaluate --model DIR --out DIR [--sets NAME ...] [--engine vllm|transformers]
    python -m recipes.llm.evaluate --protocol strict --model DIR --data FILE_OR_DIR ... --out DIR

The protocol `release`, the default, is the authors' own evaluation: the prompts, settings and grader of their release
(release.py). `strict` is ours, with math-verify (grading.py). The same command again samples only the benchmarks that
are not finished, or not whole. ERA acts only in training: the responses are drawn from the original policy, the model
as it is stored.
"""

import argparse
import functools
import hashlib
import importlib.util
import json
import math
import os
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from recipes import whole
from recipes.llm import grading, preflight
from recipes.llm import release as authors
from recipes.llm.data import SETS
from recipes.llm.engines import ENGINES, Engine

MAX_TOKENS = 8192  # of the protocol `strict`, as in the paper's training (subsec:impl_llm)

# Of `strict`: the samples and temperatures of sec:results_llms, which names no top-p.
PROTOCOLS = {name: {**authors.sampling_of(name), "top_p": 1.0} for name in (*authors.BENCHMARKS, "mmlu_pro")}
# The six sets over which the paper's tab:main_results averages.
PAPER_AVERAGE = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")


# Benchmarks


OF_ALL_BENCHMARKS = ("protocol", "max_tokens", "seed", "engine", "dtype")


def chosen(args: argparse.Namespace) -> dict:
    """What the command line has in place of a benchmark's own samples, temperature and top-p."""
    return {key: getattr(args, key) for key in authors.GREEDY if getattr(args, key) is not None}


def protocol_of(name: str, rows: list[dict], args: argparse.Namespace) -> dict:
    """What makes a benchmark's samples what they are, but for the model."""
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    protocol = {**PROTOCOLS.get(name, authors.GREEDY), **chosen(args), "problems": len(rows), "rows_sha256": digest}
    if protocol["temperature"] == 0 and protocol["samples"] > 1:
        raise SystemExit(f"error: {name} is greedy, so all samples of a problem are the same. Give --temperature 0.7.")
    if max(args.pass_at or [1]) > protocol["samples"]:
        raise SystemExit(
            f"error: pass@{max(args.pass_at)} of {name} needs as many samples of each problem, not "
            f"{protocol['samples']}. Give --samples {max(args.pass_at)} --temperature 0.7."
        )
    return protocol | {key: getattr(args, key) for key in OF_ALL_BENCHMARKS}


def is_as_paper(name: str, protocol: dict) -> bool | None:
    """Whether a protocol is the paper's, which is its authors' release where that has the benchmark.

    More samples of the same kind are allowed, because pass@k needs them. None for a benchmark that the paper does not
    have.
    """
    if name not in PROTOCOLS:
        return None
    paper = paper_protocol(name)
    samples = paper.pop("samples")
    return protocol["samples"] >= samples and all(protocol[key] == value for key, value in paper.items())


def paper_protocol(name: str) -> dict:
    if name in authors.BENCHMARKS:
        paper = {**authors.sampling_of(name), "protocol": "release", "max_tokens": authors.MAX_TOKENS}
    else:
        paper = {**PROTOCOLS[name], "protocol": "strict", "max_tokens": MAX_TOKENS}
    return paper | {"problems": SETS[name]["pin"]["rows"]}


def token_ids(model: Path, rows: list[dict]) -> list[list[int]]:
    """Each row's prompt. Without a chat template, the contents of its messages with an empty line between them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.chat_template:
        # Without return_dict=False transformers 5 gives a dictionary, and 4 the ids.
        form = {"add_generation_prompt": True, "return_dict": False}
        return [tokenizer.apply_chat_template(row["prompt"], **form) for row in rows]
    return [tokenizer("\n\n".join(message["content"] for message in row["prompt"]))["input_ids"] for row in rows]


# Scores


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of k samples is right, from n samples of which c are.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) of Chen et al. (2021), for k <= n. The integers are exact and their
    quotient is rounded once, so nothing overflows or cancels, whatever n.
    """
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def summarize(samples: list[dict], pass_at: Iterable[int]) -> dict:
    """The summary of one benchmark from its samples, equally many for each problem; shares are in [0, 1].

    The standard error is of the mean over problems. A problem's value is the mean over its samples, because these are
    not independent. The interval is +- 1.96 standard errors, cut to [0, 1]. With a single problem both are None.
    """
    right, not_ok = defaultdict(int), defaultdict(list)
    for sample in samples:
        right[sample["index"]] += sample["correct"]
        if sample["status"] != "ok":
            not_ok[sample["status"]].append([sample["index"], sample["sample"]])
    n = len(samples) // len(right)
    shares = [c / n for c in right.values()]
    accuracy = fmean(shares)
    error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else None
    interval = None if error is None else [max(0.0, accuracy - 1.96 * error), min(1.0, accuracy + 1.96 * error)]
    return {
        "problems": len(right),
        "samples_per_problem": n,
        "samples": len(samples),
        "accuracy": accuracy,
        "standard_error": error,
        "interval_95": interval,
        "pass_at": {str(k): fmean(pass_at_k(n, c, k) for c in right.values()) for k in pass_at},
        "mean_tokens": fmean(sample["tokens"] for sample in samples),
        "cut_at_max_tokens": sum(sample["finish_reason"] == "length" for sample in samples),
        "empty": sum(not sample["text"].strip() for sample in samples),
        "status": dict(sorted(Counter(sample["status"] for sample in samples).items())),
        "not_ok": {status: sorted(which) for status, which in sorted(not_ok.items())},
    }


def table(summary: dict) -> str:
    """The summary as lines of text, shares in percent."""
    import pandas

    rows, lines = {}, []
    for name, scores in summary["benchmarks"].items():
        n = scores["samples_per_problem"]
        interval = " - ".join(f"{100 * end:.1f}" for end in scores["interval_95"] or [])
        rows[name] = {
            **{key: scores[key] for key in ("problems", "samples")},
            "accuracy": f"{100 * scores['accuracy']:.1f}" + (f" avg@{n}" if n > 1 else ""),
            "95 % interval": interval or "-",
            "tokens": round(scores["mean_tokens"]),
            "cut": scores["cut_at_max_tokens"],
            **scores["status"],
        }
        if scores["pass_at"]:
            shares = (f"pass@{k} {100 * share:.1f}" for k, share in scores["pass_at"].items())
            lines.append(f"{name}: {'  '.join(shares)}")
    frame = pandas.DataFrame.from_dict(rows, orient="index").fillna(0)
    text = frame.astype({column: int for column in frame.select_dtypes("number")}).to_string()
    if summary["paper_average"] is not None:
        lines.append(f"average over the paper's six sets: {100 * summary['paper_average']:.1f}")
    return "\n".join([text, *lines])


# What is drawn, and what an earlier call has drawn


def draw(name: str, rows: list[dict], prompts: list[list[int]], protocol: dict, engine: Engine) -> list[dict]:
    """The samples of a benchmark, ungraded, and as many of each problem one after the other."""
    indices = [row["extra_info"]["index"] for row in rows]
    seeds = [zlib.crc32(f"{protocol['seed']}/{name}/{index}".encode()) for index in indices]
    return [
        {"benchmark": name, "index": index, "sample": number, "seed": seed, **completion._asdict()}
        | {"ground_truth": row["reward_model"]["ground_truth"], "choices": row["extra_info"]["choices"]}
        for row, index, seed, completions in zip(rows, indices, seeds, engine(prompts, seeds, protocol))
        for number, completion in enumerate(completions)
    ]


def grade_strictly(samples: list[dict]) -> list[dict]:
    """The samples with the grades of grading.py."""
    asked = [(s["text"], s["ground_truth"], s["choices"], s["finish_reason"] == "length") for s in samples]
    return [sample | grade._asdict() for sample, grade in zip(samples, grading.grade_all(asked))]


def grade_as_released(
    release: authors.Release, name: str, samples: list[dict], protocol: dict, tokenizer: Path
) -> tuple[list[dict], dict]:
    """The samples with the grades of the release, and what it says of the benchmark, by the keys of a summary."""
    limit = None if protocol["problems"] == SETS[name]["pin"]["rows"] else protocol["problems"]
    options = {key: protocol[key] for key in (*authors.GREEDY, "max_tokens")} | {"limit": limit}
    answered = release.answer(name, tokenizer, options, [sample["text"] for sample in samples])
    given = iter(pair for problem in answered.problems for pair in zip(problem["pred"], problem["score"]))
    graded = []
    for sample, (pred, score) in zip(samples, given, strict=True):
        status = "ok" if pred else "truncated" if sample["finish_reason"] == "length" else "no answer"
        graded.append(sample | {"extracted": pred, "correct": bool(score), "status": status})
    acc, timeouts = answered.metrics["acc"], answered.metrics["timeout_samples"]
    return graded, {"accuracy": acc / 100, "grader_timeouts": timeouts}


def read_summary(out: Path, model: Path) -> dict:
    """The summary of the folder; a new one where there is none."""
    files = sorted([*model.glob("*.safetensors"), *model.glob("*.bin")])
    weights = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    new = {"policy": "original (ERA acts in training alone)", "model": str(model.absolute()), "weights": weights}
    file = out / whole.EVALUATION
    try:
        summary = json.loads(file.read_text()) if file.exists() else {**new, "benchmarks": {}}
        benchmarks = dict(summary["benchmarks"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SystemExit(f"error: {file} is no summary ({type(error).__name__}). Give another --out.") from None
    for key in ("model", "weights"):
        if summary.get(key) != new[key]:
            raise SystemExit(f"error: {out} is of the {key} {summary.get(key)}, not {new[key]}. Give another --out.")
    for name, scores in benchmarks.items():
        try:
            whole.check_benchmark(name, scores)
        except (ValueError, TypeError, AttributeError) as fault:
            print(f"note: {out}: {fault}: this benchmark counts as not finished.", file=sys.stderr)
            del summary["benchmarks"][name]
    return summary


OF_THE_RELEASE = ("accuracy", "grader_timeouts")  # in a summary, what the release's grader says itself
OF_A_SAMPLE = {"index": int, "sample": int, "text": str, "finish_reason": str, "tokens": int}
OF_A_SAMPLE |= {"ground_truth": str, "choices": int}


def read_samples(file: Path, protocol: dict) -> list[dict]:
    """The samples in a file.

    Raises:
        ValueError: they are not those of the protocol.
    """
    # Not splitlines: a text may have other ends of lines than JSON Lines.
    samples = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    for line, sample in enumerate(samples, 1):
        if not isinstance(sample, dict) or any(type(sample.get(key)) is not kind for key, kind in OF_A_SAMPLE.items()):
            raise ValueError(f"line {line} of {file} is not a sample with {', '.join(OF_A_SAMPLE)}")
    drawn = Counter(sample["index"] for sample in samples)
    if len(drawn) != protocol["problems"] or {*drawn.values()} != {protocol["samples"]}:
        expected = f"{protocol['samples']} of each of {protocol['problems']} problems"
        raise ValueError(f"{file} has {len(samples)} samples of {len(drawn)} problems, and the summary {expected}")
    return samples


def finished_summary(file: Path, protocol: dict, before: dict, pass_at: Iterable[int]) -> dict | None:
    """The summary of the samples that an earlier call has written; None if they are not all there."""
    try:
        scores = summarize(read_samples(file, protocol), pass_at)
        return scores | {key: before[key] for key in OF_THE_RELEASE if protocol["protocol"] == "release"}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass  # cut short, or damaged
    print(f"note: {file} does not hold all samples of the summary: they are drawn again.", file=sys.stderr)
    return None


def write_summary(out: Path, summary: dict, name: str, scores: dict) -> None:
    """Add a benchmark's scores to the summary, in the order of PROTOCOLS, and replace the folder's summary.json."""
    benchmarks = {**summary["benchmarks"], name: scores}
    order = [*PROTOCOLS, *sorted(benchmarks)]
    summary["benchmarks"] = {key: benchmarks[key] for key in dict.fromkeys(order) if key in benchmarks}
    has_six = benchmarks.keys() >= {*PAPER_AVERAGE}
    summary["paper_average"] = fmean(benchmarks[key]["accuracy"] for key in PAPER_AVERAGE) if has_six else None
    new = out / f"{whole.EVALUATION}.new"
    new.write_text(json.dumps(summary, indent=1) + "\n")
    new.replace(out / whole.EVALUATION)


# The steps of a run. What cannot be done is refused before a sample is drawn.


def read_benchmarks(args: argparse.Namespace) -> dict[str, list[dict]]:
    """The rows of --data's benchmarks, as data.py makes them, by the benchmark's name, each of which may come once."""
    import pyarrow.parquet

    files = [file for path in args.data for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
    if not files:
        raise SystemExit(
            f"error: there is no *.parquet in {', '.join(map(str, args.data))}. `make llm-data` makes them."
        )
    benchmarks: dict[str, list[dict]] = {}
    for file in files:
        rows = pyarrow.parquet.read_table(file).slice(0, args.limit).to_pylist()
        name = (rows[0].get("extra_info") or {}).get("benchmark") if rows else None
        if name is None:
            raise SystemExit(f"error: {file} is not a benchmark: its extra_info has none. `make llm-data` makes them.")
        if name in benchmarks:
            raise SystemExit(f"error: {file} is {name}, as another file of --data is. Give one of them.")
        benchmarks[name] = rows
    return benchmarks


def refuse_other_settings(summary: dict, protocols: dict[str, dict], args: argparse.Namespace) -> None:
    """End the command if the folder's summary has a benchmark with other settings than this call's.

    A benchmark of an earlier call that this one leaves alone must have the settings of the whole folder, which has one
    average.
    """
    for name, scores in summary["benchmarks"].items():
        before = scores["protocol"]
        now = protocols.get(name) or before | {key: getattr(args, key) for key in OF_ALL_BENCHMARKS}
        if before != now:
            raise SystemExit(f"error: {args.out} has {name} with {before}, not {now}. Give another --out.")


def needed_context(prompts: dict[str, list[list[int]]], args: argparse.Namespace) -> int:
    """How many tokens the longest prompt and its response need; the command ends if the model has fewer."""
    length = max(len(ids) for of_benchmark in prompts.values() for ids in of_benchmark) + args.max_tokens
    if problems := list(preflight.model_problems(args.model, length)):
        raise SystemExit(f"error: --max-tokens {args.max_tokens}: {' '.join(problems)}")
    return length


def default_pass_at(samples: int) -> list[int]:
    """The powers of two up to the number of samples of each problem; none for a single sample."""
    return [2**i for i in range(samples.bit_length()) if samples > 1]


def asked_by_release(args: argparse.Namespace, release: authors.Release) -> tuple[dict, dict, dict]:
    """The rows, protocols and prompts of --sets, by name, as the release's own script asks for them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    if not tokenizer.chat_template:
        raise SystemExit(
            f"error: {args.model} has no chat template, in which the release asks. Give --protocol strict."
        )
    folder = authors.keep_tokenizer(args.model, args.out)
    rows: dict[str, list[dict]] = {}
    protocols, prompts = {}, {}
    for name in args.sets:
        options = {**authors.sampling_of(name), **chosen(args), "max_tokens": args.max_tokens, "limit": args.limit}
        request, problems, _ = release.answer(name, folder, options)
        texts, truths = request.pop("prompts")[:: options["samples"]], release.ground_truths(name)
        rows[name] = [
            {
                "prompt": text,
                "reward_model": {"ground_truth": truths[problem["idx"]] if truths else problem["gt"]},
                "extra_info": {"index": problem["idx"], "choices": 0 if truths else len(grading.LETTERS)},
            }
            for text, problem in zip(texts, problems, strict=True)
        ]
        protocols[name] = protocol_of(name, rows[name], args) | options | request
        del protocols[name]["limit"], protocols[name]["n"]  # "problems" and "samples" say these
        prompts[name] = [tokenizer(text)["input_ids"] for text in texts]
    return rows, protocols, prompts


def asked_by_us(args: argparse.Namespace) -> tuple[dict, dict, dict]:
    """The rows, protocols and prompts of --data, by name, for the protocol `strict`."""
    benchmarks = read_benchmarks(args)
    protocols = {name: protocol_of(name, rows, args) for name, rows in benchmarks.items()}
    return benchmarks, protocols, {name: token_ids(args.model, rows) for name, rows in benchmarks.items()}


def run(args: argparse.Namespace) -> None:
    """Evaluate the model on each benchmark; what a finished call of before has drawn is summarized again."""
    release = authors.Release(args.release_checkout, args.release_python)
    summary = read_summary(args.out, args.model)
    if args.protocol == "release":
        release.refuse_another_checkout()
        benchmarks, protocols, prompts = asked_by_release(args, release)
    else:
        benchmarks, protocols, prompts = asked_by_us(args)
    refuse_other_settings(summary, protocols, args)
    # Loaded when the first benchmark needs it, once.
    engine = functools.cache(partial(ENGINES[args.engine], args, needed_context(prompts, args)))
    tokenizer = authors.keep_tokenizer(args.model, args.out)
    for name, rows in benchmarks.items():
        file, protocol = args.out / f"{name}.samples.jsonl", protocols[name]
        pass_at, before = args.pass_at or default_pass_at(protocol["samples"]), summary["benchmarks"].get(name)
        scores = finished_summary(file, protocol, before, pass_at) if before else None
        if scores is None:
            samples, of_release = draw(name, rows, prompts[name], protocol, engine()), {}
            if args.protocol == "release":
                samples, of_release = grade_as_released(release, name, samples, protocol, tokenizer)
            else:
                samples = grade_strictly(samples)
            file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
            scores = summarize(samples, pass_at) | of_release
        as_paper = {"protocol": protocol, "as_paper": is_as_paper(name, protocol)}
        write_summary(args.out, summary, name, as_paper | scores)
    print(f"{table(summary)}\n\nsamples  {args.out}/*.samples.jsonl\nsummary  {args.out / 'summary.json'}")


def add_release(parser: argparse.ArgumentParser) -> None:
    """The options that name what runs the release's grader."""
    checkout = Path(os.environ.get("CHECKOUTS") or "checkouts", "era-release")
    python = Path(os.environ.get("ENVIRONMENTS") or ".venv", "era-release/bin/python")
    names = {"metavar": "DIR", "help": f"checkout of era-release (default: {checkout})"}
    parser.add_argument("--release-checkout", type=Path, default=checkout, **names)
    names = {"metavar": "PYTHON", "help": f"of requirements/era-release.txt (default: {python})"}
    parser.add_argument("--release-python", default=str(python), **names)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", required=True, type=Path, help="folder of the model, in Hugging Face's format")
    protocols = "release: the authors' prompts, settings and grader (the default); strict: ours"
    add("--protocol", choices=("release", "strict"), default="release", help=protocols)
    sets = f"of the release (default: all): {', '.join(authors.BENCHMARKS)}"
    add("--sets", nargs="+", metavar="NAME", help=sets)
    add_release(parser)
    benchmarks = "strict: benchmarks made by recipes.llm.data, or folders of them"
    add("--data", type=Path, nargs="+", metavar="FILE_OR_DIR", help=benchmarks)
    add("--out", required=True, type=Path, help="folder for the samples and the summary; an earlier one is continued")
    engines = "vllm on GPUs (the default); transformers anywhere"
    add("--engine", choices=ENGINES, default="vllm", help=engines)
    add("--samples", type=int, help="per problem, instead of the benchmark's protocol")
    add("--temperature", type=float, help="instead of the benchmark's protocol; 0 is greedy")
    add("--top-p", type=float, help="instead of the benchmark's protocol")
    pass_at = "k of pass@k (default: the powers of two up to the number of samples)"
    add("--pass-at", type=int, nargs="+", metavar="K", help=pass_at)
    longest = f"of a response (default: {authors.MAX_TOKENS}, the release's; strict: {MAX_TOKENS}, of the training)"
    add("--max-tokens", type=int, help=longest)
    add("--seed", type=int, default=0, help="with the benchmark and the problem it makes each prompt's seed")
    add("--limit", type=int, help="only the first problems of each benchmark")
    dtypes = ["auto", "bfloat16", "float16", "float32"]
    add("--dtype", choices=dtypes, default="auto", help="of the model (default: what its config.json says)")
    add("--tensor-parallel", type=int, default=1, help="GPUs that vllm splits the model over")
    args = parser.parse_args(argv)
    if not (args.model / "config.json").is_file():
        parser.error(f"{args.model} is not a model's folder. `make llm-merge` makes one of a verl checkpoint.")
    if args.protocol == "release" and args.data:
        parser.error("the protocol release has problems of its own: --data is for strict.")
    if args.protocol == "strict" and (args.sets or not args.data):
        parser.error("--protocol strict needs --data, and has no --sets. `make llm-data` makes the benchmarks.")
    args.sets = [*dict.fromkeys(args.sets or authors.BENCHMARKS)]
    if unknown := [name for name in args.sets if name not in authors.BENCHMARKS]:
        parser.error(
            f"the protocol release has no {', '.join(unknown)}: of the release, the files of "
            f"{', '.join(authors.BENCHMARKS)} are fetched. --protocol strict has MMLU-Pro and sets of your own."
        )
    args.max_tokens = args.max_tokens or (authors.MAX_TOKENS if args.protocol == "release" else MAX_TOKENS)
    if missing := [str(path) for path in args.data or [] if not path.exists()]:
        parser.error(f"there is no {', '.join(missing)}. `make llm-data` makes the benchmarks.")
    needed = ("math_verify", "pebble") if args.protocol == "strict" else ()
    if missing := [name for name in (*needed, args.engine) if not importlib.util.find_spec(name)]:
        parser.error(f"{sys.executable} lacks {', '.join(missing)}. --engine transformers needs no vllm.")
    return args


if __name__ == "__main__":
    run(parse_arguments(None))
