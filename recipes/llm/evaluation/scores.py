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
"""What the grades of a benchmark say: accuracy with its uncertainty, pass@k, answers not graded."""

import math
from collections import Counter, defaultdict
from statistics import fmean, stdev

# The six sets over which the paper's tab:main_results averages.
PAPER_AVERAGE = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of k samples is right, from n samples of which c are.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) of Chen et al. (2021).

    The integers are exact and their quotient is rounded once, so nothing overflows or cancels,
    whatever n. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def summarize(samples: list[dict], problems: int, n: int, ks: list[int]) -> dict:
    """The summary of one benchmark from its lines; shares are in [0, 1].

    Problems that lack some of their n samples are left out, and `complete` is false.

    The standard error is that of a mean over problems, with the mean over a problem's samples as
    its value: samples of one problem are not independent. The interval is +- 1.96 of it, within [0,
    1]; without at least two problems both are None.
    """
    by_problem = defaultdict(list)
    for sample in samples:
        by_problem[sample["index"]].append(sample)
    whole = [group for group in by_problem.values() if len(group) == n]
    counted = [sample for group in whole for sample in group]
    right = [sum(sample["correct"] for sample in group) for group in whole]
    accuracy = fmean(c / n for c in right) if whole else None
    error = stdev(c / n for c in right) / math.sqrt(len(right)) if len(right) > 1 else None
    not_ok = defaultdict(list)
    for sample in counted:
        if sample["status"] != "ok":
            not_ok[sample["status"]].append([sample["index"], sample["sample"]])
    return {
        "problems": problems,
        "samples_per_problem": n,
        "complete": len(whole) == problems,
        "samples": len(counted),
        "accuracy": accuracy,
        "standard_error": error,
        "interval_95": None
        if error is None
        else [max(0.0, accuracy - 1.96 * error), min(1.0, accuracy + 1.96 * error)],
        "pass_at": {str(k): fmean(pass_at_k(n, c, k) for c in right) for k in ks} if whole else {},
        "mean_tokens": fmean(sample["tokens"] for sample in counted) if counted else None,
        "cut_at_max_tokens": sum(sample["finish_reason"] == "length" for sample in counted),
        "empty": sum(not sample["text"].strip() for sample in counted),
        "status": dict(sorted(Counter(sample["status"] for sample in counted).items())),
        "not_ok": {status: sorted(which) for status, which in sorted(not_ok.items())},
    }


def paper_average(benchmarks: dict[str, dict]) -> float | None:
    """Mean accuracy over the paper's six mathematical sets; None unless all are complete."""
    if all(benchmarks.get(name, {}).get("complete") for name in PAPER_AVERAGE):
        return fmean(benchmarks[name]["accuracy"] for name in PAPER_AVERAGE)
    return None


def table(benchmarks: dict[str, dict]) -> str:
    """The summaries as lines of text, shares in percent."""

    def percent(share: float | None) -> str:
        return "-" if share is None else f"{100 * share:.1f}"

    heads = "benchmark problems samples accuracy s.e. 95_%_interval tokens cut empty no_answer"
    heads += " truncated unparsable grader"
    rows = [[head.replace("_", " ") for head in heads.split()]]
    for name, summary in benchmarks.items():
        n, status, tokens = (summary[k] for k in ("samples_per_problem", "status", "mean_tokens"))
        grader = status.get("grader time-out", 0) + status.get("grader error", 0)
        unanswered = (status.get(key, 0) for key in ("no answer", "truncated", "unparsable"))
        row = [
            name + ("" if summary["complete"] else " (part)"),
            summary["problems"],
            summary["samples"],
            percent(summary["accuracy"]) + (f" avg@{n}" if n > 1 else ""),
            percent(summary["standard_error"]),
            " - ".join(map(percent, summary["interval_95"] or [None])),
            "-" if tokens is None else f"{tokens:.0f}",
            *(summary["cut_at_max_tokens"], summary["empty"], *unanswered, grader),
        ]
        rows.append([str(cell) for cell in row])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    average = paper_average(benchmarks)
    if average is not None:
        lines.append(f"average over the paper's six sets: {percent(average)}")
    for name, summary in benchmarks.items():
        if summary["pass_at"] and summary["samples_per_problem"] > 1:  # of one sample, pass@1 is the accuracy above
            lines.append(
                f"{name}: " + "  ".join(f"pass@{k} {percent(share)}" for k, share in summary["pass_at"].items())
            )
    return "\n".join(lines)
