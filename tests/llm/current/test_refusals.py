"""What stands in the way of ERA is named on the driver, before Ray or a worker starts."""

import json
import re
import shutil

import environment
import pytest

environment.require()

from era.verl import compatibility  # noqa: E402

ERA = "actor_rollout_ref.actor.era."
ON = f"{ERA}enable=True"
REFUSED = {
    "bad values": ([f"{ERA}k=0.5", f"{ERA}low=9"], ["actor.era.k is 0.5", "actor.era.low is 9"]),
    "typo": ([f"+{ERA}lwo=0.3"], ["actor.era.lwo is not a field of ERA", "top_fraction"]),
    "legacy trainer, other mode, bypass, distillation": (
        [
            "trainer.use_v1=False",
            "trainer.v1.trainer_mode=separate_async",
            "algorithm.rollout_correction.bypass_mode=True",
            "distillation.enabled=True",
        ],
        ["trainer.use_v1=False", "trainer_mode=separate_async", "bypass_mode=True", "distillation.enabled=True"],
    ),
    "unsound with k > 1": (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "actor_rollout_ref.model.use_fused_kernels=True"],
        ["loss_mode=clip_cov", "use_fused_kernels=True"],
    ),
    "Megatron": (["model_engine=megatron"], ["strategy=megatron"]),
    "VeOmni": (["model_engine=veomni"], ["strategy=veomni"]),
    "torchtitan": (["model_engine=torchtitan"], ["strategy=torchtitan"]),
    "another class of configuration": (
        ["actor_rollout_ref.actor._target_=my.ActorConfig"],
        ["_target_=my.ActorConfig"],
    ),
}


def start(*overrides, verl):
    return environment.run(["-m", "era.verl.main_ppo"], *overrides, verl=verl)


PREPARE = """
import json, sys
from hydra import compose, initialize_config_module
from era.verl.launch import prepare
for overrides in json.loads(sys.argv[1]):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("era_ppo_trainer", overrides)
    try:
        prepare(config)
        answer = ""
    except ValueError as error:
        answer = str(error)
    actor = config.actor_rollout_ref.actor
    print("ANSWER", json.dumps([answer, actor._target_, config.trainer.v1.trainer_mode, "era" in actor]))
"""


@pytest.fixture(scope="module")
def prepared():
    """What `prepare` says of each list of overrides, and what the configuration is after it."""
    cases = {name: [ON, *overrides] for name, (overrides, _) in REFUSED.items()}
    cases |= {"on": [ON], "off": [], "logs only": [ON, f"{ERA}k=1", *REFUSED["unsound with k > 1"][0]]}
    result = environment.run(["-c", PREPARE], json.dumps(list(cases.values())), verl=environment.tree_of("0.9.1"))
    assert result.returncode == 0, result.stderr[-3000:]
    answers = [line.removeprefix("ANSWER ") for line in result.stdout.splitlines() if line.startswith("ANSWER ")]
    return dict(zip(cases, map(json.loads, answers)))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(prepared, name):
    answer, *_ = prepared[name]
    for text in REFUSED[name][1]:
        assert text in answer
    assert "Nothing was started" in answer or "actor.era." in answer


def test_accepted(prepared):
    ours, theirs = "era.verl.config.FSDPActorConfig", "verl.workers.config.FSDPActorConfig"
    assert prepared["on"] == prepared["logs only"] == ["", ours, "era", True]
    assert prepared["off"] == ["", theirs, "sync", False]  # all is verl's own, whose class refuses the key


STARTS = {
    "a typo": ([f"{ERA}lwo=0.3"], "Key 'lwo' is not in struct"),
    "what ERA refuses": (
        ["trainer.use_v1=False", f"{ERA}k=2"],
        "error: actor_rollout_ref.actor.era.enable=True does not",
    ),
    "what verl refuses, of ERA's class": (
        ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.loss_agg_mode=median"],
        "Error in call to target 'era.verl.config.FSDPActorConfig':\nValueError('Invalid loss_agg_mode: median')",
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_starts_end_before_ray(tmp_path, name):
    overrides, expected = STARTS[name]
    result = start(ON, *overrides, f"hydra.run.dir={tmp_path}", verl=environment.tree_of("0.9.1"))
    assert result.returncode == 1 and expected in result.stderr, result.stderr
    assert "ray init" not in result.stdout and "Traceback" not in result.stderr


@pytest.mark.parametrize("version", environment.VERSIONS)
def test_tested_versions_have_every_symbol(version):
    assert list(compatibility.differing_symbols(environment.tree_of(version) / "verl")) == []


def test_another_verl_is_named_with_what_differs():
    result = start(ON, verl=environment.tree_of("0.8.0"))
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "verl 0.8.0 in" in result.stderr and "Nothing was started" in result.stderr
    assert "trainer/ppo/v1/trainer_base.py is missing" in result.stderr
    assert "EngineRegistry.register(cls, model_type, backend, device), expected" in result.stderr


@pytest.mark.parametrize("name", compatibility.SYMBOLS)
def test_a_changed_copy_is_named(tmp_path, name):
    """Each symbol of the table: renamed, and where its parameters matter with one more."""
    source = (environment.tree_of("0.9.1") / "verl" / name).read_text()
    verl = tmp_path / "verl"
    for file in compatibility.SYMBOLS:
        (verl / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(environment.tree_of("0.9.1") / "verl" / file, verl / file)
    for symbol, parameters in compatibility.SYMBOLS[name].items():
        last = symbol.split(".")[-1]
        renamed = re.sub(rf"((?:def|class) {last}\b)|(^ +{last}(?= = ))", r"\1\2_", source, flags=re.MULTILINE)
        (verl / name).write_text(renamed)
        assert any(symbol in line for line in compatibility.differing_symbols(verl)), symbol
        if parameters:
            (verl / name).write_text(source.replace(f"def {last}(", f"def {last}(another, "))
            (difference,) = [line for line in compatibility.differing_symbols(verl) if f" {symbol}(" in line]
            assert "another" in difference and f"expected ({parameters})" in difference


MISSING = """
import importlib.metadata, importlib.util, sys
from era.verl import compatibility
find, version = importlib.util.find_spec, importlib.metadata.version
importlib.util.find_spec = lambda name: None if name == {absent!r} else find(name)
importlib.metadata.version = lambda name: {numpy!r} if name == "numpy" else version(name)
sys.version_info = {python!r}
print("\\n".join(compatibility.problems()))
assert "verl" not in sys.modules and "ray" not in sys.modules
"""
ENVIRONMENTS = {
    "complete": ({}, ""),
    "no verl": ({"absent": "verl"}, "verl is not installed. pip install"),
    "no TransferQueue": ({"absent": "transfer_queue"}, "TransferQueue is not installed"),
    "numpy 1": ({"numpy": "1.26.4"}, "numpy 1.26.4: verl 0.9 needs numpy 2"),
    "Python 3.13": ({"python": (3, 13, 1)}, "Python 3.13: verl 0.9 needs 3.10 to 3.12"),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments(name):
    """Told without importing verl or Ray."""
    changes, expected = ENVIRONMENTS[name]
    code = MISSING.format(**{"absent": None, "numpy": "2.3.2", "python": (3, 11, 7), **changes})
    result = environment.run(["-c", code], verl=environment.tree_of("0.9.1"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().startswith(expected) and bool(result.stdout.strip()) == bool(expected)


OWN_LAUNCHER = """
import sys
import verl
assert "era.verl.trainer" in sys.modules
from hydra import compose, initialize_config_module
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.config import validate_config
overrides = ["actor_rollout_ref.actor.use_dynamic_bsz=True", "trainer.v1.trainer_mode=era"]
overrides += ["actor_rollout_ref.actor._target_=era.verl.config.FSDPActorConfig"]
for more in (["enable=True", "k=0.5"], ["enable=True"], ["enable=False"]):
    era = [f"+actor_rollout_ref.actor.era.{field}" for field in more]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*overrides, *era, "algorithm.rollout_correction.bypass_mode=True"])
    for action in (lambda: validate_config(config, False, False), lambda: get_trainer_cls("era")(config)):
        try:
            action()
            print("ANSWER accepted")
        except Exception as error:
            print("ANSWER", str(error).replace(chr(10), " "), config.trainer.v1.trainer_mode)
"""


def test_a_launcher_of_ones_own():
    """verl's driver refuses bad values, and ERA's trainer what ERA does not go together with."""
    variables = {"VERL_USE_EXTERNAL_MODULES": "era.verl.trainer"}
    result = environment.run(["-c", OWN_LAUNCHER], verl=environment.tree_of("0.9.1"), environment=variables)
    assert result.returncode == 0, result.stderr[-3000:]
    answers = [line for line in result.stdout.splitlines() if line.startswith("ANSWER")]
    assert len(answers) == 6
    assert all("actor.era.k is 0.5" in answer for answer in answers[:2])
    assert answers[2] == answers[4] == answers[5] == "ANSWER accepted"
    assert "bypass_mode=True" in answers[3] and "Nothing was started" in answers[3]


WORKERS = """
import os
from demo.llm.verl_0_9 import cpu
os.environ.update(cpu.ENVIRONMENT)
import verl
from functools import partial
from types import SimpleNamespace
from verl.trainer.distillation import distillation_ppo_loss
from verl.workers.engine import EngineRegistry
from era.verl import config, worker
import era.verl.trainer

def said(action):
    try:
        action()
        print("ACCEPTED")
    except (ValueError, AssertionError) as error:
        print(type(error).__name__, error)

actor = config.FSDPActorConfig(rollout_n=1, use_dynamic_bsz=True, era={"enable": True})
said(lambda: EngineRegistry.get_engine_cls("language_model", actor.engine.strategy))

@EngineRegistry.register(model_type="language_model", backend="fsdp", device="cuda", vendor="other")
class OtherEngine(worker.FSDPEngineWithLMHead):
    pass

os.environ["VERL_ENGINE_VENDOR"] = "other"
said(lambda: worker.EraTrainingWorker(SimpleNamespace(model_type="language_model", engine_config=actor.engine)))
new = worker.EraTrainingWorker.__new__(worker.EraTrainingWorker)
said(lambda: new.set_loss_fn(partial(distillation_ppo_loss, config=actor)))
new.era = worker.EraConfig(enable=True)
said(lambda: new.train_mini_batch({}))
"""


def test_workers_refuse_before_the_first_step():
    """A configuration with ERA in a plain worker; another engine; another loss; a batch without entropies."""
    result = environment.run(["-c", WORKERS], verl=environment.tree_of("0.9.1"))
    assert result.returncode == 0, result.stderr[-3000:]
    outcomes = ("ValueError", "AssertionError", "ACCEPTED")
    said = [line for line in result.stdout.splitlines() if line.startswith(outcomes)]
    expected = [
        "in a worker that is not ERA's. Start with python -m era.verl.main_ppo",
        "the platform chose OtherEngine",
    ]
    expected += ["the actor's loss is distillation_ppo_loss", "needs the token entropies of the old_log_prob pass"]
    assert len(said) == 4
    for line, text in zip(said, expected):
        assert text in line
