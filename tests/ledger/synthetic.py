"""Folders in the formats of verl, its evaluation, timm, FastTD3, the demos and `reproduce.py run`, with invented numbers.

The tests and tools/bench/ledger.py use it. Commands, names and protocols come from the recipes of the overlays, and not from the ledger."""

import csv
import importlib.util
import json
import shlex
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# What verl logs at a step, from a run of the patched v0.4.1.
VERL_METRICS = [
    "actor/entropy",
    "era/response_entropy",
    "era/low_fraction",
    "era/high_fraction",
    "era/scaled_token_fraction",
    "era/top_entropy",
    "era/rest_entropy",
    "actor/pg_loss",
    "actor/pg_clipfrac",
    "actor/ppo_kl",
    "actor/pg_clipfrac_lower",
    "actor/grad_norm",
    "perf/mfu/actor",
    "perf/max_memory_allocated_gb",
    "perf/max_memory_reserved_gb",
    "perf/cpu_memory_used_gb",
    "actor/lr",
    "training/global_step",
    "training/epoch",
    "critic/score/mean",
    "critic/score/max",
    "critic/score/min",
    "critic/rewards/mean",
    "critic/rewards/max",
    "critic/rewards/min",
    "critic/advantages/mean",
    "critic/advantages/max",
    "critic/advantages/min",
    "critic/returns/mean",
    "critic/returns/max",
    "critic/returns/min",
    "response_length/mean",
    "response_length/max",
    "response_length/min",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "prompt_length/max",
    "prompt_length/min",
    "prompt_length/clip_ratio",
    "timing_s/generate_sequences",
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/adv",
    "timing_s/update_actor",
    "timing_s/step",
    "timing_per_token_ms/update_actor",
    "timing_per_token_ms/gen",
    "timing_per_token_ms/adv",
    "perf/total_num_tokens",
    "perf/time_per_step",
    "perf/throughput",
    "train/num_gen_batches",
    "timing_s/save_checkpoint",
    "timing_s/testing",
    "reward/length",
    "reward/overlong",
    "perf/gpu_utilisation",
    "perf/disk",
    "perf/network",
]
VALIDATION = "val-core/math_dapo/acc/mean@32"
FASTTD3_COLUMNS = [
    "global_step",
    "frame",
    "seconds",
    "speed",
    "eval_avg_return",
    "eval_avg_length",
    "actor_loss",
    "qf_loss",
    "qf_max",
    "qf_min",
    "actor_grad_norm",
    "critic_grad_norm",
    "env_rewards",
    "buffer_rewards",
    "policy_entropy",
    "gaussian_entropy",
    "target_entropy",
    "delta",
    "min_std",
]
LLM_DEMO_COLUMNS = [
    "step",
    "reward",
    "response_entropy",
    "low_fraction",
    "high_fraction",
    "scaled_token_fraction",
    "top_entropy",
    "rest_entropy",
    "token_entropy",
    "seconds",
    "distinct_right",
]
MODEL = "0f" * 32  # a checksum


@cache
def recipe(path: str):
    """A file of the overlays that imports the standard library alone."""
    spec = importlib.util.spec_from_file_location(
        "synthetic_" + path.replace("/", "_").removesuffix(".py"), ROOT / "overlays" / path
    )
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


def evaluation(
    folder: Path,
    benchmarks: Sequence[str],
    samples: int | None = None,
    seed: int = 0,
    pass_at: Sequence[int] | None = None,
) -> Path:
    """samples: per problem, instead of the protocol's. The summary is that of evaluate.py's own scores.py."""
    protocols, scores = recipe("verl/recipe/era/evaluation/protocol.py"), recipe("verl/recipe/era/evaluation/scores.py")
    rows = json.loads((ROOT / "overlays/verl/recipe/era/datasets.json").read_text())
    rng, summaries = np.random.default_rng(seed), {}
    folder.mkdir(parents=True)
    for name in benchmarks:
        protocol = protocols.PROTOCOLS[name]
        protocol = protocol._replace(samples=samples) if samples else protocol
        problems = rows[name]["pin"]["rows"]
        settings = {
            "model_sha256": MODEL,
            "engine": "vllm",
            "dtype": "auto",
            "max_tokens": 8192,
            "seed": 0,
            "benchmark": name,
            "problems": problems,
        }
        settings |= {"data_sha256": MODEL, **protocol._asdict()}
        content = {
            "settings": settings,
            "model": "/models/era",
            "data": f"/data/eval/{name}.parquet",
            "versions": {"vllm": "0.8.5"},
        }
        (folder / f"{name}.settings.json").write_text(json.dumps(content, indent=1) + "\n")
        (folder / f"{name}.samples.jsonl").write_text("")
        right = rng.random((problems, protocol.samples)) < rng.random((problems, 1))
        made = [
            {
                "index": index,
                "sample": sample,
                "correct": bool(right[index, sample]),
                "status": "ok",
                "tokens": 100,
                "finish_reason": "stop",
                "text": "x",
            }
            for index in range(problems)
            for sample in range(protocol.samples)
        ]
        n = protocol.samples
        ks = list(pass_at) if pass_at else [2**i for i in range(n.bit_length())] if n > 1 else []
        shown = {key: settings[key] for key in ("samples", "temperature", "top_p", "max_tokens")}
        summaries[name] = {"protocol": shown, **scores.summarize(made, problems, n, ks)}
    summary = {
        "policy": "original (ERA acts in training alone)",
        "benchmarks": summaries,
        "paper_average": scores.paper_average(summaries),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return folder


# ---------------------------------------------------------------------------------------------------------------- timm


def timm_columns(era: bool) -> list[str]:
    entropies = ["entropy_mean", "entropy_min"] if era else []
    return [
        "epoch",
        "train_loss",
        *(f"train_{name}" for name in entropies),
        "eval_loss",
        "eval_top1",
        "eval_top5",
        *(f"eval_{name}" for name in entropies),
        "lr",
    ]


def timm_row(columns: Sequence[str], epoch: int, epochs: int, rng: np.random.Generator) -> list:
    top1 = 95 * (1 - 0.9 ** (1 + 50 * epoch / epochs)) + rng.normal(0, 0.1)
    values = {
        "epoch": epoch,
        "eval_top1": top1,
        "eval_top5": 99 + rng.random(),
        "eval_entropy_mean": 2.0,
        "eval_entropy_min": 1.4639 + rng.random() / 100,
    }
    return [values.get(name, float(rng.random())) for name in columns]


def timm_run(folder: Path, command: Sequence[str], epochs: int = 200, seed: int = 0, first: int = 0) -> Path:
    """A run of recipes/era/launch.py."""
    folder.mkdir(parents=True)
    rng, columns = np.random.default_rng(seed), timm_columns("--era-min-entropy" in command)
    write_csv(
        folder / "summary.csv", columns, [timm_row(columns, epoch, epochs, rng) for epoch in range(first, epochs)]
    )
    (folder / "command.txt").write_text(shlex.join(command) + "\n")
    (folder / "args.yaml").write_text("aa: null\namp: true\n")
    log = [
        f"Train: {epoch} [{at:>4}/195 ({100 * at // 195:>3}%)]  Loss: 2.01 (2.10)  Time: 0.350s,  731.43/s  (0.{350 + epoch}s,  {256 / (0.35 + epoch / 1000):.2f}/s)  "
        "LR: 1.000e-05  Data: 0.100 (0.100)"
        for epoch in range(epochs)
        for at in (0, 100, 194)
    ]
    (folder / "log.txt").write_text(
        "Training in distributed mode with multiple processes, 1 device per process.\n" + "\n".join(log) + "\n"
    )
    (folder / ".lock").touch()
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
    entropies = lambda: [f"{number:.6g}" for number in (-3 + rng.random(), -3.0, -3.0, 0.0, 0.05)] if era else [""] * 5
    for step in range(100, total, 100):
        evaluated = [f"{800 * step / total + 20 * rng.normal():.6g}", "1000"] if step % eval_every == 0 else ["", ""]
        others = [f"{number:.6g}" for number in rng.normal(size=8).tolist()]
        rows.append(
            [
                str(step),
                str(step * 128),
                f"{7 + step / 25:.1f}",
                f"{25 + rng.random():.4g}",
                *evaluated,
                *others,
                *entropies(),
            ]
        )
    return rows


def fasttd3_run(folder: Path, command: Sequence[str], total: int = 100_000, seed: int = 0, models: bool = True) -> Path:
    """A run of recipes/era/launch.py; a copy without its models if models is false."""
    folder.mkdir(parents=True)
    write_csv(
        folder / "train.csv",
        FASTTD3_COLUMNS,
        fasttd3_rows(total, "fastsac_era" in command, seed, 5000 if total > 5000 else 500),
    )
    (folder / "command.txt").write_text(shlex.join(command) + "\n")
    (folder / "log.txt").write_text(
        f"HumanoidBenchArgs(csv_path='train.csv', total_timesteps={total}, eval_interval=5000, compile=True)\n  0%| | 0/{total}\r"
    )
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


# --------------------------------------------------------------------------------------------------------------- demos


def finish(folder: Path, code: str = "a1" * 32, **more) -> Path:
    machine = {"cpu": "AMD EPYC", "cores": 2, "system": "Linux", "versions": {"python": "3.11.7", "torch": "2.6.0"}}
    (folder / "run.json").write_text(
        json.dumps(
            {"key": {"code": code, "versions": {"torch": "2.6.0"}}, **more, "seconds": 70.5, "machine": machine},
            indent=2,
        )
        + "\n"
    )
    return folder


def llm_demo(out: Path, arm: str, seed: int = 1, steps: int = 150, task: str = "chain", **info) -> Path:
    folder = out / f"{task}-seed{seed}-steps{steps}" / arm
    (folder / "rollouts").mkdir(parents=True)
    rng = np.random.default_rng(seed)
    write_csv(
        folder / "steps.csv",
        LLM_DEMO_COLUMNS,
        [[step, *rng.random(len(LLM_DEMO_COLUMNS) - 1).tolist()] for step in range(1, steps + 1)],
    )
    write_csv(folder / "validation.csv", ["step", "pass_at_1", "pass_at_32", "distinct_right"], [[0, 0.4, 1.0, 13.3]])
    (folder / "metrics.jsonl").write_text('{"step": 1, "data": {"actor/entropy": 0.79}}\n')
    return finish(folder, **info)


def vision_demo(out: Path, arm: str, seed: int = 1, epochs: int = 15, **info) -> Path:
    folder = out / f"{arm}-epochs{epochs}-seed{seed}"
    folder.mkdir(parents=True)
    rng, columns = np.random.default_rng(seed), timm_columns(era=True)  # the demo logs entropies of both arms
    write_csv(folder / "summary.csv", columns, [timm_row(columns, epoch, epochs, rng) for epoch in range(epochs)])
    h0 = [f"--era-min-entropy={arm.removeprefix('era')}"] if arm.startswith("era") else []
    return finish(folder, flags=["--model=test_resnet", f"--epochs={epochs}", f"--seed={seed}", *h0], **info)


def control_demo(out: Path, arm: str, seed: int = 1, steps: int = 6000, **info) -> Path:
    folder = out / f"{arm}-steps{steps}-seed{seed}"
    folder.mkdir(parents=True)
    write_csv(
        folder / "curves.csv", FASTTD3_COLUMNS, fasttd3_rows(steps + 1, arm.startswith("era"), seed, eval_every=500)
    )
    return finish(folder, flags=[f"--agent={arm}", f"--seed={seed}", f"--total_timesteps={steps + 1}"], **info)


# ---------------------------------------------------------------------------------------------------- records, and all


def record(base: Path, folders: Sequence[str], start: str = "2026-11-21T10:00:00+00:00", **more) -> Path:
    """As ledger/record.py writes it."""
    file = base / "records" / f"{start[:19].replace(':', '').replace('-', '')}Z-control-humanoidbench.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "format": 1, "run": "control-humanoidbench", "experiments": ["hb-fasttd3"], "command": "make control-humanoidbench", "variables": {}, "seeds": [1],
        "folders": list(folders), "state": "finished", "modified": False, "repository": {"commit": "c" * 40, "changed": []},
        "checkouts": {"fasttd3": {"state": "applied", "files": [], "commits": [], "note": ""}}, "versions": {"torch": "2.6.0"},
        "hardware": {"gpus": ["NVIDIA A100", "NVIDIA A100"], "cpu": "AMD EPYC", "cores": 64, "memory": 512}, "start": start, "end": start, "exit_code": 0,
    }  # fmt: skip
    file.write_text(json.dumps({**content, **more}, indent=1) + "\n")
    return file


def grid(
    out: Path,
    llm: Sequence[tuple[str, range]],
    evaluations: Sequence[str],
    seeds: int,
    said: Callable[[str], None] = lambda text: None,
) -> None:
    """All runs of the recipes. llm: names and steps of verl's runs. evaluations: names of model folders. Runs of one name beyond the fourth
    repeat the numbers of the first ones, but for a word that no two runs have alike."""
    said("verl")
    for name, steps in llm:
        texts = ["\n".join(verl_lines(steps, seed)) + "\n" for seed in range(min(seeds, 4))]
        for seed in range(seeds):
            folder = out / f"verl/{name}-seed{seed}"
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_text(
                texts[seed % len(texts)].replace("0.25}", f"{0.25 + seed / 1000}}}", 1)
            )
    protocols = recipe("verl/recipe/era/evaluation/protocol.py").PROTOCOLS
    said("evaluations")
    made: dict[bool, Path] = {}
    for name, seed in ((name, seed) for name in evaluations for seed in range(seeds)):
        folder, is_pass = out / f"eval/{name}-seed{seed}", name.endswith("-pass")
        if is_pass not in made:
            made[is_pass] = evaluation(
                folder, ["aime24", "aime25"] if is_pass else list(protocols), samples=256 if is_pass else None
            )
            continue
        folder.mkdir()
        for file in made[is_pass].iterdir():
            (folder / file.name).write_text(
                file.read_text().replace('"policy": "original', f'"policy": "{name} {seed}, original')
            )
    said("timm")
    for name, command, epochs in timm_commands(range(42, 42 + seeds)):
        timm_run(out / "timm" / name, command, epochs, seed=zlib.crc32(name.encode()))
    said("FastTD3")
    for number, (name, command, total) in enumerate(fasttd3_commands(range(1, 1 + seeds))):
        fasttd3_run(out / "fasttd3" / name, command, total, seed=number)
    said("demos")
    for seed in range(1, seeds + 1):
        for arm in ("grpo", "era"):
            llm_demo(out / "demo", arm, seed)
        for arm in ("baseline", "era0.6"):
            vision_demo(out / "demo-vision", arm, seed)
        for arm in ("fasttd3", "fasttd3-no-delay", "era", "era-learned"):
            control_demo(out / "demo-control", arm, seed)
