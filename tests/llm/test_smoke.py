"""`make llm-smoke` around its runs: the tiny model, the choice of scripts, the table, and its end."""

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch

from demo.llm import bands, bigram, run, smoke
from demo.runner.errors import DemoError

MARK = "ERA_SMOKE_END_TEST"
GRPO = "run_grpo_qwen2.5_math_7b.sh"


def test_every_token_of_an_answer_has_its_bands_entropy():
    model, tokenizer = bigram.make_model(), bigram.make_tokenizer()
    torch.manual_seed(1)
    for band, entropy in bands.ENTROPIES.items():
        prompts = torch.tensor([tokenizer.encode(band)] * 50)
        sequences = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=bands.RESPONSE_LENGTH,
        )
        answers = tokenizer.batch_decode(sequences[:, 1:], skip_special_tokens=True)
        assert set("".join(answers)) <= set(bands.BANDS[band])
        with torch.no_grad():
            log_probs = model(sequences).logits.double().log_softmax(-1)
        entropies = -(log_probs.exp() * log_probs).sum(-1)[sequences > bigram.VOCABULARY.index(bands.END)]
        assert len(entropies) > 500
        torch.testing.assert_close(entropies, torch.full_like(entropies, entropy), rtol=0, atol=1e-3)


def test_bands_lie_on_both_sides_of_the_recipes_omegas():
    a, b, c, d = bands.ENTROPIES.values()
    assert a < 0.2 < b < 0.45 < c < 3.0 < d
    assert all(math.isclose(sum(tokens.values()), 1) for tokens in bands.BANDS.values())


@pytest.mark.parametrize("band", bands.BANDS)
def test_groups_of_answers_hold_right_and_wrong_ones(band):
    """Else DAPO's filter would drop them and generate for ever."""
    rng = random.Random(0)
    characters, weights = zip(*((character, p) for character, p in bands.BANDS[band].items() if character != bands.END))
    groups = [
        {
            bands.compute_score("bands", "".join(rng.choices(characters, weights, k=bands.RESPONSE_LENGTH)), band)[
                "acc"
            ]
            for _ in range(8)
        }
        for _ in range(300)
    ]
    assert sum(scores == {0.0, 1.0} for scores in groups) > 250


def test_all_scripts_of_the_recipe_are_run_and_stage_1_before_stage_2(patched_verl):
    chosen = smoke.choose(patched_verl, [])
    assert sorted(chosen) == sorted(file.name for file in (patched_verl / "recipe/era").glob("run_*.sh"))
    assert chosen[:2] == [smoke.STAGE1, smoke.STAGE2] and GRPO in chosen


def test_stage_2_brings_stage_1_along(patched_verl):
    assert smoke.choose(patched_verl, [smoke.STAGE2]) == [smoke.STAGE1, smoke.STAGE2]
    assert smoke.choose(patched_verl, [GRPO]) == [GRPO]


def test_unknown_script_is_named_with_all_that_there_are(patched_verl):
    with pytest.raises(DemoError, match=r"no script run_x\.sh in (.|\n)*" + GRPO):
        smoke.choose(patched_verl, [GRPO, "run_x.sh"])


@pytest.mark.parametrize(
    "script, size", [(GRPO, 8), ("run_kl_cov_qwen2.5_math_7b.sh", 1), ("run_clip_cov_qwen2.5_math_7b.sh", 1)]
)
def test_mini_batches_are_the_scripts_shrunk(script, size, patched_verl):
    assert (
        smoke.mini_batch(smoke.Tree(patched_verl, True), script, {"PYTHON": sys.executable, "MODEL_PATH": "/m"}) == size
    )


def test_checkout_with_dapo_is_used_as_it_is_and_one_without_gets_a_stand_in(tmp_path):
    for name in ("git", "package"):
        (tmp_path / name / smoke.RECIPE).mkdir(parents=True)
        (tmp_path / name / "verl").mkdir()
    (tmp_path / "git/recipe/dapo").mkdir()
    (tmp_path / "git/recipe/dapo/main_dapo.py").touch()
    assert smoke.tree(tmp_path / "git", tmp_path / "a") == smoke.Tree(tmp_path / "git", True)
    assert smoke.tree(tmp_path / "package", tmp_path / "b") == smoke.Tree(tmp_path / "b", False)
    assert not (tmp_path / "a").exists() and not (tmp_path / "package/recipe/dapo").exists()
    assert (tmp_path / "b/recipe/dapo/main_dapo.py").is_file() and (
        tmp_path / "b/verl"
    ).resolve() == tmp_path / "package/verl"


def test_workers_use_the_cpu_where_there_is_a_gpu(patched_verl):
    """Ray may unpickle a class of verl's, which asks for CUDA, before it imports the changes for the CPU."""
    code = "import torch; torch.cuda.is_available = lambda: True; import verl; from demo.llm import cpu_worker; from verl.utils import device; import verl.workers.actor; print(device.get_device_name())"
    environment = {**os.environ, "PYTHONPATH": f"{patched_verl}{os.pathsep}{run.ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900)
    assert result.stdout.strip() == "cpu", result.stderr


def outcome(exit_code=0, killed=False, resumed=None):
    values = {"actor/pg_loss": 0.25, "actor/grad_norm": 2.0, "era/response_entropy": 1.5}
    return smoke.Outcome("run_x.sh", exit_code, killed, 31.6, [6, 7], {7: values}, resumed, "")


def test_table_tells_what_was_resumed_killed_and_failed(tmp_path):
    row = lambda result: smoke.row(result, tmp_path).split(maxsplit=6)
    assert row(outcome()) == ["run_x.sh", "6-7", "32", "0.250", "2.000", "1.500", "the beginning"]
    assert row(outcome(resumed=f"{tmp_path}/stage1/global_step_5"))[6] == "stage1/global_step_5"
    assert row(outcome(exit_code=-9, killed=True))[6] == "the beginning, killed in the next step"
    assert row(outcome(exit_code=1))[6] == "FAILED with exit code 1"


def test_metrics_of_a_repeated_step_are_the_later_ones(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"step": 2, "data": {"a": 1.0, "b": 2.0}}\n{"step": 3, "data": {"a": 0.0}}\n{"step": 2, "data": {"a": 5.0}}\n'
    )
    assert smoke.metrics(file) == {2: {"a": 5.0, "b": 2.0}, 3: {"a": 0.0}}
    assert smoke.metrics(tmp_path / "none") == {}


# The command


@pytest.fixture
def temporary():
    folder = tempfile.mkdtemp(prefix="s", dir="/tmp")  # short, so that Ray's files lie there
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(checkout, out, temporary, *arguments):
    command = [sys.executable, "-m", "tools.smoke.llm", "--checkout", str(checkout), "--out", str(out), *arguments]
    environment = {
        **os.environ,
        "TMPDIR": temporary,
        MARK: temporary,
        "RAY_ADDRESS": "127.0.0.1:1",
        "PYTHONPATH": str(run.ROOT / "tests/stray"),
    }
    return subprocess.Popen(
        command, cwd=run.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def processes_of(temporary):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == temporary and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:120])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_command_prints_the_table(patched_verl, tmp_path, temporary):
    process = start(patched_verl, tmp_path, temporary, GRPO)
    printed, errors = process.communicate(timeout=900)
    assert process.returncode == 0, printed + errors
    table = [line.split(maxsplit=6) for line in printed.splitlines() if line.startswith(("script", "run_"))]
    assert [line[:2] for line in table] == [["script", "steps"], [GRPO, "1-2"]] and table[1][6] == "the beginning"
    values = smoke.metrics(tmp_path / "runs" / Path(GRPO).stem / smoke.METRICS_FILE)
    assert list(values) == [1, 2] and float(table[1][5]) == pytest.approx(values[2]["era/response_entropy"], abs=1e-3)
    assert all(math.isfinite(value) for step in values.values() for value in step.values())
    assert values[1]["actor/ppo_kl"] == values[1]["era/scaled_token_fraction"] == 0 < values[1]["actor/grad_norm"]
    assert processes_of(temporary) == os.listdir(temporary) == []


@pytest.mark.parametrize("number, stage", [(signal.SIGINT, "preflight.py"), (signal.SIGKILL, "raylet")])
def test_stopping_the_command_leaves_no_process(number, stage, patched_verl, tmp_path, temporary):
    """Stopped once a process of this name is there. After SIGKILL the trainer notices that its parent is gone."""
    process = start(patched_verl, tmp_path, temporary, GRPO)
    deadline = time.monotonic() + 900
    while not any(stage in line for line in processes_of(temporary)):
        assert process.poll() is None and time.monotonic() < deadline, f"{stage} did not start"
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=900)
    if number == signal.SIGINT:
        assert (
            process.returncode == 128 + number and errors.strip() == "smoke: stopped by SIGINT; nothing is left running"
        )
        assert os.listdir(temporary) == []
    else:
        time.sleep(2)
    assert processes_of(temporary) == []


def test_failed_script_shows_the_end_of_its_log(patched_verl, tmp_path, temporary):
    """The checkout's check refuses a model that is not there."""
    broken = tmp_path / "checkout"
    shutil.copytree(patched_verl / smoke.RECIPE, broken / smoke.RECIPE)
    for file in ("verl/trainer/main_ppo.py", "verl/utils/era.py"):
        (broken / file).parent.mkdir(parents=True, exist_ok=True)
        (broken / file).touch()
    (broken / smoke.RECIPE / "preflight.py").write_text("import sys\nsys.exit('nothing is there')\n")
    process = start(broken, tmp_path / "out", temporary, GRPO)
    printed, errors = process.communicate(timeout=900)
    assert process.returncode == 1 and f"smoke: {GRPO} failed" in errors and "nothing is there" in errors
    assert "FAILED with exit code 1" in printed and "Traceback" not in errors
