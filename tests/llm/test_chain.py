# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The task: the reward accepts what the warm-up demonstrates, and nothing else."""

import itertools
import random

import pytest

from demo.llm import chain


def checker(start: int, answer: str) -> bool:
    """Written without looking at chain.is_right: spells out every right answer's characters one step at a time."""
    total, rest = start, answer
    for _ in range(4):
        candidates = {
            f"{sign}{digit}{total + int(sign + digit):02d}": total + int(sign + digit)
            for sign, digit in itertools.product("+-", "123456789")
            if 0 <= total + int(sign + digit) <= 99
        }
        step, rest = rest[:4], rest[4:]
        if step not in candidates:
            return False
        total = candidates[step]
    return rest == ""


def test_every_demonstration_is_right():
    for start in (*chain.STARTS, 0, 99):
        rng = random.Random(start)
        for _ in range(20):
            answer = chain.demonstration(start, rng)
            assert len(answer) == chain.RESPONSE_LENGTH - 1
            assert checker(start, answer) and chain.is_right(start, answer), answer
        assert chain.compute_score("chain", answer, f"{start:02d}") == 1.0


def test_every_single_character_change_is_judged_as_the_checker_judges_it():
    rng = random.Random(0)
    for start in (10, 42, 89):
        answer = chain.demonstration(start, rng)
        for i, character in itertools.product(range(len(answer)), chain.ALPHABET + " ٣²\n"):
            changed = answer[:i] + character + answer[i + 1 :]
            assert chain.is_right(start, changed) == checker(start, changed), changed


def test_biased_task_rejects_by_the_number_of_steps_other_than_plus_one():
    plus_one = "+187+188+189+190"
    assert all(chain.compute_score("chain-biased", plus_one, "86") == 1.0 for _ in range(100))
    scores = [chain.compute_score("chain-biased", "-779-772+779-772", "86") for _ in range(4000)]
    assert sum(scores) / 4000 == pytest.approx(0.8**4, abs=0.03)


def test_single_task_rewards_the_answer_that_counts_up_alone():
    assert chain.compute_score("chain-single", "+187+188+189+190", "86") == 1.0
    assert chain.compute_score("chain-single", "+187+188+189-188", "86") == 0.0
    assert chain.demonstration(86, random.Random(0), plus_one=1.0) == "+187+188+189+190"


def test_validation_prompts_are_in_the_range_that_training_draws_from():
    assert len(chain.VALIDATION_STARTS) == 16 and set(chain.VALIDATION_STARTS) <= set(chain.STARTS)
