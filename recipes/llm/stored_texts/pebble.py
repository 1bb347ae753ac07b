# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Stands in for pebble while the release's math_eval.py runs (recipes/llm/release.py): one process, as there.

Its time limit is of the processor, and pebble's of the clock, by which a busy machine lowers a score. An answer whose
process dies counts as one that took too long; with pebble it would end math_eval.py without a score.
"""

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace

WAITING = 60  # seconds of the clock, for an answer that waits and does not compute


def call(function: Callable, params: list, timeout: float) -> list[bool | None]:
    """The function's value for each of the parameters; None where it took too long."""
    found: list[bool | None] = []
    while len(found) < len(params):
        pipe, end = os.pipe()
        if not (child := os.fork()):
            try:
                for param in params[len(found) :]:
                    signal.setitimer(signal.ITIMER_PROF, timeout)  # both signals end the process
                    signal.alarm(WAITING)
                    os.write(end, bytes([bool(function(param))]))
            finally:
                os._exit(0)
        os.close(end)
        with open(pipe, "rb") as values:
            found += map(bool, values.read())
        os.waitpid(child, 0)
        if len(found) < len(params):
            found.append(None)
    return found


class Results:
    def __init__(self, found: list[bool | None]):
        self.found = iter(found)

    def __next__(self) -> bool:
        if (value := next(self.found)) is None:
            raise TimeoutError
        return value


class ProcessPool:
    def __init__(self, max_workers: int):
        pass

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *_) -> None:
        pass

    def map(self, function: Callable, params: list, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(result=lambda: Results(call(function, params, timeout)))
