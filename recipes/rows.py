# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""At which steps a whole run has a row of its curves: a rule for each host of recipes/control."""

import math
import re
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from recipes.run_json import setting

# In steps. PPO ends with the episode in which it reaches its last step, and TD-MPC2 evaluates after one.
LONGEST_EPISODE = 1000


class Rows(NamedTuple):
    """The steps at which a whole run has a row, in order, and how many steps later each may come."""

    steps: Iterable[int]
    later: int = 0


def of_fasttd3(record: dict[str, Any], total: int, column: str = "") -> Rows:
    """One for every 100 steps, once it trains and measures its speed; some of them have an evaluation."""
    first = setting(record, "learning_starts", 10) + max(1, setting(record, "measure_burnin", 3))
    steps = range(math.ceil(first / 100) * 100, total, 100)
    if not column.startswith("eval_"):
        return Rows(steps)
    every = setting(record, "eval_interval", 5000)
    return Rows(step for step in steps if every and step % every == 0)


def of_ppo(record: dict[str, Any], total: int, column: str = "") -> Rows:
    every = setting(record, "evaluate_freq", 5000)
    return Rows(range(every, total + 1, every))


def of_sac(record: dict[str, Any], total: int, column: str = "") -> Rows:
    """One for each evaluation, the last one at the end."""
    every = setting(record, "eval_every", 5000)
    return Rows(chain(range(every, total, every), [total]))


def of_tdmpc2(record: dict[str, Any], total: int, column: str = "") -> Rows:
    """One for each evaluation, which waits for the end of an episode; where episodes may end early, for an unknown
    number of steps."""
    evaluations = range(0, total + 1, setting(record, "eval_freq", 50_000))
    if length := record.get("episode_length"):
        ends = (math.ceil(step / length) * length for step in evaluations)
        return Rows(step for step in ends if step <= total)
    return Rows((step for step in evaluations if step <= total - LONGEST_EPISODE), LONGEST_EPISODE)


# By the host in run.json.
RULES: dict[str, Callable[[dict[str, Any], int, str], Rows]] = {
    "fasttd3": of_fasttd3,
    "ppo": of_ppo,
    "sac": of_sac,
    "tdmpc2": of_tdmpc2,
}


def expected_rows(record: dict[str, Any], total: int, column: str = "") -> Rows:
    """The rows of a whole run, or those with a value in the column: by the rule of its host, else one for every step
    behind the one that its command resumes from, as verl's stage 2 does from stage 1.

    Args:
        record: the run's run.json, which has its settings or the command that has them.
        total: the steps that were asked for.
    """
    if record.get("host") in RULES:
        return RULES[record["host"]](record, total, column)
    command = "\n".join(map(str, record.get("command") or []))
    before = re.findall(r"resume_from_path=.*global_step_([0-9]+)", command)
    return Rows(range(1 + int(before[-1]) if before else 1, total + 1))
