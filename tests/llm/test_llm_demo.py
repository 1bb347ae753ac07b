# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""`python -m demo.llm`: its settings and report, and on the real patched verl a few steps, reuse, and Ctrl-C."""

import signal
import subprocess
from pathlib import Path

import demo_runs
import pandas
import pytest
from demo_helpers import ROOT

from demo.llm import config, curves, report, warmup
from demo.llm.models import EOS, PAD

VERL = "0.4.1"


def test_arms_differ_in_k_alone(tmp_path):
    grpo, era = (config.overrides(config.Settings(), arm, tmp_path, tmp_path, tmp_path) for arm in ("grpo", "era"))
    assert set(grpo) ^ set(era) == {"actor_rollout_ref.actor.era.k=1.0", "actor_rollout_ref.actor.era.k=2.0"}


def test_tokenizer_round_trip():
    tokenizer = warmup.make_tokenizer()
    text = "86=-779-772+779-772"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
    assert tokenizer.decode([*ids, EOS, PAD], skip_special_tokens=True) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (EOS, PAD)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "86="}], tokenize=False) == "86="


def test_report_is_about_the_last_ten_steps():
    steps = pandas.DataFrame({"step": range(1, 41), "reward": 0.9, "distinct_right": 2.0})
    steps["response_entropy"] = [2.2] * 30 + [0.6] * 9 + [1.2]
    steps["scaled_token_fraction"] = [0.0] * 20 + [0.3] * 20
    validations = pandas.DataFrame({"step": [20, 40], "pass_at_1": 0.9, "pass_at_32": 1.0, "distinct_right": 4.0})
    found = {label: value for label, (value, _) in report.measures(steps, validations, 60.0).items()}
    assert found["response entropy, last 10 steps"] == pytest.approx(0.66)
    assert found["share of right answers at the end, 16 prompts"] == 0.9
    assert found["first step with tokens scaled by ERA"] == 21
    assert report.held(0.66, {"ERA": 0.66, "GRPO": 0.1}, 0.01).startswith("ERA held")
    assert report.held(0.66, {"ERA": 0.65, "GRPO": 0.7}, 0.01).startswith("ERA did not hold")
    assert report.held(0.66, {"ERA": 2.2, "GRPO": 2.2}, 0.0).startswith("ERA scaled no token in this run, so nothing")


def test_half_of_a_finished_runs_answers_is_not_reused(tmp_path):
    def dump(name, lines):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}\n" * lines)

    per_step, of_validation = config.PROMPTS * config.ANSWERS, 16 * config.VALIDATION_ANSWERS
    dump("rollouts/1.jsonl", per_step)
    assert curves.incomplete_because(tmp_path, 1) == "has no validation"
    dump("validation/0.jsonl", of_validation)
    assert curves.incomplete_because(tmp_path, 1) == ""
    assert curves.incomplete_because(tmp_path, 2) == f"has 0 of {per_step} answers in rollouts/2.jsonl"
    dump("validation/0.jsonl", 96)
    assert curves.incomplete_because(tmp_path, 1) == f"has 96 of {of_validation} answers in validation/0.jsonl"


@pytest.mark.parametrize("text", ["a b", "it's", r"a\b", r"a\\b", "end\\", r"\'", r"\\''", "x=${y},[1]{z:2}", "#$%"])
def test_hydra_reads_paths_of_the_demo_and_of_launch_sh(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    launch = ROOT / "overlays/verl/recipe/era/launch.sh"
    command = f"source <(grep '^for_hydra()' {launch}); for_hydra \"$1\""
    of_shell = subprocess.run(["bash", "-c", command, "_", text], capture_output=True, text=True, check=True).stdout
    assert config.for_hydra(Path(text)) == of_shell
    assert OverridesParser.create().parse_override(f"key={of_shell}").value() == text


@pytest.fixture(scope="module")
def out(patched_verl, tmp_path_factory):
    return demo_runs.warm_up(VERL, patched_verl, tmp_path_factory.mktemp("a folder, with odd = characters"))


@pytest.fixture(scope="module")
def printed(patched_verl, out):
    return demo_runs.run_both_arms(VERL, patched_verl, out)


@pytest.mark.slow
def test_demo_of_both_arms_and_its_reuse(patched_verl, out, printed):
    demo_runs.check_both_arms_and_their_reuse(printed, VERL, patched_verl, out)


@pytest.mark.parametrize(
    "number, stage",
    [
        pytest.param(signal.SIGINT, "ray::WorkerDict", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "raylet", marks=pytest.mark.grid),
    ],
)
def test_stopping_the_demo_leaves_no_process(number, stage, patched_verl, out, tmp_path):
    demo_runs.stopped(number, stage, VERL, patched_verl, out, str(tmp_path))
