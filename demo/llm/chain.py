# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The task "chain": each prompt has very many right answers, none better than another.

The prompt is a number, `86=`. A right answer is four steps `<op><digit 1-9><two-digit running total>` whose totals
are all right, such as `-779-772+779-772`: up to 18^4 of them per prompt. The reward is 1 for a right answer, else 0;
TASKS has variants of that.

The warm-up learns the demonstrations of this file, and verl loads `compute_score` from it by its path
(`custom_reward_function.path`): standard library only.
"""

import random
import re
from dataclasses import dataclass

STEPS = 4
PROMPT_LENGTH = len("86=")
RESPONSE_LENGTH = 4 * STEPS + 1  # characters of an answer and the end-of-sequence token
ALPHABET = "0123456789+-="
STARTS = range(10, 90)
VALIDATION_STARTS = range(11, 89, 5)  # 16 prompts


@dataclass(frozen=True)
class Task:
    """A variant of the chain task.

    rejection: the probability with which each step other than "+1" gets a right answer rejected.
    plus_one: the share of the warm-up's steps that are "+1" on purpose.
    goal: the totals that an answer may end with; None for any.
    learning_rate: of the demo; where few answers are rewarded at first, 5e-4 unlearns the format.
    omega_low: 0.3 x the response entropy after the warm-up, in nats: the paper's rule, fixed before training.
    """

    rejection: float = 0.0
    plus_one: float = 0.0
    goal: range | None = None
    learning_rate: float = 5e-4
    omega_low: float = 0.66


TASKS = {
    "chain": Task(),
    # the reward favours low entropy: the more steps are "+1", the likelier it is
    "chain-biased": Task(rejection=0.2),
    # one rewarded answer per prompt, the one that counts up
    "chain-single": Task(rejection=1.0, plus_one=0.8, omega_low=0.34),
    # from a start far from the goal only few answers reach it, and the warm-up hardly ever samples one
    "chain-goal": Task(goal=range(45, 55), learning_rate=2.5e-4),
}

_STEP = re.compile(r"([+-])([1-9])([0-9]{2})")
_rejections = random.Random(0)


def prompt(start: int) -> str:
    return f"{start:02d}="


def demonstration(start: int, rng: random.Random, plus_one: float = 0.0) -> str:
    """A right answer. Its steps are drawn uniformly, except for a share of "+1", and keep the totals within 0..99."""
    total, steps = start, []
    for _ in range(STEPS):
        digit, sign = (1, 1) if plus_one and rng.random() < plus_one else (rng.randint(1, 9), rng.choice((1, -1)))
        if not 0 <= total + sign * digit <= 99:
            sign = -sign
        total += sign * digit
        steps.append(f"{'+' if sign > 0 else '-'}{digit}{total:02d}")
    return "".join(steps)


def start_of(prompt: str) -> int:
    return int(prompt.removesuffix("="))


def is_right(start: int, answer: str, goal: range | None = None) -> bool:
    if len(answer) != 4 * STEPS:
        return False
    total = start
    for i in range(0, len(answer), 4):
        step = _STEP.fullmatch(answer, i, i + 4)
        if step is None:
            return False
        total += int(step[2]) if step[1] == "+" else -int(step[2])
        if total != int(step[3]):
            return False
    return goal is None or total in goal


def other_steps(answer: str) -> int:
    """How many steps of a right answer are not "+1"."""
    return sum(answer[i : i + 2] != "+1" for i in range(0, len(answer), 4))


def survives_rejection(answer: str, rejection: float, rng: random.Random) -> bool:
    """Whether none of the steps other than "+1" draws a rejection."""
    return all(rng.random() >= rejection for _ in range(other_steps(answer)))


def expected_reward(start: int, answer: str, task: Task) -> float:
    """The mean of `compute_score` over its rejections."""
    return (1 - task.rejection) ** other_steps(answer) if is_right(start, answer, task.goal) else 0.0


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's reward function. `data_source` is the task's name, `ground_truth` the start value."""
    task = TASKS[data_source]
    right = is_right(int(ground_truth), solution_str, task.goal)
    return float(right and survives_rejection(solution_str, task.rejection, _rejections))
