"""The user's commands, as far as they go without a GPU."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest


@pytest.fixture
def make(project_root, patched_verl, tmp_path):
    def run(*args, **env):
        # The test's own environment stands for the user's active one.
        env = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "HOME": str(tmp_path), **env}
        return subprocess.run(
            ["make", "--no-print-directory", *args], cwd=project_root, env=env, capture_output=True, text=True
        )

    return lambda *args, **env: run(f"CHECKOUTS={patched_verl.parent}", *args, **env)


@pytest.fixture(scope="module")
def runs(project_root):
    """Target and script of each of the paper's runs."""
    return dict(re.findall(r"^(llm-[^:]+): RUN = (\S+)", (project_root / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def vision_runs(project_root):
    """Target and experiment of each of the paper's runs for image classification."""
    return dict(re.findall(r"^(vision-[^:]+): RUN = (\S+)", (project_root / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def control_runs(project_root):
    """Target and experiment of each of the paper's runs of FastTD3 and FastSAC-ERA."""
    return dict(re.findall(r"^(control-[^:]+): RUN = (\S+)", (project_root / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def vision_checkouts(project_root, tmp_path):
    """CHECKOUTS=... of a folder with the vision recipe alone, which is enough to print its commands."""
    (tmp_path / "vision checkouts/timm").mkdir(parents=True)
    shutil.copytree(project_root / "overlays/timm/recipes", tmp_path / "vision checkouts/timm/recipes")
    return f"CHECKOUTS={tmp_path}/vision checkouts"


def test_help_lists_every_public_target(make, project_root, runs, vision_runs, control_runs):
    public = (
        re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", (project_root / "Makefile").read_text(), re.MULTILINE)
        .group(1)
        .replace("\\\n", " ")
    )
    lines = make("help").stdout.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    for name, targets in (("LLM", runs), ("VISION", vision_runs), ("CONTROL", control_runs)):
        public = public.replace(f"$({name}_RUNS)", " ".join(targets))
    assert sorted(listed) == sorted(public.split())
    assert max(map(len, lines)) <= 120


def test_every_run_script_has_a_target(project_root, runs):
    scripts = [script.name for script in (project_root / "overlays/verl/recipe/era").glob("run_*.sh")]
    assert sorted(runs.values()) == sorted(scripts)


def test_the_documentation_has_every_run(project_root, runs):
    table = (project_root / "docs/llm/recipes.md").read_text().split("\n\n")[1]
    assert sorted(re.findall(r"`(llm-[a-z0-9.-]+)`", table)) == sorted(runs)


def test_every_vision_experiment_has_a_target_and_a_row_in_the_documentation(project_root, vision_runs):
    code = "import runs; print(*runs.EXPERIMENTS)"
    experiments = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project_root / "overlays/timm/recipes/era",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert vision_runs == {f"vision-{name}": name for name in experiments}
    table = (project_root / "docs/vision/recipes.md").read_text().split("\n\n")[1]
    assert sorted(re.findall(r"`(vision-[a-z0-9-]+)`", table)) == sorted(vision_runs)


def test_every_vision_target_prints_its_commands(make, vision_runs, vision_checkouts, tmp_path):
    for target in vision_runs:
        result = make(
            target,
            "DRY_RUN=1",
            vision_checkouts,
            "SEED=5",
            "DATA_DIR=/my data",
            "ARGS=--log-interval 10",
            f"OUTPUT={ODD}",
            "PYTHON=/my env/bin/python",
        )
        assert result.returncode == 0, result.stderr
        for line in result.stdout.splitlines():
            words = shlex.split(line, comments=True)
            assert words[:2] == ["cd", f"{tmp_path}/vision checkouts/timm"] and words[3].startswith("PATH=/my env/bin:")
            assert words[5:9] == ["./distributed_train.sh", "4", "--data-dir", "/my data"]
            assert words[words.index("--seed") + 1 : words.index("--experiment")] == [
                "5",
                "--log-interval",
                "10",
                "--output",
                ODD + ("/time" if target.endswith("time") else ""),
            ]


def test_vision_seeds_are_the_experiments_unless_given(make, vision_checkouts):
    """The demo's default seed is not theirs."""
    seeds = lambda *given: re.findall(
        r"--seed (\d+)", make("vision-cifar10-era", "DRY_RUN=1", vision_checkouts, *given).stdout
    )
    assert seeds() == ["42", "43", "44"] and seeds("SEED=7 8") == ["7", "8"]


def test_vision_checks_before_an_environment_is_made(make, vision_checkouts, tmp_path):
    result = make(
        "vision-imagenet-sweep",
        vision_checkouts,
        f"TIMM_GPU_VENV={tmp_path}/gpu",
        "H0=7",
        CUDA_VISIBLE_DEVICES="",
        PATH=without_packages(tmp_path),
    )
    assert result.returncode != 0 and "Traceback" not in result.stderr
    for said in (
        "no train.py",
        "wants 4 (GPUS), this machine has 0",
        "data/imagenet/train",
        "H0=7 is not feasible",
        "no environment for this run yet",
        "no torchvision",
    ):
        assert said in result.stderr, result.stderr
    assert "Setting up" not in result.stdout and not (tmp_path / "gpu").exists()


def without_packages(tmp_path):
    """A PATH whose python3 has no packages."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E -s "$@"\n')
    (tmp_path / "bare/python3").chmod(0o755)
    return f"{tmp_path}/bare:{os.environ['PATH']}"


def test_vision_results_name_a_folder_without_runs(make, vision_checkouts, tmp_path):
    result = make("vision-results", vision_checkouts, f"OUTPUT={tmp_path}/none")
    assert result.returncode != 0 and f"no run (no summary.csv) in {tmp_path}/none" in result.stderr


def test_the_documented_evaluation(make, project_root, patched_verl):
    """make's own words for the line in the documentation."""
    (line,) = (
        (project_root / "docs/llm/recipes.md").read_text().split("## Evaluation")[1].split("```")[1].split("\n")[1:-1]
    )
    words = subprocess.run(
        ["bash", "-c", f"make() {{ printf '%s\\n' \"$@\"; }}\n{line}"],
        env={"HOME": "/home/me"},
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    result = make(*words, "DRY_RUN=1", "PYTHON=python3", RAY_DATA_HOME="/home/me/verl")
    merge, evaluation = map(shlex.split, result.stdout.splitlines())
    checkpoint = "/home/me/verl/ckpts/ERA/era_stage2_qwen2.5_math_7b/global_step_1100/actor"
    assert merge == [
        "cd",
        str(patched_verl),
        "&&",
        *f"python3 -m verl.model_merger merge --backend fsdp --local_dir {checkpoint} --target_dir /home/me/verl/models/era".split(),
    ]
    assert evaluation[2:] == [
        "--model",
        "/home/me/verl/models/era",
        "--data",
        "/home/me/verl/data/eval",
        "--out",
        "/home/me/verl/eval/era",
    ]


def test_every_target_prints_its_command(make, runs, patched_verl):
    for target, script in runs.items():
        result = make(target, "DRY_RUN=1")
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(f"cd {patched_verl} && ") and "-m recipe.era.main_era" in result.stdout
        assert f"trainer.experiment_name={script.removeprefix('run_').removesuffix('.sh')} " in result.stdout


def test_data_and_evaluation_print_their_commands(make, tmp_path):
    recipe = tmp_path / "check outs/verl/recipe/era"
    recipe.mkdir(parents=True)
    checkouts = f"CHECKOUTS={tmp_path}/check outs"
    for script in ("prepare_data.py", "evaluate.py"):
        (recipe / script).touch()
    result = make("llm-data", "DRY_RUN=1", checkouts, "SETS=math aime-2024", "DATA=/my data")
    assert result.returncode == 0, result.stderr
    assert shlex.split(result.stdout)[1:] == [str(recipe / "prepare_data.py"), "math", "aime-2024", "--out", "/my data"]
    result = make(
        "llm-eval",
        "DRY_RUN=1",
        checkouts,
        "MODEL_PATH=/my models/my model",
        "EVAL=--limit 2",
        RAY_DATA_HOME="/home of data",
    )
    assert result.returncode == 0, result.stderr
    assert shlex.split(result.stdout)[1:] == [
        str(recipe / "evaluate.py"),
        "--model",
        "/my models/my model",
        "--data",
        "/home of data/data/eval",
        "--out",
        "/home of data/eval/my model",
        "--limit",
        "2",
    ]
    words = shlex.split(
        make("llm-eval", "DRY_RUN=1", checkouts, "MODEL_PATH=/m", "SETS=aime24 amc23", "DATA=/my data").stdout
    )
    assert words[4:8] == ["--data", "/my data/eval/aime24.parquet", "/my data/eval/amc23.parquet", "--out"]
    result = make("llm-eval", checkouts)
    assert result.returncode != 0 and "make llm-eval MODEL_PATH=" in result.stderr


def test_arguments_are_checked_before_an_environment_is_made(make, project_root, tmp_path):
    before = os.listdir(project_root / ".venv")
    for target, said in (
        (("llm-eval", "MODEL_PATH=/nope"), "MODEL_PATH=/nope is not the folder of a model"),
        (("llm-data", "SETS=mahts"), "unknown: mahts"),
    ):
        result = make(*target, f"VENV={tmp_path}/venv", f"GPU_VENV={tmp_path}/gpu")
        assert result.returncode != 0 and said in result.stderr and "Setting up" not in result.stdout, result.stderr
    assert os.listdir(tmp_path) == [] and os.listdir(project_root / ".venv") == before


def test_data_is_made_in_the_cpu_environment(make, project_root):
    command = shlex.split(make("llm-data", "DRY_RUN=1", "DATA=/d").stdout)
    assert command[0] == f"{project_root}/.venv/cpu/bin/python" and command[2:] == ["all", "--out", "/d"]


def test_the_check_alone_makes_no_environment(make, patched_verl, tmp_path):
    """Also where nothing but the environment is missing."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 32768}')
    (model / "model.safetensors").touch()
    columns = {
        "data_source": ["math_dapo"] * 768,
        "prompt": [[{"role": "user", "content": "?"}]] * 768,
        "reward_model": [{"ground_truth": "1"}] * 768,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    there = {
        "NNODES": "1",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "MODEL_PATH": str(model),
        "TRAIN_FILE": f"{tmp_path}/data.parquet",
        "TEST_FILE": f"{tmp_path}/data.parquet",
    }
    result = make("llm-grpo", "CHECK_ONLY=1", f"GPU_VENV={tmp_path}/gpu", **there)
    assert result.returncode != 0 and "no environment for this run yet" in result.stderr and "no vllm" in result.stderr
    assert "Setting up" not in result.stdout and not (tmp_path / "gpu").exists()
    assert ("This run cannot start" in result.stderr) == (not (patched_verl / "recipe/dapo").exists())


@pytest.mark.parametrize("how", ["environment", "command line"])
def test_a_given_python_is_used(make, how):
    given = (
        {"args": ("PYTHON=/my env/python",), "env": {}}
        if how == "command line"
        else {"args": (), "env": {"PYTHON": "/my env/python"}}
    )
    for target in ("llm-grpo", "llm-data", "llm-eval"):
        result = make(target, "DRY_RUN=1", "MODEL_PATH=/m", *given["args"], **given["env"])
        assert result.returncode == 0 and "/my env/python" in shlex.split(result.stdout), result.stderr
    result = make("llm-data", *given["args"], **given["env"])
    assert result.returncode != 0 and "there is no Python at /my env/python" in result.stderr
    result = make("llm-grpo", *given["args"], **given["env"])
    assert result.returncode != 0 and "there is no Python at /my env/python" in result.stderr


def test_hydra_overrides_are_passed_on(make, runs):
    for target in runs:
        words = shlex.split(
            make(target, "DRY_RUN=1", "ARGS=trainer.save_freq=5 'data.prompt_key=a b' trainer.logger=[console]").stdout
        )
        assert words[-3:] == ["trainer.save_freq=5", "data.prompt_key=a b", "trainer.logger=[console]"]
    result = make("llm-grpo", "DRY_RUN=1", "ARGS=it's")
    assert result.returncode != 0 and "ARGS=it's cannot be read as words of the shell" in result.stderr


ODD = "/tmp/a\"b'c`d$e $(f) \\g"


@pytest.mark.parametrize("how", ["environment", "command line"])
def test_values_are_passed_on_whatever_they_hold(make, how):
    def words(target, **given):
        result = (
            make(target, "DRY_RUN=1", **given)
            if how == "environment"
            else make(target, "DRY_RUN=1", *(f"{name}={value}" for name, value in given.items()))
        )
        assert result.returncode == 0, result.stderr
        return subprocess.run(
            [
                "bash",
                "-c",
                f"print() {{ printf '%s\\0' \"$@\"; }}; print {result.stdout.partition(' && ')[2] or result.stdout}",
            ],
            capture_output=True,
            text=True,
        ).stdout.split("\0")

    assert words("llm-eval", MODEL_PATH=ODD, OUT=ODD, DATA=ODD)[2:-1] == [
        "--model",
        ODD,
        "--data",
        f"{ODD}/eval",
        "--out",
        ODD,
    ]
    assert words("llm-data", SETS="nope 'x \"y", RAY_DATA_HOME=ODD)[2:-1] == [
        "nope",
        "'x",
        '"y',
        "--out",
        f"{ODD}/data",
    ]
    assert f"TENSORBOARD_DIR={ODD}/ckpts/ERA/grpo_qwen2.5_math_7b/tensorboard" in words("llm-grpo", RAY_DATA_HOME=ODD)


def test_zero_is_no_dry_run(make):
    result = make("llm-eval", "DRY_RUN=0", "MODEL_PATH=/nope")
    assert result.returncode != 0 and "is not the folder of a model" in result.stderr


def test_a_dry_run_ends_its_line(make):
    assert (
        make("llm-data", "DRY_RUN=1").stdout.count("\n")
        == 1
        == make("llm-eval", "DRY_RUN=1", "MODEL_PATH=/m").stdout.count("\n")
    )


def test_what_to_do_where_flash_attention_cannot_be_built(make, tmp_path):
    bin = tmp_path / "gpu/bin"
    bin.mkdir(parents=True)
    (bin / "python").write_text('#!/bin/sh\ncase "$*" in *flash-attn*) exit 1;; esac\n')
    (bin / "python").chmod(0o755)
    (tmp_path / "active").mkdir()
    (tmp_path / "active/python3").write_text('#!/bin/sh\necho "Python 3.12.0"\n')  # that fits
    (tmp_path / "active/python3").chmod(0o755)
    result = make(
        f"GPU_VENV={tmp_path}/gpu", f"{tmp_path}/gpu/installed", PATH=f"{tmp_path}/active:{os.environ['PATH']}"
    )
    assert result.returncode != 0 and not (tmp_path / "gpu/installed").exists()
    for part in ("flash-attn could not be installed", "CUDA_HOME", "the same command goes on from there"):
        assert part in result.stderr


@pytest.mark.parametrize(
    "target",
    [
        "llm-stage1",
        "llm-gspo-era",
        "llm-data",
        "llm-merge",
        "vision-cifar10",
        "vision-results",
        "control-batch",
        "control-results",
    ],
)
def test_before_apply_the_command_is_named(make, target, tmp_path):
    result = make(target, f"CHECKOUTS={tmp_path}/none", "CKPT=/c", "MODEL_PATH=/m")
    assert result.returncode != 0 and "Run 'make apply' first" in result.stderr


def test_all_that_is_missing_is_named_before_an_environment_is_made(make, project_root):
    before = (project_root / ".venv/verl-gpu").exists()
    result = make("llm-stage2", CUDA_VISIBLE_DEVICES="")
    assert result.returncode != 0 and "Traceback" not in result.stderr
    for missing in ("GPUs:", "model:", "dapo-math-17k.parquet", "aime-2024.parquet", "global_step_600"):
        assert missing in result.stderr, result.stderr
    assert (project_root / ".venv/verl-gpu").exists() == before


@pytest.mark.parametrize(
    "python, said", [("/nonexistent", "PYTHON=/nonexistent is not a Python 3.11"), ("too old", "is not a Python 3.11")]
)
def test_a_python_that_cannot_be_used_is_named(make, python, said, tmp_path):
    if python == "too old":
        python = str(tmp_path / "python3.9")
        (tmp_path / "python3.9").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "python3.9").chmod(0o755)
    result = make("test", f"PYTHON={python}", f"VENV={tmp_path}/venv")
    assert result.returncode != 0 and said in result.stderr
    assert "Setting up" not in result.stdout and not (tmp_path / "venv").exists()


@pytest.mark.parametrize("given", [(), ("PYTHON=",)])
def test_that_there_is_no_python_is_said(make, given, tmp_path):
    (tmp_path / "bin").mkdir()
    result = make("test", f"PATH={tmp_path}/bin", f"VENV={tmp_path}/venv", *given)
    assert result.returncode != 0 and "error: no Python 3.11, 3.12 or 3.13 found. Install one" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(make, tmp_path):
    """Here up to the point where a Python is looked for."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to("/nonexistent/python3")
    (tmp_path / "venv/installed").touch()
    result = make("report", f"VENV={tmp_path}/venv", "PYTHON=/nonexistent")
    assert result.returncode != 0 and "PYTHON=/nonexistent is not a Python 3.11" in result.stderr


def test_checkouts_in_a_folder_with_spaces(make, patched_verl, tmp_path):
    (tmp_path / "my checkouts").symlink_to(patched_verl.parent)
    result = make("llm-stage1", "DRY_RUN=1", f"CHECKOUTS={tmp_path}/my checkouts")
    assert result.returncode == 0 and "-m recipe.era.main_era" in result.stdout, result.stderr
    assert "applied" in make("status", f"CHECKOUTS={tmp_path}/my checkouts").stdout
