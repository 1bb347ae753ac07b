"""Collected results that nobody measured: all rows, all states."""

import math
from dataclasses import replace

from ledger import verdicts
from ledger.experiments import Entry, Ledger
from ledger.results import Collected, Curve, Problem, Result

NASTY = "<b>&\"'µ</script>|`*_日本 "
HARDWARE = {
    "llm": "32 NVIDIA H20",
    "vision": "4 NVIDIA A40",
    "control": "1 NVIDIA H200",
    "demo": "2 cores of AMD EPYC 7B13",
}
STEPS = {"llm": 1100, "vision": 200, "control": 100_000}


def curve(seed: int, start: float, end: float, steps: int, points: int = 400) -> Curve:
    x = [steps * (place + 1) / points for place in range(points)]
    shape = [math.exp(-4 * place / points) for place in range(points)]
    noise = [
        0.03 * math.sin(1.7 * place + 5 * seed) + 0.05 * math.sin(3 * seed) * place / points for place in range(points)
    ]
    y = [end + (start - end) * high + abs(end - start) * wobble for high, wobble in zip(shape, noise)]
    return Curve(x, y, y, y, steps)


def passes(seed: int, height: float) -> Curve:
    y = [height + 4 * k + seed for k in range(9)]
    return Curve([float(2**k) for k in range(9)], y, y, y, 9)


def levels(entry: Entry, metric: str, better: bool) -> tuple[float, float]:
    """Where a metric's curve begins and ends."""
    known = {
        "actor/entropy": (1.6, 0.45 if better else 0.02),
        "era/response_entropy": (1.9, 0.5),
        "era/rest_entropy": (0.05, 0.01),
        "era/low_fraction": (0.3, 0.03),
        "era/high_fraction": (0.2, 0.0),
        "eval_avg_return": (-40.0, 812.0 if better else 640.0),
        "policy_entropy": (12.0, -3.0 if better else -9.5),
        "gaussian_entropy": (13.0, -3.0),
        "delta": (0.1, 0.9),
        "response_entropy": (2.2, 0.69 if better else 0.28),
        "reward": (0.1, 0.94),
        "distinct_right": (1.0, 5.9 if better else 2.5),
        "eval_top1": (20.0, 97.0),
        "eval_entropy_min": (2.0, 0.9827 if better else 0.01),
    }
    return known[metric]


def result(entry: Entry, seed: int | None) -> Result:
    experiment = entry.experiment
    better = "era" in experiment.id.split("-") or "era" in experiment.id
    place = sum(map(ord, experiment.row)) % 7
    curves, values, intervals = {}, {}, {}
    for metric in entry.metrics:
        if metric in experiment.paper:
            values[metric] = experiment.paper[metric].value + 0.1 * ((seed or 0) % 3) - 0.1 + (3.0 if place == 3 else 0)
            intervals[metric] = 0.37
        elif metric.startswith("pass@k/"):
            curves[metric] = passes(seed or 0, 30 + 8 * better)
        elif metric in ("arc_c", "gpqa_diamond", "mmlu_pro", "top1", "top5"):
            values[metric] = 93.5 + 0.3 * better + 0.04 * (seed or 0) % 0.3 + 0.05 * place
        elif metric.startswith(("seconds", "timing")):
            values[metric] = 0.0314 * (1.05 if better else 1) * (1.2 if "delay" in experiment.id else 1)
        else:
            curves[metric] = curve((seed or 0) + place, *levels(entry, metric, better), STEPS[experiment.domain])
    hardware = HARDWARE["demo" if experiment.id.startswith("demo") else experiment.domain]
    kind = "evaluation" if experiment.evaluation else "training"
    interval_of = "images" if experiment.domain == "vision" else "problems"
    steps = STEPS[experiment.domain]
    folder = f"results/{entry.folder}-seed{seed}"
    return Result(
        kind,
        entry.folder,
        seed,
        folder,
        True,
        steps,
        steps,
        values,
        intervals,
        interval_of,
        curves,
        "clean",
        hardware=hardware,
    )


def judged(ledger: Ledger, results: list[Result], records: tuple = (), problems: tuple = ()) -> Collected:
    sources = ["results", "/mnt/cluster/results"]
    return verdicts.judged(
        ledger, Collected("2026-11-21T22:18:20+00:00", sources, results, list(records), list(problems))
    )


def merged(results: list[Result]) -> list[Result]:
    """One result for a folder that several rows read."""
    by_run: dict[tuple, Result] = {}
    for item in results:
        key = (item.kind, item.name, item.seed)
        if key in by_run:
            old = by_run[key]
            both = {
                field: {**getattr(item, field), **getattr(old, field)} for field in ("values", "curves", "intervals")
            }
            item = replace(old, **both)
        by_run[key] = item
    return list(by_run.values())


def grid(ledger: Ledger, most_seeds: int | None = None, only=lambda entry: True) -> list[Result]:
    entries = [entry for entry in ledger.entries.values() if entry.folder and only(entry)]
    return merged([result(entry, seed) for entry in entries for seed in ledger.seeds_of(entry.experiment)[:most_seeds]])


def demos(ledger: Ledger) -> Collected:
    return judged(ledger, grid(ledger, only=lambda entry: entry.id.startswith("demo")))


def full(ledger: Ledger) -> Collected:
    return judged(
        ledger,
        grid(ledger),
        records=(record("make llm-grpo", None, 0), record("make control-humanoidbench", [1, 2, 3, 7], 0)),
    )


def record(command: str, seeds: list[int] | None, exit: int | None, **more) -> dict:
    start = "2026-11-20T08:00:01+00:00"
    end = None if exit is None else "2026-11-20T09:30:59+00:00"
    state = "running" if exit is None else "failed" if exit else "finished"
    hardware = {"gpus": ["NVIDIA H20"] * 8, "cpu": "AMD EPYC 7B13", "cores": 2, "memory": 16}
    known = {
        "command": command,
        "variables": {},
        "start": start,
        "end": end,
        "seeds": seeds or [],
        "hardware": hardware,
    }
    return {**known, "modified": False, "state": state, "exit_code": exit, **more}


def mixed(ledger: Ledger) -> Collected:
    """Some of everything: failed, unfinished, unused and modified runs, one seed, some panels alone, hostile words."""

    def is_there(entry: Entry) -> bool:
        if entry.id.startswith(("main-", "hb-", "truncated", "tanh", "cifar10", "time-")):
            return entry.id not in ("main-kl-cov", "main-oat-zero") and (
                entry.value is None or "pole" not in str(entry.value)
            )
        return entry.id.startswith(("demo-era", "demo-digits", "sweep-cifar10", "entropy", "other-tokens", "pass-era"))

    results = []
    for item in grid(ledger, only=is_there):
        changes = {}
        if item.name == "clip_cov_qwen2.5_math_7b":
            log = ("Traceback (most recent call last):", f"RuntimeError: {NASTY}", "x" * 300)
            changes = dict(finished=False, failed=True, steps=120, values={}, curves={}, log_tail=log)
        elif "tanh-learned" in item.name and item.seed == 2:
            changes = dict(finished=False, steps=12_000)
        elif item.name == "cifar10" and item.seed == 43:
            changes = dict(used=False, state="modified")
        elif "h1hand-run" in item.name and item.seed not in (None, 1):
            continue
        elif "h1hand-stair" in item.name:
            changes = dict(hardware=NASTY)
        results.append(replace(item, **changes))
    problems = (
        Problem("results/cifar10-seed43/summary.csv", None, "a modified checkout made it (timm/train.py)"),
        Problem(f"results/{NASTY}/" + "very-long-name-" * 12 + "/log.csv", 1207, f"reward is nan {NASTY}"),
    )
    records = (
        record("make vision-cifar10", [42, 43, 44], 0),
        record(f"make x {NASTY}", None, 2, log_tail=[NASTY, "x" * 300]),
        record("make llm-clip-cov", None, None, modified=True, variables={"EVAL": "--samples 2"}),
    )
    return judged(ledger, results, records, problems)
