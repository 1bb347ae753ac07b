# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl/utils/file_logger.py behind verl's real Tracking. test_scripts.py kills a run that writes it."""

import decimal
import json
import math

import numpy as np
import pytest
import torch

NO_NUMBERS = [math.nan, -math.inf, torch.tensor(math.inf)]
NUMBERS = [(3, 3.0), (decimal.Decimal("0.25"), 0.25), (np.float32(0.1), float(np.float32(0.1))), (np.array(2.5), 2.5)]
NUMBERS += [(torch.tensor(1.5, dtype=torch.bfloat16, requires_grad=True), 1.5)]
OTHERS = ["0.5", b"1", "π\ud800\n", None, torch.ones(2), 10**400]


@pytest.fixture
def tracking(import_verl, tmp_path, monkeypatch):
    """Makes verl's Tracking with the backend, whose file is in a folder that does not exist yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", "runs")
    from verl.utils.tracking import Tracking

    return lambda: Tracking("project", "team/run", default_backend=["console", "file"], config={"trainer": {}})


def lines_of(file):
    """Every line by strict JSON: Python's own reader would accept NaN."""
    text = file.read_bytes().decode("ascii")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def test_lines_are_steps_that_are_flushed_and_continued(tracking, tmp_path, monkeypatch):
    file = tmp_path / "runs/project/team/run.jsonl"
    for first in (1, 2):  # the second resumes the first
        logger = tracking()
        for step in (first, first + 1):
            logger.log({"run": torch.tensor(first)}, torch.tensor(step))
    logger.log({"run": 9.0}, 9, backend=["console"])
    assert lines_of(file) == [{"step": s, "data": {"run": r}} for s, r in ((1, 1.0), (2, 1.0), (2, 2.0), (3, 2.0))]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "~/one.jsonl")
    tracking().log({}, np.int64(0))
    assert lines_of(tmp_path / "one.jsonl") == [{"step": 0, "data": {}}]


def test_line_that_a_killed_run_left_unfinished_stands_alone(tracking, tmp_path):
    tracking().log({"run": 1}, 1)
    file = tmp_path / "runs/project/team/run.jsonl"
    with file.open("a") as unfinished:
        unfinished.write('{"step": 2, "da')
    tracking().log({"run": 2}, 2)
    first, half, resumed = file.read_text().splitlines()
    assert half == '{"step": 2, "da' and [json.loads(line)["step"] for line in (first, resumed)] == [1, 2]


def test_values_become_floats_null_or_strings(tracking, tmp_path):
    values = [*NO_NUMBERS, *(value for value, _ in NUMBERS), *OTHERS]
    tracking().log(dict(enumerate(values)), 1, backend=["file"])  # the console formats no decimals
    (line,) = lines_of(tmp_path / "runs/project/team/run.jsonl")
    assert list(line["data"]) == [str(i) for i in range(len(values))]
    expected = [None] * len(NO_NUMBERS) + [number for _, number in NUMBERS] + list(map(str, OTHERS))
    assert list(line["data"].values()) == expected


def test_a_place_that_cannot_be_written_is_not_silent(tracking, monkeypatch):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "/dev/full")
    with pytest.raises(OSError):
        tracking().log({"a": 1}, 1)
