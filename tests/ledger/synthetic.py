# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Made-up results: folders as verl, its evaluation, timm, FastTD3 and recipes/control write them.

Their numbers are random, seeded by the folder's name, so that a test can recompute what is read."""

import csv
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ledger.paper import Entry, Paper
from recipes.llm import evaluate
from recipes.llm.data import SETS

VERL_METRICS = (
    *("actor/entropy", "era/response_entropy", "era/low_fraction", "era/high_fraction", "era/rest_entropy"),
    *("timing_s/old_log_prob", "critic/score/mean"),
)
CONTROL_COLUMNS = ("global_step", "eval_avg_return", "seconds", "cpu_seconds", "entropy_per_dim", "clipped", "delta")
EPOCHS, STEP_SECONDS = 200, 0.0314
SECONDS_OF_1000_IMAGES = 1000 * STEP_SECONDS / 256


def rng_of(folder: Path) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(folder.name.encode()))


def write_csv(file: Path, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([columns, *rows])


def write_info(folder: Path, **info) -> None:
    """run.json of a finished run with the paper's settings. A folder in `time`, say, counts for `time/...`."""
    apart = f"{folder.parent.name}/" if folder.parent.name in ("time", "alpha", "obac") else ""
    known = {
        **({"entry": apart + folder.name.partition("-seed")[0]} if apart else {}),
        "seed": None,
        "added": [],
        "as_paper": True,
        "commit": "c" * 40,
        "modified": False,
        "finished": True,
        "started": "2026-11-20T08:00:01+00:00",
        "ended": "2026-11-20T09:30:59+00:00",
        "versions": {"torch": "2.6.0"},
        "hardware": {"cpu": "AMD EPYC", "cores": 2, "gpus": []},
    }
    (folder / "run.json").write_text(json.dumps({**known, **info}, indent=1) + "\n")


# ---------------------------------------------------------------------------------------------------------------- verl


def verl_lines(folder: Path, steps: range, test_every: int = 10) -> list[str]:
    """Lines of the logger "file"; before the first step a validation."""
    validation = "val-core/math_dapo/acc/mean@32"
    lines = [json.dumps({"step": steps[0] - 1, "data": {validation: 0.25}})]
    for step, row in zip(steps, rng_of(folder).random((len(steps), len(VERL_METRICS))).tolist()):
        data = dict(zip(VERL_METRICS, row))
        if step % test_every == 0:
            data[validation] = 0.5
        lines.append(json.dumps({"step": step, "data": data}))
    return lines


def verl_run(folder: Path, steps: range, **info) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(verl_lines(folder, steps)) + "\n")
    (folder / f"global_step_{steps[-1]}/actor").mkdir(parents=True)
    command = [f"trainer.resume_from_path='/stage1/global_step_{steps[0] - 1}'"] if steps[0] > 1 else []
    write_info(folder, host="verl", finished=False, total_steps=steps[-1], command=command, **info)
    return folder


def evaluation(folder: Path, benchmarks: Sequence[str], samples: int | None = None) -> Path:
    """samples: per problem, instead of the protocol's number. evaluate.py itself makes the summary."""
    rng, summaries = rng_of(folder), {}
    for name in benchmarks:
        problems, protocol = SETS[name]["pin"]["rows"], evaluate.paper_protocol(name)
        protocol |= {"samples": samples} if samples else {}
        right = rng.random((problems, protocol["samples"])) < rng.random((problems, 1))
        answers = [
            {"index": index, "sample": sample, "correct": bool(correct)}
            | {"status": "ok", "tokens": 100, "finish_reason": "stop", "text": "x"}
            for (index, sample), correct in np.ndenumerate(right)
        ]
        ks = [2**i for i in range(protocol["samples"].bit_length())] if protocol["samples"] > 1 else []
        summaries[name] = {"as_paper": evaluate.is_as_paper(name, protocol), **evaluate.summarize(answers, ks)}
    return write_summary(folder, summaries)


def write_summary(folder: Path, summaries: Mapping[str, dict]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps({"policy": folder.name, "benchmarks": summaries}, indent=1) + "\n")
    return folder


# ---------------------------------------------------------------------------------------------------------------- timm


def timm_run(folder: Path, epochs: int = EPOCHS, total: int = EPOCHS, **info) -> Path:
    """A run of recipes/vision on 4 GPUs with 64 images each; its log has steps of STEP_SECONDS."""
    folder.mkdir(parents=True)
    rng, rows = rng_of(folder), []
    for epoch in range(epochs):
        top1 = 95 * (1 - 0.9 ** (1 + 50 * epoch / EPOCHS)) + rng.normal(0, 0.1)
        rows.append([epoch, 2.0, top1, 99 + rng.random(), 1e-5])
    write_csv(folder / "summary.csv", ("epoch", "train_loss", "eval_top1", "eval_top5", "lr"), rows)
    write_info(folder, host="timm", total_steps=total, finished=epochs >= total, **info)
    log = []
    for epoch in range(epochs):
        seconds = 1.0 if epoch == 0 else STEP_SECONDS  # cuDNN chooses its kernels in the first one
        for at in (0, 194):
            means = f"({seconds:.3f}s,  {256 / seconds:.2f}/s)"
            log.append(f"Train: {epoch} [{at:>4}/195 (  0%)]  Loss: 2.01 (2.10)  Time: 0.350s,  731.43/s  {means}")
    (folder / "log.txt").write_text("\n".join(log) + "\n")
    return folder


# -------------------------------------------------------------------------------------------- FastTD3, recipes/control


def fasttd3_run(folder: Path, total: int = 10_000, **info) -> Path:
    folder.mkdir(parents=True)
    rng, rows = rng_of(folder), []
    for step in range(100, total, 100):
        evaluated = f"{800 * step / total + 20 * rng.normal():.6g}" if step % 500 == 0 else ""
        rows.append([step, 128 * step, f"{7 + step * STEP_SECONDS:.4f}", evaluated])
    write_csv(folder / "train.csv", ("global_step", "frame", "seconds", "eval_avg_return"), rows)
    write_info(folder, host="fasttd3", total_steps=total, command=["train.py", "--eval_interval", "500"], **info)
    return folder


def control_run(folder: Path, total: int = 10_000, rows: int = 20, finished: bool = True, **info) -> Path:
    """A run of recipes/control."""
    folder.mkdir(parents=True)
    rng, era, written = rng_of(folder), "era" in folder.name, []
    for share in np.linspace(0, 1, rows + 1)[1:]:
        step, entropy = round(total * share), -0.3 if era else 1.3 - share
        value = (4000 if era else 1500) * (1 - math.exp(-4 * share)) + 80 * rng.normal()
        written.append([step, *(f"{x:.6g}" for x in (value, step / 2000, step / 2100, entropy, 0.06, 0.0))])
    write_csv(folder / "train.csv", CONTROL_COLUMNS, written)
    command = ["PPO_continuous_main.py", f"--evaluate_freq={total // rows}"]
    write_info(folder, host="ppo", total_steps=total, finished=finished, command=command, **info)
    return folder


# ----------------------------------------------------------------------------------------------------- all of the paper


def make(paper: Paper, entry: Entry, out: Path, seed: int) -> None:
    """What one seed of the entry leaves."""
    run = paper.runs.get(entry.run)
    if entry.evaluation:
        is_pass = bool(paper.runs[entry.evaluation].suffix)
        names = ("aime24", "aime25") if is_pass else tuple(evaluate.PROTOCOLS)
        folder = out / f"eval/{entry.folder}-seed{seed}"
        if not folder.exists():
            evaluation(folder, names, 64 if is_pass else None)
        return
    folder = out / f"{entry.place.domain}/{entry.folder}-seed{seed}"
    if folder.exists():
        return
    if entry.place.domain == "llm":
        first = 1 + (paper.runs[run.after].steps if run.after else 0)
        verl_run(folder, range(first, run.steps + 1))
    elif entry.place.domain == "vision":
        total = 3 if entry.folder.startswith("time/") else EPOCHS
        timm_run(folder, total, total)
    elif run.upstream.startswith("fasttd3"):
        fasttd3_run(folder, 2000 if entry.folder.startswith("time/") else 10_000)
    else:
        control_run(folder)
