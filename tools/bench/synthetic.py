"""Made-up results: folders as verl, its evaluation, timm, FastTD3, recipes/control and `reproduce.py run` write
them, and what `collect` would find for the rows of the ledger.

tests/ledger and tools/bench/ledger.py use it. Commands, names and protocols of the folders come from the recipes of the
overlays, and not from the ledger."""

import csv
import importlib.util
import json
import math
import shlex
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from ledger import verdicts
from ledger.ledger import Entry, Ledger
from ledger.results import Collected, Curve, Problem, Result

ROOT = Path(__file__).resolve().parents[2]
# What the ledger reads of verl's logs, and as many more as a run of the patched v0.4.1 logs.
VERL_METRICS = (
    "actor/entropy", "era/response_entropy", "era/low_fraction", "era/high_fraction", "era/rest_entropy",
    "timing_s/old_log_prob", *(f"critic/advantages/{number:02}" for number in range(54)),
)  # fmt: skip
VALIDATION = "val-core/math_dapo/acc/mean@32"
FASTTD3_COLUMNS = (
    "global_step", "frame", "seconds", "speed", "eval_avg_return", "eval_avg_length", "actor_loss", "qf_loss", "qf_max",
    "qf_min", "actor_grad_norm", "critic_grad_norm", "env_rewards", "buffer_rewards", "policy_entropy",
    "gaussian_entropy", "target_entropy", "delta", "min_std", "clipped_states",
)  # fmt: skip
MODEL = "0f" * 32  # a checksum


@cache
def recipe(path: str):
    """A file of the overlays that imports the standard library alone."""
    name = "synthetic_" + path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, ROOT / "overlays" / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_csv(file: Path, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)


# ---------------------------------------------------------------------------------------------------------------- verl


def verl_lines(steps: range, seed: int = 0, test_every: int = 10) -> list[str]:
    """Lines of the logger "file"; before the first step a validation."""
    rng = np.random.default_rng(seed)
    lines = [json.dumps({"step": steps[0] - 1, "data": {VALIDATION: 0.25}})]
    values = rng.random((len(steps), len(VERL_METRICS)))
    for step, row in zip(steps, values.tolist()):
        data = dict(zip(VERL_METRICS, row))
        if step % test_every == 0:
            data[VALIDATION] = 0.5
        lines.append(json.dumps({"step": step, "data": data}))
    return lines


def verl_run(folder: Path, steps: range, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(verl_lines(steps, seed)) + "\n")
    (folder / "global_step_10/actor").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("10")
    (folder / "tensorboard").mkdir()
    return folder


def evaluation(folder: Path, benchmarks: Sequence[str], samples: int | None = None, seed: int = 0) -> Path:
    """samples: per problem, instead of the protocol's. The summary is that of evaluate.py's own scores.py."""
    protocols, scores = recipe("verl/recipe/era/evaluation/protocol.py"), recipe("verl/recipe/era/evaluation/scores.py")
    rows = json.loads((ROOT / "overlays/verl/recipe/era/datasets.json").read_text())
    shared = {"model_sha256": MODEL, "engine": "vllm", "dtype": "auto", "max_tokens": 8192, "seed": 0}
    shared["prompt"] = protocols.PROMPTS[0]
    rng, summaries = np.random.default_rng(seed), {}
    folder.mkdir(parents=True)
    for name in benchmarks:
        problems, protocol = rows[name]["pin"]["rows"], protocols.PROTOCOLS[name]
        protocol = protocol._replace(samples=samples) if samples else protocol
        settings = {**shared, "benchmark": name, "problems": problems, "data_sha256": MODEL, **protocol._asdict()}
        (folder / f"{name}.settings.json").write_text(json.dumps({"settings": settings, "model": "/models/era"}) + "\n")
        (folder / f"{name}.samples.jsonl").write_text("")
        right = rng.random((problems, protocol.samples)) < rng.random((problems, 1))
        answer = {"status": "ok", "tokens": 100, "finish_reason": "stop", "text": "x"}
        answers = [
            {"index": index, "sample": sample, "correct": bool(correct), **answer}
            for (index, sample), correct in np.ndenumerate(right)
        ]
        ks = [2**i for i in range(protocol.samples.bit_length())] if protocol.samples > 1 else []
        shown = {key: settings[key] for key in ("samples", "temperature", "top_p", "max_tokens", "prompt")}
        summaries[name] = {"protocol": shown, **scores.summarize(answers, problems, protocol.samples, ks)}
    summary = {"policy": "original", "benchmarks": summaries, "paper_average": scores.paper_average(summaries)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return folder


# ---------------------------------------------------------------------------------------------------------------- timm


def timm_columns(era: bool) -> list[str]:
    entropies = ["entropy_mean", "entropy_min"] if era else []
    trained, evaluated = ([f"{part}_{name}" for name in entropies] for part in ("train", "eval"))
    return ["epoch", "train_loss", *trained, "eval_loss", "eval_top1", "eval_top5", *evaluated, "lr"]


def timm_row(columns: Sequence[str], epoch: int, epochs: int, rng: np.random.Generator) -> list:
    top1 = 95 * (1 - 0.9 ** (1 + 50 * epoch / epochs)) + rng.normal(0, 0.1)
    values = {"epoch": epoch, "eval_top1": top1, "eval_top5": 99 + rng.random()}
    values |= {"eval_entropy_mean": 2.0, "eval_entropy_min": 1.4639 + rng.random() / 100}
    return [values.get(name, float(rng.random())) for name in columns]


def timm_run(folder: Path, command: Sequence[str], epochs: int = 200, seed: int = 0) -> Path:
    """A run of recipes/era/launch.py."""
    folder.mkdir(parents=True)
    rng, columns = np.random.default_rng(seed), timm_columns("--era-min-entropy" in command)
    write_csv(folder / "summary.csv", columns, [timm_row(columns, epoch, epochs, rng) for epoch in range(epochs)])
    (folder / "command.txt").write_text(shlex.join(command) + "\n")
    log = ["Training in distributed mode with multiple processes, 1 device per process."]
    for epoch in range(epochs):
        means = f"(0.{350 + epoch}s,  {256 / (0.35 + epoch / 1000):.2f}/s)"
        for at in (0, 100, 194):
            place = f"{epoch} [{at:>4}/195 ({100 * at // 195:>3}%)]"
            log.append(f"Train: {place}  Loss: 2.01 (2.10)  Time: 0.350s,  731.43/s  {means}  LR: 1.000e-05")
    (folder / "log.txt").write_text("\n".join(log) + "\n")
    return folder


def timm_commands(seeds: Sequence[int] | None = None) -> list[tuple[str, tuple[str, ...], int]]:
    """Folder, command and epochs of all runs of the recipe, once each."""
    runs, found = recipe("timm/recipes/era/runs.py"), {}
    settings = runs.Settings(seeds=tuple(seeds) if seeds else None)
    for experiment in (runs.with_settings(one, settings) for one in runs.EXPERIMENTS.values()):
        epochs = experiment.stop_after or 200
        for run in runs.runs(experiment, settings, []):
            name = f"time/{run.name}" if experiment.compares_time else run.name
            found[name] = name, run.command, max(epochs, found.get(name, ("", (), 0))[2])
    return list(found.values())


# ------------------------------------------------------------------------------------------------------------- FastTD3


def fasttd3_rows(total: int, era: bool, seed: int = 0, eval_every: int = 5000) -> list[list[str]]:
    rng, rows = np.random.default_rng(seed), []
    for step in range(100, total, 100):
        evaluated = [f"{800 * step / total + 20 * rng.normal():.6g}", "1000"] if step % eval_every == 0 else ["", ""]
        others = [f"{number:.6g}" for number in rng.normal(size=8).tolist()]
        entropies = [f"{number:.6g}" for number in (-3 + rng.random(), -3.0, -3.0, 0.0, 0.05, 0.0)] if era else [""] * 6
        times = [f"{7 + step / 25:.1f}", f"{25 + rng.random():.4g}"]
        rows.append([str(step), str(step * 128), *times, *evaluated, *others, *entropies])
    return rows


def fasttd3_run(folder: Path, command: Sequence[str], total: int = 100_000, seed: int = 0, models: bool = True) -> Path:
    """A run of recipes/era/launch.py; a copy without its models if models is false."""
    folder.mkdir(parents=True)
    rows = fasttd3_rows(total, "fastsac_era" in command, seed, 5000 if total > 5000 else 500)
    write_csv(folder / "train.csv", FASTTD3_COLUMNS, rows)
    (folder / "command.txt").write_text(shlex.join(command) + "\n")
    settings = f"HumanoidBenchArgs(csv_path='train.csv', total_timesteps={total}, eval_interval=5000, compile=True)"
    (folder / "log.txt").write_text(f"{settings}\n  0%| | 0/{total}\r")
    if models:
        (folder / "models").mkdir()
        with zipfile.ZipFile(folder / "models/run_final.pt", "w") as archive:
            archive.writestr("data", b"1")
    return folder


def fasttd3_commands(seeds: Sequence[int] | None = None) -> list[tuple[str, tuple[str, ...], int]]:
    """Folder, command and steps of all runs of the recipe, once each."""
    runs, found = recipe("fasttd3/recipes/era/runs.py"), {}
    for experiment in runs.EXPERIMENTS.values():
        for run in runs.runs(experiment, runs.Settings(seeds=tuple(seeds) if seeds else None), []):
            total = 2000 if experiment.compares_time else 100_000
            found[f"time/{run.name}" if experiment.compares_time else run.name] = run.command, total
    return [(name, *rest) for name, rest in found.items()]


# ----------------------------------------------------------------------------------------------------- recipes/control

CONTROL_COLUMNS = (
    "global_step", "eval_avg_return", "seconds", "cpu_seconds", "entropy_per_dim", "min_entropy_per_dim",
    "mean_log_std", "clipped", "delta",
)  # fmt: skip


_PRINT_RUNS = """
import json, host, launch, sys
seeds = tuple(json.loads(sys.argv[1]))
for name, kind in launch.EXPERIMENTS.items():
    for run in kind().runs(name, host.Settings(seeds=seeds or None), []):
        folder = f"{name}/{run.name}" if name in kind.apart else run.name
        print(json.dumps([name, folder, run.task, run.agent, run.seed, run.command, kind().planned_steps(run)]))
"""


@cache
def control_runs(seeds: Sequence[int] = ()) -> dict[str, list]:
    """Experiment, folder, task, agent, seed, command and steps of all runs of the recipe by folder; seeds: not its own.

    Of another process, because the recipe's modules have names like `results`."""
    command = [sys.executable, "-c", _PRINT_RUNS, json.dumps(seeds)]
    answer = subprocess.run(command, cwd=ROOT / "recipes/control", capture_output=True, text=True, check=True)
    return {run[1]: run for run in map(json.loads, answer.stdout.splitlines())}


def control_run(folder: Path, run: Sequence, rows: int = 20, finished: bool = True, **info) -> Path:
    """A run of recipes/control/launch.py, of those of control_runs; `info` goes into its run.json."""
    _, _, task, agent, seed, (script, *flags), total = run
    folder.mkdir(parents=True)
    rng, era = np.random.default_rng(zlib.crc32(folder.name.encode())), "era" in agent
    level, written = rng.normal(4000 if "_" in agent else 1500, 300), []
    for share in np.linspace(0, 1, rows + 1)[1:]:
        entropy, step = -0.3 if era else 1.3 - share, round(total * share)
        others = step / 2000, step / 2100, entropy, entropy - 0.2 * (not era), entropy - 1.4, 0.3 - 0.24 * era, 0.0
        mean = level * (1 - math.exp(-4 * share)) + 80 * rng.normal()
        written.append([step, *(f"{number:.6g}" for number in (mean, *others))])
    write_csv(folder / "train.csv", CONTROL_COLUMNS, written)
    known = {
        "host": "ppo", "task": task, "agent": agent, "seed": seed, "command": [Path(script).name, *flags],
        "total_steps": total, "finished": finished, "started": START, "ended": "2026-11-20T09:30:59+00:00",
        "commit": "c" * 40, "versions": {"torch": "2.13.0"}, "cpu_seconds": 1700.0,
        "hardware": {"cpu": "AMD EPYC", "cores": 2},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps({**known, **info}, indent=1) + "\n")
    return folder


# ----------------------------------------------------------------------------------------------- records, and all of it

START = "2026-11-20T08:00:01+00:00"


def record_content(command: str, seeds: Sequence[int], exit_code: int | None = 0, **more) -> dict:
    """As ledger/run_record.py writes it. exit_code: None for a run without an end."""
    return {
        "format": 1, "run": command.removeprefix("make "), "experiments": [], "command": command, "variables": {},
        "seeds": list(seeds), "folders": [], "modified": False, "repository": {"commit": "c" * 40, "changed": []},
        "checkouts": {"fasttd3": {"state": "applied", "files": [], "commits": [], "note": ""}}, "versions": {},
        "hardware": {"gpus": ["NVIDIA H20"] * 8, "cpu": "AMD EPYC", "cores": 2, "memory": 16}, "start": START,
        "end": None if exit_code is None else "2026-11-20T09:30:59+00:00", "exit_code": exit_code,
        "state": "running" if exit_code is None else "failed" if exit_code else "finished", **more,
    }  # fmt: skip


def record(base: Path, folders: Sequence[str], start: str = START, exit_code: int = 0, **more) -> Path:
    content = record_content("make control-humanoidbench", [1], exit_code, folders=list(folders), start=start, **more)
    file = base / "records" / f"{start[:19].replace(':', '').replace('-', '')}Z-control-humanoidbench.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")
    return file


def grid(
    out: Path,
    llm: Sequence[tuple[str, range]],
    evaluations: Sequence[str],
    seeds: int,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Folders of all runs of the recipes. llm: names and steps of verl's runs. evaluations: names of model folders.

    From the fifth on, runs of one name repeat the numbers of the first ones, but for a word that no two have alike."""
    say("verl")
    for name, steps in llm:
        texts = ["\n".join(verl_lines(steps, seed)) + "\n" for seed in range(min(seeds, 4))]
        for seed in range(seeds):
            (out / f"verl/{name}-seed{seed}").mkdir(parents=True)
            log = texts[seed % len(texts)].replace("0.25}", f"{0.25 + seed / 1000}}}", 1)
            (out / f"verl/{name}-seed{seed}/metrics.jsonl").write_text(log)
    say("evaluations")
    benchmarks = list(recipe("verl/recipe/era/evaluation/protocol.py").PROTOCOLS)
    made: dict[bool, Path] = {}
    for name, seed in ((name, seed) for name in evaluations for seed in range(seeds)):
        folder, is_pass = out / f"eval/{name}-seed{seed}", name.endswith("-pass")
        if is_pass not in made:
            names, samples = (["aime24", "aime25"], 256) if is_pass else (benchmarks, None)
            made[is_pass] = evaluation(folder, names, samples)
            continue
        folder.mkdir()
        for file in made[is_pass].iterdir():
            text = file.read_text().replace('"policy": "original', f'"policy": "{name} {seed}, original')
            (folder / file.name).write_text(text)
    say("timm")
    for name, command, epochs in timm_commands(range(42, 42 + seeds)):
        timm_run(out / "timm" / name, command, epochs, seed=zlib.crc32(name.encode()))
    say("FastTD3")
    for number, (name, command, total) in enumerate(fasttd3_commands(range(1, 1 + seeds))):
        fasttd3_run(out / "fasttd3" / name, command, total, seed=number)
    say("recipes/control")
    for name, run in control_runs(tuple(range(1, 1 + seeds))).items():
        control_run(out / "control" / name, run)


# ------------------------------------------------------------------------------------ what `collect` would find of them

NASTY = "<b>&\"'µ</script>|`*_日本 "
HARDWARE = {"llm": "32 NVIDIA H20", "vision": "4 NVIDIA A40", "control": "1 NVIDIA H200"}
STEPS = {"llm": 1100, "vision": 200, "control": 100_000}
# Where a metric's curve begins and where it ends: with ERA and without, or the same.
ENDS = {
    "actor/entropy": (1.6, 0.45, 0.02), "era/response_entropy": (1.9, 0.5), "era/rest_entropy": (0.05, 0.01),
    "era/low_fraction": (0.3, 0.03), "era/high_fraction": (0.2, 0.0), "eval_avg_return": (-40.0, 812.0, 640.0),
    "entropy_per_dim": (1.4, -0.3, 0.4), "min_entropy_per_dim": (1.4, -0.3, 0.3), "clipped": (0.4, 0.06, 0.3),
    "policy_entropy": (12.0, -3.0, -9.5), "gaussian_entropy": (13.0, -3.0), "delta": (0.1, 0.9),
    "response_entropy": (2.2, 0.69, 0.28), "reward": (0.1, 0.94), "distinct_right": (1.0, 5.9, 2.5),
    "eval_top1": (20.0, 97.0), "eval_entropy_min": (2.0, 0.9827, 0.01),
}  # fmt: skip


def curve(seed: int, start: float, end: float, steps: int, points: int = 400) -> Curve:
    y = []
    for place in range(points):
        noise = 0.03 * math.sin(1.7 * place + 5 * seed) + 0.05 * math.sin(3 * seed) * place / points
        y.append(end + (start - end) * math.exp(-4 * place / points) + abs(end - start) * noise)
    return Curve([steps * (place + 1) / points for place in range(points)], y, y, y, steps)


def pass_curve(heights: Sequence[float]) -> Curve:
    """pass@k for k = 1, 2, 4, ..."""
    return Curve([float(2**k) for k in range(len(heights))], *[list(heights)] * 3, len(heights))


def result(entry: Entry, seed: int | None) -> Result:
    experiment, number = entry.experiment, seed or 0
    better = "era" in experiment.id.split("-") or "era" in experiment.id
    place, steps = sum(map(ord, experiment.row)) % 7, STEPS[experiment.domain]
    curves, values, intervals = {}, {}, {}
    for metric in entry.metrics:
        if metric in experiment.paper:
            values[metric] = experiment.paper[metric].value + 0.1 * (number % 3) - 0.1 + (3.0 if place == 3 else 0)
            intervals[metric] = 0.37
        elif metric.startswith("pass@k/"):
            curves[metric] = pass_curve([30 + 8 * better + 4 * k + number for k in range(9)])
        elif metric in ("arc_c", "gpqa_diamond", "mmlu_pro", "top1", "top5"):
            values[metric] = 93.5 + 0.3 * better + 0.04 * number % 0.3 + 0.05 * place
        elif metric.startswith(("seconds", "timing")):
            values[metric] = 0.0314 * (1.05 if better else 1) * (1.2 if "delay" in experiment.id else 1)
        else:
            start, *ends = ENDS[metric]
            curves[metric] = curve(number + place, start, ends[0] if better else ends[-1], steps)
    hardware = HARDWARE[experiment.domain]
    kind = "evaluation" if experiment.evaluation else "training"
    interval_of = "images" if experiment.domain == "vision" else "problems"
    folder = f"results/{entry.folder}-seed{seed}"
    return Result(
        kind, entry.folder, seed, folder, True, steps, steps, values, intervals, interval_of, curves, "clean",
        hardware=hardware,
    )  # fmt: skip


def results(ledger: Ledger, most_seeds: int | None = None, only=lambda entry: True) -> list[Result]:
    """Of the ledger's entries, with the paper's numbers, about; one for a folder that several entries read."""
    found: dict[tuple, Result] = {}
    for entry in filter(only, ledger.entries.values()):
        for seed in ledger.seeds_of(entry.experiment)[:most_seeds] if entry.folder else ():
            new = result(entry, seed)
            old = found.setdefault((new.kind, new.name, seed), new)
            fields = ("values", "curves", "intervals")
            both = {name: {**getattr(new, name), **getattr(old, name)} for name in fields}
            found[new.kind, new.name, seed] = replace(old, **both)
    return list(found.values())


def judged(ledger: Ledger, found: list[Result], records: Sequence = (), problems: Sequence = ()) -> Collected:
    sources = ["results", "/mnt/cluster/results"]
    made = Collected("2026-11-21T22:18:20+00:00", sources, found, list(records), list(problems))
    return verdicts.judge(ledger, made)


def mixed(ledger: Ledger) -> Collected:
    """Some of everything: failed, unfinished, unused, modified, one seed, some panels alone, hostile words."""
    whole = ("main-", "hb-", "truncated", "tanh", "cifar10", "time-")
    some = ("sweep-cifar10", "entropy", "other-tokens", "pass-era")

    def is_there(entry: Entry) -> bool:
        left_out = entry.id in ("main-kl-cov", "main-oat-zero") or "pole" in str(entry.value)
        return entry.id.startswith(some) or entry.id.startswith(whole) and not left_out

    found = []
    for item in results(ledger, only=is_there):
        changes = {}
        if item.name == "clip_cov_qwen2.5_math_7b":
            log = ("Traceback (most recent call last):", f"RuntimeError: {NASTY}", "x" * 300)
            changes = {"finished": False, "failed": True, "steps": 120, "values": {}, "curves": {}, "log_tail": log}
        elif "tanh-learned" in item.name and item.seed == 2:
            changes = {"finished": False, "steps": 12_000}
        elif item.name == "cifar10" and item.seed == 43:
            changes = {"used": False, "state": "modified"}
        elif "h1hand-run" in item.name and item.seed not in (None, 1):
            continue
        elif "h1hand-stair" in item.name:
            changes = {"hardware": NASTY}
        found.append(replace(item, **changes))
    problems = (
        Problem("results/cifar10-seed43/summary.csv", None, "a modified checkout made it (timm/train.py)"),
        Problem(f"results/{NASTY}/" + "very-long-name-" * 12 + "/log.csv", 1207, f"reward is nan {NASTY}"),
    )
    records = (
        record_content("make vision-cifar10", [42, 43, 44]),
        record_content(f"make x {NASTY}", [], 2, log_tail=[NASTY, "x" * 300]),
        record_content("make llm-clip-cov", [], None, modified=True, variables={"EVAL": "--samples 2"}),
    )
    return judged(ledger, found, records, problems)
