# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What stands in the way of ERA is named on the driver, before Ray or a worker starts."""

import json

import environment
import pytest

environment.require()

from era.verl import compatibility  # noqa: E402

ACTOR = "actor_rollout_ref.actor."
ERA = f"{ACTOR}era."
ON = f"{ERA}enable=True"
FUSED = "actor_rollout_ref.model.use_fused_kernels=True"
MEGATRON = ["model_engine=megatron", "algorithm.adv_estimator=grpo"]
VEOMNI = ["model_engine=veomni", "algorithm.adv_estimator=rloo"]
REFUSED = [  # what is set beside enable=True; the words that are said, by default what is set
    ([f"{ERA}k=0.5", f"{ERA}low=9"], ["era.k is 0.5", "era.low is 9"]),
    ([f"+{ERA}lwo=0.3"], ["lwo"]),
    ([f"{ACTOR}era=True"], ["era is True, not a group"]),
    (["+trainer.era.k=2"], ["trainer.era: ERA is set by actor_rollout_ref.actor.era alone"]),
    (["trainer.use_v1=False"],),
    (["trainer.v1.trainer_mode=separate_async", "distillation.enabled=True"],),
    (["algorithm.rollout_correction.bypass_mode=True"],),
    ([f"{ACTOR}policy_loss.loss_mode=clip_cov"],),
    ([f"{ACTOR}policy_loss.loss_mode=bypass_mode"],),
    ([f"{ACTOR}strategy=megatron"], ["strategy=megatron: not an engine"]),
    (["model_engine=torchtitan"], ["actor._target_=verl.workers.config.Torch"]),
    ([f"{ACTOR}_target_=my.ActorConfig"],),
    (["model_engine=megatron"], ["algorithm.adv_estimator=gae: on megatron"]),
    ([*MEGATRON, f"{ERA}top_k=20", f"{ACTOR}use_kl_loss=True"],),
    ([*MEGATRON, f"{ACTOR}entropy_coeff=0.01", f"{ACTOR}calculate_entropy=True"],),
    ([*MEGATRON, f"{ACTOR}megatron.router_replay.mode=R2", f"{ACTOR}megatron.dynamic_context_parallel=True"],),
    (
        ["model_engine=veomni", "algorithm.adv_estimator=remax", f"{ACTOR}policy_loss.loss_mode=kl_cov", FUSED],
        ["adv_estimator=remax: on veomni", "loss_mode=kl_cov", f"{FUSED}: on veomni"],
    ),
]
ACCEPTED = [  # overrides, and the class of the actor's configuration
    ([], "verl.workers.config.FSDPActorConfig"),
    (MEGATRON, "verl.workers.config.McoreActorConfig"),
    ([ON, FUSED], "era.verl.config.FSDPActorConfig"),
    ([ON, f"{ERA}k=1", f"{ACTOR}policy_loss.loss_mode=clip_cov"], "era.verl.config.FSDPActorConfig"),
    ([ON, *MEGATRON, f"{ERA}scale_advantages=True", f"{ERA}min_advantage=1.0"], "era.verl.config.McoreActorConfig"),
    (
        [ON, "model_engine=megatron", f"{ERA}k=1", f"{ERA}top_k=20", f"{ACTOR}use_kl_loss=True"],
        "era.verl.config.McoreActorConfig",
    ),
    ([ON, *VEOMNI], "era.verl.config.VeOmniActorConfig"),
]

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


def answers(script, *arguments, version="0.9.1", **environment_variables):
    """The lines that the script prints after the word ANSWER."""
    variables = {"environment": environment_variables} if environment_variables else {}
    result = environment.run(["-c", script], *arguments, verl=environment.tree_of(version), **variables)
    assert result.returncode == 0, result.stderr[-3000:]
    return [line.removeprefix("ANSWER ") for line in result.stdout.splitlines() if line.startswith("ANSWER ")]


def test_what_is_refused_and_what_is_accepted():
    cases = [["era_ppo_trainer", ON, *overrides] for overrides, *_ in REFUSED]
    cases += [["era_ppo_trainer", *overrides] for overrides, _ in ACCEPTED]
    cases += [["ppo_megatron_trainer", f"+{ON}", "algorithm.adv_estimator=grpo"]]  # verl's other name
    found = [json.loads(answer) for answer in answers(PREPARE, json.dumps(cases))]
    for (overrides, *words), (answer, *_) in zip(REFUSED, found):
        named = [item for item in overrides if item not in (*MEGATRON, *VEOMNI)]
        for text in words[0] if words else named:
            assert text in answer, overrides
    for (overrides, target), result in zip(ACCEPTED, found[len(REFUSED) :]):
        on = ON in overrides  # off, all is verl's own, whose classes refuse the group
        assert result == ["", target, "era" if on else "sync", on], overrides
    assert found[-1][1:] == ["era.verl.config.McoreActorConfig", "era", True]


STARTS = [
    (["trainer.use_v1=False"], "error: Settings that would be ignored"),
    (["--config-name=ppo_megatron_trainer"], f"To append to your config use +{ON}"),
]


@pytest.mark.parametrize("overrides, expected", STARTS)
def test_starts_end_before_ray(tmp_path, overrides, expected):
    command = ["-m", "era.verl.main_ppo"]
    folder = f"hydra.run.dir={tmp_path}"
    result = environment.run(command, *overrides, ON, folder, verl=environment.tree_of("0.9.1"))
    assert result.returncode == 1 and expected in result.stderr, result.stderr
    assert "ray init" not in result.stdout and "Traceback" not in result.stderr


def package(folder, version, method="train_mini_batch"):
    """As much of a verl as is read before it is imported, with one method under this name."""
    (folder / "version").mkdir(parents=True)
    (folder / "version/version").write_text(version)
    for name, methods in compatibility.OVERRIDDEN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        named = [method if each == "train_mini_batch" else each for each in methods]
        (folder / name).write_text("".join(f"    def {each}(self):\n" for each in named))


def test_another_verl_is_named(tmp_path, monkeypatch):
    for version in environment.VERSIONS:
        monkeypatch.syspath_prepend(environment.tree_of(version))
        assert compatibility.problems() == []
    for name, words in {"0.9.2": "verl 0.9.2 in", "0.9.1": "has no method train_mini_batch"}.items():
        package(tmp_path / name / "verl", name, method="train_batch")
        (tmp_path / name / "verl/__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path / name)
        (problem,) = compatibility.problems()
        assert words in problem and "pip install" in problem


OWN_LAUNCHER = """
import itertools, json, sys
import verl
assert "era.verl.trainer" in sys.modules
from hydra import compose, initialize_config_module
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.config import validate_config
all_have = ["actor_rollout_ref.actor.use_dynamic_bsz=True", "trainer.v1.trainer_mode=era"]
all_have += ["algorithm.rollout_correction.bypass_mode=True"]
settings = (["enable=True", "k=0.5"], ["enable=True"], ["enable=False"])
for overrides, more in itertools.product(json.loads(sys.argv[1]), settings):
    era = [f"+actor_rollout_ref.actor.era.{field}" for field in more]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*all_have, *overrides, *era])
    for action in (lambda: validate_config(config, False, False), lambda: get_trainer_cls("era")(config)):
        try:
            action()
            print("ANSWER accepted")
        except Exception as error:
            print("ANSWER", str(error).replace(chr(10), " "), config.trainer.v1.trainer_mode)
"""

EXTERNAL = {"VERL_USE_EXTERNAL_MODULES": "era.verl.trainer"}


def test_a_launcher_of_ones_own():
    """verl's driver refuses bad values, and ERA's trainer what ERA does not go together with."""
    target = f"{ACTOR}_target_=era.verl.config."
    engines = {"FSDP": [], "Mcore": MEGATRON, "VeOmni": VEOMNI}
    overrides = [[f"{target}{name}ActorConfig", *others] for name, others in engines.items()]
    said = iter(answers(OWN_LAUNCHER, json.dumps(overrides), **EXTERNAL))
    for name in engines:
        bad, also_bad, accepted, unsound, off, never_on = (next(said) for _ in range(6))
        assert "actor.era.k is 0.5" in bad and "actor.era.k is 0.5" in also_bad, name
        assert accepted == off == "accepted", name
        assert "bypass_mode=True" in unsound and "trainer_mode=era is ERA's trainer" in never_on, name


def test_a_worker_process_of_such_a_launcher_can_import_the_worker():
    """It may import that module before verl, which imports the trainer."""
    assert answers("import era.verl.worker; print('ANSWER imported')", **EXTERNAL) == ["imported"]


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
    refused = "gae optimal_token_baseline reinforce_plus_plus remax tir_optimal_token_baseline"
    assert answers(ESTIMATORS, version=version) == [refused]


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
        print("ANSWER accepted")
    except (ValueError, AssertionError) as error:
        print("ANSWER", error)

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
"""


def test_workers_refuse_before_the_first_step():
    """A configuration with ERA in a plain worker; another engine; another loss."""
    words = ["in a worker that is not ERA's. Start with python -m era.verl.main_ppo"] * 3
    words += ["the platform chose OtherEngine", "the actor's loss is distillation_ppo_loss"]
    said = answers(WORKERS)
    assert len(said) == len(words)
    for line, word in zip(said, words):
        assert word in line
