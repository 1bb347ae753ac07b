"""Arguments, checks and reuse: what happens before and around the training."""

import json
import os
import subprocess
import sys

import pytest

from demo import __main__ as cli
from demo import config, run, warmup
from demo.errors import DemoError


def demo(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "demo", *map(str, arguments)],
        cwd=run.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--steps", "0"], "--steps: expected a whole number from 1 to 2147483647, got '0'"),
        (["--steps", "1e3"], "got '1e3'"),
        (["--steps", ""], "got ''"),
        (["--seed", "abc"], "--seed: expected a whole number from 0 to 2147483647, got 'abc'"),
        (["--seed", "-1"], "expected"),
        (["--seed", "٣"], "got"),
        (["--seed", "99999999999"], "got '99999999999'"),
        (["--task", "addition"], "chain-biased"),
    ],
)
def test_bad_arguments_end_with_exit_code_2(arguments, says, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.parse(arguments)
    assert exit.value.code == 2
    assert says in capsys.readouterr().err


def test_checkout_without_the_overlay_is_one_clear_error(tmp_path):
    (tmp_path / "verl/trainer").mkdir(parents=True)
    (tmp_path / "verl/trainer/main_ppo.py").touch()
    result = demo("--checkout", tmp_path, "--out", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.strip().splitlines() == [
        f"demo: {tmp_path} is not verl with the ERA overlay: no verl/utils/era.py there. Run: python apply.py apply verl"
    ]


def checkout(folder):
    for file in ("verl/trainer/main_ppo.py", "verl/utils/era.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("x = 1\n")
    return folder


def test_full_disk_is_found_beforehand(tmp_path, monkeypatch):
    monkeypatch.setattr(cli.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1e6}))
    with pytest.raises(DemoError, match="1 MB free on this disk, 300 MB needed"):
        cli.check(checkout(tmp_path), tmp_path / "out")


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "NEEDED_PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(DemoError, match="lacks no_such_package.*requirements/cpu.txt"):
        cli.check(checkout(tmp_path), tmp_path / "out")


def test_file_in_the_place_of_the_results_folder_is_one_clear_error(tmp_path):
    (tmp_path / "out").touch()
    result = demo("--checkout", checkout(tmp_path), "--out", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.strip() == f"demo: File exists: {tmp_path / 'out'}"


def test_second_demo_in_the_same_folder_is_refused(tmp_path):
    with cli.only_one(tmp_path), pytest.raises(DemoError, match="another demo is writing"):
        with cli.only_one(tmp_path):
            pass
    with cli.only_one(tmp_path):
        pass


def test_failed_training_shows_the_end_of_its_log(tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    (broken / "verl").mkdir(parents=True)
    (broken / "verl/__init__.py").write_text("raise ImportError('this verl is broken')\n")
    with pytest.raises(DemoError) as error:
        run.train(config.Settings(steps=2), "era", broken, tmp_path, tmp_path / "era", "key", lambda row: None)
    assert "the era run ended with exit code 1 after 0 of 2 steps" in str(error.value)
    assert "this verl is broken" in str(error.value) and str(tmp_path / "era/log.txt") in str(error.value)
    assert not (tmp_path / "era" / run.INFO_FILE).exists()


def test_finished_runs_are_reused_only_with_the_same_key(tmp_path):
    assert run.finished(tmp_path / "nothing", "key") is None
    info = run.finish(tmp_path, "key", seconds=1.5)
    assert run.finished(tmp_path, "key") == info == {"key": "key", "seconds": 1.5}
    assert run.finished(tmp_path, "other") is None
    (tmp_path / run.INFO_FILE).write_text('{"key": "ke')
    assert run.finished(tmp_path, "key") is None


def test_digest_follows_the_checkout(tmp_path):
    one = run.digest(checkout(tmp_path))
    assert run.digest(tmp_path) == one
    (tmp_path / "verl/README.md").touch()
    assert run.digest(tmp_path) == one
    (tmp_path / "verl/utils/era.py").write_text("x = 2\n")
    assert run.digest(tmp_path) != one


def test_settings_have_folders_of_their_own():
    settings = [config.Settings(), config.Settings(seed=2), config.Settings(steps=50), config.Settings("chain-biased")]
    assert len({s.name for s in settings}) == len(settings)


def test_arms_differ_in_k_alone(tmp_path):
    grpo, era = (config.overrides(config.Settings(), arm, tmp_path, tmp_path, tmp_path) for arm in ("grpo", "era"))
    assert set(grpo) ^ set(era) == {"actor_rollout_ref.actor.era.k=1.0", "actor_rollout_ref.actor.era.k=2.0"}


def test_ray_folder_is_short_enough_for_unix_sockets(tmp_path, monkeypatch):
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(run.tempfile, "tempdir", str(deep))
    with run._ray_dir() as folder:
        assert len(folder) <= run._LONGEST_RAY_DIR
    assert not os.path.exists(folder)


def test_new_lines_leaves_a_half_written_line_for_later(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = run._new_lines(file)
    assert next(lines) == []
    file.write_text("one\ntw")
    assert next(lines) == ["one"]
    file.write_text("one\ntwo\n")
    assert next(lines) == ["two"]
    assert next(lines) == []


def test_tokenizer_round_trip():
    tokenizer = warmup.make_tokenizer()
    text = "86=-779-772+779-772"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
    assert tokenizer.decode([*ids, warmup.EOS, warmup.PAD], skip_special_tokens=True) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (warmup.EOS, warmup.PAD)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "86="}], tokenize=False) == "86="


def test_paths_survive_hydra(tmp_path):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    odd = tmp_path / "a b,c='d'{e}[f]=$g"
    overrides = config.overrides(config.Settings(), "era", odd, odd, odd)
    parsed = {o.get_key_element(): o.value() for o in OverridesParser.create().parse_overrides(overrides)}
    assert parsed["trainer.default_local_dir"] == str(odd)
    assert json.loads(json.dumps(parsed["data.train_files"])) == str(odd / "train.parquet")
