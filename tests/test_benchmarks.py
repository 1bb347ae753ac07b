"""The benchmarks of the LLM's actor and of FastSAC-ERA's updates: they run, and their arms do what their names say."""

import csv
import json
import os
import subprocess
import sys

import pytest

TINY = ["--tokens", "128", "--vocabulary", "300", "--width", "32", "--layers", "1", "--turns", "2"]
# One process for all that needs the actor: starting torch and verl takes seconds.
RELEASE = """
import argparse, json, sys
sys.path.insert(0, sys.argv[1])
import actor, torch

actor.prepare_verl(sys.argv[2])
settings = argparse.Namespace(tokens=128, vocabulary=200, width=32, layers=1, dtype=torch.float32, k=2.0, temperature=0.8)

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

def fails(action):
    try:
        action()
    except AssertionError as error:
        return str(error)

args = argparse.Namespace(**vars(settings))
actor.check_gradients(args)
import release_way
class Idle(release_way.ReleaseHooks):
    def log_probs(self, logits, labels, micro_batch, indices, inplace_backward=True):
        return release_way.logprobs_from_logits(logits, labels, inplace_backward)

class TooLarge(release_way.ReleaseHooks):
    def log_probs(self, logits, labels, micro_batch, indices, inplace_backward=True):
        raise torch.OutOfMemoryError

release_way.ReleaseHooks = Idle
caught = fails(lambda: actor.check_gradients(args))
release_way.ReleaseHooks = TooLarge
seconds, memory = actor.run(settings, ["grpo", "release", "era"], 2)
print(json.dumps([result, caught, {pass_: {arm: len(turns) for arm, turns in arms.items()} for pass_, arms in seconds.items()}, sorted(memory["update"])]))
"""


@pytest.fixture(scope="module")
def benchmark(project_root, patched_verl):
    def run(*args):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, project_root / "tools/bench/actor.py", "--checkout", patched_verl, *args]
        return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=900)

    return run


@pytest.fixture(scope="module")
def rows(benchmark, tmp_path_factory):
    path = tmp_path_factory.mktemp("benchmark") / "actor.csv"
    result = benchmark(*TINY, "--csv", path)
    assert result.returncode == 0, result.stderr
    with open(path, newline="") as file:
        return list(csv.DictReader(file)), result.stdout


def test_every_arm_is_measured_in_both_passes_against_its_own_baseline(rows):
    rows, stdout = rows
    arms = {row["arm"] for row in rows}
    assert {
        "grpo",
        "era",
        "era-topk",
        "release",
        "release-topk",
        "era-offpolicy",
        "era-kl",
        "era-entropy",
        "era-fused",
    } <= arms
    assert {(row["arm"], row["pass"]) for row in rows} == {
        (arm, pass_) for arm in arms for pass_ in ("old_log_prob", "update")
    } and len(rows) == 2 * len(arms)
    for row in rows:
        assert (
            row["fits"] == "True"
            and float(row["seconds"]) > 0
            and float(row["seconds_p20"]) <= float(row["seconds"]) <= float(row["seconds_p80"])
        )
        assert row["baseline"].startswith("grpo") and row["baseline"].removeprefix("grpo") in (
            "",
            row["arm"][row["arm"].find("-") :],
        )
        assert row["arm"] != row["baseline"] or float(row["seconds_ratio"]) == 1
        assert row["torch"] and row["cpu"] and row["tokens"] == "128"
    assert stdout.count("| ERA, top-k 20 ") == 2 and "Actor use_remove_padding" not in stdout


def test_the_arms_do_what_their_names_say(project_root, patched_verl, run_in, tmp_path):
    (tmp_path / "release.py").write_text(RELEASE)
    *_, last = run_in(patched_verl, tmp_path / "release.py", project_root / "benchmarks", patched_verl).splitlines()
    found, caught, turns, memory = json.loads(last)
    # Two of eight responses are scaled, in the old_log_prob pass too.
    assert found["release, era, 1.5"] < 1e-5 < 1e-2 < found["release, grpo, 1.5"] and found[
        "old log-probs moved, 1.5"
    ] == pytest.approx(0.25, abs=0.01)
    # Advantages of 0.5 pass Eq. llm's gate, and not the release's.
    assert (
        found["old log-probs moved, 0.5"] == 0
        and found["release, grpo, 0.5"] < 1e-5 < 1e-2 < found["release, era, 0.5"]
    )
    assert found["release, era of its gate, 0.5"] < 1e-5
    assert "release and era differ" in caught, "an arm that scales nothing must be noticed before anything is measured"
    assert turns == dict.fromkeys(("old_log_prob", "update"), {"grpo": 2, "release": 0, "era": 2}) and memory == [
        "era",
        "grpo",
    ], "an arm that does not fit leaves the others"


def test_a_size_that_does_not_fit_is_reported_and_ends_nothing(benchmark, tmp_path):
    if sys.platform != "linux":
        pytest.skip("the limit on a process's memory is Linux's")
    size = 2**36
    result = benchmark(*TINY, "--tokens", size, 128, "--arms", "era", "--csv", tmp_path / "actor.csv")
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "actor.csv", newline="") as file:
        fits = {(row["tokens"], row["arm"]): row["fits"] for row in csv.DictReader(file)}
    assert fits == {
        (str(size), "grpo"): "False",
        (str(size), "era"): "False",
        ("128", "grpo"): "True",
        ("128", "era"): "True",
    }
    assert "does not fit the memory" in result.stderr and "out of memory" in result.stdout


def test_all_bad_values_are_said_at_once(benchmark, tmp_path):
    result = benchmark(
        "--tokens", "100", "--vocabulary", "3", "--width", "130", "--turns", "1", "--csv", tmp_path / "none/actor.csv"
    )
    assert result.returncode == 2 and "Traceback" not in result.stderr
    for said in ("--tokens", "--vocabulary", "--width", "2 turns", "none/actor.csv"):
        assert said in result.stderr.splitlines()[-1]


CONTROL_CHECK = """
import argparse, json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1], sys.argv[2] + "/fast_td3"
import control, torch

torch.set_num_threads(1)
args = argparse.Namespace(device="cpu", train_script=Path(sys.argv[2]) / "fast_td3/train.py")
found = {}
for arm in control.ARMS:
    main = control.variables_of_main(args, arm, 128, 2, "eager")
    before = [parameter.clone() for parameter in main["actor"].parameters()]
    calls = []
    for name in ("update_main", "update_pol", "soft_update"):
        main[name] = lambda *given, name=name, real=main[name]: (calls.append(name), real(*given))[1]
    control.step_run(args, main)()
    control.check(arm, main)
    moved = max((a - b).abs().max().item() for a, b in zip(before, main["actor"].parameters()))
    found[arm] = calls, moved, type(main["actor"]).__module__, main["qnet"].qnet1.net[0].out_features, len(main["data"])

def fails(arm):
    try:
        control.check(arm, main)
    except AssertionError as error:
        return str(error)

print(json.dumps([found, fails("fasttd3"), fails("no-delay")]))
"""


@pytest.fixture(scope="module")
def control(project_root, patched_fasttd3):
    def run(*args):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [
            sys.executable,
            project_root / "tools/bench/control.py",
            "--checkout",
            patched_fasttd3,
            "--rounds",
            "2",
            *args,
        ]
        return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=900)

    return run


def test_control_times_the_updates_of_train_py(project_root, patched_fasttd3, run_in, tmp_path):
    (tmp_path / "check.py").write_text(CONTROL_CHECK)
    *_, last = run_in(patched_fasttd3, tmp_path / "check.py", project_root / "benchmarks", patched_fasttd3).splitlines()
    found, unlike_fasttd3, unlike_no_delay = json.loads(last)
    for arm, (calls, moved, module, width, batch) in found.items():
        first = ["update_main", "soft_update"] if arm == "fasttd3" else ["update_main", "update_pol", "soft_update"]
        assert calls == first + ["update_main", "update_pol", "soft_update"], arm
        assert moved < 1e-9 and width == 1024 and batch == 128, (arm, moved)  # the learning rate is 1e-12
        assert module == ("fastsac_era" if arm.startswith("era") else "fast_td3")
    assert "updates of critic and policy" in unlike_fasttd3 and "logs" in unlike_no_delay, (
        "an arm that is another one must be noticed"
    )


def test_control_measures_every_arm_against_both_baselines(control, tmp_path):
    """Eager; compiling an arm takes half a minute."""
    result = control("--dims", "2", "--batch-size", "128", "--modes", "eager", "--csv", tmp_path / "control.csv")
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "control.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == [
        "fasttd3",
        "no-delay",
        "era",
        "era-delta",
        "era-tanh",
        "era-clipped",
        "era-batch",
    ]
    for row in rows:
        assert (
            row["torch"]
            and row["cpu"]
            and row["precision"] == "fp32"
            and (row["action_dim"], row["batch_size"]) == ("2", "128")
        )
        names = ["seconds", "seconds_ratio", "no_delay_ratio"] + ["activation_share", "alone_share"] * row[
            "arm"
        ].startswith("era")
        assert (
            all(float(row[f"{name}_p20"]) <= float(row[name]) <= float(row[f"{name}_p80"]) for name in names)
            and float(row["seconds"]) > 0
        )
        assert row["arm"] != "fasttd3" or float(row["seconds_ratio"]) == 1
        assert row["arm"] != "no-delay" or float(row["no_delay_ratio"]) == 1
        assert (row["activation_share"] != "") == (row["alone_share"] != "") == row["arm"].startswith("era") and row[
            "peak_mib"
        ] == ""
        assert not row["activation_share"] or 0 < float(row["activation_share"]) < 1
    assert result.stdout.count("| FastSAC-ERA") == 5 and result.stdout.count("| FastTD3") == 2


def test_control_says_all_bad_values_at_once(control, tmp_path):
    result = control(
        "--checkout",
        tmp_path,
        "--device",
        "cuda",
        "--batch-size",
        "100",
        "256",
        "--rounds",
        "1",
        "--csv",
        tmp_path / "none/control.csv",
    )
    assert result.returncode == 2 and "Traceback" not in result.stderr
    for said in ("make apply", "finds no GPU", "--batch-size 100:", "2 rounds", "none/control.csv"):
        assert said in result.stderr.splitlines()[-1]
