"""The commands of experiments against what really runs: the Makefile, and the run lists of the recipes."""

import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys

import hydra
import pytest

from ledger import commands
from ledger.errors import LedgerError

HOME = {"HOME": "/home/me", "CHECKOUTS": "/checkouts"}


def steps_of(ledger, id, seeds=None, slurm=False, **given):
    return commands.steps(ledger, ledger.find(id), seeds, {**HOME, **given}, slurm)


def recipe(project_root, name):
    """runs.py of a recipe, which imports nothing of the others."""
    spec = importlib.util.spec_from_file_location(f"{name}_runs", project_root / f"overlays/{name}/recipes/era/runs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


def runnable(ledger, *upstreams):
    """Experiments with a run of these upstreams, demos left out."""
    return [
        each
        for each in ledger.experiments.values()
        if each.run and ledger.runs[each.run].upstream.split()[0] in upstreams and ledger.runs[each.run].group != "demo"
    ]


def test_llm_folders_and_steps_are_those_of_the_scripts(project_root, ledger):
    for run in ledger.runs.values():
        if not run.folder:
            continue
        script = (project_root / f"overlays/verl/recipe/era/run_{run.folder}.sh").read_text()
        assert int(re.search(r"TOTAL_STEPS=\$\{TOTAL_STEPS:-(\d+)\}", script)[1]) == run.steps
        stage1 = re.search(r"stage1=ckpts/ERA/(\S+)\n.*/global_step_(\d+)\"", script)
        assert bool(stage1) == bool(run.after)
        if stage1:
            earlier = ledger.runs[run.after]
            assert stage1.groups() == (earlier.folder, str(earlier.steps))


def folders_of(recipe, experiment, settings):
    before = "time/" if experiment.compares_time else ""
    return sorted(before + run.name for run in recipe.runs(experiment, settings, []))


def test_vision_steps_train_what_the_recipe_trains(project_root, ledger):
    timm, trained = recipe(project_root, "timm"), set()
    for each, seeds in itertools.product(runnable(ledger, "timm"), (None, [5, 6])):
        (step,) = steps_of(ledger, each.id, seeds)
        experiment = timm.EXPERIMENTS[step.command[1].removeprefix("vision-")]
        chosen = {name: step.variables[name].split() for name in ("SEED", "H0") if name in step.variables}
        settings = timm.Settings(
            seeds=tuple(map(int, chosen["SEED"])) if "SEED" in chosen else None,
            min_entropies=tuple(map(float, chosen["H0"])) if "H0" in chosen else None,
        )
        assert sorted(step.folders) == folders_of(timm, timm.with_settings(experiment, settings), settings), each.id
        assert step.seeds == (tuple(seeds) if seeds else experiment.seeds)
        assert {f"{entry.folder}-seed{seed}" for entry in each.entries for seed in step.seeds} <= set(step.folders)
        trained |= set(step.folders) if not seeds else set()
    every = [folders_of(timm, experiment, timm.Settings()) for experiment in timm.EXPERIMENTS.values()]
    assert trained == set(itertools.chain(*every))


def test_one_entry_is_run_alone(ledger):
    (step,) = steps_of(ledger, "hb-fastsac-era/h1hand-run-v0", [3])
    assert step.variables == {"AGENT": "fastsac_era", "TASKS": "h1hand-run-v0", "SEED": "3"}
    assert step.folders == ("h1hand-run-v0-fastsac_era-seed3",)
    (step,) = steps_of(ledger, "sweep-imagenet/1.2")
    assert step.variables == {"H0": "1.2"} and step.folders == ("imagenet-era1.2-seed42",)


def test_two_stages_and_their_evaluation_come_in_order_and_with_one_seed(ledger):
    found = steps_of(ledger, "main-era", [7, 8])
    assert [step.run.id for step in found] == 2 * ["llm-stage1", "llm-stage2", "llm-eval"]
    for seed, (stage1, stage2, evaluation) in zip((7, 8), (found[:3], found[3:])):
        first, second = (f"/home/me/verl/ckpts/ERA/era_stage{n}_qwen2.5_math_7b-seed{seed}" for n in (1, 2))
        override, checkpoint = f"+data.seed={seed}", f"{first}/global_step_600"
        assert stage1.variables == {"CKPTS_DIR": first, "ARGS": override}
        assert str(stage1.base / stage1.folders[0]) == first
        assert stage2.variables == {"CKPTS_DIR": second, "STAGE1_CKPT": checkpoint, "ARGS": override}
        name = f"era_stage2_qwen2.5_math_7b-seed{seed}"
        assert evaluation.variables == {
            "CKPT": f"{second}/global_step_1100",
            "MODEL_PATH": f"/home/me/verl/models/ERA/{name}",
            "OUT": f"/home/me/verl/eval/{name}",
        }
        assert (str(evaluation.base), evaluation.folders, evaluation.seeds) == ("/home/me/verl/eval", (name,), (seed,))


def test_without_seeds_a_run_is_as_the_recipe_has_it(ledger):
    (step,) = steps_of(ledger, "entropy-grpo", ARGS="trainer.save_freq=5")
    assert step.variables == {"CKPTS_DIR": "/home/me/verl/ckpts/ERA/grpo_qwen2.5_math_7b"} and step.seeds == ()


def test_the_users_overrides_stay(ledger):
    (step,) = steps_of(ledger, "entropy-grpo", [3], ARGS="trainer.save_freq=5", RAY_DATA_HOME="/my data")
    assert step.variables == {
        "CKPTS_DIR": "/my data/ckpts/ERA/grpo_qwen2.5_math_7b-seed3",
        "ARGS": "trainer.save_freq=5 +data.seed=3",
    }
    *_, evaluation = steps_of(ledger, "pass-grpo", EVAL="--tensor-parallel 4")
    assert evaluation.variables["EVAL"].endswith("128 256 --tensor-parallel 4")
    assert evaluation.variables["SETS"] == "aime24 aime25" and evaluation.folders == ("grpo_qwen2.5_math_7b-pass",)


def test_the_seed_reaches_verl(patched_verl, monkeypatch):
    """It composes, orders the training data, and vLLM does not take it for the seed of every response."""
    monkeypatch.chdir(patched_verl)  # the configuration's search path is seen from there
    with hydra.initialize_config_dir(str(patched_verl / "recipe/era/config"), version_base=None):
        composed = hydra.compose("era_math", [commands.SEED_OVERRIDE.format(7)])
    assert composed.data.seed == 7 and composed.data.shuffle
    assert not [name for name in composed.actor_rollout_ref.rollout if "seed" in name]
    assert 'manual_seed(data_config.get("seed", 1))' in (patched_verl / "verl/trainer/main_ppo.py").read_text()
    rollout = (patched_verl / "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py").read_text()
    why_rollout_seed_is_not_set = "if hasattr(SamplingParams(), str(k)):\n                kwargs[k] = config.get(k)"
    assert why_rollout_seed_is_not_set in rollout


def test_gains_run_what_both_need_once(ledger):
    expected = {
        "main-gain": ["llm-stage1", "llm-stage2", "llm-eval", "llm-grpo", "llm-eval"],
        "cifar10-gain": ["vision-cifar10-era", "vision-cifar10"],
    }
    for id, runs in expected.items():
        assert [step.run.id for step in steps_of(ledger, id)] == runs
    twice = [*ledger.find("ood-grpo"), *ledger.find("main-grpo")]
    found = commands.steps(ledger, twice, None, HOME)
    assert [step.run.id for step in found] == ["llm-grpo", "llm-eval"]
    assert found[1].experiments == ("ood-grpo/arc_c", "ood-grpo/gpqa_diamond", "ood-grpo/mmlu_pro", "main-grpo")


def test_what_cannot_be_run_is_refused_with_the_reason(ledger):
    cannot = [each for each in ledger.experiments.values() if each.cannot]
    assert {each.id for each in cannot} == {"obac", "obac-era", "eapo", "mnse"}
    for each in cannot:
        with pytest.raises(LedgerError, match=re.escape(each.cannot)):
            steps_of(ledger, each.id)
    others = [each for each in ledger.experiments.values() if not each.cannot]
    assert all(steps_of(ledger, each.id) for each in others)


def test_variables_that_change_nothing_are_not_refused(ledger):
    given = {"CKPTS_DIR": "/mine/here", "DRY_RUN": "0", "SEED": "9", "TASK": "chain", "OUT": "/o", "H0": ""}
    (step,) = steps_of(ledger, "entropy-grpo", [4, 4], **given)
    assert (str(step.base), step.folders, step.seeds) == ("/mine", ("here",), (4,))


def test_slurm_submits_trainings_alone(ledger):
    stage1, stage2 = steps_of(ledger, "main-era", [2], slurm=True, ARGS="'data.prompt_key=a b'")
    script = ("recipe/era/slurm_ray.sbatch", "run_era_stage1_qwen2.5_math_7b.sh")
    assert stage1.command == ("sbatch", "--parsable", *script, "data.prompt_key=a b", "+data.seed=2")
    assert str(stage1.at) == "/checkouts/verl" and "ARGS" not in stage1.variables
    assert stage1.variables["CKPTS_DIR"] == steps_of(ledger, "main-era", [2])[0].variables["CKPTS_DIR"]
    assert (stage1.waits, stage2.waits, stage1.submits) == (False, True, True) and "without --slurm" in stage2.note
    (step,) = steps_of(ledger, "hb-fasttd3", slurm=True)
    assert step.variables["SLURM"] == "1" and step.command == ("make", "control-humanoidbench")


def test_a_step_says_what_else_it_trains(ledger):
    (step,) = steps_of(ledger, "regularization-era")
    assert step.variables == {} and len(step.folders) == 7
    assert "cannot be chosen one by one: cifar10, cifar10-smoothing0.2" in step.note
    assert steps_of(ledger, "cifar10")[0].note == ""


# ------------------------------------------------------------------------------------------------ what make makes of it


@pytest.fixture
def printed(tmp_path):
    """printed(step, VARIABLE=...): the words that make prints for a step's own line, with DRY_RUN=1."""

    def run(step, **given):
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        environment = {"PATH": path, "PYTHON": sys.executable, "DRY_RUN": "1", **given}
        line = ["bash", "-ec", step.shell]
        answer = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return [shlex.split(line, comments=True) for line in answer.stdout.splitlines()]

    return run


def test_make_prints_the_same_training_and_evaluation(ledger, printed, patched_verl, tmp_path):
    home = f"{tmp_path}/da ta"
    given = {"HOME": str(tmp_path), "CHECKOUTS": str(patched_verl.parent), "RAY_DATA_HOME": home}
    given["ARGS"] = "trainer.save_freq=5"
    training, evaluation = commands.steps(ledger, ledger.find("pass-grpo"), [4], given)
    (words,) = printed(training, **given)
    folder = training.base / training.folders[0]
    assert f"trainer.default_local_dir='{folder}'" in words and f"VERL_FILE_LOGGER_PATH={folder}/metrics.jsonl" in words
    assert words[-2:] == ["trainer.save_freq=5", "+data.seed=4"]
    merge, evaluate = printed(evaluation, **given)
    model = f"{home}/models/ERA/grpo_qwen2.5_math_7b-seed4"
    merger = ["-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    local = ["--local_dir", f"{training.goal}/actor", "--target_dir", model]
    assert merge[2:] == ["&&", sys.executable, *merger, *local]
    data = [f"{home}/data/eval/{name}.parquet" for name in ("aime24", "aime25")]
    assert evaluate[2:9] == ["--model", model, "--data", *data, "--out", f"{evaluation.base}/{evaluation.folders[0]}"]
    ks = [str(2**k) for k in range(9)]
    assert evaluate[9:] == ["--samples", "256", "--temperature", "0.7", "--pass-at", *ks]
    (weights,) = commands.steps(ledger, ledger.find("small-cot"), None, given)
    (words,) = printed(weights, **given)
    model, out = (f"{home}/{part}/Qwen2.5-Math-1.5B" for part in ("models", "eval"))
    assert words[2:] == ["--model", model, "--data", f"{home}/data/eval", "--out", out]


@pytest.mark.parametrize(
    "words", [["list"], ["show", "main-era"], ["run", "hb-fastsac-era", "--seeds", "1", "--dry-run"]]
)
def test_these_verbs_need_no_package(project_root, words):
    done = subprocess.run(
        [sys.executable, "-I", "-S", project_root / "reproduce.py", *words],
        env={"HOME": "/home/somebody"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_a_training_is_finished_with_its_last_checkpoint(ledger, tmp_path):
    (step,) = steps_of(ledger, "entropy-grpo", RAY_DATA_HOME=str(tmp_path))
    assert not step.finished
    step.goal.mkdir(parents=True)
    for text, finished in (("1100", True), ("1090", False), ("", False), ("11 00", False)):
        (step.goal.parent / commands.TRACKER).write_text(text)
        assert step.finished == finished
    (step.goal.parent / commands.TRACKER).write_text("1100")
    step.goal.rmdir()
    assert not step.finished
