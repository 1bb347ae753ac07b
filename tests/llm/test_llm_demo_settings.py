# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What happens before and after the training: settings, checks, the warm-up's tokenizer, the report."""

import json

import pandas
import pytest

from demo.llm import config, report, training, versions, warmup
from demo.llm.models import EOS, PAD
from demo.runner.errors import DemoError


def test_a_path_that_ray_cannot_start_is_named(monkeypatch, tmp_path):
    for odd in " '(&$":
        monkeypatch.setattr(versions.sys, "executable", f"/home/me/my{odd}clone/.venv/cpu/bin/python")
        with pytest.raises(DemoError, match="Ray cannot start its processes"):
            versions.check(tmp_path)
    versions.need_plain_path("/home/me/Prüf-Ordner_é/era+1.0/.venv/cpu/bin/python3.11")


def test_another_verl_is_named(tmp_path):
    version = tmp_path / "verl/version/version"
    version.parent.mkdir(parents=True)
    version.write_text("0.9.0\n")
    with pytest.raises(DemoError, match=r"is not verl 0\.9\.1: .*make demo VERL=0\.9\.1"):
        versions.check(tmp_path, "0.9.1")


def test_settings_have_folders_of_their_own():
    settings = [config.Settings(), config.Settings(seed=3), config.Settings(steps=50), config.Settings("chain-biased")]
    assert len({s.name for s in settings}) == len(settings)


def test_arms_differ_in_k_alone(tmp_path):
    grpo, era = (config.overrides(config.Settings(), arm, tmp_path, tmp_path, tmp_path) for arm in ("grpo", "era"))
    assert set(grpo) ^ set(era) == {"actor_rollout_ref.actor.era.k=1.0", "actor_rollout_ref.actor.era.k=2.0"}


def test_paths_survive_hydra(tmp_path):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    odd = tmp_path / "a b,c='d'{e}[f]=$g"
    overrides = config.overrides(config.Settings(), "era", odd, odd, odd)
    parsed = {o.get_key_element(): o.value() for o in OverridesParser.create().parse_overrides(overrides)}
    assert parsed["trainer.default_local_dir"] == str(odd)
    assert json.loads(json.dumps(parsed["data.train_files"])) == str(odd / "train.parquet")


def test_ray_folder_is_short_enough_for_unix_sockets():
    """Ray's sockets lie this far below it; an address holds 103 bytes on macOS and 107 on Linux."""
    with training.ray_folder() as folder:
        assert len(f"{folder}/session_2025-01-31_23-59-59_999999_4194304/sockets/plasma_store") <= 103


def test_tokenizer_round_trip():
    tokenizer = warmup.make_tokenizer()
    text = "86=-779-772+779-772"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
    assert tokenizer.decode([*ids, EOS, PAD], skip_special_tokens=True) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (EOS, PAD)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "86="}], tokenize=False) == "86="


def arm(entropies, scaled):
    steps = pandas.DataFrame({"step": range(1, 41), "response_entropy": entropies, "scaled_token_fraction": scaled})
    steps["reward"], steps["distinct_right"] = 0.9, 2.0
    validations = pandas.DataFrame({"step": [20, 40], "pass_at_1": 0.9, "pass_at_32": 1.0, "distinct_right": 4.0})
    return report.Arm(steps, validations, {"seconds": 60.0, "peak_memory_bytes": 3e9})


def test_report_is_about_the_last_ten_steps():
    grpo = arm([2.2] * 30 + [0.1] * 10, 0.0)
    era = arm([2.2] * 30 + [0.6] * 9 + [1.2], [0.0] * 20 + [0.3] * 20)
    lines = report.table({"GRPO": grpo, "ERA": era}).splitlines()
    assert lines[0].split() == ["GRPO", "ERA"] and len({len(line) for line in lines}) == 1
    assert next(line for line in lines if "entropy, last 10" in line).split()[-2:] == ["0.100", "0.660"]
    line = report.held(0.65, {"GRPO": grpo, "ERA": era})
    assert "GRPO 0.100 (below), ERA 0.660 (not below). ERA first changed an update at step 21." in line
    assert "ERA changed no update." in report.held(0.65, {"GRPO": grpo, "ERA": grpo})
