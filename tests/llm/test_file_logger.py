"""verl/utils/file_logger.py by itself and behind verl's real Tracking. test_scripts.py kills a run that writes it."""

import decimal
import fractions
import json
import math
import os

import numpy as np
import pytest
import torch


@pytest.fixture
def FileLogger(import_verl, monkeypatch):
    monkeypatch.delenv("VERL_FILE_LOGGER_PATH", raising=False)
    monkeypatch.delenv("VERL_FILE_LOGGER_ROOT", raising=False)
    from verl.utils.file_logger import FileLogger

    return FileLogger


@pytest.fixture
def file(tmp_path, monkeypatch, FileLogger):
    """Where the logger writes; its folder does not exist yet."""
    path = tmp_path / "runs" / "new folder" / "metrics.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    return path


def no_constants(name):
    raise AssertionError(f"{name} is not JSON")


def lines_of(file):
    """Every line by strict JSON: Python's own reader would accept NaN."""
    text = file.read_bytes().decode("ascii")
    assert not text or text.endswith("\n")
    return [json.loads(line, parse_constant=no_constants) for line in text.splitlines()]


def test_lines_are_steps_and_are_flushed(FileLogger, file):
    logger = FileLogger("project", "experiment")
    assert file.read_bytes() == b""
    logger.log({"actor/pg_loss": 0.1, "critic/score/mean": 0.5}, step=0)
    assert lines_of(file) == [{"step": 0, "data": {"actor/pg_loss": 0.1, "critic/score/mean": 0.5}}]
    logger.log(data={}, step=np.int64(1))
    logger.log({"x": 2.0}, torch.tensor(2))
    assert lines_of(file)[1:] == [{"step": 1, "data": {}}, {"step": 2, "data": {"x": 2.0}}]


NO_NUMBERS = [math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.inf), decimal.Decimal("NaN")]
NUMBERS = [
    *((3, 3.0), (True, 1.0), (0.1, 0.1), (decimal.Decimal("0.25"), 0.25), (fractions.Fraction(1, 4), 0.25)),
    *((np.float32(0.1), float(np.float32(0.1))), (np.float16(0.1), float(np.float16(0.1))), (np.float64(0.1), 0.1)),
    *((np.int64(-7), -7.0), (np.bool_(False), 0.0), (np.array(2.5), 2.5), (torch.tensor(1.5), 1.5)),
    (torch.tensor(0.1, dtype=torch.bfloat16), torch.tensor(0.1, dtype=torch.bfloat16).item()),
    *((torch.tensor(4), 4.0), (torch.tensor(1.5, requires_grad=True), 1.5)),
]


def test_numbers_of_any_kind_become_floats_and_what_json_cannot_hold_null(FileLogger, file):
    logger = FileLogger("p", "e")
    logger.log({str(i): value for i, (value, _) in enumerate(NUMBERS)}, 1)
    logger.log({str(i): value for i, value in enumerate(NO_NUMBERS)}, 2)
    numbers, nulls = (list(line["data"].values()) for line in lines_of(file))
    assert numbers == [number for _, number in NUMBERS] and all(type(value) is float for value in numbers)
    assert set(nulls) == {None}


def test_other_values_are_kept_as_strings(FileLogger, file):
    values = {
        "text": "0.5",
        "bytes": b"1",
        "unicode": "π\ud800\n",
        "none": None,
        "list": [1, 2],
        "vector": torch.ones(2),
    }
    values |= {"array": np.ones(2), "complex": 1j, "huge": 10**400}
    FileLogger("p", "e").log({**values, 7: 1.0}, 1)
    data = lines_of(file)[0]["data"]
    assert data.pop("7") == 1.0
    assert data == {name: str(value) for name, value in values.items()}


def test_a_resumed_run_continues_the_file(FileLogger, file):
    for steps in ([1, 2, 3], [3, 4]):
        logger = FileLogger("p", "e")
        for step in steps:
            logger.log({"run": steps[0]}, step)
    assert [(line["step"], line["data"]["run"]) for line in lines_of(file)] == [(1, 1), (2, 1), (3, 1), (3, 3), (4, 3)]


LINE = b'{"step": 2, "data": {"a": 0.25, "b": "x"}}'


@pytest.mark.parametrize("before", [b'{"step": 1, "data": {"a": 0.5}}\n', b""])
def test_a_half_written_last_line_is_mended(FileLogger, file, before):
    file.parent.mkdir(parents=True)
    for length in range(len(LINE) + 1):
        file.write_bytes(before + LINE[:length])
        FileLogger("p", "e").log({"a": 1}, 2)
        complete = [json.loads(LINE)] if length == len(LINE) else []
        first = [json.loads(before)] if before else []
        assert lines_of(file) == [*first, *complete, {"step": 2, "data": {"a": 1.0}}]


def test_where_the_file_is(FileLogger, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert FileLogger("project", "experiment").path == tmp_path / "project/experiment.jsonl"
    assert f"Appending metrics to {tmp_path / 'project/experiment.jsonl'}" in capsys.readouterr().out
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", "~/logs")
    assert FileLogger("project", "team/experiment").path == tmp_path / "home/logs/project/team/experiment.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "~/one.jsonl")
    assert FileLogger("project", "experiment").path == tmp_path / "home/one.jsonl"
    assert (tmp_path / "home/one.jsonl").is_file()


def test_a_path_that_cannot_be_written_fails_at_start(FileLogger, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path, tmp_path / "file/metrics.jsonl"):
        monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
        with pytest.raises(OSError) as error:
            FileLogger("p", "e")
        said = str(error.value)
        assert f"The metrics file {path} cannot be written: " in said and "VERL_FILE_LOGGER_PATH" in said
    assert (tmp_path / "file").read_text() == "precious"


def test_a_full_disk_is_not_silent(FileLogger, monkeypatch):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "/dev/full")
    with pytest.raises(OSError):
        FileLogger("p", "e").log({"a": 1}, 1)


def test_behind_verls_tracking(FileLogger, file):
    from verl.utils.tracking import Tracking

    tracking = Tracking("project", "experiment", default_backend=["console", "file"], config={"trainer": {}})
    tracking.log(data={"a": torch.tensor(1.0)}, step=1)
    tracking.log(data={"a": 2.0}, step=2, backend=["console"])
    tracking.log(data={"a": 3.0}, step=3, backend=["file"])
    assert [(line["step"], line["data"]["a"]) for line in lines_of(file)] == [(1, 1.0), (3, 3.0)]
