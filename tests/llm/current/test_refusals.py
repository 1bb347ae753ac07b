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
FUSED = "actor_rollout_ref.model.use_fused_kernels=True"
MEGATRON = ["model_engine=megatron", "algorithm.adv_estimator=grpo"]
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
    "adaptive entropy bonus": (
        [f"{ERA}k=1", f"{ERA}entropy_coeff_delta=0.1"],
        ["era.entropy_coeff_delta=0.1: only verl v0.4.1"],
    ),
    "unsound with k > 1": (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov"],
        ["loss_mode=clip_cov"],
    ),
    "another advantage for each token, on Megatron": (["model_engine=megatron"], ["adv_estimator=gae, on megatron"]),
    "what needs the original policy or a filter, on Megatron": (
        [
            *MEGATRON,
            f"{ERA}top_k=20",
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.actor.entropy_coeff=0.01",
            "actor_rollout_ref.actor.calculate_entropy=True",
            "actor_rollout_ref.actor.megatron.router_replay.mode=R2",
            "actor_rollout_ref.actor.megatron.dynamic_context_parallel=True",
        ],
        [
            "actor.era.top_k=20, on megatron",
            "use_kl_loss=True",
            "entropy_coeff=0.01",
            "calculate_entropy=True",
            "router_replay.mode=R2",
            "dynamic_context_parallel=True",
        ],
    ),
    "token advantages, Cov losses and fused kernels, on VeOmni": (
        [
            "model_engine=veomni",
            "algorithm.adv_estimator=remax",
            "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov",
            FUSED,
        ],
        ["adv_estimator=remax, on veomni", "loss_mode=kl_cov", "use_fused_kernels=True, on veomni"],
    ),
    "the group elsewhere": (["+trainer.era.k=2"], ["trainer.era: ERA is set by actor_rollout_ref.actor.era alone"]),
    "a strategy of another engine": (
        ["actor_rollout_ref.actor.strategy=megatron"],
        ["strategy=megatron: not an engine"],
    ),
    "no group": (["actor_rollout_ref.actor.era=True"], ["actor.era is True, not a group"]),
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
for name, *overrides in json.loads(sys.argv[1]):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(name, overrides)
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
    cases = {name: ["era_ppo_trainer", ON, *overrides] for name, (overrides, _) in REFUSED.items()}
    cases |= {name: ["era_ppo_trainer", *overrides] for name, (overrides, _) in ACCEPTED.items()}
    cases["verl's other name"] = ["ppo_megatron_trainer", f"+{ON}", "algorithm.adv_estimator=grpo"]
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


ACCEPTED = {
    "off": ([], "verl.workers.config.FSDPActorConfig"),
    "off, Megatron": (MEGATRON, "verl.workers.config.McoreActorConfig"),
    "FSDP": ([ON, FUSED], "era.verl.config.FSDPActorConfig"),
    "logs only": ([ON, f"{ERA}k=1", *REFUSED["unsound with k > 1"][0]], "era.verl.config.FSDPActorConfig"),
    "Megatron": (
        [ON, *MEGATRON, f"{ERA}scale_advantages=True", f"{ERA}min_advantage=1.0"],
        "era.verl.config.McoreActorConfig",
    ),
    "Megatron, logs only": (
        [ON, "model_engine=megatron", f"{ERA}k=1", f"{ERA}top_k=20", "actor_rollout_ref.actor.use_kl_loss=True"],
        "era.verl.config.McoreActorConfig",
    ),
    "VeOmni": ([ON, "model_engine=veomni", "algorithm.adv_estimator=rloo"], "era.verl.config.VeOmniActorConfig"),
}


def test_accepted(prepared):
    for name, (overrides, target) in ACCEPTED.items():
        on = ON in overrides  # off, all is verl's own, whose classes refuse the group
        assert prepared[name] == ["", target, "era" if on else "sync", on], name
    assert prepared["verl's other name"] == prepared["Megatron"]


STARTS = {
    "a typo": ([f"{ERA}lwo=0.3"], "Key 'lwo' is not in struct"),
    "what ERA refuses": (
        ["trainer.use_v1=False", f"{ERA}k=2"],
        "error: actor_rollout_ref.actor.era.enable=True does not",
    ),
    "verl's other name of Megatron's configuration": (
        ["--config-name=ppo_megatron_trainer"],
        f"To append to your config use +{ON}",
    ),
    "what verl refuses, of ERA's class": (
        ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.loss_agg_mode=median"],
        "Error in call to target 'era.verl.config.FSDPActorConfig':\nValueError('Invalid loss_agg_mode: median')",
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_starts_end_before_ray(tmp_path, name):
    overrides, expected = STARTS[name]
    result = start(*overrides, ON, f"hydra.run.dir={tmp_path}", verl=environment.tree_of("0.9.1"))
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
overrides = ["actor_rollout_ref.actor.use_dynamic_bsz=True", "trainer.v1.trainer_mode=era", *sys.argv[1:]]
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


VEOMNI = ["model_engine=veomni", "algorithm.adv_estimator=rloo"]


@pytest.mark.parametrize("engine", [["FSDP"], ["Mcore", *MEGATRON], ["VeOmni", *VEOMNI]], ids=lambda engine: engine[0])
def test_a_launcher_of_ones_own(engine):
    """verl's driver refuses bad values, and ERA's trainer what ERA does not go together with."""
    variables = {"VERL_USE_EXTERNAL_MODULES": "era.verl.trainer"}
    overrides = [f"actor_rollout_ref.actor._target_=era.verl.config.{engine[0]}ActorConfig", *engine[1:]]
    verl = environment.tree_of("0.9.1")
    result = environment.run(["-c", OWN_LAUNCHER], *overrides, verl=verl, environment=variables)
    assert result.returncode == 0, result.stderr[-3000:]
    answers = [line for line in result.stdout.splitlines() if line.startswith("ANSWER")]
    assert len(answers) == 6
    assert all("actor.era.k is 0.5" in answer for answer in answers[:2])
    assert answers[2] == answers[4] == "ANSWER accepted"
    assert "bypass_mode=True" in answers[3] and "Nothing was started" in answers[3]
    assert "trainer_mode=era is ERA's trainer, but actor_rollout_ref.actor.era.enable is not True" in answers[5]


def test_a_worker_process_of_such_a_launcher_can_import_the_worker():
    """It may import that module before verl, which imports the trainer."""
    variables = {"VERL_USE_EXTERNAL_MODULES": "era.verl.trainer"}
    verl = environment.tree_of("0.9.1")
    result = environment.run(["-c", "import era.verl.worker"], verl=verl, environment=variables)
    assert result.returncode == 0, result.stderr[-3000:]


ESTIMATORS = """
import os
from demo.llm.verl_0_9 import cpu
os.environ.update(cpu.ENVIRONMENT)
import numpy, torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn
from era.verl.config import RESPONSE_ADVANTAGES

torch.manual_seed(0)
rewards, mask = torch.randn(8, 6), (torch.rand(8, 6) < 0.7).float()
for name in RESPONSE_ADVANTAGES:
    groups = numpy.repeat(["a", "b"], 4)
    advantages, _ = get_adv_estimator_fn(name)(
        token_level_rewards=rewards * mask, response_mask=mask, index=groups, config=AlgoConfig()
    )
    assert advantages.abs().max() > 0.1, name
    for row, keep in zip(advantages, mask.bool()):
        assert len(row[keep].unique()) <= 1, (name, row)
print("ANSWER", *sorted(ADV_ESTIMATOR_REGISTRY.keys() - set(RESPONSE_ADVANTAGES)))
"""


@pytest.mark.parametrize("version", environment.VERSIONS)
def test_estimators_with_one_advantage_per_response(version):
    """Whatever the rewards of the tokens; a new estimator of verl's is looked at here before it is accepted."""
    result = environment.run(["-c", ESTIMATORS], verl=environment.tree_of(version))
    assert result.returncode == 0, result.stderr[-3000:]
    refused = "gae optimal_token_baseline reinforce_plus_plus remax tir_optimal_token_baseline"
    assert f"ANSWER {refused}\n" in result.stdout


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

for kind in (config.McoreActorConfig, config.VeOmniActorConfig, config.FSDPActorConfig):
    actor = kind(rollout_n=1, use_dynamic_bsz=True, era={"enable": True})
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
    expected = ["in a worker that is not ERA's. Start with python -m era.verl.main_ppo"] * 3
    expected += ["the platform chose OtherEngine"]
    expected += ["the actor's loss is distillation_ppo_loss", "needs the token entropies of the old_log_prob pass"]
    assert len(said) == 6
    for line, text in zip(said, expected):
        assert text in line
