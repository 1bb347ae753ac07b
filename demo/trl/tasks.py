# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Arithmetic in words: a task whose prompts have many right answers, and one whose prompts have a single one."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

Question = tuple[int, ...]
VALIDATION_PROMPTS = 16


@dataclass(frozen=True)
class Task:
    """Questions, and what is right.

    Attributes:
        questions: all of them, each the numbers that its prompt has.
        words: the prompt, with these numbers.
        is_right: whether an answer, the whole text up to the end-of-sequence token, is right for a question.
        demonstration: draws a right answer; all are equally likely.
        length: tokens of the longest right answer, with the end of sequence.
        warm_up_updates: the number of supervised updates after which some three in ten answers are right.
    """

    questions: tuple[Question, ...]
    words: str
    is_right: Callable[[Question, str], bool]
    demonstration: Callable[[Question, random.Random], str]
    length: int
    warm_up_updates: int

    def prompt(self, question: Question) -> str:
        return self.words.format(*question)

    def question_of(self, prompt: str) -> Question:
        pattern = re.escape(self.words).replace(r"\{\}", r"(\d+)")
        return tuple(map(int, re.fullmatch(pattern, prompt).groups()))

    @property
    def validation(self) -> list[Question]:
        """The 16 questions that the final weights are asked."""
        return random.Random(0).sample(self.questions, VALIDATION_PROMPTS)


def _is_pair(question: Question, answer: str, least: int = 0) -> bool:
    match = re.fullmatch(r"(0|[1-9][0-9]*) \+ (0|[1-9][0-9]*)", answer)  # a padded 07 is not another answer
    summands = [int(number) for number in match.groups()] if match else [-1]
    return min(summands) >= least and sum(summands) == question[0]


def _pair(question: Question, rng: random.Random, least: int = 1) -> str:
    first = rng.randint(least, question[0] - least)
    return f"{first} + {question[0] - first}"


TASKS = {
    # 6 to 21 right answers, in which the first number is free
    "pairs": Task(
        questions=tuple((total,) for total in range(5, 21)),
        words="Two whole numbers whose sum is {}: ",
        is_right=_is_pair,
        demonstration=_pair,
        length=7,
        warm_up_updates=25,
    ),
    # 11 to 50 right answers; harder, for a reward between .3 and .9 (docs/rivals/trl.md)
    "pairs50": Task(
        questions=tuple((total,) for total in range(20, 60)),
        words="Two whole numbers from 5 on whose sum is {}: ",
        is_right=partial(_is_pair, least=5),
        demonstration=partial(_pair, least=5),
        length=7,
        warm_up_updates=60,
    ),
    "sums": Task(
        questions=tuple((a, b) for a in range(1, 11) for b in range(1, 11)),
        words="The sum of {} and {}: ",
        is_right=lambda question, answer: answer == str(sum(question)),
        demonstration=lambda question, rng: str(sum(question)),
        length=3,
        warm_up_updates=7,
    ),
}


def right_answers(task: Task, prompts: Sequence[str], answers: Sequence[str]) -> dict[str, list[str | None]]:
    """The answers to each prompt, None for those that are wrong."""
    right = {prompt: [] for prompt in prompts}
    for prompt, answer in zip(prompts, answers):
        right[prompt].append(answer if task.is_right(task.question_of(prompt), answer) else None)
    return right
