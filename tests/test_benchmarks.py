"""The benchmarks run, and their tables are complete. They check their arms themselves before they measure."""

import csv
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.grid


@pytest.fixture(scope="module")
def python(project_root):
    """python(*arguments): a Python in the project's root, where the tools are modules."""

    def run(*arguments):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=project_root, env=env, capture_output=True, text=True, timeout=900)

    return run


def read(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def says(result, *words):
    """All bad values are named at once, by the parser of the arguments."""
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert all(word in result.stderr.splitlines()[-1] for word in words), result.stderr


# The kernels


def test_gpu_benchmark_on_a_cpu(python, patched_verl, tmp_path):
    """All but the GPU: every arm of ours, and the reason where another's is missing."""
    tiny = ["--device", "cpu", "--tokens", "16", "--vocabulary", "300", "--width", "16", "--turns", "1"]
    result = python("-m", "tools.bench.gpu_logprobs", "--checkout", patched_verl, *tiny, "--csv", tmp_path / "gpu.csv")
    assert result.returncode == 0, result.stderr
    rows = read(tmp_path / "gpu.csv")
    assert len(rows) == 2 * 16 and all(
        row["seconds"] for row in rows if "ERA" in row["arm"] or "upstream" in row["arm"]
    )
    assert "flash-attn's cross-entropy: not measured: No module named" in result.stdout


# The actor

TINY = ["--vocabulary", "300", "--width", "32", "--layers", "1", "--turns", "2"]
ACTOR_ARMS = ["grpo", "era", "era-topk", "release", "release-topk", "grpo-offpolicy", "era-offpolicy", "era-kl"]
ACTOR_ARMS += ["era-entropy", "era-fused"]
# What the arms do to the gradients and to the old log-probs.
ACTOR_ARMS_CHECK = """
import argparse, json, sys
from tools.bench import actor
import torch

actor.prepare_verl(sys.argv[1])
from tools.bench import release_way
sizes = dict(tokens=128, vocabulary=200, width=32, layers=1)
settings = argparse.Namespace(**sizes, dtype=torch.float32, k=2.0, temperature=0.8)

def step(arm, low_advantage=1.5):
    bench = actor.Bench(settings)
    h_resp_lowest = bench.batch["advantages"][:, 0].eq(1.5)
    bench.batch["advantages"][h_resp_lowest] = low_advantage
    seen = []
    bench.optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in bench.model.parameters()]))
    _, batch, metrics = bench.take_turn(arm, bench.actor(arm), lambda run: (run(), None))
    return torch.cat([g.flatten() for g in seen[0]]), batch

def distance(a, b):
    return ((a - b).norm() / b.norm()).item()

arms = actor.ARMS
result = {}
for low in (1.5, 0.5):
    grpo, era, release = (step(arms[name], low) for name in ("grpo", "era", "release"))
    result[f"release, era, {low}"] = distance(release[0], era[0])
    result[f"release, grpo, {low}"] = distance(release[0], grpo[0])
    moved = (release[1]["old_log_probs"] - grpo[1]["old_log_probs"]).abs() > 1e-4
    result[f"old log-probs moved, {low}"] = moved.float().mean().item()
gate = actor.dataclasses.replace(arms["era"], era={"min_advantage": 1.0})
result["release, era of its gate, 0.5"] = distance(release[0], step(gate, 0.5)[0])

print(json.dumps(result))
"""


def test_actor_measures_every_arm_in_both_passes(python, patched_verl, tmp_path):
    """And a size that does not fit the memory is reported and ends nothing."""
    sizes = [2**36, 128] if sys.platform == "linux" else [128]  # the limit on a process's memory is Linux's
    where = ["--checkout", patched_verl, "--csv", tmp_path / "actor.csv"]
    result = python("-m", "tools.bench.actor", *TINY, "--tokens", *sizes, "--arms", *ACTOR_ARMS, *where)
    assert result.returncode == 0, result.stderr
    rows = read(tmp_path / "actor.csv")
    assert {(row["tokens"], row["fits"]) for row in rows} == {(str(size), str(size == 128)) for size in sizes}
    assert ("does not fit the memory" in result.stderr and "out of memory" in result.stdout) == (len(sizes) == 2)
    rows = [row for row in rows if row["tokens"] == "128"]
    arms = {row["arm"] for row in rows}
    assert arms > {*ACTOR_ARMS} and {row["baseline"] for row in rows} < arms
    assert {(row["arm"], row["pass"]) for row in rows} == {(arm, p) for arm in arms for p in ("old_log_prob", "update")}
    for row in rows:
        assert 0 < float(row["seconds_p20"]) <= float(row["seconds"]) <= float(row["seconds_p80"])
        assert row["arm"] != row["baseline"] or float(row["seconds_ratio"]) == 1
        assert row["torch"] and row["cpu"]
    assert result.stdout.count("| ERA, top-k 20 ") == 2 * len(sizes) and "Actor use_remove_padding" not in result.stdout


def test_the_actors_arms_do_what_their_names_say(python, patched_verl):
    result = python("-c", ACTOR_ARMS_CHECK, patched_verl)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    # Two of eight responses are scaled, in the old_log_prob pass too.
    assert found["release, era, 1.5"] < 1e-5 < 1e-2 < found["release, grpo, 1.5"]
    assert found["old log-probs moved, 1.5"] == pytest.approx(0.25, abs=0.01)
    # Advantages of 0.5 pass Eq. llm's gate, and not the release's.
    assert found["old log-probs moved, 0.5"] == 0
    assert found["release, grpo, 0.5"] < 1e-5 < 1e-2 < found["release, era, 0.5"]
    assert found["release, era of its gate, 0.5"] < 1e-5


def test_actor_names_all_bad_values_at_once(python, patched_verl, tmp_path):
    bad = ["--tokens", "100", "--vocabulary", "3", "--width", "130", "--turns", "1", "--csv", tmp_path / "none/a.csv"]
    result = python("-m", "tools.bench.actor", "--checkout", patched_verl, *bad)
    says(result, "--tokens", "--vocabulary", "--width", "2 turns", "none/a.csv")


# FastSAC-ERA

CONTROL_ARMS = ["fasttd3", "no-delay", "era", "era-delta", "era-tanh", "era-clipped", "era-batch"]


def test_control_measures_every_arm_against_both_baselines(python, patched_fasttd3, tmp_path):
    """Eager; compiling an arm takes half a minute."""
    size = ["--rounds", "2", "--dims", "2", "--batch-size", "128", "--modes", "eager"]
    where = ["--checkout", patched_fasttd3, "--csv", tmp_path / "control.csv"]
    result = python("-m", "tools.bench.control", *size, *where)
    assert result.returncode == 0, result.stderr
    rows = read(tmp_path / "control.csv")
    assert [row["arm"] for row in rows] == CONTROL_ARMS
    for row in rows:
        is_era = row["arm"].startswith("era")
        assert row["torch"] and row["cpu"] and (row["action_dim"], row["batch_size"]) == ("2", "128")
        for name in ["seconds", "seconds_ratio", "no_delay_ratio"] + ["activation_share", "alone_share"] * is_era:
            assert float(row[f"{name}_p20"]) <= float(row[name]) <= float(row[f"{name}_p80"])
        assert row["arm"] != "fasttd3" or float(row["seconds_ratio"]) == 1
        assert row["arm"] != "no-delay" or float(row["no_delay_ratio"]) == 1
        assert (row["activation_share"] != "") == is_era and (not is_era or 0 < float(row["activation_share"]) < 1)
    assert result.stdout.count("| FastSAC-ERA") == 5 and result.stdout.count("| FastTD3") == 2


def test_control_names_all_bad_values_at_once(python, tmp_path):
    bad = ["--device", "cuda", "--batch-size", "100", "256", "--rounds", "1", "--csv", tmp_path / "none/control.csv"]
    result = python("-m", "tools.bench.control", "--checkout", tmp_path, *bad)
    says(result, "make apply", "finds no GPU", "--batch-size 100:", "2 rounds", "none/control.csv")


# timm's steps


def test_vision_measures_every_arm_in_both_passes(python, patched_timm, tmp_path):
    """Eager; compiling the arms takes a minute and more."""
    size = ["--rounds", "2", "--sizes", "8x12", "--batch", "2", "--classes", "12", "--modes", "eager"]
    where = ["--checkout", patched_timm, "--csv", tmp_path / "vision.csv"]
    result = python("-m", "tools.bench.vision", *size, "--models", "test_resnet", *where)
    assert result.returncode == 0, result.stderr
    rows = read(tmp_path / "vision.csv")
    arms, passes = ("plain", "listing", "approx", "exact", "logged"), ("training", "evaluation")
    expected = [(what, pass_, arm) for what in ("activation", "test_resnet") for pass_ in passes for arm in arms]
    assert [(row["what"], row["pass"], row["arm"]) for row in rows] == expected
    for row in rows:
        assert row["mode"] == "eager" and row["classes"] == "12" and row["torch"] and row["cpu"] and row["timm"]
        for name in ("seconds", "seconds_ratio", "listing_ratio"):
            assert 0 < float(row[f"{name}_p20"]) <= float(row[name]) <= float(row[f"{name}_p80"])
        assert row["arm"] != "plain" or float(row["seconds_ratio"]) == 1
        assert row["arm"] != "listing" or float(row["listing_ratio"]) == 1
        assert (float(row["kept_mib"] or 0) > 0) == (row["pass"] == "training")
        assert (row["alone_share"] == "") == (row["what"] == "activation")
    for title in ("cross-entropy", "the listing", "ERA, approx ", "ERA, exact", "ERA, approx, entropies logged"):
        assert result.stdout.count(f"| {title} ") == len(rows) // len(arms)


def test_vision_names_all_bad_values_at_once(python, patched_timm, tmp_path):
    bad = ["--models", "no_such_model", "--device", "cuda", "--rounds", "1", "--csv", tmp_path / "none/vision.csv"]
    result = python("-m", "tools.bench.vision", "--checkout", patched_timm, *bad)
    says(result, "no_such_model", "finds no GPU", "2 rounds", "none/vision.csv")
