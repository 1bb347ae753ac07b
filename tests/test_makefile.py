# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The user's commands, as far as they go without a GPU."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from helpers import runs_of

ODD = "/tmp/a\"b'c`d$e $(f) \\g"


@pytest.fixture
def make(project_root, patched_verl, tmp_path):
    """make(*targets and variables, **environment variables). This test's Python environment is the user's active one.

    Environments would be set up in a folder of this test's own, in which cpu stands for one that is there.
    """
    executable(tmp_path / "environments/cpu/bin/python", "#!/bin/sh\n")
    (tmp_path / "environments/cpu/installed").write_text(requirements(project_root, "cpu"))

    def run(*words, **environment):
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        return subprocess.run(
            ["make", "--no-print-directory", "--keep-going", *words, f"ENVIRONMENTS={tmp_path}/environments"],
            cwd=project_root,
            env={"PATH": path, "HOME": str(tmp_path), "CHECKOUTS": str(patched_verl.parent), **environment},
            capture_output=True,
            text=True,
        )

    return run


def requirements(project, environment):
    """The text of `installed` once they are."""
    return "".join(file.read_text() for file in sorted((project / "requirements").glob(f"{environment}*.txt")))


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def printed(result):
    """The words of each command that make printed."""
    assert result.returncode == 0, result.stderr
    return [shlex.split(line, comments=True) for line in result.stdout.splitlines()]


# ---------------------------------------------------------------------------------------------- which targets there are


def test_help_names_every_target_and_every_run_on_a_screen(make, project_root):
    lines = make("help").stdout.splitlines()
    words = set(re.split(r"[\s,;:]+", "\n".join(lines)))
    makefile = (project_root / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)[1].replace("\\\n", " ").split())
    assert {name for name in phony if not name.startswith(("patched-", "given-", "help"))} <= words
    for subject in ("llm", "vision", "control"):
        names = runs_of(subject)
        assert len(names) > 10 and {name.removeprefix(f"{subject}-") for name in names} <= words
        page = (project_root / f"docs/{subject}/recipes.md").read_text()
        assert all(re.search(rf"\b{re.escape(name)}\b", page) for name in names if "qwen3" not in name)
    assert len(lines) <= 56 and max(map(len, lines)) <= 108


# ------------------------------------------------------------------------------------------------------ what is printed


def test_every_llm_run_prints_its_command(make, project_root, patched_verl, tmp_path):
    (tmp_path / "my checkouts").symlink_to(patched_verl.parent)
    targets = runs_of("llm")
    added = "ARGS=trainer.save_freq=5 'data.prompt_key=a b' trainer.logger=[console]"
    result = make(*targets, f"CHECKOUTS={tmp_path}/my checkouts", "DRY_RUN=1", added)
    names = set()
    for target, words in zip(targets, printed(result), strict=True):
        current = "qwen3" in target
        assert words[:3] == ["cd", str(project_root) if current else f"{tmp_path}/my checkouts/verl", "&&"]
        assert ("era.verl.main_ppo" if current else "recipe.era.main_era") in words
        assert ("model_engine=megatron" in words) == target.endswith("megatron")
        assert words[-3:] == ["trainer.save_freq=5", "data.prompt_key=a b", "trainer.logger=[console]"]
        names |= {word for word in words if word.startswith("trainer.experiment_name=")}
    assert len(names) == len(targets) and "trainer.experiment_name=gspo_era_qwen2.5_math_7b" in names
    assert result.stderr.count("note: DRY_RUN checked neither GPUs, data,") == len(targets)


def test_every_vision_run_prints_its_commands(make, project_root, patched_timm):
    given = {"SEED": "5 6", "DATA_DIR": "/my data", "ARGS": "--log-interval 10", "PYTHON": "/my env/bin/python"}
    checkouts = f"CHECKOUTS={patched_timm.parent}"
    variables = [checkouts, "DRY_RUN=1", f"OUTPUT={ODD}", *(f"{name}={value}" for name, value in given.items())]
    commands = printed(make(*runs_of("vision"), *variables))
    assert len(commands) >= 24
    for words in commands:
        assert words[:2] == ["cd", str(patched_timm)] and words[3].startswith("PATH=/my env/bin:")
        assert words[5:9] == ["./distributed_train.sh", "4", "--data-dir", "/my data"]
        seed, *rest = words[words.index("--seed") + 1 : words.index("--experiment")]
        assert seed in ("5", "6") and rest[:3] == ["--log-interval", "10", "--output"]
        assert rest[3:] in ([ODD], [f"{ODD}/time"])
    result = make("vision-cifar10-era", checkouts, "DRY_RUN=1")  # without SEED they are the experiment's
    assert [words[words.index("--seed") + 1] for words in printed(result)] == ["42", "43", "44"]
    assert "3 runs, 0 of them finished:\n" in result.stderr


def test_every_control_run_prints_its_commands(make, project_root, patched_fasttd3, tmp_path):
    checkouts = f"CHECKOUTS={patched_fasttd3.parent}"
    for target in runs_of("control"):
        result = make(target, checkouts, "DRY_RUN=1", "SEED=3", f"OUTPUT={ODD}", "ARGS=--zzz '1 2'")
        commands = printed(result)
        assert commands and f"{len(commands)} runs, 0 of them finished:\n" in result.stderr
        for words in commands:
            assert words[:2] == ["mkdir", "-p"] and words[2].startswith(f"{ODD}/") and words[2].endswith("-seed3")
            assert words[-2:] == ["--zzz", "1 2"]
            if "fast_td3/train.py" not in " ".join(words):
                (python,) = [word for word in words if word.endswith("/bin/python")]
                name = "cpu" if target.startswith(("control-ppo", "control-eapo", "control-llm")) else "control-cpu"
                assert python == f"{tmp_path}/environments/{name}/bin/python"


@pytest.mark.parametrize("how", ["environment", "command line"])
def test_values_are_passed_on_whatever_they_hold(make, patched_verl, how):
    given = dict.fromkeys(("MODEL_PATH", "OUT", "RAY_DATA_HOME"), ODD)
    given |= {"PYTHON": "/my env/python", "SETS": "aime24 'x \"y", "EVAL": "--limit 2 'a b'", "PROTOCOL": "strict"}
    targets = ("llm-data", "llm-eval", "llm-grpo", "DRY_RUN=1")
    variables = [f"{name}={value}" for name, value in given.items()]
    result = make(*targets, **given) if how == "environment" else make(*targets, *variables)
    data, evaluation, training = printed(result)
    sets = ["aime24", "'x", '"y']
    assert data == ["/my env/python", "-m", "recipes.llm.data", *sets, "--out", f"{ODD}/data"]
    files = [f"{ODD}/data/eval/{name}.parquet" for name in sets]
    words = ["/my env/python", "-m", "recipes.llm.evaluate", "--protocol", "strict", "--model", ODD, "--data"]
    assert evaluation == [*words, *files, "--out", ODD, "--limit", "2", "a b"]
    assert f"TENSORBOARD_DIR={ODD}/ckpts/ERA/grpo_qwen2.5_math_7b/tensorboard" in training
    assert "/my env/python" in training


@pytest.mark.parametrize("how", ["environment", "command line"])
def test_no_value_is_executed(make, project_root, tmp_path, how):
    """Neither by make nor by a shell, whether the makefile reads the variable, a script does, or nothing."""
    mark = tmp_path / "mark"
    value = f"$(shell touch {mark})$(touch {mark})`touch {mark}`"
    others = "AUG CHECKOUTS CHECK_ONLY FASTTD3 FRESH GPUS GPUS_PER_RUN HOME NUM_CLASSES OUTPUT RAY_ADDRESS RESULTS"
    others = dict.fromkeys([*others.split(), "RUN_INDEX", "SLURM", "TASKS", "TIMM", "TRL", "VERL", "ELSE"], value)
    for given, target in (({"ARGS": value, "EVAL": value}, "control-ppo"), (others, "vision-cifar10")):
        words = [target, "llm-eval", "MODEL_PATH=/m", "DRY_RUN=1"]
        assigned = [f"{name}={value}" for name, value in given.items()] if how == "command line" else []
        result = make(*words, *assigned, **({} if assigned else given))
        assert ("recipes.llm.evaluate --protocol release --model /m" in result.stdout) == (
            "EVAL" in given
        ) and not mark.exists()
    make("--dry-run", "clean", **others)
    make("--dry-run", "demo-vision", "TIMM=x", f"TIMM_x={value}")
    command = ["make", "-C", project_root, "help", f"ENVIRONMENTS={value}"]  # `make` would give another one
    result = subprocess.run(command, capture_output=True, text=True)
    assert "ENVIRONMENTS must be a folder without spaces" in result.stderr
    assert not mark.exists()


def test_merge_and_evaluation_with_few_variables(make, patched_verl, tmp_path):
    merge, evaluation = printed(
        make("llm-merge", "llm-eval", "DRY_RUN=1", "CKPT=/c/global_step_9", "MODEL_PATH=/m y/era")
    )
    home = f"{tmp_path}/verl"
    assert merge[:3] == ["cd", str(patched_verl), "&&"] and merge[4:8] == [
        "-m",
        "verl.model_merger",
        "merge",
        "--backend",
    ]
    assert merge[8:] == ["fsdp", "--local_dir", "/c/global_step_9/actor", "--target_dir", "/m y/era"]
    assert evaluation[3:] == ["--protocol", "release", "--model", "/m y/era", "--out", f"{home}/eval/era"]


# ---------------------------------------------------------------------------- what is said before anything is installed

REFUSED = {
    ("foo",): "there is no target foo",
    ("vision-foo",): "There are: vision-cifar10 vision-cifar10-era ",
    ("llm-grpo", "ARGS=it's"): "cannot be read as shell words",
    ("llm-eval",): "make llm-eval MODEL_PATH=",
    ("llm-eval", "MODEL_PATH=/m", "PROTOCOL=strikt"): "PROTOCOL=strikt: there are release",
    ("llm-grade",): "make llm-grade OUT=",
    ("llm-grpo", "CHECKOUTS=/none"): "run_grpo_qwen2.5_math_7b.sh is not there",
    ("control-alpha", "CHECK_ONLY=1"): "there is no environment for this run yet",
    ("demo", "VERL=0.9.1", "TASK=typo"): "argument --task: invalid choice: 'typo'",
    ("demo-vision", "TIMM=1.0.31"): "this runs with timm 1.0.20 and 1.0.28.",
    ("rivals-trl", "DRY_RUN=1"): "DRY_RUN installs nothing",
    ("rivals-trl", "CHECK_ONLY=1"): "CHECK_ONLY installs nothing",
    ("test-control", "PATH=/nope"): "no Python 3.11 or 3.12 found",
    ("test-trl", "TORCH=cu126"): "expected TORCH=cpu, or no TORCH",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_before_an_environment_is_made(make, words, tmp_path):
    result = make(*words)
    assert result.returncode != 0 and REFUSED[words] in result.stderr, result.stderr
    assert "Setting up" not in result.stdout and os.listdir(tmp_path / "environments") == ["cpu"]


def test_a_path_with_a_space_is_refused_by_all_that_installs(make, project_root, tmp_path):
    clone = tmp_path / "my clone"
    for name in ("demo", "requirements"):
        shutil.copytree(project_root / name, clone / name)
    targets = ("demo", "lint", "test-control", "test-verl-0.9", "rivals-trl", "bench-gpu")
    result = make("-C", str(clone), "-f", f"{project_root}/Makefile", *targets, f"ENVIRONMENTS={clone}/.venv")
    assert result.returncode != 0 and result.stderr.count("because of the characters ' ' in that path: Ray") >= 4
    assert "Setting up" not in result.stdout and not (clone / ".venv").exists()


# ------------------------------------------------------------------------------------- environments, with stand-ins


def test_the_gpu_environment_is_set_up_last(make, tmp_path):
    lacks = '#!/bin/sh\ncase "$*" in *check_gpu_environment*) echo "No vllm here."; exit 1;; esac\necho Python 3.12.0\n'
    path = f"{executable(tmp_path / 'active/python3', lacks).parent}:{os.environ['PATH']}"
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").touch()
    gpu = tmp_path / "environments/verl-gpu"

    executable(gpu / "bin/python", '#!/bin/sh\ncase "$*" in *flash-attn*) exit 1;; esac\n')
    result = make("llm-eval", "PROTOCOL=strict", f"MODEL_PATH={tmp_path}/model", PATH=path)
    assert result.returncode != 0 and "No vllm here." in result.stdout
    assert "flash-attn could not be installed" in result.stderr and not (gpu / "installed").exists()

    executable(gpu / "bin/python", '#!/bin/sh\necho "$@"\n')
    result = make("llm-eval", "PROTOCOL=strict", f"MODEL_PATH={tmp_path}/model", PATH=path)
    assert result.returncode == 0 and (gpu / "installed").exists(), result.stderr
    assert f"-m recipes.llm.evaluate --protocol strict --model {tmp_path}/model" in result.stdout.splitlines()[-1]

    assert (
        " install " in result.stdout
        and " install " not in make("llm-eval", "PROTOCOL=strict", f"MODEL_PATH={tmp_path}/model", PATH=path).stdout
    )
    (gpu / "installed").write_text("other requirements")
    assert " install " in make("llm-eval", "PROTOCOL=strict", f"MODEL_PATH={tmp_path}/model", PATH=path).stdout


@pytest.fixture
def clone(project_root, tmp_path):
    """clone(name): a copy of the Makefile and of the requirements. Each has its own dates."""

    def copy(name):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(project_root / "Makefile", folder)
        shutil.copytree(project_root / "requirements", folder / "requirements", copy_function=shutil.copy)
        return folder

    return copy


def set_up(clone, *words):
    return subprocess.run(["make", "-C", clone, f"PYTHON={sys.executable}", *words], capture_output=True, text=True)


def test_clones_share_environments_until_requirements_differ(clone, tmp_path):
    """Contents count, and dates do not."""
    shared, log = f"ENVIRONMENTS={tmp_path}/shared", tmp_path / "log"
    target = f"{tmp_path}/shared/docs/installed"
    executable(tmp_path / "shared/docs/bin/python", f'#!/bin/sh\necho "$@" >> {log}\n')
    first, second = clone("first"), clone("second")

    def installs(folder):
        log.write_text("")
        result = set_up(folder, shared, target)
        assert result.returncode == 0, result.stderr
        return " install " in log.read_text()

    assert installs(first) and not installs(first) and not installs(second)
    lock = second / "requirements/docs.txt"
    lock.touch()
    assert not installs(second)
    text, dates = lock.read_text(), (lock.stat().st_atime, lock.stat().st_mtime)
    lock.write_text(text.replace("==", "==1", 1))
    os.utime(lock, dates)
    assert installs(second) and not installs(second)
    lock.write_text(text)
    assert installs(second) and not installs(first)

    (tmp_path / "shared/docs/bin/python").unlink()  # a system upgrade
    assert "environment.sh docs" in set_up(first, "-n", shared, target).stdout


def test_a_clone_that_was_moved_still_finds_its_programs(project_root):
    """pip's scripts name their environment by its full path, and Python itself does not."""
    programs = re.findall(r"\$\(ENVIRONMENTS\)\S*/bin/([\w.-]+)", (project_root / "Makefile").read_text())
    assert len(programs) > 10 and {*programs} == {"python"}


def test_an_installation_that_fails_is_not_taken_for_done(clone, tmp_path):
    environment, folder = tmp_path / "shared/docs", clone("first")
    words = f"ENVIRONMENTS={tmp_path}/shared", f"{environment}/installed"
    executable(environment / "bin/python", "#!/bin/sh\n")
    assert set_up(folder, *words).returncode == 0
    lock = folder / "requirements/docs.txt"
    text = lock.read_text()
    lock.write_text(text + "# changed\n")
    executable(environment / "bin/python", '#!/bin/sh\ncase "$*" in *" install "*) exit 1;; esac\n')
    assert set_up(folder, *words).returncode != 0
    lock.write_text(text)  # half of the packages may be those of the other file
    assert set_up(folder, *words).returncode != 0


def test_one_of_two_processes_sets_up_and_the_other_waits(clone, tmp_path):
    if not shutil.which("flock"):
        pytest.skip("this system has no flock command")
    log, go, started = tmp_path / "log", tmp_path / "go", tmp_path / "started"
    os.mkfifo(go)
    os.mkfifo(started)
    # The first installation waits at the FIFOs for this test.
    waits = f"[ $(wc -l < {log}) -gt 1 ] || {{ echo > {started}; cat {go}; }}"
    script = f'#!/bin/sh\ncase "$*" in *" install "*) echo >> {log}; {waits};; esac\n'
    executable(tmp_path / "shared/docs/bin/python", script)
    target = f"{tmp_path}/shared/docs/installed"
    words = f"PYTHON={sys.executable}", f"ENVIRONMENTS={tmp_path}/shared", target
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    one = subprocess.Popen(["make", "-C", clone("first"), *words], **given)
    started.read_text()
    other = subprocess.Popen(["make", "-C", clone("second"), *words], **given)
    try:
        while "Another process is setting up" not in (line := other.stdout.readline()):
            assert line, "the second process ended"
    finally:
        go.write_text("go\n")
    assert (one.wait(), other.wait()) == (0, 0) and log.read_text() == "\n"


def test_where_nothing_can_be_written_the_reason_is_said(clone):
    """/dev/null/environments cannot be made, even by root."""
    result = set_up(clone("first"), "ENVIRONMENTS=/dev/null/environments", "/dev/null/environments/docs/installed")
    assert result.returncode != 0 and "nothing can be written there. Name a folder of your own" in result.stderr


def test_pytorch_without_cuda_comes_by_uv_and_one_sees_what_is_downloaded(make, tmp_path):
    environment, log = tmp_path / "environments/trl-cpu", tmp_path / "log"
    shows = (
        "case $* in *trl-cpu.txt) echo '  Downloading big.whl (766.7 MB)'; echo 'Downloading small.whl (1.2 MB)';; esac"
    )
    python = executable(environment / "bin/python", f'#!/bin/sh\necho "$@" >> {log}\n{shows}\n')
    target = f"{environment}/installed"

    def installed(**variables):
        (environment / "installed").unlink(missing_ok=True)
        log.write_text("")
        result = make(target, PYTHON=str(python), **variables)
        assert result.returncode == 0, result.stderr
        return result.stdout, [line for line in log.read_text().splitlines() if " install " in line]

    pip = "-m pip install --disable-pip-version-check"
    packages = f"{pip} --require-hashes --no-deps -r requirements/trl-cpu.txt"
    output, commands = installed(TORCH="cpu")
    assert "PyTorch, 0.2 GB, without CUDA." in output and "0 s: Downloading big.whl (766.7 MB)" in output
    assert "small.whl" not in output
    assert commands == [
        packages,
        f"{pip} --require-hashes --no-deps -r requirements/uv.txt",
        f"-m uv pip install --python {python} --torch-backend=cpu --no-deps -r requirements/trl-cpu-torch.txt",
    ]
    output, commands = installed()
    assert "make TORCH=cpu ... takes 0.2 GB" in output
    assert commands == [packages, f"{pip} -r requirements/trl-cpu-torch.txt"]

    (environment / "lib/python3.11/site-packages/nvidia").mkdir(parents=True)
    assert f"TORCH=cpu is not used here: {environment} has PyTorch with CUDA" in make(target, TORCH="cpu").stderr
    assert make(target).stderr == ""


def test_a_dry_run_and_a_check_of_an_llm_run_need_no_checkout(make, tmp_path):
    """The dry run prints the command of the checkout to come; the check names all that is missing at once."""
    before = printed(make("llm-stage1", DRY_RUN="1"))[0]
    checkout = tmp_path / "none/verl"
    assert printed(make("llm-stage1", DRY_RUN="1", CHECKOUTS=str(checkout.parent)))[0] == [
        word.replace(before[1], str(checkout)) for word in before
    ]
    (tmp_path / "bin").mkdir()
    for name in ("bash", "make", "env", "dirname", "basename", "sed", "cat", "grep", "tr", "git"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    executable(tmp_path / "bin/python3", f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')  # without packages
    result = make("llm-stage1", CHECK_ONLY="1", CHECKOUTS=str(checkout.parent), PATH=str(tmp_path / "bin"))
    assert result.returncode != 0 and "Traceback" not in result.stderr
    found = [line.strip(" -").partition(":")[0] for line in result.stderr.splitlines() if line.startswith("  - ")]
    assert found == ["checkout", "packages", "GPUs", "model", "data", "data"], result.stderr
