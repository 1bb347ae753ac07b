# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What a run is worth beside another one that is stopped earlier: where that has the same reward, or the same H_resp.

A training moves along a curve from much entropy and little reward to little entropy and much reward, and a method that
only slows it down ends on the same curve. So a run's end is compared with a point on the rival's curve of the same
seed. Curves are those of records/, and every number is a mean over WINDOW updates.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from era.language import KEPT_WITHIN
from rivals import records

WINDOW = 15  # updates: three rows of curves.csv, without the noise of which no point could be found
STRETCH = 20  # updates of the worst stretch below a bound
REWARD, ENTROPY = "reward", "response_entropy"


def smoothed(curve: pd.DataFrame) -> pd.DataFrame:
    """Means over the WINDOW updates up to each row's, by step; shorter ones at the beginning are left out."""
    rows = WINDOW // records.ROW_STEPS
    return curve.set_index("step").sort_index().rolling(rows).mean().iloc[rows - 1 :]


def stopped(rival: pd.DataFrame, end: pd.Series, equal: str) -> pd.Series:
    """The point of the rival's curve at which it has what the other run has at its end.

    With equal = REWARD this is where it first has that reward; all NaN if it never has it. With ENTROPY it is where
    it last has that H_resp, which is its own end if it still has more, so that a rival that holds an entropy may go on
    learning there; all NaN if it never has as much. Linear between the two rows around the point.

    Args:
        rival: as `smoothed` returns it.
        end: the last row of the other run's.
        equal: REWARD or ENTROPY.

    Returns:
        A value for each column, and `step`.
    """
    points = rival.reset_index()
    has_it = np.flatnonzero(points[equal] >= end[equal])
    if not len(has_it):
        return points.iloc[0] * np.nan
    inside = has_it[0] if equal == REWARD else has_it[-1]
    outside = inside - 1 if equal == REWARD else inside + 1
    if not 0 <= outside < len(points):
        return points.iloc[inside]
    one, other = points.iloc[inside], points.iloc[outside]
    share = (one[equal] - end[equal]) / (one[equal] - other[equal])
    return one + share * (other - one)


def differences(run: pd.DataFrame, rival: pd.DataFrame, equal: str) -> pd.Series:
    """The run's end minus the rival where that is stopped, by column; and `step`, at which it is stopped."""
    curve, of_rival = smoothed(run), smoothed(rival)
    end = curve.iloc[-1]
    at = stopped(of_rival, end, equal)
    return pd.concat([end - at[curve.columns], at[["step"]]])


def reward_at_end(host: str, run: tuple[str, str, str, int]) -> float:
    """The reward with which a recorded run ends. host: "llm" or "trl"; run: its KEY. KeyError if it is not recorded."""
    known = records.read(f"{host}/curves").set_index(records.KEY).sort_index()
    return smoothed(known.loc[[run]])[REWARD].iloc[-1]


def middle_update(rewards: Sequence[float], reward: float) -> int | None:
    """The update in the middle of the first WINDOW ones whose mean reward is at least `reward`; None if it never is."""
    reached = np.flatnonzero(pd.Series(rewards).rolling(WINDOW).mean() >= reward)
    return int(reached[0]) + 1 - WINDOW // 2 if len(reached) else None


def shortfall(run: pd.DataFrame, bound: float) -> dict[str, float]:
    """How far H_resp was below the bound from the row on in which it first was at most that; all NaN if it never was.

    Returns:
        "mean", of what was lacking in each row, 0 where nothing was; "worst", of the mean H_resp over STRETCH updates,
        negative where that never fell below the bound. Nats.
    """
    entropy = run.set_index("step").sort_index()[ENTROPY]
    reached = np.flatnonzero(entropy <= bound)
    if not len(reached):
        return {"mean": np.nan, "worst": np.nan}
    lacking = bound - entropy.iloc[reached[0] :]
    rows = min(STRETCH // records.ROW_STEPS, len(lacking))
    return {"mean": lacking.clip(lower=0).mean(), "worst": lacking.rolling(rows).mean().max()}


def kept(run: pd.DataFrame, last: float, bound: float) -> bool:
    """Whether a run kept its bound: it lacked at most KEPT_WITHIN in its last 10 updates and in its worst stretch.

    Args:
        last: mean H_resp of the last 10 updates, in nats.
    """
    lacking = max(bound - last, np.nan_to_num(shortfall(run, bound)["worst"]))
    return lacking <= KEPT_WITHIN
