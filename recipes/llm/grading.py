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

BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
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
# The line that the training's prompt asks for. verl's math_dapo, its reward, reads the last one.
ANSWER_LINE = re.compile(r"^[ \t>#*_]*answer[*_]*\s*:[*_]*[ \t]*(?=\S)", re.IGNORECASE | re.MULTILINE)
INLINE_MATH = re.compile(r"(?<!\\)\$+((?:\\.|[^$\\])+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]")
SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d+)(?![\w.^])")
POINT = re.compile(r"(?<=\d)\.(?!\d)")
PLAIN_NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
NUMBER_BEFORE = re.compile(rf"(?<![\w.,]){PLAIN_NUMBER}(?=\D*\Z)")
NUMBER_AFTER = re.compile(rf"{PLAIN_NUMBER}(?![\w,]|\.\d)")
# Forms of a number in LaTeX that math-verify takes for something else, without a word.
SPACE = r"(?:\\[,;:! ]|~|[\u00a0\u2009\u202f])"
GROUPED = re.compile(rf"(?<=\d){SPACE}(?=\d{{3}}(?!\d))")  # 1\,000
STYLED_NUMBER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:bf|rm|it|sf|tt|normal)|boldsymbol|bm|mbox|emph)\s*"
    rf"\{{[\s$]*({PLAIN_NUMBER})(?:{SPACE}|[\s$])*([^{{}}$]*)[\s$]*\}}"
)
PERCENT = re.compile(r"\\text\w*\s*\{\s*per\s?cent\s*\}|\bper\s?cent\b", re.IGNORECASE)
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
    """(start, end, content) of every complete outermost \\boxed{...}, \\fbox{...} or \\framebox{...}."""
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
    """The boxed answer, or what a last line "Answer: ..." after it says, else what follows the last "answer is".

    After a phrase: the first formula of the line, and what a comma, "and" or "or" joins to it; without a formula the
    whole line. None without box and phrase, "" if it is empty.
    """
    spans, asked = boxes(text), list(ANSWER_LINE.finditer(text))
    if asked and (not spans or asked[-1].start() >= spans[-1][1]):
        return spoken_answer(text, asked[-1].end())
    if spans:
        return boxed_answer(text)
    phrases = list(PHRASE.finditer(text))
    return spoken_answer(text, phrases[-1].end()) if phrases else None


def spoken_answer(text: str, start: int) -> str:
    """The answer in the line of `text` that goes on at `start`, as `math_answer` says."""
    line = text[start:].partition("\n")[0]
    boxed = boxed_answer(line)
    if boxed is not None:
        return boxed
    formulas = list(INLINE_MATH.finditer(line))
    if not formulas:
        return line.strip().rstrip(".*_ ").strip()
    values = [next(filter(None, formulas[0].groups()))]
    before = NUMBER_BEFORE.search(line, 0, formulas[0].start())
    if before and JOINS.fullmatch(line[before.end() : formulas[0].start()]):
        values.insert(0, before.group())
    end = formulas[0].end()
    for formula in formulas[1:]:
        if not JOINS.fullmatch(line[end : formula.start()]):
            break
        values.append(next(filter(None, formula.groups())))
        end = formula.end()
    joined = JOINS.match(line, end)
    after = joined and NUMBER_AFTER.match(line, joined.end())
    return ", ".join(value.strip().rstrip(".*_ ") for value in [*values, *([after.group()] if after else [])])


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


def plain(answer: str) -> str:
    """The answer with its numbers in the form that math-verify reads: \\mathbf{1.6} is 1.6, 1\\,000 is 1000."""
    answer = PERCENT.sub(r"\\%", GROUPED.sub("", answer.replace("°", r"^{\circ}")))
    while answer != (changed := STYLED_NUMBER.sub(lambda m: m[1] + (rf" \text{{{m[2]}}}" if m[2] else ""), answer)):
        answer = changed
    ended = answer.rstrip(" \t\n.$")
    if "." in answer[len(ended) :]:  # the full stop of a sentence, in the box
        answer = ended
    # In LaTeX 1.3e-4 would be 1.3 times Euler's number minus 4, and -3./2 is not a number either.
    # Minerva has both.
    return SCIENTIFIC.sub(r"\1 \\times 10^{\2}", POINT.sub("", answer))


def parse(answer: str) -> list:
    """What math-verify reads: a sympy object and the text, only a text, or nothing."""
    from math_verify import LatexExtractionConfig, parse

    # No time limit here and in verify: math-verify's is an alarm, which waits for as long as a single
    # big-integer operation takes.
    return parse(
        rf"\boxed{{{plain(answer)}}}",
        [LatexExtractionConfig(try_extract_without_anchor=False)],
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=True,
    )


RELATIVE_TOLERANCE = 1e-6  # of the ground truth, where one of two numbers is a decimal


def same_numbers(gold, answer) -> bool:
    """Whether two sympy numbers are the same: exactly, or with a decimal to the tolerance or to six digits."""
    from sympy import Float

    gold, answer = gold.doit(), answer.doit()
    if not (gold.is_finite and answer.is_finite) or gold.is_Rational and answer.is_Rational:
        return bool(gold == answer)
    is_decimal = gold.has(Float) or answer.has(Float)
    # 30 digits of each, whatever its size: math-verify itself rounds to six places, and takes all tiny values for 0.
    gold, answer = gold.evalf(30), answer.evalf(30)
    if not is_decimal:
        return bool(abs(gold - answer) <= abs(gold) * Float("1e-20", 30))
    # Six digits in addition, so that 0.166667 is 1/6, from which it is 2e-6 of 1/6 away.
    return bool(abs(gold - answer) <= abs(gold) * RELATIVE_TOLERANCE) or str(gold.evalf(6)) == str(answer.evalf(6))


def compare_numbers_relatively() -> None:
    """Let math-verify compare numbers, those inside of lists, sets and intervals too, by `same_numbers`."""
    from math_verify import grader

    original = grader.sympy_numeric_eq
    if original.__name__ == "numeric_eq":
        return

    def numeric_eq(a, b, *precision):
        if all(getattr(value, "is_number", False) for value in (a, b)):
            return same_numbers(a, b)
        return original(a, b, *precision)

    grader.sympy_numeric_eq = numeric_eq


def grade_math(text: str, ground_truth: str) -> Grade:
    from math_verify import verify

    compare_numbers_relatively()
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
    # Where the answer is a percentage, its number alone is right too.
    golds = [gold, *([gold.rstrip("\\% ")] if gold.endswith("%") else [])]
    pairs = [pair for each in golds for pair in product(parse(each), parsed)]
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

SECONDS = 20  # after which a response's process is replaced, and the response counts as wrong
MEMORY = 4 * 2**30  # bytes of address space per process: sympy would write 10**10**9 out


def prepare_process() -> None:
    import math_verify  # noqa: F401  now, and not in the time of the first answer

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns about the time limits that are off
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def grade_all(responses: Iterable[tuple]) -> list[Grade]:
    """The grades of responses, each the arguments of `grade`, in their order; no response raises."""
    from pebble import ProcessPool

    workers = min(16, os.cpu_count() or 1)
    # spawn, because forking a process that holds CUDA or threads is not safe
    with ProcessPool(workers, initializer=prepare_process, context=get_context("spawn")) as pool:
        futures = [pool.schedule(grade, args=response, timeout=SECONDS) for response in responses]
        grades = []
        for future in futures:
            try:
                grades.append(future.result())
            except GraderTimeout:
                grades.append(Grade(None, False, "grader time-out"))
            except Exception:  # its own, or that its process died
                grades.append(Grade(None, False, "grader error"))
        return grades
