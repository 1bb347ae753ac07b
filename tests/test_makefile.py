"""The user's commands, as far as they go without a GPU."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ODD = "/tmp/a\"b'c`d$e $(f) \\g"
MAKEFILE = (Path(__file__).parent.parent / "Makefile").read_text()
RUNS = {
    subject: dict(re.findall(rf"^({subject}-[^:]+): RUN = (\S+)", MAKEFILE, re.MULTILINE))
    for subject in ("llm", "vision", "control")
}
AGENTS = dict(re.findall(r"^(control-[^:]+): EXPERIMENT = (\S+)", MAKEFILE, re.MULTILINE))


@pytest.fixture
def make(project_root, patched_verl, tmp_path):
    """make(*targets and variables, **environment). This test's Python environment is the user's active one."""

    def run(*words, **environment):
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        return subprocess.run(
            ["make", "--no-print-directory", "--keep-going", *words],
            cwd=project_root,
            env={"PATH": path, "HOME": str(tmp_path), "CHECKOUTS": str(patched_verl.parent), **environment},
            capture_output=True,
            text=True,
            timeout=900,
        )

    return run


def printed(result):
    """The words of each command that make printed."""
    assert result.returncode == 0, result.stderr
    return [shlex.split(line, comments=True) for line in result.stdout.splitlines()]


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_help_lists_every_public_target(make):
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE).group(1).replace("\\\n", " ")
    public = {name for name in phony.split() if not name.startswith("$")}.union(*RUNS.values(), AGENTS)
    lines = make("help").stdout.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == public
    assert max(map(len, lines)) <= 120


def experiments(subject, request, project_root):
    """What can be run: the LLM's scripts, or the recipe's experiments."""
    if subject == "llm":
        return sorted(script.name for script in (project_root / "overlays/verl/recipe/era").glob("run_*.sh"))
    checkout = request.getfixturevalue("patched_timm" if subject == "vision" else "patched_fasttd3")
    command = [sys.executable, "-c", "import runs; print(*runs.EXPERIMENTS)"]
    result = subprocess.run(command, cwd=checkout / "recipes/era", capture_output=True, text=True, check=True)
    return sorted(result.stdout.split())


@pytest.mark.parametrize("subject", RUNS)
def test_every_experiment_has_a_target_and_a_row_in_the_documentation(subject, request, project_root):
    assert sorted(RUNS[subject].values()) == experiments(subject, request, project_root)
    page = (project_root / f"docs/{subject}/recipes.md").read_text()
    cells = re.findall(rf"^\| (`{subject}-[^|]*)\|", page, re.MULTILINE)
    found = set(re.findall(r"`([^`]+)`", " ".join(cells)))
    assert found == RUNS[subject].keys() | (AGENTS.keys() if subject == "control" else set())


def test_every_target_of_the_other_agents_prints_its_commands(make, project_root, tmp_path):
    variables = ("DRY_RUN=1", "SEED=3", f"CHECKOUTS={tmp_path}/my checkouts", f"OUTPUT={ODD}", "ARGS=--a '1 2'")
    listed = [sys.executable, project_root / "recipes/control/launch.py", "--help"]
    known = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("EXPERIMENT: ")[1]
    assert sorted(AGENTS.values()) == sorted(known.strip().split(", "))
    for target in AGENTS:
        commands = printed(make(target, *variables))
        assert commands
        for words in commands:
            assert words[2].startswith(f"{ODD}/") and words[2].endswith("-seed3") and words[:2] == ["mkdir", "-p"]
            (python,) = [word for word in words if word.endswith("/bin/python")]
            environment = "cpu" if target.startswith(("control-ppo", "control-llm")) else "control-cpu"
            assert python == f"{project_root}/.venv/{environment}/bin/python" and words[-2:] == ["--a", "1 2"]


def test_every_llm_target_prints_its_command(make, patched_verl, tmp_path):
    (tmp_path / "my checkouts").symlink_to(patched_verl.parent)
    checkouts = f"CHECKOUTS={tmp_path}/my checkouts"
    added = "ARGS=trainer.save_freq=5 'data.prompt_key=a b' trainer.logger=[console]"
    commands = printed(make(*RUNS["llm"], checkouts, "DRY_RUN=1", added))
    assert len(commands) == len(RUNS["llm"])
    for words, script in zip(commands, RUNS["llm"].values()):
        assert words[:3] == ["cd", f"{tmp_path}/my checkouts/verl", "&&"] and "recipe.era.main_era" in words
        assert f"trainer.experiment_name={script.removeprefix('run_').removesuffix('.sh')}" in words
        assert words[-3:] == ["trainer.save_freq=5", "data.prompt_key=a b", "trainer.logger=[console]"]
    assert "applied" in make("status", checkouts).stdout


def test_the_targets_on_verl_0_9_print_their_commands(make, project_root):
    added = "ARGS=trainer.save_freq=5 'data.prompt_key=a b'"
    commands = printed(make("llm-qwen3-8b-era", "llm-qwen3-8b-era-megatron", "DRY_RUN=1", added))
    for words, name in zip(commands, ("era_qwen3_8b", "era_qwen3_8b_megatron"), strict=True):
        assert words[:3] == ["cd", str(project_root), "&&"] and "era.verl.main_ppo" in words
        assert f"trainer.experiment_name={name}" in words
        assert words[-2:] == ["trainer.save_freq=5", "data.prompt_key=a b"]
    assert "model_engine=megatron" in commands[1]


def test_every_vision_target_prints_its_commands(make, patched_timm):
    given = {"SEED": "5 6", "DATA_DIR": "/my data", "ARGS": "--log-interval 10", "PYTHON": "/my env/bin/python"}
    variables = [f"{name}={value}" for name, value in given.items()]
    checkouts = f"CHECKOUTS={patched_timm.parent}"
    commands = printed(make(*RUNS["vision"], checkouts, "DRY_RUN=1", f"OUTPUT={ODD}", *variables))
    assert len(commands) >= 2 * len(RUNS["vision"])
    for words in commands:
        assert words[:2] == ["cd", str(patched_timm)] and words[3].startswith("PATH=/my env/bin:")
        assert words[5:9] == ["./distributed_train.sh", "4", "--data-dir", "/my data"]
        seed, *rest = words[words.index("--seed") + 1 : words.index("--experiment")]
        assert seed in ("5", "6") and rest[:3] == ["--log-interval", "10", "--output"]
        assert rest[3:] in ([ODD], [f"{ODD}/time"])
    # without SEED they are the experiment's, and not the demo's
    commands = printed(make("vision-cifar10-era", checkouts, "DRY_RUN=1"))
    assert [words[words.index("--seed") + 1] for words in commands] == ["42", "43", "44"]


@pytest.mark.parametrize("how", ["environment", "command line"])
def test_values_are_passed_on_whatever_they_hold(make, patched_verl, how):
    given = {
        "PYTHON": "/my env/python",
        "MODEL_PATH": ODD,
        "OUT": ODD,
        "RAY_DATA_HOME": ODD,
        "SETS": "aime24 'x \"y",
        "EVAL": "--limit 2 'a b'",
    }
    targets = ("llm-data", "llm-eval", "llm-grpo", "DRY_RUN=1")
    variables = [f"{name}={value}" for name, value in given.items()]
    result = make(*targets, **given) if how == "environment" else make(*targets, *variables)
    data, evaluation, training = printed(result)
    recipe = f"{patched_verl}/recipe/era"
    sets = ["aime24", "'x", '"y']
    assert data == ["/my env/python", f"{recipe}/prepare_data.py", *sets, "--out", f"{ODD}/data"]
    files = [f"{ODD}/data/eval/{name}.parquet" for name in sets]
    assert evaluation[:5] == ["/my env/python", f"{recipe}/evaluate.py", "--model", ODD, "--data"]
    assert evaluation[5:] == [*files, "--out", ODD, "--limit", "2", "a b"]
    assert f"TENSORBOARD_DIR={ODD}/ckpts/ERA/grpo_qwen2.5_math_7b/tensorboard" in training
    assert "/my env/python" in training


def test_data_and_evaluation_without_variables(make, project_root, tmp_path):
    data, evaluation = printed(make("llm-data", "llm-eval", "DRY_RUN=1", "MODEL_PATH=/my models/m"))
    assert data[0] == f"{project_root}/.venv/cpu/bin/python" and data[2:] == ["all", "--out", f"{tmp_path}/verl/data"]
    home = f"{tmp_path}/verl"
    assert evaluation[2:] == ["--model", "/my models/m", "--data", f"{home}/data/eval", "--out", f"{home}/eval/m"]


def test_the_documented_evaluation(make, project_root, patched_verl):
    page = (project_root / "docs/llm/recipes.md").read_text()
    (line,) = page.split("## Evaluation")[1].split("```")[1].split("\n")[1:-1]
    words = shlex.split(line.replace("$HOME", "/home/me"))
    assert words[0] == "make"
    result = make(*words[1:], "DRY_RUN=1", "PYTHON=python3", HOME="/home/me")
    merge, evaluation = printed(result)
    checkpoint = "/home/me/verl/ckpts/ERA/era_stage2_qwen2.5_math_7b/global_step_1100/actor"
    assert merge[:4] == ["cd", str(patched_verl), "&&", "python3"]
    assert merge[4:10] == ["-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir"]
    assert merge[10:] == [checkpoint, "--target_dir", "/home/me/verl/models/era"]
    assert evaluation[2:4] == ["--model", "/home/me/verl/models/era"]
    assert evaluation[4:] == ["--data", "/home/me/verl/data/eval", "--out", "/home/me/verl/eval/era"]


REFUSED = {
    ("llm-grpo", "ARGS=it's"): "ARGS=it's cannot be read as shell words",
    ("llm-grpo", "PYTHON=/my env/python"): "there is no Python at /my env/python",
    ("llm-data", "PYTHON=/my env/python"): "there is no Python at /my env/python",
    ("llm-data", "SETS=mahts"): "unknown: mahts",
    ("llm-eval",): "make llm-eval MODEL_PATH=",
    ("llm-eval", "MODEL_PATH=/nope", "DRY_RUN=0"): "MODEL_PATH=/nope is not the folder of a model",
    ("demo", "TASK=typo"): "argument --task: invalid choice: 'typo'",
    ("demo", "VERL=0.9.1", "TASK=typo"): "argument --task: invalid choice: 'typo'",
    ("demo-vision", "TIMM=1.0.31"): "TIMM=1.0.31: this runs with timm 1.0.20 and 1.0.28. Nothing was installed.",
    ("demo", "VERL=0.5"): "VERL=0.5: this runs with verl 0.4.1 and 0.9.1. Nothing was installed.",
    ("demo-vision", "SEED=1 abc"): "argument --seeds: expected a whole number from 0 to 2147483647, got 'abc'",
    ("demo-control", "FASTTD3=main"): "FASTTD3=main: this runs with FastTD3 2d83b6a and 229ed59. Nothing was inst",
    ("demo-control", "FASTTD3=229ed59", "STEPS=250"): "argument --steps: expected a multiple of 100, got 250",
    ("demo-control", "STEPS=250"): "argument --steps: expected a multiple of 100, got 250",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_before_an_environment_is_made(make, words, tmp_path):
    environments = [f"{name}={tmp_path}/{name}" for name in ("VENV", "VERL_09_VENV", "GPU_VENV")]
    result = make(*words, *environments)
    assert result.returncode != 0 and REFUSED[words] in result.stderr, result.stderr
    assert "Setting up" not in result.stdout and os.listdir(tmp_path) == []


def test_a_path_that_ray_cannot_take_is_refused_before_an_environment_is_made(make, project_root, tmp_path):
    for name in ("demo", "make", "requirements"):
        shutil.copytree(project_root / name, tmp_path / "my clone" / name)
    for target in ("demo", "llm-smoke"):
        result = make("-C", f"{tmp_path}/my clone", "-f", f"{project_root}/Makefile", target)
        assert result.returncode != 0 and "Ray cannot start its processes" in result.stderr, result.stderr
        assert "Setting up" not in result.stdout and not (tmp_path / "my clone/.venv").exists()


def test_a_missing_checkout_is_named_with_its_command(make, tmp_path):
    targets = ["llm-data", "llm-merge", "llm-eval", "vision-results", "control-results", *RUNS["llm"], *RUNS["vision"]]
    targets += RUNS["control"]
    result = make(*targets, f"CHECKOUTS={tmp_path}/none", "CKPT=/c", "MODEL_PATH=/m")
    assert result.returncode != 0 and result.stderr.count("is not there. Run 'make apply' first") == len(targets)


def test_results_of_a_folder_without_runs(make, patched_timm, tmp_path):
    result = make("vision-results", f"CHECKOUTS={patched_timm.parent}", f"OUTPUT={tmp_path}/none")
    assert result.returncode != 0 and f"no run (no summary.csv) in {tmp_path}/none" in result.stderr


@pytest.fixture
def bare_python(tmp_path):
    """A PATH whose python3 has no packages."""
    python = executable(tmp_path / "bare/python3", f'#!/bin/sh\nexec "{sys.executable}" -S -E -s "$@"\n')
    return f"{python.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    "target, missing",
    [
        ("llm-stage2", ("GPUs:", "model:", "dapo-math-17k.parquet", "aime-2024.parquet", "global_step_600")),
        (
            "vision-imagenet-sweep",
            ("wants 4 (GPUS), this machine has 0", "data/imagenet/train", "H0=7 is not feasible", "no torchvision"),
        ),
    ],
)
def test_all_that_is_missing_is_named_before_an_environment_is_made(
    make, patched_verl, patched_timm, bare_python, target, missing, tmp_path
):
    environments = [f"{name}={tmp_path}/gpu" for name in ("GPU_VENV", "TIMM_GPU_VENV")]
    checkouts = patched_verl.parent if target.startswith("llm") else patched_timm.parent
    given = {"H0": "7", "CUDA_VISIBLE_DEVICES": "", "CHECKOUTS": str(checkouts), "PATH": bare_python}
    result = make(target, *environments, **given)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    for said in (*missing, "no environment for this run yet"):
        assert said in result.stderr, result.stderr
    assert "Setting up" not in result.stdout and not (tmp_path / "gpu").exists()
    note = f"note: {tmp_path}/gpu is not set up yet; make does that before the first run\n"
    assert make(target, *environments, "DRY_RUN=1", **given | {"H0": "0.6"}).stderr.count(note) == 1


def test_the_gpu_environment_is_set_up_last(make, tmp_path):
    """With programs in the place of the active Python and the environment's."""
    lacks = '#!/bin/sh\ncase "$*" in *check_gpu_environment*) echo "No vllm here."; exit 1;; esac\necho Python 3.12.0\n'
    path = f"{executable(tmp_path / 'active/python3', lacks).parent}:{os.environ['PATH']}"
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").touch()
    words = ("llm-eval", f"GPU_VENV={tmp_path}/gpu", f"MODEL_PATH={tmp_path}/model")

    executable(tmp_path / "gpu/bin/python", '#!/bin/sh\ncase "$*" in *flash-attn*) exit 1;; esac\n')
    result = make(*words, PATH=path)
    assert result.returncode != 0 and "No vllm here." in result.stdout and "about 10 GB" in result.stdout
    for part in ("flash-attn could not be installed", "CUDA_HOME", "the same command goes on from there"):
        assert part in result.stderr
    assert not (tmp_path / "gpu/installed").exists()

    executable(tmp_path / "gpu/bin/python", '#!/bin/sh\necho "$@"\n')
    result = make(*words, PATH=path)
    assert result.returncode == 0 and (tmp_path / "gpu/installed").exists(), result.stderr
    assert f"evaluate.py --model {tmp_path}/model" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "given, said",
    [
        (
            ["PYTHON=/nonexistent"],
            "error: PYTHON=/nonexistent is not a Python 3.11, 3.12 or 3.13. Nothing was changed.",
        ),
        (["PYTHON=false"], "error: PYTHON=false is not a Python 3.11, 3.12 or 3.13. Nothing was changed."),
        (["PATH=/nonexistent"], "error: no Python 3.11, 3.12 or 3.13 found. Install one, or name it:"),
        (["PATH=/nonexistent", "PYTHON="], "error: no Python 3.11, 3.12 or 3.13 found. Install one, or name it:"),
    ],
)
def test_a_python_that_is_missing_or_does_not_fit_is_named(make, given, said, tmp_path):
    result = make("test", "test-verl-0.9", f"VENV={tmp_path}/venv", f"VERL_09_VENV={tmp_path}/venv-0.9", *given)
    assert result.returncode != 0 and said in result.stderr
    assert said.replace("3.11, 3.12 or 3.13", "3.11 or 3.12") in result.stderr
    assert "Setting up" not in result.stdout and os.listdir(tmp_path) == []


def test_an_environment_whose_python_is_gone_is_set_up_again(make, tmp_path):
    """With a program in the place of Python that writes down how it is called."""
    executable(tmp_path / "python", f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\necho Python 3.12.0\n')
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to("/nonexistent/python3")
    (tmp_path / "venv/installed").touch()
    result = make("report", f"VENV={tmp_path}/venv", f"PYTHON={tmp_path}/python")
    assert f"Setting up {tmp_path}/venv with Python 3.12.0" in result.stdout
    assert (tmp_path / "calls").read_text().splitlines()[-1] == f"-m venv --clear {tmp_path}/venv"
    assert result.returncode != 0 and not (tmp_path / "venv/installed").exists()


def test_a_python_that_is_not_used_is_named(make, tmp_path):
    executable(tmp_path / "venv/bin/python", "#!/bin/sh\n")
    (tmp_path / "venv/installed").touch()
    given = (f"VENV={tmp_path}/venv", "PYTHON=python3.12")
    assert f"PYTHON=python3.12 is not used here: {tmp_path}/venv has" in make("report", *given).stderr
    assert "not used" not in make("report", given[0]).stderr


def test_lint_that_fails_names_the_command_that_helps(make, tmp_path):
    for name in ("python", "ruff"):
        executable(tmp_path / f"venv/bin/{name}", f"#!/bin/sh\necho {name} is called\nexit 1\n")
    (tmp_path / "venv/installed").touch()
    result = make("test", f"VENV={tmp_path}/venv")
    assert result.returncode != 0 and "'make format' fixes" in result.stderr
    assert result.stdout == "ruff is called\n"
