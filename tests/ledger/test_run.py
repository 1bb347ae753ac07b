# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The commands of entries, and reproduce.py run, which starts them."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import hydra
import pytest

from ledger import run
from ledger.paper import ROOT, UserError

HOME = {"HOME": "/home/me", "CHECKOUTS": "/checkouts"}


def steps_of(paper, row, seeds=(), slurm=False, **given):
    return run.steps(paper, paper.find(row), seeds, {**HOME, **given}, slurm)


def test_one_entry_is_run_alone(paper):
    (step,) = steps_of(paper, "hb-fastsac-era/h1hand-run-v0", [3])
    assert step.command == ("make", "control-humanoidbench") and step.at == ROOT
    assert step.variables == {"AGENT": "fastsac_era", "TASKS": "h1hand-run-v0", "SEED": "3"}
    (step,) = steps_of(paper, "sweep-imagenet/1.2")
    assert step.variables == {"H0": "1.2"}


def test_a_row_is_one_command_for_all_of_its_entries(paper):
    (step,) = steps_of(paper, "targets-sac-era", [1, 2])
    targets = "sac_era-target_-1.0 sac_era-target_-0.75 sac_era sac_era-target_-0.25"
    tasks = "dog-run dog-trot humanoid-run humanoid-walk"
    assert step.variables == {"AGENT": targets, "TASKS": tasks, "SEED": "1 2"}
    (step,) = steps_of(paper, "regularization-era")
    assert step.variables == {} and "trains all of its variants" in step.note


def test_two_stages_and_their_evaluation_come_in_order_and_with_one_seed(paper):
    found = steps_of(paper, "main-era", [7, 8])
    targets = [("make", "llm-stage1"), ("make", "llm-stage2"), ("make", "llm-merge", "llm-eval")]
    assert [step.command for step in found] == 2 * targets
    for seed, (stage1, stage2, evaluation) in zip((7, 8), (found[:3], found[3:])):
        first, second = (f"/home/me/verl/ckpts/ERA/era_stage{n}_qwen2.5_math_7b-seed{seed}" for n in (1, 2))
        override, checkpoint = f"+data.seed={seed}", f"{first}/global_step_600"
        assert stage1.variables == {"CKPTS_DIR": first, "ARGS": override}
        assert stage2.variables == {"CKPTS_DIR": second, "STAGE1_CKPT": checkpoint, "ARGS": override}
        name = f"era_stage2_qwen2.5_math_7b-seed{seed}"
        assert evaluation.variables == {
            "CKPT": f"{second}/global_step_1100",
            "MODEL_PATH": f"/home/me/verl/models/ERA/{name}",
            "OUT": f"/home/me/verl/eval/{name}",
        }


def test_the_users_overrides_stay(paper):
    (step,) = steps_of(paper, "entropy-grpo", [3], ARGS="trainer.save_freq=5", RAY_DATA_HOME="/my data")
    folder = "/my data/ckpts/ERA/grpo_qwen2.5_math_7b-seed3"
    assert step.variables == {"CKPTS_DIR": folder, "ARGS": "trainer.save_freq=5 +data.seed=3"}
    *_, evaluation = steps_of(paper, "pass-grpo", EVAL="--tensor-parallel 4")
    assert evaluation.variables["EVAL"].endswith("128 256 --tensor-parallel 4")
    assert evaluation.variables["SETS"] == "aime24 aime25" and evaluation.variables["OUT"].endswith("math_7b-pass")


def test_published_weights_are_evaluated_alone(paper):
    (step,) = steps_of(paper, "main-oat-zero")
    assert step.command == ("make", "llm-eval") and step.variables["MODEL_PATH"] == "/home/me/verl/models/Oat-Zero"
    (step,) = steps_of(paper, "main-oat-zero", MODEL_PATH="/weights/oat")
    assert step.variables["MODEL_PATH"] == "/weights/oat" and step.variables["OUT"].endswith("eval/Oat-Zero")


def test_gains_run_what_both_need_once(paper):
    grpo, stages = ["make llm-grpo"], ["make llm-stage1", "make llm-stage2"]
    found = [shlex.join(step.command) for step in steps_of(paper, "main-gain")]
    assert found == [*stages, "make llm-merge llm-eval", *grpo, "make llm-merge llm-eval"]
    twice = [*paper.find("ood-grpo"), *paper.find("main-grpo")]
    assert len(run.steps(paper, twice, (), HOME)) == 2


def test_slurm(paper):
    stage1, stage2 = steps_of(paper, "main-era", [7], slurm=True, ARGS="trainer.save_freq=5")
    words = ("trainer.save_freq=5", "+data.seed=7")
    script = "recipe/era/slurm_ray.sbatch"
    assert stage1.command == ("sbatch", "--parsable", script, "run_era_stage1_qwen2.5_math_7b.sh", *words)
    assert str(stage1.at) == "/checkouts/verl" and "ARGS" not in stage1.variables
    assert stage2.job_before and not stage1.job_before
    (step,) = steps_of(paper, "hb-fasttd3/h1hand-run-v0", slurm=True)
    assert step.variables["SLURM"] == "1"
    with pytest.raises(UserError, match="is for one node"):
        steps_of(paper, "cifar10", slurm=True)


def test_what_cannot_be_run_says_why(paper):
    with pytest.raises(UserError, match="EAPO has no public code"):
        steps_of(paper, "eapo")


def test_the_seed_reaches_verl(patched_verl, monkeypatch):
    """It composes, orders the training data, and vLLM does not take it for the seed of every response."""
    monkeypatch.chdir(patched_verl)  # the configuration's search path is seen from there
    with hydra.initialize_config_dir(str(patched_verl / "recipe/era/config"), version_base=None):
        composed = hydra.compose("era_math", [run.SEED_OVERRIDE.format(7)])
    assert composed.data.seed == 7 and composed.data.shuffle
    assert not [name for name in composed.actor_rollout_ref.rollout if "seed" in name]
    assert 'manual_seed(data_config.get("seed", 1))' in (patched_verl / "verl/trainer/main_ppo.py").read_text()


# ------------------------------------------------------------------------------------------------------------- starting


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A `make` that writes down what it was called with, and then does as `what` says."""
    log = tmp_path / "called"

    def install(what="true"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name in ("make", "sbatch"):
            script = f'#!/bin/bash\necho "{name} $*; TASKS=$TASKS SEED=$SEED" >> {log}\n{what}\n'
            (tmp_path / "bin" / name).write_text(script)
            (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        return lambda: log.read_text().splitlines() if log.exists() else []

    return install


def start(*words, **given):
    return subprocess.Popen(
        [sys.executable, ROOT / "reproduce.py", "run", *words],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_commands_start_one_after_the_other_and_a_failure_ends_it(paper, places, make, capfd):
    called = make("[[ $* != *stage2* ]] || exit 3")
    assert run.run(paper, paper.find("main-era"), (), False, False) == 3
    assert [line.partition(";")[0] for line in called()] == ["make llm-stage1", "make llm-stage2"]
    printed = capfd.readouterr().out
    assert "ended with exit code 3. The same command again continues" in printed and "== cd" in printed


def test_a_training_that_has_reached_its_last_step_is_passed_over(paper, places, make):
    called = make()
    folder = places / "home/verl/ckpts/ERA/era_stage1_qwen2.5_math_7b"
    (folder / "global_step_600").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("600")
    assert run.run(paper, paper.find("main-era"), (), False, False) == 0
    assert [line.partition(";")[0] for line in called()] == ["make llm-stage2", "make llm-merge llm-eval"]


def test_a_dry_run_prints_lines_for_a_shell_and_starts_nothing(paper, places, make, capsys):
    called = make()
    assert run.run(paper, paper.find("hb-fasttd3/h1hand-run-v0"), (3,), True, False) == 0
    printed = capsys.readouterr()
    line = printed.out.strip()
    assert "Not checked" in printed.err
    assert called() == [] and line.endswith("AGENT=fasttd3 TASKS=h1hand-run-v0 SEED=3 make control-humanoidbench")
    (places / "bin").mkdir(exist_ok=True)
    subprocess.run(line, shell=True, check=True, executable="/bin/bash")
    assert called() == ["make control-humanoidbench; TASKS=h1hand-run-v0 SEED=3"]


def test_the_second_stage_waits_for_the_job_of_the_first(paper, places, make):
    called = make("echo '17;cluster'")
    (places / "checkouts/verl").mkdir(parents=True)
    assert run.run(paper, paper.find("main-era"), (), False, True) == 0
    first, second = called()
    assert "--dependency" not in first and "--dependency=afterok:17 --parsable" in second


def test_ctrl_c_is_the_commands(make, tmp_path):
    """It is of the same group, gets the signal itself, and is waited for."""
    make(f"trap 'sleep 1; touch {tmp_path}/ended; exit 7' INT; touch {tmp_path}/begun; sleep 900 & wait")
    process = subprocess.Popen(
        [sys.executable, ROOT / "reproduce.py", "run", "cifar10"], start_new_session=True, stdout=subprocess.DEVNULL
    )
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(900) == 7 and (tmp_path / "ended").exists()


def test_users_mistakes_are_a_sentence(make):
    make()
    for words, said in (
        (("main-erq",), "there is no row 'main-erq'"),
        (("obac",), "OBAC's public repository has no licence"),
        (("cifar10", "--seeds", "x"), "a seed is a whole number"),
    ):
        process = start(*words)
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 2 and said in errors and "Traceback" not in errors
        assert not re.search(r"File \"", errors)
