"""What happens before and around the training: settings, checks, warm-up, Ray's folder."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile

import pytest

from demo.llm import __main__ as cli
from demo.llm import checks, config, ray_folder, training, warmup
from demo.llm.models import EOS, PAD
from demo.runner import results
from demo.runner.errors import DemoError

KEY = {"code": "1", "versions": {}}


def test_a_path_that_ray_cannot_start_is_named(monkeypatch, tmp_path):
    for odd in " '(&$":
        monkeypatch.setattr(checks.sys, "executable", f"/home/me/my{odd}clone/.venv/cpu/bin/python")
        with pytest.raises(DemoError, match="Ray cannot start its processes"):
            checks.check(tmp_path, tmp_path / "out")
    checks.need_plain_path("/home/me/Prüf-Ordner_é/era+1.0/.venv/cpu/bin/python3.11")


def test_another_verl_is_named(tmp_path):
    version = tmp_path / "verl/version/version"
    version.parent.mkdir(parents=True)
    version.write_text("0.9.0\n")
    with pytest.raises(DemoError, match=r"is not verl 0\.9\.1: .*make demo VERL=0\.9\.1"):
        checks.check(tmp_path, tmp_path / "out", "0.9.1")


def test_fresh_trains_again_what_could_be_reused(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(training, "train_arm", lambda *_: trained.append(1))
    results.finish(tmp_path, KEY)
    for fresh in (False, True):
        assert cli.train(config.Settings(), "era", tmp_path, tmp_path, tmp_path, KEY, fresh) == {"key": KEY}
    assert trained == [1]


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


def test_ray_folder_is_short_enough_for_unix_sockets(tmp_path, monkeypatch):
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with ray_folder.ray_folder() as folder:
        assert len(folder) <= ray_folder.LONGEST
    assert not os.path.exists(folder)


def test_sweep_takes_the_folders_of_dead_demos_alone(tmp_path, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead, live, elsewhere, old = (
        tmp_path / f"era-ray-{name}"
        for name in (f"{process.pid}-a", f"{os.getpid()}-b", f"{process.pid}-c", "abcdefgh")
    )
    for folder in (dead, live, elsewhere, old):
        (folder / "session").mkdir(parents=True)
        (folder / ray_folder.LOCK_FILE).touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (elsewhere / ray_folder.LOCK_FILE).open() as lock:  # an owner whose process id is not known here
        fcntl.flock(lock, fcntl.LOCK_EX)
        ray_folder.sweep()
        assert not dead.exists() and live.exists() and elsewhere.exists() and old.exists()
    ray_folder.sweep()
    assert not elsewhere.exists()


def test_tokenizer_round_trip():
    tokenizer = warmup.make_tokenizer()
    text = "86=-779-772+779-772"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
    assert tokenizer.decode([*ids, EOS, PAD], skip_special_tokens=True) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (EOS, PAD)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "86="}], tokenize=False) == "86="
