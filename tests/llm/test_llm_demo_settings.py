"""Arguments, checks and reuse: what happens before and around the training."""

import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from demo.llm import __main__ as cli
from demo.llm import config, run, start, warmup
from demo.runner.errors import DemoError

KEY = {"code": "1", "versions": {"python": "3.11", "torch": "2.6.0"}}


def demo(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "demo.llm", *map(str, arguments)],
        cwd=run.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
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
    monkeypatch.setattr(start, "NEEDED_PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(DemoError, match="lacks no_such_package.*requirements/cpu.txt"):
        cli.check(checkout(tmp_path), tmp_path / "out")


@pytest.mark.parametrize("odd", [" ", "'", "(", "&", "$"])
def test_a_path_that_ray_cannot_start_is_named(odd, monkeypatch, tmp_path):
    monkeypatch.setattr(start.sys, "executable", f"/home/me/my{odd}clone/.venv/cpu/bin/python")
    with pytest.raises(DemoError, match="Ray cannot start its processes"):
        start.check(tmp_path, tmp_path / "out")


def test_letters_of_other_alphabets_are_no_hindrance():
    start.need_plain_path("/home/me/Prüf-Ordner_é/era+1.0/.venv/cpu/bin/python3.11")


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
        run.train(config.Settings(steps=2), "era", broken, tmp_path, tmp_path / "era", KEY, lambda row: None)
    assert "the era run ended with exit code 1 after 0 of 2 steps" in str(error.value)
    assert "this verl is broken" in str(error.value) and str(tmp_path / "era.new/log.txt") in str(error.value)
    assert not (tmp_path / "era").exists() and not (tmp_path / "era.new" / run.INFO_FILE).exists()


def test_finished_run_outlives_a_failed_attempt_to_replace_it(tmp_path):
    run.finish(run.fresh(tmp_path / "era"), KEY, seconds=1.5)
    (tmp_path / "era/steps.csv").write_text("old")
    with pytest.raises(DemoError):
        run.train(
            config.Settings(steps=2),
            "era",
            tmp_path / "no verl",
            tmp_path,
            tmp_path / "era",
            {**KEY, "code": "2"},
            lambda row: None,
        )
    assert run.finished(tmp_path / "era", KEY) and (tmp_path / "era/steps.csv").read_text() == "old"


@pytest.mark.parametrize("stopped", [True, False])
def test_warm_up_is_kept_until_its_replacement_is_finished(stopped, tmp_path, monkeypatch):
    def write_model(folder, *_):
        (folder / "model").write_text("new")
        if stopped:
            raise start.Stopped(2)
        return 0.4

    folder = run.fresh(tmp_path / "warmup-chain-seed1")
    (folder / "model").write_text("old")
    run.finish(folder, KEY, accuracy=0.4)
    monkeypatch.setattr(warmup, "write_model", write_model)
    try:
        cli.warm_up(config.Settings(), tmp_path, {**KEY, "code": "2"}, False)
    except start.Stopped:
        assert stopped
    assert (folder / "model").read_text() == ("old" if stopped else "new")
    assert run.finished(folder, KEY if stopped else {**KEY, "code": "2"})
    assert stopped or os.listdir(tmp_path) == ["warmup-chain-seed1"]


def test_message_says_what_differs_and_that_the_old_run_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "train", lambda *_: {})
    run.finish(tmp_path, KEY)
    newer = {"code": "2", "versions": {"python": "3.12", "torch": "2.6.0"}}
    cli.train(config.Settings(), "era", tmp_path, tmp_path, tmp_path, newer, False)
    says = "differs in python (3.11 then, 3.12 now), the demo's or verl's code: training again, and keeping it until"
    assert says in capsys.readouterr().out
    cli.train(config.Settings(), "era", tmp_path, tmp_path, tmp_path, KEY, True)
    assert "differs" not in capsys.readouterr().out


def test_difference_to_nothing_to_the_same_and_to_a_run_of_an_earlier_demo(tmp_path):
    assert run.difference(tmp_path / "nothing", KEY) == ""
    run.finish(tmp_path, KEY)
    assert run.difference(tmp_path, KEY) == ""
    run.finish(tmp_path, "a digest of everything")
    assert run.difference(tmp_path, KEY) == "the demo's or verl's code"


def test_finished_runs_are_reused_only_with_the_same_key(tmp_path):
    assert run.finished(tmp_path / "nothing", "key") is None
    info = run.finish(tmp_path, KEY, seconds=1.5)
    assert run.finished(tmp_path, KEY) == info == {"key": KEY, "seconds": 1.5}
    assert run.finished(tmp_path, {**KEY, "code": "2"}) is None
    (tmp_path / run.INFO_FILE).write_text('{"key": "ke')
    assert run.finished(tmp_path, KEY) is None


def test_key_follows_the_checkout(tmp_path):
    one = run.key(checkout(tmp_path))
    assert run.key(tmp_path) == one
    (tmp_path / "verl/README.md").touch()
    assert run.key(tmp_path) == one
    (tmp_path / "verl/utils/era.py").write_text("x = 2\n")
    assert run.key(tmp_path) != one


def test_key_follows_packages_and_python_but_not_its_patch_releases(tmp_path, monkeypatch):
    def key(python, torch):
        monkeypatch.setattr(run.platform, "python_version_tuple", lambda: tuple(python.split(".")))
        monkeypatch.setattr(run, "versions", lambda: {"python": python, "torch": torch})
        return run.key(tmp_path)

    checkout(tmp_path)
    assert key("3.11.7", "2.6.0") == key("3.11.9", "2.6.0")
    assert key("3.11.7", "2.6.0") != key("3.12.7", "2.6.0") != key("3.12.7", "2.7.0")


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


def test_sweep_takes_the_folders_of_dead_demos_alone(tmp_path, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead, live, elsewhere, old = (
        tmp_path / f"era-ray-{name}"
        for name in (f"{process.pid}-a", f"{os.getpid()}-b", f"{process.pid}-c", "abcdefgh")
    )
    for folder in (dead, live, elsewhere, old):
        (folder / "session").mkdir(parents=True)
        (folder / run._LOCK_FILE).touch()
    monkeypatch.setattr(run.tempfile, "tempdir", str(tmp_path))
    with (elsewhere / run._LOCK_FILE).open() as lock:  # an owner whose process id is not known here
        run.fcntl.flock(lock, run.fcntl.LOCK_EX)
        run.sweep()
        assert not dead.exists() and live.exists() and elsewhere.exists() and old.exists()
    run.sweep()
    assert not elsewhere.exists()


def test_python_path_of_the_user_does_not_reach_the_demo(tmp_path):
    """Its argparse.py cannot be imported; it would be found before Python's own."""
    stray = run.ROOT / "tests/stray"
    result = demo("--checkout", tmp_path, "--out", tmp_path / "out", PYTHONPATH=str(stray), PYTHONSTARTUP="x")
    assert result.stderr.startswith(f"\ndemo: {tmp_path} is not verl with the ERA overlay"), result.stderr


def test_trainer_has_a_python_path_of_its_own(tmp_path, monkeypatch):
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "/stray")
    monkeypatch.setattr(
        run.subprocess, "Popen", lambda *_, env, **__: started.append(env) or SimpleNamespace(stdin=io.StringIO())
    )
    monkeypatch.setattr(run, "_kill_group", lambda process: None)
    started = []
    with run._trainer(tmp_path, "/tmp/ray", [], None, tmp_path / run.METRICS_FILE):
        pass
    assert "/stray" not in started[0].values()
    assert started[0]["PYTHONPATH"] == f"{tmp_path}{os.pathsep}{run.ROOT}"


def test_new_lines_leaves_a_half_written_line_for_later(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = run.new_lines(file)
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
