# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The command line, and the script that `run` hands to bash."""

import os
import subprocess
import sys

import hydra
import pytest
import synthetic

import reproduce
from ledger import run
from ledger.paper import ROOT
from recipes import UserError


def call(capsys, *words):
    code = reproduce.main(list(map(str, words)))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def lines(paper, row, seeds=(), slurm=False):
    """The script's lines without the two that name folders."""
    return [line for line in run.lines(paper, paper.find(row), seeds, slurm) if not line.startswith(("data=", "cd "))]


def test_list_has_a_line_for_each_row_and_chooses_by_text(paper, places, capsys):
    _, printed, _ = call(capsys, "list")
    rows = {entry.row for entry in paper.entries.values()}
    assert {line.split()[0] for line in printed.splitlines()} == rows | set(paper.elsewhere)
    assert any(line.split()[0] == "hb-fasttd3" and line.endswith("8 not run") for line in printed.splitlines())
    assert call(capsys, "list", "--state", "cannot run") == call(capsys, "list", "cannot run")
    _, printed, _ = call(capsys, "list", "cannot run")
    assert {line.split()[0] for line in printed.splitlines()} == {"mnse"}
    code, _, errors = call(capsys, "list", "main-erq")
    assert code == 2 and "no row 'main-erq'" in errors and "main-era" in errors


def test_list_of_one_has_the_papers_number_what_decides_and_the_command(paper, places, capsys):
    _, printed, _ = call(capsys, "list", "main-era")
    for words in (
        "tab:main_results",
        "aime24 37.5",
        "average within the tolerance",
        "make llm-stage1: verl",
        "not run",
    ):
        assert words in " ".join(printed.split())
    _, printed, _ = call(capsys, "list", "ppo-era/Ant-v4")
    assert "claim ppo-era: return: PPO-ERA higher than PPO" in printed and 'TASKS="Ant-v4" make control-ppo' in printed


def test_report_collects_writes_the_pages_and_list_knows_the_states(paper, places, capsys, tmp_path_factory):
    for seed in range(1, 6):
        synthetic.control_run(places / f"results/control/Ant-v4-ppo-seed{seed}")
        synthetic.control_run(places / f"results/control/Ant-v4-ppo_era-seed{seed}", as_paper=seed != 5)
    elsewhere = tmp_path_factory.mktemp("copies")
    synthetic.timm_run(elsewhere / "cifar10-seed42")
    code, printed, errors = call(capsys, "report", elsewhere)
    assert code == 0 and "11 results, 10 used" in printed and "Ant-v4-ppo_era-seed5: was not trained as" in errors
    assert (places / "results/report/index.html").is_file() and (places / "results/report/report.md").is_file()
    _, printed, _ = call(capsys, "list", "ppo-era")
    assert "ppo-era/Ant-v4: partial" in printed and "ppo-era/Hopper-v4: not run" in printed
    code, _, errors = call(capsys, "collect", elsewhere / "none")
    assert code == 2 and "none" in errors


@pytest.mark.parametrize("words", [["list", "main-era"], ["run", "main-era", "--dry-run"], ["--help"]])
def test_list_and_run_need_the_standard_library_alone(words):
    """They run on the login node of a cluster."""
    code = "import sys; sys.modules.update(dict.fromkeys(('numpy', 'pandas', 'scipy', 'matplotlib', 'jinja2')))\n"
    code += "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(ROOT / "reproduce.py"), *words]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0 and answer.stdout, answer.stderr


# ----------------------------------------------------------------------------------------------------------------- run


def test_a_row_or_an_entry_of_a_grid_is_one_command(paper):
    assert lines(paper, "hb-fastsac-era/h1hand-run-v0", [3]) == [
        'AGENT="fastsac_era" TASKS="h1hand-run-v0" SEED="3" make control-humanoidbench'
    ]
    assert lines(paper, "sweep-imagenet/1.2", slurm=False) == ['H0="1.2" make vision-imagenet-sweep']
    agents = "sac_era-target_-1.0 sac_era-target_-0.75 sac_era sac_era-target_-0.25"
    tasks = "dog-run dog-trot humanoid-run humanoid-walk"
    assert lines(paper, "targets-sac-era", [1, 2], slurm=True) == [
        f'AGENT="{agents}" TASKS="{tasks}" SEED="1 2" SLURM="1" make control-sac-targets'
    ]


def test_two_stages_and_their_evaluation_come_in_order_and_with_one_seed(paper):
    found = lines(paper, "main-era", [7, 8])
    targets = ["llm-stage1", "llm-stage2", "llm-merge llm-eval"]
    assert [line.rpartition("make ")[2] for line in found] == 2 * targets
    for seed, (stage1, stage2, evaluation) in zip((7, 8), (found[:3], found[3:])):
        first, second = (f"$data/ckpts/ERA/era_stage{n}_qwen2.5_math_7b-seed{seed}" for n in (1, 2))
        added = f'ARGS="$ARGS +data.seed={seed}"'
        assert stage1.endswith(f'|| CKPTS_DIR="{first}" {added} make llm-stage1')
        assert f'CKPTS_DIR="{second}" STAGE1_CKPT="{first}/global_step_600" {added} make' in stage2
        name = f"era_stage2_qwen2.5_math_7b-seed{seed}"
        assert f'CKPT="{second}/global_step_1100" MODEL_PATH="$data/models/ERA/{name}"' in evaluation
        assert f'OUT="$data/eval/{name}"' in evaluation
    (_, evaluation) = lines(paper, "pass-grpo")
    assert 'SETS="aime24 aime25"' in evaluation and '128 256 $EVAL"' in evaluation and 'math_7b-pass"' in evaluation


def test_gains_run_what_both_need_once_and_published_weights_are_evaluated_alone(paper):
    found = [line.rpartition("make ")[2] for line in lines(paper, "main-gain")]
    assert found == ["llm-stage1", "llm-stage2", "llm-merge llm-eval", "llm-grpo", "llm-merge llm-eval"]
    (line,) = lines(paper, "main-oat-zero")
    assert line == 'MODEL_PATH="${MODEL_PATH:-$data/models/Oat-Zero}" OUT="$data/eval/Oat-Zero" make llm-eval'


@pytest.mark.parametrize("row, why", [("mnse", "a submission that was not accepted")])
def test_what_cannot_be_run_says_why(paper, row, why):
    with pytest.raises(UserError, match=why):
        lines(paper, row, slurm=row == "cifar10")


def test_the_seed_reaches_verl(patched_verl, monkeypatch):
    """The override composes, seeds the order of the data, and is not taken by vLLM for the seed of every response."""
    monkeypatch.chdir(patched_verl)  # the configuration's search path is seen from there
    with hydra.initialize_config_dir(str(patched_verl / "recipe/era/config"), version_base=None):
        composed = hydra.compose("era_math", [run.SEED_OVERRIDE.format(7)])
    assert composed.data.seed == 7 and composed.data.shuffle
    assert not [name for name in composed.actor_rollout_ref.rollout if "seed" in name]
    assert 'manual_seed(data_config.get("seed", 1))' in (patched_verl / "verl/trainer/main_ppo.py").read_text()


@pytest.fixture
def started(paper, places, monkeypatch):
    """started(row, ...): exit code, and the calls of `make` and `sbatch` in the script for the row. Stand-ins for these
    two run `what`."""
    log = places / "called"

    def start(row, what="true", slurm=False):
        (places / "bin").mkdir(exist_ok=True)
        for name in ("make", "sbatch"):
            script = f'#!/bin/bash\necho "{name} $*; TASKS=$TASKS ARGS=$ARGS" >> {log}\n{what}\n'
            (places / "bin" / name).write_text(script)
            (places / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{places}/bin:{os.environ['PATH']}")
        called = []
        monkeypatch.setattr(os, "execvp", lambda file, words: called.append(subprocess.run(words).returncode))
        run.run(paper, paper.find(row), (), False, slurm)
        return called[0], log.read_text().splitlines() if log.exists() else []

    return start


def test_commands_start_one_after_the_other_and_a_failure_ends_it(started):
    code, called = started("main-era", "[[ $* != *stage2* ]] || exit 3")
    assert code == 3 and [line.partition(";")[0] for line in called] == ["make llm-stage1", "make llm-stage2"]


def test_a_training_that_has_reached_its_last_step_is_passed_over(started, places):
    folder = places / "home/verl/ckpts/ERA/era_stage1_qwen2.5_math_7b"
    folder.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("600")
    code, called = started("main-era")
    assert code == 0
    assert [line.partition(";")[0] for line in called] == ["make llm-stage2", "make llm-merge llm-eval"]


def test_the_second_stage_waits_for_the_job_of_the_first(started, places, monkeypatch):
    (places / "checkouts/verl").mkdir(parents=True)
    monkeypatch.setenv("ARGS", "trainer.save_freq=5")
    code, (first, second) = started("main-era", "echo '17;cluster'", slurm=True)
    assert code == 0 and "--dependency" not in first
    assert "--dependency=afterany:17 recipe/era/slurm_ray.sbatch" in second
    assert "run_era_stage1_qwen2.5_math_7b.sh trainer.save_freq=5;" in first
