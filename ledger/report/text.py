"""Names, numbers and the paper's TeX as a reader sees them."""

import math
import re

from ledger import results

# Told apart by word and shape, in black and white too.
SYMBOLS = {
    results.REPRODUCED: "✓",
    results.NOT_REPRODUCED: "✗",
    results.PARTIAL: "◐",
    results.COMPLETE: "●",
    results.FAILED: "!",
    results.NOT_RUN: "○",
    results.CANNOT: "–",
}
MEANINGS = {
    results.REPRODUCED: "complete, and within the tolerance of the paper's number, or the claim holds",
    results.NOT_REPRODUCED: "complete, and outside the tolerance, or the claim does not hold",
    results.PARTIAL: "some seeds, or some of what it is compared with, are missing",
    results.COMPLETE: "complete, and the paper gives no number to compare it with",
    results.FAILED: "the run ended with an error",
    results.NOT_RUN: "no results were found",
    results.CANNOT: "this project does not contain what it needs",
}
_METRICS = {
    "aime24": "AIME'24",
    "aime25": "AIME'25",
    "amc23": "AMC'23",
    "math500": "MATH500",
    "minerva": "Minerva",
    "olympiadbench": "OlympiadBench",
    "average": "average",
    "arc_c": "ARC-C",
    "gpqa_diamond": "GPQA Diamond",
    "mmlu_pro": "MMLU-Pro",
    "top1": "top-1 (%)",
    "top5": "top-5 (%)",
    "actor/entropy": "entropy (nats)",
    "era/response_entropy": "H_resp, entropy of the top tokens (nats)",
    "era/rest_entropy": "entropy of the other tokens (nats)",
    "era/low_fraction": "share of responses below omega_low",
    "era/high_fraction": "share of responses above omega_high",
    "timing_s/old_log_prob, first step": "seconds of old_log_prob, first step",
    "eval_avg_return": "return",
    "policy_entropy": "policy entropy (nats)",
    "entropy_per_dim": "entropy per action dimension (nats)",
    "min_entropy_per_dim": "smallest entropy per action dimension (nats)",
    "clipped": "share of actions at a bound",
    "gaussian_entropy": "entropy of the Gaussian (nats)",
    "response_entropy": "response entropy (nats)",
    "distinct_right": "distinct right answers",
    "eval_top1": "top-1 (%)",
    "eval_entropy_min": "smallest entropy (nats)",
    "d@.95": "distinct right answers of 32 at accuracy .95",
    "H_resp": "H_resp at the end (nats)",
    "H_resp, last 10 steps, minus omega_low": "H_resp of the last 10 steps, minus omega_low (nats)",
    "nll test": "NLL on test images (nats)",
    "nll shifted": "NLL on shifted images (nats)",
    "top1 test": "top-1 on test images (%)",
    "ece test": "ECE on test images (%)",
    "off_scaled": "off scaled",
}
_QUOTES = {"``": "“", "''": "”", "~": " ", "$": "", "{": "", "}": ""}


def metric(name: str) -> str:
    """A metric or a benchmark in words; one that has none keeps its name."""
    return "pass@k (%)" if name.startswith("pass@k/") else _METRICS.get(name, name)


def plain(tex: str) -> str:
    """A quote of the paper without its TeX: "16.9$\\%$" is "16.9%"."""
    words = re.sub(r"\\(?:text\w+|emph)\b", "", re.sub(r"\\([%&_#{}$])", lambda found: _HOLD[found[1]], tex))
    for mark, sign in _QUOTES.items():
        words = words.replace(mark, sign)
    for sign, held in _HOLD.items():
        words = words.replace(held, sign)
    return words.replace("\\", "")


_HOLD = {sign: chr(0xE000 + place) for place, sign in enumerate("%&_#{}$")}  # escaped signs, while unescaped ones go


def decimals_of(values: list[float]) -> int:
    """How many the paper prints: the most of any of them, and at least one."""
    return max([1, *(len(repr(value).partition(".")[2]) for value in values)])


def number(value: float | None, decimals: int | None = None, sign: bool = False) -> str:
    """With as many decimals, else four significant digits; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if decimals is None:
        decimals = min(max(0, 3 - math.floor(math.log10(abs(value)))), 6) if value else 0
    shown = f"{value:{'+' if sign else ''}.{decimals}f}"
    if float(shown) == 0:
        shown = shown.lstrip("+-")
    return shown.replace("-", "−")


def measured(value: float | None, half: float | None, decimals: int | None = None) -> str:
    """A value with its interval, both to the value's decimals."""
    shown = number(value, decimals)
    if half is None or not math.isfinite(half) or shown == "–":
        return shown
    return f"{shown} ± {number(half, len(shown.partition('.')[2]))}"


def counted(count: int, thing: str, things: str = "") -> str:
    return f"{count} {thing if count == 1 else things or thing + 's'}"


def ranges(numbers: list[int]) -> str:
    """ "1-4, 7" """
    runs: list[list[int]] = []
    for value in sorted(set(numbers)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def days(stamps: list[str]) -> str:
    """From the first to the last; empty where none is known."""
    found = sorted({stamp[:10] for stamp in stamps if stamp})
    return " to ".join(dict.fromkeys((found[0], found[-1]))) if found else ""


def escape_markdown(text: object) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", str(text)).replace("\n", " ")
