# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The tables of experiments against the paper's, and the commands of their runs."""

import json
import math
import shlex
import zipfile

import pytest

from recipes import grid, run_json, whole
from recipes.control import SCRIPTS
from recipes.control.sac import SAC

CHEETAH = "HalfCheetah-v4"


def flags(run):
    """{flag: value} of a command with --flag value; True where a flag has no value."""
    words = [*run.command[1:], "--"]
    pairs = zip(words, words[1:])
    return {flag: True if value.startswith("--") else value for flag, value in pairs if flag.startswith("--")}


def launch_of(experiment, *added):
    return SCRIPTS[experiment](experiment, added)


def test_main_results_of_fasttd3():
    """tab. continuous_envs2: all else is as FastTD3 has it. ../ledger/test_experiments.py has the lists of all runs."""
    for run in launch_of("humanoidbench").runs:
        expected = {"--env_name": run.task, "--agent": run.agent, "--seed": str(run.seed)}
        assert flags(run) == {**expected, "--exp_name": run.agent, "--csv_path": "train.csv"}


def test_fasttd3_without_its_delay():
    """Its runs are shorter, in a folder of their own."""
    undelayed = [run for run in launch_of("time").runs if run.agent == "fasttd3-no_delay"]
    assert len(undelayed) == 8 and all(flags(run)["--policy_frequency"] == "1" for run in undelayed)
    assert {run.folder.parent.name for run in undelayed} == {"time"}


def test_the_last_of_two_flags_says_whether_there_are_gpus():
    assert launch_of("batch", "--no-cuda").gpus == launch_of("batch", "--cuda", "--no_cuda").gpus == 0
    assert launch_of("batch", "--no_cuda", "--cuda").gpus == launch_of("batch").gpus == 1


def test_main_results_of_ppo():
    """fig. gym_ppo: HalfCheetah with the control arms comes first, seed by seed."""
    found = launch_of("ppo").runs
    assert [run.task for run in found[:30]] == ["HalfCheetah-v4"] * 30
    assert [run.seed for run in found] == [*sorted([1, 2, 3, 4, 5] * 6), *sorted([1, 2, 3, 4, 5] * 6)]
    first = {run.agent: flags(run) for run in found[:6]}
    own = {"--env": "HalfCheetah-v4", "--seed": "1", "--csv_path": "train.csv", "--fast": True}
    assert first["ppo"] == own
    assert first["ppo_era"] == {**own, "--std": "era", "--era_target_entropy": "-0.3", "--entropy_coef": "0"}
    assert first["ppo_era_0.3"] == {**first["ppo_era"], "--era_target_entropy": "0.3"}
    for kind in ("constant", "head", "parameter"):
        arm = first[f"ppo_{kind}"]
        assert arm["--std"] == kind and arm["--entropy_coef"] == "0"  # at ERA's mean entropy, -0.3 per dimension
        assert float(arm["--log_std_init"]) + 0.5 * math.log(2 * math.pi * math.e) == pytest.approx(-0.3, abs=1e-5)


def test_eapo():
    """fig. compare_eapo, and its shorter comparison. tau and lambda_H: EAPO's authors, mujoco-ppo.yaml."""
    figure, shorter = launch_of("eapo").runs, launch_of("eapo-3m").runs
    values = {run.agent: flags(run) for run in (*figure, *shorter)}
    expected = {"--eapo_tau": "0.02", "--eapo_lambda": "0.001", "--entropy_coef": "0"}
    assert values["eapo_3m"] == {**values["ppo"], **expected}
    assert {**values["eapo"], "--env": CHEETAH, "--seed": "3"} == {**values["eapo_3m"], "--max_train_steps": "4000000"}
    assert values["ppo_no_bonus"] == {**values["ppo"], "--entropy_coef": "0"}
    assert {run.task for run in shorter} == {CHEETAH}


def test_llm_techniques():
    """fig. ablation_llm_tricks: several values of each; selecting needs a state-dependent sigma."""
    values = {run.agent: flags(run) for run in launch_of("llm-techniques").runs}
    clips = [float(value["--epsilon_high"]) for agent, value in values.items() if "clip" in agent]
    shares = [float(value["--selective"]) for agent, value in values.items() if "scope" in agent]
    assert len(clips) >= 3 and min(clips) > 0.2 and len(shares) >= 3 and max(shares) == 1
    assert all(value["--std"] == "head" for agent, value in values.items() if "scope" in agent)


@pytest.mark.parametrize("experiment", ["distribution", "batch", *SAC.experiments])
def test_flags_of_a_run_follow_its_agents_name(experiment):
    for run in launch_of(experiment).runs:
        given = {flag.replace("--era_", "--"): value for flag, value in flags(run).items()}
        assert ("--era" in given or given.get("--agent") == "fastsac_era") == ("_era" in run.agent)
        assert given["--seed"] == str(run.seed)
        switch = "reward" if "reward" in run.agent else "soft"
        assert given.get("--obac") == (switch if run.agent.startswith("obac") else None)
        assert ("--learn_delta" in given) == ("learned" in run.agent)
        assert (given.get("--distribution") == "tanh") == ("tanh" in run.agent)
        assert (given.get("--level") == "batch") == ("batch" in run.agent)
        assert given.get("--target_entropy", "-0.5") == run.agent.partition("target_")[2] or "target_" not in run.agent
        repeats = given.get("--action_repeat") == "2"
        assert ("--no_termination" in given) == repeats == (run.task.startswith("h1-") and "standard" not in run.agent)


def test_a_run_of_several_experiments_is_one():
    """The runs of `alpha` and `time` are shorter, in folders of their own."""
    commands = {}
    for name in SCRIPTS:
        for run in launch_of(name).runs:
            assert commands.setdefault(run.folder, run.command) == run.command
    assert len({run.folder.parent for run in launch_of("alpha").runs + launch_of("sac-gym").runs}) == 2
    assert sum(len(launch_of(name).runs) for name in SAC.experiments) > len({f for f in commands if "-sac" in f.name})


def test_tdmpc2(monkeypatch):
    """fig. dmc_tdmpc2: on the CPU without compilation."""
    on_gpu = launch_of("tdmpc2")
    monkeypatch.setenv("GPUS_PER_RUN", "0")
    on_cpu = launch_of("tdmpc2")
    assert on_cpu.argv(on_cpu.runs[0]) == [*on_gpu.argv(on_gpu.runs[0]), "device=cpu", "compile=false"]


def test_variables_choose_and_the_users_flags_win(monkeypatch, capsys):
    given = {"TASKS": "Ant-v4", "SEED": "7 07", "AGENT": "ppo_era", "DRY_RUN": "1", "PYTHON": "some/python"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    grid.launch(launch_of("ppo", "--lr_a", "1e-3"))
    printed, errors = capsys.readouterr()
    assert errors == "1 runs, 0 of them finished:\n" and printed.endswith("--entropy_coef 0 --lr_a 1e-3\n")
    words = shlex.split(printed)
    assert words[1].startswith("-p") and words[2].endswith("/Ant-v4-ppo_era-seed7") and "CUDA_VISIBLE_DEVICES=" in words
    (about,) = [json.loads(word.partition("=")[2]) for word in words if word.startswith("ERA_RUN=")]
    assert about["agent"] == "ppo_era" and about["added"] == ["--lr_a", "1e-3"] and about["as_paper"] is False
    assert any(word.startswith("/") and word.endswith("/some/python") for word in words)  # runs start in their folders


def test_a_part_is_trained_with_its_own_tasks(monkeypatch):
    monkeypatch.setenv("SEED", "1")
    monkeypatch.setenv("TASKS", "Hopper-v4")
    assert [run.agent for run in launch_of("ppo").runs] == ["ppo", "ppo_era"]
    monkeypatch.setenv("TASKS", "Reacher-v4")
    assert len(launch_of("ppo").runs) == 6


def test_slurm_script(monkeypatch):
    monkeypatch.setenv("SEED", "1 2")
    script = grid.slurm_script(launch_of("humanoidbench", "--num_envs", "64"))
    assert "#SBATCH --array=" + ",".join(map(str, range(32))) + "\n" in script and "#SBATCH --gres=gpu:1\n" in script
    assert script.endswith(" -m recipes.control humanoidbench --num_envs 64\n")
    assert "#SBATCH --cpus-per-task=16\n" in script and "#SBATCH --open-mode=append\n" in script
    alpha = grid.slurm_script(launch_of("alpha"))
    assert "%1\n" in grid.slurm_script(launch_of("time")) and "gres" not in alpha and "--cpus-per-task=1\n" in alpha
    monkeypatch.setenv("CPUS_PER_RUN", "5")
    assert "--cpus-per-task=5\n" in grid.slurm_script(launch_of("alpha"))


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("CHECKOUTS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launch = launch_of("tdmpc2")
    monkeypatch.setattr(type(launch), "packages", ("no_such_package",))
    checkout, environment, gpus = grid.problems(launch, launch.runs)
    assert "apply.py apply tdmpc2" in checkout and "lacks no_such_package" in environment
    assert "a run wants 1, and this machine has 0" in gpus


def test_fasttd3_run_is_finished_with_its_model_and_whole_curve(monkeypatch, tmp_path):
    """run.json gets the steps from the log only once the run has come to its end."""
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    launch = launch_of("humanoidbench")
    run = launch.runs[0]
    (run.folder / "models").mkdir(parents=True)
    with zipfile.ZipFile(run.folder / "models/x_final.pt", "w"):
        pass
    run_json.write(run.folder, launch.record(run))
    (run.folder / "log.txt").write_text("Args(total_timesteps=400, seed=1)")
    rows = "global_step,seconds\n100,1\n200,2\n300,3\n"
    for curve, finished in ((rows, True), (rows[:-6], False), (rows.replace("200,2\n", ""), False)):
        (run.folder / "train.csv").write_text(curve)
        assert launch.is_finished(run) == finished
    (run.folder / "train.csv").write_text(rows)
    launch.complete_record(run)
    assert whole.incomplete_because(run.folder) == "" and run_json.read(run.folder)["total_steps"] == 400


def test_a_checkpoint_of_ppo_that_was_cut_short_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    launch = launch_of("ppo")
    run = launch.runs[0]
    run.folder.mkdir()
    with zipfile.ZipFile(run.folder / "checkpoint.pt", "w") as file:
        file.writestr("data.pkl", 1000 * "x")
    assert launch.checkpoint(run) == run.folder / "checkpoint.pt"
    (run.folder / "checkpoint.pt").write_bytes((run.folder / "checkpoint.pt").read_bytes()[:500])
    assert launch.checkpoint(run) is None
