"""`make llm-smoke` around its runs: the tiny model, the choice of scripts, the table, and its end."""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from demo_helpers import MARK, ROOT, run, start, wait_for_process
from helpers import processes_with

from demo.llm import bands
from demo.runner.errors import DemoError
from tools.smoke import llm as smoke

GRPO = "run_grpo_qwen2.5_math_7b.sh"


def test_bands_lie_on_both_sides_of_the_recipes_omegas():
    a, b, c, d = bands.ENTROPIES.values()
    assert a < 0.2 < b < 0.45 < c < 3.0 < d
    assert all(math.isclose(sum(tokens.values()), 1) for tokens in bands.BANDS.values())


def test_scripts_are_chosen_by_name_stage_1_before_stage_2(patched_verl):
    chosen = smoke.choose(patched_verl, [])
    assert sorted(chosen) == sorted(file.name for file in (patched_verl / "recipe/era").glob("run_*.sh"))
    assert chosen[:2] == [smoke.STAGE1, smoke.STAGE2] and GRPO in chosen
    assert smoke.choose(patched_verl, [smoke.STAGE2]) == [smoke.STAGE1, smoke.STAGE2]
    assert smoke.choose(patched_verl, [GRPO]) == [GRPO]
    with pytest.raises(DemoError, match=r"no script run_x\.sh. There are:(.|\n)*" + GRPO):
        smoke.choose(patched_verl, [GRPO, "run_x.sh"])


def test_checkout_with_dapo_is_used_as_it_is_and_one_without_gets_a_stand_in(tmp_path):
    for name in ("git", "package"):
        (tmp_path / name / smoke.RECIPE).mkdir(parents=True)
        (tmp_path / name / "verl").mkdir()
    (tmp_path / "git/recipe/dapo").mkdir()
    (tmp_path / "git/recipe/dapo/main_dapo.py").touch()
    assert smoke.tree(tmp_path / "git", tmp_path / "a") == smoke.Tree(tmp_path / "git", True)
    assert smoke.tree(tmp_path / "package", tmp_path / "b") == smoke.Tree(tmp_path / "b", False)
    assert not (tmp_path / "a").exists() and not (tmp_path / "package/recipe/dapo").exists()
    assert (tmp_path / "b/recipe/dapo/main_dapo.py").is_file()
    assert (tmp_path / "b/verl").resolve() == tmp_path / "package/verl"


@pytest.mark.slow
def test_workers_use_the_cpu_where_there_is_a_gpu(patched_verl):
    """Ray may unpickle a class of verl's, which asks for CUDA, before it imports the changes for the CPU."""
    code = (
        "import torch; torch.cuda.is_available = lambda: True; import verl; from demo.llm import cpu_worker; "
        "from verl.utils import device; import verl.workers.actor; print(device.get_device_name())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{patched_verl}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900)
    assert result.stdout.strip() == "cpu", result.stderr


def outcome(exit_code=0, killed=False, resumed=None):
    values = {"actor/pg_loss": 0.25, "actor/grad_norm": 2.0, "era/response_entropy": 1.5}
    return smoke.Outcome("run_x.sh", exit_code, killed, 31.6, [6, 7], {7: values}, resumed, "")


def test_table_tells_what_was_resumed_killed_and_failed(tmp_path):
    def row(result):
        return smoke.row(result, tmp_path).split(maxsplit=6)

    assert row(outcome()) == ["run_x.sh", "6-7", "32", "0.250", "2.000", "1.500", "the beginning"]
    assert row(outcome(resumed=f"{tmp_path}/stage1/global_step_5"))[6] == "stage1/global_step_5"
    assert row(outcome(exit_code=-9, killed=True))[6] == "the beginning, killed in the next step"
    assert row(outcome(exit_code=1))[6] == "FAILED with exit code 1"


# The command


@pytest.fixture
def temporary():
    folder = tempfile.mkdtemp(prefix="s", dir="/tmp")  # short, so that Ray's files lie there
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def arguments(checkout, out):
    return "tools.smoke.llm", "--checkout", checkout, "--out", out, GRPO


@pytest.mark.grid
def test_command_prints_the_table(patched_verl, tmp_path, temporary):
    result = run(*arguments(patched_verl, tmp_path), TMPDIR=temporary, **{MARK: temporary})
    assert result.returncode == 0, result.stdout + result.stderr
    table = [line.split(maxsplit=6) for line in result.stdout.splitlines() if line.startswith(("script", "run_"))]
    assert [line[:2] for line in table] == [["script", "steps"], [GRPO, "1-2"]] and table[1][6] == "the beginning"
    values = smoke.metrics(tmp_path / "runs" / Path(GRPO).stem / smoke.METRICS_FILE)
    assert list(values) == [1, 2] and float(table[1][5]) == pytest.approx(values[2]["era/response_entropy"], abs=1e-3)
    assert all(math.isfinite(value) for step in values.values() for value in step.values())
    assert values[1]["actor/ppo_kl"] == values[1]["era/scaled_token_fraction"] == 0 < values[1]["actor/grad_norm"]
    assert processes_with(**{MARK: temporary}) == os.listdir(temporary) == []


@pytest.mark.slow
def test_stopping_the_command_leaves_no_process(patched_verl, tmp_path, temporary):
    process = start(*arguments(patched_verl, tmp_path), TMPDIR=temporary, **{MARK: temporary})
    wait_for_process("preflight.py", temporary, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 128 + signal.SIGINT
    assert errors.strip() == "smoke: stopped by SIGINT; nothing is left running"
    assert processes_with(**{MARK: temporary}) == os.listdir(temporary) == []


@pytest.mark.slow
def test_failed_script_shows_the_end_of_its_log(patched_verl, tmp_path, temporary):
    """The checkout's own check refuses to start the run."""
    broken = tmp_path / "checkout"
    shutil.copytree(patched_verl / smoke.RECIPE, broken / smoke.RECIPE)
    for file in ("verl/trainer/main_ppo.py", "verl/utils/era.py"):
        (broken / file).parent.mkdir(parents=True, exist_ok=True)
        (broken / file).touch()
    (broken / smoke.RECIPE / "preflight.py").write_text("import sys\nsys.exit('nothing is there')\n")
    result = run(*arguments(broken, tmp_path / "out"), TMPDIR=temporary)
    assert result.returncode == 1 and "FAILED with exit code 1" in result.stdout
    assert f"smoke: {GRPO} failed" in result.stderr and "nothing is there" in result.stderr
    assert "Traceback" not in result.stderr
