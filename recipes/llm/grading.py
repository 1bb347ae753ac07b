# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Grading: mathematics by math-verify, multiple choice by the exact letter."""

import logging
import os
import re
import sys
import unicodedata
from collections.abc import Iterable
from concurrent.futures import TimeoutError as GraderTimeout
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

BOX = re.compile(r"\\f?boxed\s*\{")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
JOINS = re.compile(
    r"[\s$]*(?:\\[\])])?\.?[\s$]*(?:,\s*and|,\s*or|,|;|and|or)[\s$]*(?:\\[\[(])?[\s$]*",
    re.IGNORECASE,
)
# "Answer: ..." is what the prompt of DAPO-Math-17k asks for, "the answer is ..." what models say
# without being asked.
PHRASE = re.compile(
    r"\banswer\b(?: to (?:the|this) (?:question|problem))?[*_]*\s*(?:is|:|=)\s*[*_:]*[ \t]*",
    re.IGNORECASE,
)
INLINE_MATH = re.compile(r"\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]")
SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d+)(?![\w.^])")
POINT = re.compile(r"(?<=\d)\.(?!\d)")
WRAPPING = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathsf|rm|bf)\b\s*|[\s${}*_]|\\[()\[\],;! ]")
# One letter by itself, or a capital before the text of its option: "C", "(c)", "C.", "C) 42", "(C):
# a cat". Not "Cat", not "B or C", not "a.m.".
LETTER = re.compile(r"\(?(?:([A-Za-z])[.:)]*|([A-Z])[.:)].*)", re.DOTALL)
# The same in a sentence, where only a capital counts; a bare one must end its clause, so that "the
# answer is A good one" names nothing.
SPOKEN = re.compile(
    r"(?:(?:option|choice)\s)?(?:\\text\w*|\\math\w+|\\[(\[]|[\s${*_])*"
    r"(?:\(\s*(?P<enclosed>[A-Z])\s*\)|(?P<bare>[A-Z])(?:[$}*_]|\\[)\]])*"
    r"(?=[ \t]*(?:[.,;:)!\n]|\Z)|\s+(?:because|since|as)\b))"
)


class Grade(NamedTuple):
    """What a response is worth.

    status: "ok" (compared), "no answer", "truncated" (no answer, cut at the limit of tokens),
        "unparsable", "grader time-out" or "grader error".
    """

    extracted: str | None
    correct: bool
    status: str


def boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of every complete outermost \\boxed{...} or \\fboxed{...}."""
    spans, position = [], 0
    while opening := BOX.search(text, position):
        depth, position = 1, opening.end()
        for brace in BRACE.finditer(text, position):
            depth += {"{": 1, "}": -1}.get(brace.group(), 0)
            if depth == 0:
                spans.append((opening.start(), brace.end(), text[opening.end() : brace.start()]))
                position = brace.end()
                break
    return spans


def boxed_answer(text: str) -> str | None:
    """Content of the last complete box; None without a box.

    Boxes before it that a comma, "and" or "or" joins to it belong to the answer: 2, 5.
    """
    spans = boxes(text)
    if not spans:
        return None
    contents = [spans[-1][2].strip()]
    for before, after in zip(reversed(spans[:-1]), reversed(spans)):
        if not JOINS.fullmatch(text[before[1] : after[0]]):
            break
        if before[2].strip() not in contents:
            contents.insert(0, before[2].strip())
    return ", ".join(contents)


def math_answer(text: str) -> str | None:
    """The boxed answer, else what follows the last "answer is" or "answer:" on its line.

    There, the first formula, or else everything. None without box and phrase, "" if it is empty.
    """
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed
    phrases = list(PHRASE.finditer(text))
    if not phrases:
        return None
    line = text[phrases[-1].end() :].partition("\n")[0]
    formula = INLINE_MATH.search(line)
    answer = next(filter(None, formula.groups())) if formula else line
    return answer.strip().rstrip(".*_ ").strip()


def choice_answer(text: str) -> str | None:
    """The letter, as a capital, in the last box, else after the last "answer is" that names one.

    A box that holds anything but a single letter is returned as it is. None without either.
    """
    text = unicodedata.normalize("NFKC", text)
    spans = boxes(text)
    if spans:
        content = spans[-1][2].strip()
        letter = LETTER.fullmatch(WRAPPING.sub("", content))
        return (letter[1] or letter[2]).upper() if letter else content
    spoken = [match for phrase in PHRASE.finditer(text) if (match := SPOKEN.match(text, phrase.end()))]
    return (spoken[-1]["enclosed"] or spoken[-1]["bare"]) if spoken else None


def parse(answer: str) -> list:
    """What math-verify reads: a sympy object and the text, only a text, or nothing."""
    from math_verify import LatexExtractionConfig, parse

    # In LaTeX 1.3e-4 would be 1.3 times Euler's number minus 4, and -3./2 is not a number either.
    # Minerva has both.
    answer = SCIENTIFIC.sub(r"\1 \\times 10^{\2}", POINT.sub("", answer))
    # No time limit here and in verify: math-verify's is an alarm, which waits for as long as a single
    # big-integer operation takes.
    return parse(
        rf"\boxed{{{answer}}}",
        [LatexExtractionConfig(try_extract_without_anchor=False)],
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=True,
    )


def grade_math(text: str, ground_truth: str) -> Grade:
    from math_verify import verify

    answer = math_answer(text)
    if not answer:
        return Grade(None, False, "no answer")
    gold = ground_truth.strip()
    if answer == gold:
        return Grade(answer, True, "ok")
    try:
        parsed = parse(answer)
    except Exception:  # whatever latex2sympy meets in a text that is not LaTeX
        return Grade(answer, False, "unparsable")
    pairs = list(product(parse(gold), parsed))
    errors = 0
    for expected, candidate in pairs:
        try:
            if verify(expected, candidate, timeout_seconds=None, raise_on_error=True):
                return Grade(answer, True, "ok")
        except Exception:  # sympy cannot compare this pair; another may still agree
            errors += 1
    if all(isinstance(candidate, str) for candidate in parsed):
        return Grade(answer, False, "unparsable")
    return Grade(answer, False, "grader error" if errors else "ok")


def grade_choice(text: str, ground_truth: str, choices: int) -> Grade:
    answer = choice_answer(text)
    if not answer:
        return Grade(None, False, "no answer")
    return Grade(answer, answer == ground_truth, "ok" if answer in list(LETTERS[:choices]) else "unparsable")


def grade(text: str, ground_truth: str, choices: int, truncated: bool) -> Grade:
    """The grade of one response.

    Args:
        choices: number of options, 0 for mathematics.
        truncated: whether it was cut at the limit of tokens.
    """
    result = grade_choice(text, ground_truth, choices) if choices else grade_math(text, ground_truth)
    return result._replace(status="truncated") if truncated and result.status == "no answer" else result


# In processes, because sympy may need any time and any memory for an answer

MEMORY = 4 * 2**30  # bytes of address space per process: sympy would write 10**10**9 out


def prepare_process() -> None:
    import math_verify  # noqa: F401  now, and not in the time of the first answer

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns about the time limits that are off
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def grade_all(responses: Iterable[tuple[str, str, int, bool]], seconds: float) -> list[Grade]:
    """The grades of (text, ground truth, choices, truncated), in order; no response raises.

    Args:
        seconds: wall-clock time after which a response's process is replaced, and the response counts as wrong.
    """
    from pebble import ProcessPool

    workers = min(16, os.cpu_count() or 1)
    # spawn, because forking a process that holds CUDA or threads is not safe
    with ProcessPool(workers, initializer=prepare_process, context=get_context("spawn")) as pool:
        futures = [pool.schedule(grade, args=response, timeout=seconds) for response in responses]
        grades = []
        for future in futures:
            try:
                grades.append(future.result())
            except GraderTimeout:
                grades.append(Grade(None, False, "grader time-out"))
            except Exception:  # its own, or that its process died
                grades.append(Grade(None, False, "grader error"))
        return grades
