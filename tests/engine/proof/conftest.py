"""The engine under fire: `make test-all` runs the short form, `make test-engine` the long one (ERA_PROOF=long)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from scenes import World
from supervisor import why_not
from tally import LONG, Tally

RESULTS = os.environ.get("ERA_PROOF_RESULTS")  # a folder for the counts


@pytest.fixture(scope="session")
def scale():
    """scale(short, long): how many cases this run tries."""
    return lambda short, long: long if LONG else short


@pytest.fixture(scope="session")
def tally() -> Tally:
    return Tally(Path(RESULTS) if RESULTS else None)


@pytest.fixture(autouse=True)
def timed(request, tally):
    """Each test file of the proof names its part in PART."""
    start = time.monotonic()
    yield
    tally.seconds(request.module.PART, time.monotonic() - start)


@pytest.fixture
def world(project, request):
    """A scene (the parameter) that can be shot at again and again."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = World(project, request.param)
    yield made
    made.close()
