"""The grid of PPO, SAC and TD-MPC2: commands, refusals, and short runs of the real PPO on this CPU."""

import csv
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from helpers import importable, processes_with

MODULES = (
    *("host", "launching", "grid", "results", "ppo", "sac", "tdmpc2", "environments", "probe", "preflight", "launch"),
)
MARK = "ERA_OTHER_AGENTS_TEST"
UNSET = ("TASKS", "SEED", "AGENT", "OUTPUT", "JOBS", "GPUS_PER_RUN", "RAY_ADDRESS", "SLURM", "RUN_INDEX", "PYTHONPATH")
TINY = shlex.split("--evaluate_freq 300 --batch_size 128 --K_epochs 1 --save_freq 1000")


@pytest.fixture(scope="module")
def control(project_root):
    """The modules of recipes/control, which import each other by these names."""
    with importable(project_root / "recipes/control", *MODULES) as found:
        return found


@pytest.fixture
def start(project_root, tmp_path):
    """start(experiment, flags..., VARIABLE=...): the launcher's process, with this test's folder."""

    def run(*words, **variables):
        kept = {name: value for name, value in os.environ.items() if name not in (*UNSET, "DRY_RUN", "CHECK_ONLY")}
        given = {"PYTHON": sys.executable, "OUTPUT": str(tmp_path / "runs"), MARK: str(tmp_path), **variables}
        command = [sys.executable, project_root / "recipes/control/launch.py", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env={**kept, **given}, start_new_session=True, **pipes)

    yield run
    for process in processes_with(**{MARK: str(tmp_path)}):
        process.kill()


@pytest.fixture
def launch(start):
    def run(*words, **variables):
        process = start(*words, **variables)
        printed, errors = process.communicate(timeout=900)
        return subprocess.CompletedProcess(words, process.returncode, printed, errors)

    return run


def runs(control, experiment, **settings):
    host = control.launch.EXPERIMENTS[experiment]()
    return host.runs(experiment, control.host.Settings(**settings), [])


def flags(run):
    """{flag: value} of a command with --flag value; True where a flag has no value."""
    words = [*run.command[1:], "--"]
    pairs = zip(words, words[1:])
    return {flag: True if value.startswith("--") else value for flag, value in pairs if flag.startswith("--")}


def test_main_results_of_ppo(control):
    """fig. gym_ppo: four tasks, five seeds; HalfCheetah with the control arms comes first, seed by seed."""
    found = runs(control, "ppo")
    figure = {(run.task, run.agent, run.seed) for run in found if run.agent in ("ppo", "ppo_era")}
    tasks = ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4")
    assert figure == {(task, agent, seed) for task in tasks for agent in ("ppo", "ppo_era") for seed in range(1, 6)}
    assert len(found) == 60 and [run.task for run in found[:30]] == ["HalfCheetah-v4"] * 30
    assert [run.seed for run in found] == [*sorted([1, 2, 3, 4, 5] * 6), *sorted([1, 2, 3, 4, 5] * 6)]
    first = {run.agent: flags(run) for run in found[:6]}
    own = {"--env": "HalfCheetah-v4", "--seed": "1", "--csv_path": "train.csv", "--fast": True}
    assert first["ppo"] == own
    assert first["ppo_era"] == {**own, "--std": "era", "--era_target": "-0.3", "--entropy_coef": "0"}
    assert first["ppo_era_0.3"] == {**first["ppo_era"], "--era_target": "0.3"}
    for kind in ("constant", "head", "parameter"):
        arm = first[f"ppo_{kind}"]
        assert arm["--std"] == kind and arm["--entropy_coef"] == "0"  # at ERA's mean entropy, -0.3 per dimension
        assert float(arm["--log_std_init"]) + 0.5 * math.log(2 * math.pi * math.e) == pytest.approx(-0.3, abs=1e-5)


def test_llm_techniques(control):
    """fig. ablation_llm_tricks: ten seeds, several values of each; selecting needs a state-dependent sigma."""
    found = runs(control, "ppo-llm-techniques")
    assert {run.task for run in found} == {"HalfCheetah-v4"}
    assert set(Counter(run.agent for run in found).values()) == {10}
    values = {run.agent: flags(run) for run in found}
    clips = [float(value["--epsilon_high"]) for agent, value in values.items() if "clip" in agent]
    shares = [float(value["--selective"]) for agent, value in values.items() if "scope" in agent]
    assert len(clips) >= 3 and min(clips) > 0.2 and len(shares) >= 3 and max(shares) == 1
    assert all(value["--std"] == "head" for agent, value in values.items() if "scope" in agent)


SAC = {  # experiment: tasks, agents, seeds
    "sac-humanoidbench": (6, 2, 10),
    "sac-dmc": (6, 2, 10),
    "sac-gym": (6, 2, 10),
    "sac-targets": (4, 9, 5),
    "sac-distribution": (4, 4, 5),
    "sac-batch": (4, 3, 5),
    "alpha": (1, 3, 3),
}


@pytest.mark.parametrize("experiment", SAC)
def test_experiments_of_sac(control, experiment):
    found = runs(control, experiment)
    counts = [len({getattr(run, name) for run in found}) for name in ("task", "agent", "seed")]
    assert tuple(counts) == SAC[experiment] and len(found) == math.prod(counts)
    for run in found:
        given = flags(run)
        assert ("--era" in given) == run.agent.startswith("sac_era") and given["--seed"] == str(run.seed)
        assert ("--learn_delta" in given) == ("learned" in run.agent)
        assert (given.get("--distribution") == "tanh") == ("tanh" in run.agent)
        assert (given.get("--level") == "batch") == ("batch" in run.agent)
        assert given.get("--target_entropy", "-0.5") == run.agent.partition("target_")[2] or "target_" not in run.agent
        assert ("--no_termination" in given) == (given.get("--action_repeat") == "2") == run.task.startswith("h1-")


def test_humanoidbench_as_it_is(control):
    """fig. humanoidbench_sac: the modified half is that of fig. hb_sac."""
    found = runs(control, "sac-standard")
    assert Counter(run.agent for run in found) == {"sac": 30, "sac-standard": 30}
    assert all(("--no_termination" in flags(run)) == (run.agent == "sac") for run in found)


def test_a_run_of_several_experiments_is_one(control):
    """The runs of `alpha` are shorter, in a folder of their own."""
    commands = {}
    for name in control.sac.SAC.experiments:
        if name not in control.sac.SAC.apart:
            for run in runs(control, name):
                assert commands.setdefault(run.name, run.command) == run.command


def test_tdmpc2(control):
    """fig. dmc_tdmpc2: six tasks, three seeds; on the CPU without compilation."""
    found = runs(control, "tdmpc2")
    assert len(found) == 36 and {run.agent for run in found} == {"tdmpc2", "tdmpc2_era"}
    on_gpu, on_cpu = (control.tdmpc2.TDMPC2(gpus=gpus).words(found[0], None) for gpus in (1, 0))
    assert on_cpu == [*on_gpu, "device=cpu", "compile=false"]
    assert control.tdmpc2.TDMPC2().planned_steps(found[0]) == 7_000_000


def test_the_users_flags_win(control, launch):
    host = control.ppo.PPO()
    run, *_ = host.runs("ppo", control.host.Settings(), ["--max_train_steps", "3e2", "--max_train_steps=500"])
    assert host.planned_steps(run) == 500 and run.command[-1] == "--max_train_steps=500"
    printed = launch("ppo", "--lr_a", "1e-3", DRY_RUN="1", TASKS="Ant-v4", SEED="7", AGENT="ppo_era").stdout
    before_flags = printed.partition(" --env Ant")[0]
    for variable in ("PYTHONPATH=", "MUJOCO_GL=", "CUDA_VISIBLE_DEVICES='' ", "ERA_RUN="):
        assert f" {variable}" in before_flags
    about = json.loads(
        next(word for word in shlex.split(before_flags) if word.startswith("ERA_RUN=")).partition("=")[2]
    )
    assert about["agent"] == "ppo_era" and about["added"] == ["--lr_a", "1e-3"] and about["as_paper"] is False
    assert printed.splitlines()[0].endswith("--entropy_coef 0 --lr_a 1e-3") and "Ant-v4 --seed 7" in printed


def test_slurm_script(launch, tmp_path):
    given = {"DRY_RUN": "1", "SLURM": "1", "CHECKOUTS": str(tmp_path / "my checkouts")}
    script = launch("alpha", **given).stdout
    assert "#SBATCH --array=0,1,2,3,4,5,6,7,8\n" in script and "gres" not in script
    assert f"export CHECKOUTS='{tmp_path}/my checkouts'\n" in script and f"OUTPUT={tmp_path}/runs\n" in script
    assert "--gres=gpu:1\n" in launch("tdmpc2", **given).stdout and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "command, variables, said",
    [
        ("ppo", {"TASKS": "x y", "SEED": "-1", "JOBS": "0"}, ["TASKS=x y", "SEED=-1", "JOBS=0"]),
        ("sac-batch", {"AGENT": "ppo"}, ["AGENT=ppo: one or several of sac-batch's, sac, sac_era, sac_era-batch"]),
        ("sac-batch", {"GPUS_PER_RUN": "2"}, ["GPUS_PER_RUN=2: a number from 0 to 1"]),
        ("ppo --seed=3 --std head", {}, ["--seed cannot be set here: TASKS, SEED", "--std cannot be set here: ppo"]),
        ("tdmpc2 task=dog-run", {}, ["ARGS: task cannot be set here"]),
        ("sac", {}, ["no experiment 'sac'. There are: ppo, ppo-llm-techniques, ppo-targets, sac-"]),
    ],
)
def test_bad_values_are_named_at_start(launch, command, variables, said):
    result = launch(*command.split(), DRY_RUN="1", **variables)
    assert result.returncode != 0 and result.stdout == "" and "Traceback" not in result.stderr
    for part in said:
        assert part in result.stderr


def test_all_that_is_missing_is_said(launch, control, patched_ppo, tmp_path):
    missing = launch("tdmpc2", CHECKOUTS=str(tmp_path / "none"), CUDA_VISIBLE_DEVICES="")
    assert missing.returncode == 1 and "python3 apply.py apply tdmpc2 --checkouts" in missing.stderr
    assert "GPUS_PER_RUN=0 trains on the CPU" in missing.stderr
    given = {"CHECKOUTS": str(patched_ppo.parent), "SEED": "1"}
    tasks = "Hoper-v4 CartPole-v1 Pendulum-v1"
    unknown = launch("ppo", "--gama", "1", "--max_train_steps", "6000", TASKS=tasks, **given).stderr
    for said in (
        "TASKS: Hoper-v4",
        "CartPole-v1: a continuous action vector expected",
        "Pendulum-v1: ERA per state needs an action of at least two dimensions",
        "PPO_continuous_main.py refuses its flags: Hyperparameters Setting for PPO-continuous: error: unrecognized",
        "--max_train_steps 6000: a multiple of --evaluate_freq (5000 unless you set it) expected",
    ):
        assert said in unknown, unknown
    only = launch("ppo", TASKS="Hopper-v4", AGENT="ppo_era", CHECK_ONLY="1", **given)
    assert only.stdout == "Nothing is missing; 1 of 1 runs would start.\n" and only.returncode == 0, only.stderr
    # A newer mujoco is on the path: its version, and nothing else.
    (tmp_path / "new/mujoco-4.0.0.dist-info").mkdir(parents=True)
    (tmp_path / "new/mujoco-4.0.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: mujoco\nVersion: 4.0.0\n"
    )
    newer = launch("ppo", PYTHONPATH=str(tmp_path / "new"), **given)
    assert "has mujoco 4.0.0. Install mujoco<4 there" in newer.stderr and "Traceback" not in newer.stderr
    assert sorted(os.listdir(tmp_path)) == ["new"]


@pytest.mark.parametrize(
    "name, words, said",
    [
        ("ppo", "--max_train_steps 3e6", ""),
        ("ppo", "--max_train_steps 600 --evaluate_freq=300", ""),
        ("ppo", "--max_train_steps 700 --evaluate_freq=300", "--max_train_steps 700: a multiple of --evaluate_freq"),
        ("ppo", "--evaluate_freq 0", "a multiple of --evaluate_freq"),
        ("ppo", "--max_train_steps abc", "--max_train_steps: a number of steps expected"),
        ("tdmpc2", "steps=70000", "steps 70000: a multiple of eval_freq (50000 unless you set it)"),
        ("alpha", "--total_timesteps 1234", ""),  # SAC evaluates after the last step
        ("alpha", "--total_timesteps inf", "--total_timesteps: a number of steps expected"),
    ],
)
def test_runs_that_could_not_finish(control, name, words, said):
    host = control.launch.EXPERIMENTS[name]()
    planned = host.runs(name, control.host.Settings(), words.split())
    found = control.preflight.step_problems(host, planned)
    assert found == [] if not said else len(found) == 1 and said in found[0]


def test_keys_of_hydra(control, tmp_path):
    (tmp_path / "config.yaml").write_text("steps: 5\n# no: key\nseed: 1\n")
    command = ["train.py", "steps=7", "stepz=700", "hydra.run.dir=."]
    (problem,) = control.probe.flag_problems(str(tmp_path / "train.py"), command)
    assert problem == f"ARGS: {tmp_path}/config.yaml has no key stepz."


def test_a_disk_that_is_too_full_is_named(control, tmp_path, monkeypatch):
    monkeypatch.setattr(control.preflight, "SPACE", 2**60)
    host = control.ppo.PPO()
    jobs = [(run, tmp_path / run.name) for run in runs(control, "ppo")]
    grid = control.grid.Grid("ppo", [], jobs, host, "python3", 0, 1, "here", tmp_path / "not/yet", "")
    (problem,) = control.preflight.space_problems(grid)
    assert "MiB of free disk space, and the runs that are left (60) may take" in problem


def write(folder, rows="global_step,eval_avg_return\n100,1.5\n200,2.5\n", **record):
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text(rows)
    (folder / "run.json").write_text(json.dumps({"total_steps": 200, "finished": True, **record}))
    return folder


def test_finished_is_what_both_files_say(control, tmp_path):
    results = control.results
    whole = write(tmp_path / "a-ppo-seed1")
    assert results.is_finished(whole) and results.last_return(whole) == 2.5
    cut = write(tmp_path / "a-ppo-seed2", rows="global_step,eval_avg_return\n100,1.5\n200,2")
    assert not results.is_finished(cut) and results.steps_done(cut) == 100 and results.last_return(cut) == 1.5
    assert not results.is_finished(write(tmp_path / "a-ppo-seed3", finished=False))
    torn = write(tmp_path / "a-ppo-seed4")
    (torn / "run.json").write_text('{"total_steps": 200, "fin')
    assert not results.is_finished(torn)
    _, line, left_out = results.return_lines(sorted(tmp_path.iterdir()))
    assert line.split() == ["a-ppo", "1", "200", "2.50", "-", "-"]
    assert all(f"a-ppo-seed{seed} (" in left_out for seed in (2, 3, 4))


def test_runs_apart_have_a_table_of_their_own(control, tmp_path, monkeypatch, capsys):
    for folder in ("a-sac-seed1", "a-sac-seed1/interrupted-1", "alpha/a-sac-seed1"):
        write(tmp_path / folder)
    monkeypatch.setattr(sys, "argv", ["results.py", str(tmp_path)])
    assert control.results.main() == 0
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    header, run = ["task-agent", "seeds", "steps"], ["a-sac", "1", "200"]
    assert lines == [header, run, [], ["alpha:"], header, run]


def test_time_left_is_that_of_the_steps_that_are_left(control, tmp_path):
    """A resumed run counts from where it was."""
    host = control.ppo.PPO()
    planned = host.runs("ppo", control.host.Settings(("Ant-v4",), (1, 2)), ["--max_train_steps", "1000"])
    jobs = [(run, tmp_path / run.name) for run in planned if run.agent == "ppo"]
    assert len(jobs) == 2
    folder = write(jobs[0][1], finished=False, total_steps=1000)  # 200 steps
    left = control.grid.TimeLeft(jobs, host)
    left.began -= 3600
    (folder / "train.csv").write_text("global_step,eval_avg_return\n500,1\n")  # 300 in an hour; 1,500 are left
    assert left(jobs[1:]) == ", about 5 h 0 min left"


def rows(folder):
    return [row["global_step"] for row in csv.DictReader((folder / "train.csv").open())]


def wait_for(condition, process):
    until = time.monotonic() + 600
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate(timeout=900)
        time.sleep(0.1)


@pytest.mark.grid
def test_interrupted_runs_of_ppo_go_on(start, patched_ppo, tmp_path):
    """With another grid in the same folder meanwhile; what is finished stays as it is."""
    given = {"CHECKOUTS": str(patched_ppo.parent), "SEED": "1", "TASKS": "Hopper-v4", "JOBS": "2"}
    output, names = tmp_path / "runs", ["Hopper-v4-ppo-seed1", "Hopper-v4-ppo_era-seed1"]

    def begin(steps, **more):
        return start("ppo", *TINY, "--max_train_steps", steps, **given, **more)

    first = begin("600", AGENT="ppo")
    printed, errors = first.communicate(timeout=900)
    assert first.returncode == 0 and f"1 of 1: {names[0]} finished, return" in printed, printed + errors
    modified = (output / names[0] / "log.txt").stat().st_mtime
    other = begin("90000", AGENT="ppo").communicate(timeout=900)[1]
    assert "holds a run with other flags (then: 600; now: 90000)" in other
    moved = {**given, "OUTPUT": str(tmp_path / "long"), "AGENT": "ppo_era"}
    stopped = start("ppo", *TINY, "--max_train_steps", "90000", **moved)
    folder = tmp_path / "long" / names[1]
    wait_for(lambda: (folder / "train.csv").exists() and len(rows(folder)) > 2, stopped)
    beside = start("ppo", *TINY, "--max_train_steps", "90000", **moved)
    assert "another launch is training it" in beside.communicate(timeout=900)[1] and beside.returncode == 1
    os.killpg(stopped.pid, signal.SIGINT)
    _, errors = stopped.communicate(timeout=900)
    assert stopped.returncode == 128 + signal.SIGINT and "nothing is left running" in errors, errors
    assert processes_with(**{MARK: str(tmp_path)}) == []
    done = rows(folder)

    resumed = start("ppo", *TINY, "--max_train_steps", "90000", **moved)
    wait_for(lambda: len(rows(folder)) > len(done), resumed)
    assert rows(folder)[: len(done)] == done and not list(folder.glob("interrupted-*"))
    resumed.send_signal(signal.SIGTERM)
    assert resumed.wait(900) == 128 + signal.SIGTERM
    record = json.loads((folder / "run.json").read_text())
    assert record["agent"] == "ppo_era" and record["finished"] is False and record["as_paper"] is False
    assert record["added"][-2:] == ["--max_train_steps", "90000"] and {"commit", "modified"} <= record.keys()
    assert (output / names[0] / "log.txt").stat().st_mtime == modified
