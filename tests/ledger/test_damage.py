# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Damaged folders of results: each is at most a line of the report, and counts only if it still is the run that it was.

The damages are what a kill, a full disk, a power cut and an interrupted copy leave: random, seeded by their number, on
records/ and on made-up runs of the other formats."""

import functools
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import synthetic

from ledger import report, results
from ledger.paper import ROOT
from ledger.verdicts import Judged

EACH = 200  # damages of a batch
RECORDS = ("ppo-seed1", "ppo-seed4", "ppo_era-seed1", "ppo_era-seed5")
OTHERS = ("alpha/HalfCheetah-v4-sac-seed1", "obac/HalfCheetah-v4-obac-seed2")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Whole runs. Some have fewer metrics, to be fast."""
    made = tmp_path_factory.mktemp("whole")
    found = [ROOT / f"records/control-ppo/HalfCheetah-v4-{name}" for name in RECORDS for _ in range(3)]
    found.append(synthetic.timm_run(made / "imagenet-seed42", task="imagenet", seed=42))
    found.append(synthetic.timm_run(made / "time/cifar10-aug-seed42", epochs=3, total=3, task="cifar10", seed=42))
    walk = {"task": "h1hand-walk-v0", "agent": "fasttd3", "seed": 1}
    found.append(synthetic.fasttd3_run(made / "h1hand-walk-v0-fasttd3-seed1", **walk))
    found.append(synthetic.evaluation(made / "grpo_qwen2.5_math_7b-pass", ["aime24", "aime25"], samples=64))
    found.append(synthetic.verl_run(made / "era_no_top_k_qwen2.5_math_7b-seed1", range(1, 601), seed=1))
    return found


def in_bytes(draw: random.Random, data: bytes) -> bytes:
    """Cut at an end, with a block lost or full of zeros, or nothing at all."""
    at, size = draw.randrange(len(data)), int(2 ** draw.uniform(0, 14))
    end = min(len(data), at + size)
    return draw.choice((data[:at], data[at:], data[:at] + data[end:], data[:at] + bytes(end - at) + data[end:], b""))


def in_lines(draw: random.Random, data: bytes) -> bytes:
    """Lines lost or repeated, or an earlier part with a later one behind it."""
    lines = data.decode().splitlines(keepends=True)
    kept = [line for line in lines if draw.random() < draw.choice((0.02, 0.5, 0.99))]
    one, other = sorted(draw.choices(range(len(lines)), k=2))
    choices = (kept, lines[:one], lines[other:], lines[:one] + lines[other:], lines[:other] + lines[one:])
    return "".join(draw.choice(choices)).encode()


def damage(draw: random.Random, folder: Path) -> None:
    files = [file for file in folder.iterdir() if file.name in (*results.READERS, "run.json", "log.txt")]
    file, way = draw.choice(files), draw.randrange(10)
    if way < 8:
        change = (in_bytes, in_lines)[way % 2]
        file.write_bytes(change(draw, file.read_bytes()))
    elif way == 8:
        file.unlink()
    else:  # a copy into the wrong folder
        shutil.copy(ROOT / "records" / draw.choice(OTHERS) / draw.choice(("run.json", "train.csv")), file)


def same(one: results.Result, other: results.Result) -> bool:
    """The same steps, and nearly all values unchanged: a digit that was lost cannot be seen."""
    if (one.name, one.seed) != (other.name, other.seed) or one.total != other.total and not one.is_evaluation:
        return False
    for metric, curve in one.curves.items():
        before = other.curves[metric]
        if not curve.index.equals(before.index) or (curve != before).sum() > max(1, 0.02 * len(curve)):
            return False
    return True


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 6))])
def test_a_damaged_folder_is_a_line_and_counts_only_as_the_run_that_it_was(paper, runs, tmp_path, say, batch):
    outcomes: Counter[str] = Counter()
    whole = functools.cache(lambda run: next(results.read_folder(run, paper)))
    for number in range(batch * EACH, (batch + 1) * EACH):
        draw = random.Random(number)
        run = draw.choice(runs)
        name = run.relative_to(run.parent.parent if run.parent.name == "time" else run.parent)
        folder = Path(shutil.copytree(run, tmp_path / str(number) / name))
        damage(draw, folder)
        found = results.collect(paper, [tmp_path / str(number)])
        assert len(found) <= 1, (number, found)
        if not found:  # no file of metrics, or run.json of a run that is not the paper's
            outcomes["of no run of the paper's"] += 1
        elif found[0].why:
            outcomes["named"] += 1
        else:
            assert found[0].finished and same(found[0], whole(run)), (number, found[0], whole(run))
            unchanged = all(curve.equals(whole(run).curves[name]) for name, curve in found[0].curves.items())
            outcomes["counted, as it was" if unchanged else "counted, with other digits"] += 1
    report.write(Judged(paper, results.collect(paper, [tmp_path], ROOT / "records")), tmp_path / "results/report")
    words = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    say(f"damages {batch * EACH} to {(batch + 1) * EACH - 1}: {words}")
