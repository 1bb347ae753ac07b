# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Names, numbers and the paper's TeX as a reader sees them."""

import math
import re
from collections.abc import Sequence

METRICS = {
    "aime24": "AIME'24",
    "aime25": "AIME'25",
    "amc23": "AMC'23",
    "math500": "MATH500",
    "minerva": "Minerva",
    "olympiadbench": "OlympiadBench",
    "arc_c": "ARC-C",
    "gpqa_diamond": "GPQA Diamond",
    "mmlu_pro": "MMLU-Pro",
    "top1": "top-1 (%)",
    "top5": "top-5 (%)",
    "actor/entropy": "entropy (nats)",
    "era/response_entropy": "H_resp (nats)",
    "era/rest_entropy": "entropy of the other tokens (nats)",
    "era/low_fraction": "share below omega_low",
    "era/high_fraction": "share above omega_high",
    "timing_s/old_log_prob, first step": "old_log_prob, first step (s)",
    "eval_avg_return": "return",
    "entropy_per_dim": "entropy per action dimension (nats)",
}


def metric(name: str) -> str:
    """A metric or a benchmark in words; one that has none keeps its name."""
    return "pass@k (%)" if name.startswith("pass@k/") else METRICS.get(name, name)


def number(value: float, decimals: int | None = None, sign: bool = False) -> str:
    """With as many decimals, else four significant digits; a dash for NaN."""
    if not math.isfinite(value):
        return "–"
    if decimals is None:
        decimals = min(max(0, 3 - math.floor(math.log10(abs(value)))), 6) if value else 0
    shown = f"{value:{'+' if sign else ''}.{decimals}f}"
    return (shown.lstrip("+-") if float(shown) == 0 else shown).replace("-", "−")


def measured(value: float, half: float, decimals: int | None = None) -> str:
    """A value with its interval, both with these decimals, else four significant digits of the larger one."""
    if not math.isfinite(value) or not math.isfinite(half):
        return number(value, decimals)
    if decimals is None:
        decimals = len(number(max(abs(value), half)).partition(".")[2])
    return f"{number(value, decimals)}\u00a0±\u00a0{number(half, decimals)}"


def plain(tex: str) -> str:
    """A quote of the paper without its TeX: "16.9$\\\\%$" is "16.9%"."""
    words = re.sub(r"\\(text\w+|emph)\b|(?<!\\)[${}]", "", tex)
    return words.replace("\\short", "ERA").replace("~", " ").replace("\\", "")


def days(stamps: Sequence[str]) -> str:
    """From the first to the last; empty where none is known."""
    found = sorted({stamp[:10] for stamp in stamps if stamp})
    return " to ".join(dict.fromkeys((found[0], found[-1]))) if found else ""


def escape(text: object) -> str:
    """For Markdown, also in a cell of a table."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", str(text)).replace("\n", " ")
