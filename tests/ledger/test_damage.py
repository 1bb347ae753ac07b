# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Damaged folders of results: each is at most a line of the report, and counts only if its content still is the run's.

The damages are random, seeded by their number, on records/ and on made-up runs of the other formats."""

import functools
import json
import os
import random
import shutil
import signal
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import synthetic

from ledger import report, results
from ledger.paper import ROOT
from ledger.verdicts import Judged

EACH = 400  # damages of a batch
SECONDS = 300  # of a batch, before it counts as hanging: it takes a few
RECORDS = ("ppo-seed1", "ppo-seed4", "ppo_era-seed1", "ppo_era-seed5")
OTHERS = ("alpha/HalfCheetah-v4-sac-seed1", "obac/HalfCheetah-v4-obac-seed2")
CELLS = ("", "nan", "-inf", "1e308", "-1e400", "0x10", "1_0", "\u0663", "true", "[1]", "1e-320", "1.5.2", "--3", " ")
STEPS = ("9" * 20, "-5000", "5000.0", "", "1e6", "\uff15\uff10", "true", "nan", "5" * 5000)
VALUES = (None, 5, -1, True, "x", "1", [], ["\x1b[2J"], {}, {"a": [1]}, 1e308, 10**30, 0.5, [[]], "\ud800")
NAMES = (
    "my\nrun",
    "\x1b[31m-seed1",
    "# h",
    "![a](b.png)",
    "a|b",
    "x" * 200,
    "-rf",
    "\udcff\udcfe-seed2",
    ".hidden",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Whole runs. The records twice as often as the others, and some with fewer metrics, to be fast."""
    made = tmp_path_factory.mktemp("whole")
    found = [ROOT / f"records/control-ppo/HalfCheetah-v4-{name}" for name in RECORDS for _ in range(3)]
    found.append(synthetic.timm_run(made / "imagenet-seed42", task="imagenet", seed=42))
    found.append(synthetic.timm_run(made / "time/cifar10-aug-seed42", epochs=3, total=3, task="cifar10", seed=42))
    walk = {"task": "h1hand-walk-v0", "agent": "fasttd3", "seed": 1}
    found.append(synthetic.fasttd3_run(made / "h1hand-walk-v0-fasttd3-seed1", **walk))
    found.append(synthetic.evaluation(made / "grpo_qwen2.5_math_7b-pass", ["aime24", "aime25"], samples=64))
    found.append(synthetic.verl_run(made / "era_no_top_k_qwen2.5_math_7b-seed1", range(1, 601), seed=1))
    return found


# --------------------------------------------------------------------------------------------------------- the damages


def in_bytes(draw: random.Random, data: bytes) -> bytes:
    """Changed, added, lost, exchanged or repeated somewhere, a few or many."""
    at, size = draw.randrange(len(data)), int(2 ** draw.uniform(0, 14))
    some = (
        draw.randbytes(size) if draw.random() < 0.5 else draw.choice((b"\0", b",", b"\n", b"9", b"\xff", b"[")) * size
    )
    end = min(len(data), at + size)
    other = draw.randrange(len(data))
    return draw.choice(
        (
            data[:at] + some + data[end:],
            data[:at] + some + data[at:],
            data[:at] + data[end:],
            data[:at],
            data[at:],
            data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :],
            data[:at] + data[other : other + size] + data[at:],
            b"\xef\xbb\xbf" + data,
            data.decode().encode("utf-16"),
            data.replace(b"\n", b"\r\n"),
            b"",
        )
    )


def in_lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.decode().splitlines(keepends=True)
    kept = [line for line in lines if draw.random() < draw.choice((0.02, 0.5, 0.99))]
    one, other = sorted(draw.choices(range(len(lines)), k=2))
    shuffled = draw.sample(lines, len(lines))
    choices = (kept, lines[:one], lines[other:], lines[:one] + lines[other:], lines[:other] + lines[one:], shuffled)
    choices += (lines[1:], [lines[0], lines[one]], lines + lines[one:other], lines[:one] + ["\n"] + lines[one:])
    return "".join(draw.choice(choices)).encode()


def in_cells(draw: random.Random, data: bytes) -> bytes:
    """Of a csv; of a line of JSON the same characters are replaced."""
    lines = [line.split(",") for line in data.decode().splitlines()]
    for _ in range(draw.choice((1, 1, 1, 3, 300))):
        row = draw.choice(lines)
        column = draw.randrange(len(row))
        row[column] = draw.choice(STEPS if column == 0 else CELLS)
    if draw.random() < 0.1:
        lines[0][draw.randrange(len(lines[0]))] = draw.choice(
            ("eval_avg_returm", "eval_avg_return", "", "eval_top1", "\x1b")
        )
    if draw.random() < 0.1:
        column = draw.randrange(len(lines[0]))
        lines = [row[:column] + row[column + 1 :] for row in lines]
    return "\n".join(map(",".join, lines)).encode() + b"\n"


def in_fields(draw: random.Random, data: bytes) -> bytes:
    """Of JSON: another type or value, another name, twice, not there, deep, NaN."""
    line, *others = data.splitlines(keepends=True) if data.startswith(b'{"step') else [data]
    found = json.loads(line)
    inside = found
    while draw.random() < 0.7 and (deeper := [v for v in inside.values() if isinstance(v, dict) and v]):
        inside = draw.choice(deeper)
    key = draw.choice(list(inside))
    way = draw.randrange(6)
    if way < 3:
        inside[key] = draw.choice(VALUES)
    elif way == 3:
        inside[draw.choice(("", "x", key.upper(), "\n# h"))] = inside.pop(key)
    elif way == 4:
        del inside[key]
    text = json.dumps(found)
    if way == 5:
        again = draw.choice(
            ('"finished": false', '"seed": 7', "1", '"a": NaN', "[" * 100_000, '"step": 3', '"benchmarks": {}')
        )
        text = text[:-1] + ", " + again + "}"
    return b"".join([text.encode(), b"\n" if others else b"", *others])


def in_file(draw: random.Random, file: Path) -> None:
    """Something else in its place."""
    file.unlink()
    way = draw.randrange(7)
    if way == 0:
        os.mkfifo(file)
    elif way == 1:
        file.mkdir()
    elif way == 2:
        file.symlink_to(draw.choice((file.name, "/dev/zero", "nowhere", "/dev/null", "..")))
    elif way == 3:
        os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 2**40)  # a hole, which takes no space
    elif way == 4:
        file.write_bytes(draw.randbytes(1000))
    elif way == 5:
        file.symlink_to(file.parent / "run.json")
    # else there is none


def damage(draw: random.Random, folder: Path) -> Path:
    """Returns the folder, which may have another name then."""
    files = [file for file in folder.iterdir() if file.name in (*results.READERS, "run.json", "log.txt")]
    file, way = draw.choice(files), draw.randrange(12)
    of_text = in_fields if file.suffix.startswith(".json") else in_cells
    if way < 9:
        change = (in_bytes, in_lines, of_text)[way % 3]
        file.write_bytes(change(draw, file.read_bytes()))
    elif way == 9:
        in_file(draw, file)
    elif way == 10:  # another run's
        shutil.copy(ROOT / "records" / draw.choice(OTHERS) / draw.choice(("run.json", "train.csv")), file)
    else:
        name = draw.choice((*NAMES, folder.name[:-1] + "9", folder.name + "0", "Hopper-v4-ppo-seed1", "cifar10-seed42"))
        return folder.rename(folder.parent / name)
    return folder


# ---------------------------------------------------------------------------------------------------------- what counts


class Hangs(BaseException):
    """Not an Exception, which would be a line of the report."""


@contextmanager
def no_longer_than(seconds: int):
    def end(*_):
        raise Hangs(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def same(one, other) -> bool:
    """Digits apart: the same steps, numbers that a run can have, and nearly all of these unchanged."""
    if (one.name, one.seed) != (other.name, other.seed) or one.total != other.total and not one.is_evaluation:
        return False
    for metric, curve in one.curves.items():
        before = other.curves[metric]
        if not (curve.index.equals(before.index) and (curve.abs() < 3.5e38).all()):
            return False
        if (curve != before).sum() > max(1, 0.02 * len(curve)):
            return False
    shares = [value for name, value in one.values.items() if "second" not in name and "step" not in name]
    return all(np.isfinite(value) for value in one.values.values()) and all(0 <= share <= 100 for share in shares)


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_a_damaged_folder_is_a_line_and_counts_only_as_the_run_that_it_was(paper, runs, tmp_path, say, batch):
    outcomes: Counter[str] = Counter()
    whole = functools.cache(lambda run: next(results.read_folder(run, paper)))
    with no_longer_than(SECONDS):
        for number in range(batch * EACH, (batch + 1) * EACH):
            draw = random.Random(number)
            run = draw.choice(runs)
            at = (
                tmp_path / str(number) / run.relative_to(run.parent.parent if run.parent.name == "time" else run.parent)
            )
            folder = damage(draw, Path(shutil.copytree(run, at)))
            found = results.collect(paper, [tmp_path / str(number)])
            assert len(found) <= 1, (number, found)
            if not found:  # another name, or no file of metrics
                outcomes["of no run of the paper's"] += 1
                assert folder.name != run.name or not results.READERS.keys() & set(os.listdir(folder)), number
            elif found[0].why:
                outcomes["named"] += 1
            else:
                assert found[0].finished and same(found[0], whole(run)), (
                    number,
                    run.name,
                    found[0].name,
                    found[0].values,
                    whole(run).values,
                )
                unchanged = all(curve.equals(whole(run).curves[name]) for name, curve in found[0].curves.items())
                outcomes["counted, as it was" if unchanged else "counted, with other digits"] += 1
        judged = Judged(paper, results.collect(paper, [tmp_path], ROOT / "records"))
        page = report.write(judged, tmp_path / "results/report")
    text = page.read_text() + (tmp_path / "results/report/report.md").read_text()
    assert all(c.isprintable() or c in "\n\t\u00a0" for c in text) and 'src="http' not in page.read_text()
    say(
        f"damages {batch * EACH} to {(batch + 1) * EACH - 1}: "
        + ", ".join(f"{n} {words}" for words, n in outcomes.most_common())
    )
