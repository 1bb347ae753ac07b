# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What stands in the way of ERA is named on the driver, before Ray or a worker starts."""

import shutil
import sys
from functools import partial
from types import SimpleNamespace

import environment
import llm_helpers
import pytest

environment.require()

from era.language_config import FUSED_REFUSALS  # noqa: E402
from era.refusals import VERL_0_9  # noqa: E402
from era.verl import compatibility  # noqa: E402

ACTOR = "actor_rollout_ref.actor."
ERA = f"{ACTOR}era."
ON = f"{ERA}enable=True"
FUSED = "actor_rollout_ref.model.use_fused_kernels=True"
MEGATRON = ["model_engine=megatron", "algorithm.adv_estimator=grpo"]
VEOMNI = ["model_engine=veomni", "algorithm.adv_estimator=rloo"]
BONUS_KEY = f"{ACTOR}adaptive_entropy"
BONUS = [f"+{BONUS_KEY}.target=0.5", f"+{BONUS_KEY}.delta=0.005"]
ENGINES = {"FSDP": [], "Mcore": MEGATRON, "VeOmni": VEOMNI}
# By refusal, what breaks it and no other, beside enable=True.
BREAKS = {
    "legacy trainer": ["trainer.use_v1=False"],
    "separate trainer": ["trainer.v1.trainer_mode=separate_async"],
    "unknown trainer": ["trainer.v1.trainer_mode=mine"],
    "bypass": ["algorithm.rollout_correction.bypass_mode=True"],
    "bypass loss": [f"{ACTOR}policy_loss.loss_mode=bypass_mode"],
    "covariances": [f"{ACTOR}policy_loss.loss_mode=clip_cov"],
    "geometric mean": [f"{ERA}hold=True", f"{ACTOR}policy_loss.loss_mode=geo_mean"],
    "distillation": ["distillation.enabled=True"],
    "unknown configuration": ["model_engine=torchtitan"],
    "unknown engine": [f"{ACTOR}strategy=megatron"],
    "kernels on FSDP-Turbo": [f"{ACTOR}strategy=fsdp_turbo", FUSED],
    "router replay on Megatron": [*MEGATRON, f"{ACTOR}megatron.router_replay.mode=R2"],
    "context parallelism on Megatron": [*MEGATRON, f"{ACTOR}megatron.dynamic_context_parallel=True"],
    "kernels on VeOmni": [*VEOMNI, FUSED],
    "router replay on VeOmni": [*VEOMNI, f"{ACTOR}veomni.router_replay.mode=R2"],
    "estimator on VeOmni": ["model_engine=veomni", "algorithm.adv_estimator=remax"],
    "top-k on VeOmni": [*VEOMNI, f"{ERA}top_k=20"],
    "KL loss on VeOmni": [*VEOMNI, f"{ACTOR}use_kl_loss=True"],
    "entropy bonus on VeOmni": [*VEOMNI, f"{ACTOR}entropy_coeff=0.01"],
    "entropy on VeOmni": [*VEOMNI, f"{ACTOR}calculate_entropy=True"],
    "bonus without k=1": BONUS,
    "bonus with a coefficient": [*BONUS, f"{ERA}k=1", f"{ACTOR}entropy_coeff=0.01"],
    "bonus without the optimizer": [*BONUS, f"{ERA}k=1", f"{ACTOR}checkpoint.load_contents=[model,extra]"],
    "bonus on another engine": [*MEGATRON, *BONUS, f"{ERA}k=1"],
}
BAD = [  # what is set beside enable=True; the words that are said
    ([f"{ERA}k=0.5", f"{ERA}low=9"], ["era.k is 0.5", "era.low is 9"]),
    ([f"+{ERA}lwo=0.3"], ["lwo"]),
    (["+trainer.era.k=2"], ["trainer.era would be ignored"]),  # ../test_config.py has all of them
    ([f"++{ERA}k=???"], ["era.k has no value"]),
    ([f"{ACTOR}era=True"], ["era is True, not a group"]),
    ([f"{ACTOR}_target_=my.ActorConfig"], [f"{ACTOR}_target_=my.ActorConfig"]),
    ([f"+{BONUS_KEY}.target=0.5", f"{ERA}k=1"], ["a finite target and a finite delta above 0, and nothing else"]),
    ([*BONUS, f"{ERA}enable=False"], ["reads its metrics"]),
    ([f"{ERA}enable=False", f"{ERA}low=0.3"], [f"{ERA}low without {ON}, so that this would train without ERA"]),
    (  # all at once
        ["model_engine=veomni", "algorithm.adv_estimator=remax", f"{ACTOR}policy_loss.loss_mode=kl_cov", FUSED],
        ["adv_estimator=remax: on VeOmni", "loss_mode=kl_cov", f"{FUSED}: on VeOmni"],
    ),
    (
        [f"{ERA}k=1", f"{ERA}hold=True", f"{ACTOR}policy_loss.loss_mode=kl_cov"],
        ["loss_mode=kl_cov: its covariances"],
    ),
]
ACCEPTED = [  # overrides, and the class of the actor's configuration
    ([], "verl.workers.config.FSDPActorConfig"),
    (MEGATRON, "verl.workers.config.McoreActorConfig"),
    ([ON, f"{ERA}k=1", *BONUS], "era.verl.config.FSDPActorConfig"),
    ([ON, FUSED], "era.verl.config.FSDPActorConfig"),
    ([ON, f"{ERA}k=1", f"{ACTOR}policy_loss.loss_mode=clip_cov"], "era.verl.config.FSDPActorConfig"),
    ([ON, *MEGATRON, f"{ERA}scale_advantages=True", f"{ERA}min_advantage=1.0"], "era.verl.config.McoreActorConfig"),
    (
        [ON, "model_engine=megatron", f"{ERA}top_k=20", f"{ACTOR}use_kl_loss=True", f"{ACTOR}entropy_coeff=0.01"],
        "era.verl.config.McoreActorConfig",
    ),
    (
        [
            *(ON, "model_engine=veomni", f"{ERA}k=1", f"{ERA}hold=True", f"{ERA}top_k=20"),
            f"{ACTOR}use_kl_loss=True",
        ],
        "era.verl.config.VeOmniActorConfig",
    ),
    ([ON, f"{ACTOR}strategy=fsdp_turbo"], "era.verl.config.FSDPActorConfig"),
    ([ON, *VEOMNI], "era.verl.config.VeOmniActorConfig"),
]


@pytest.fixture
def break_rule(compose, verl, monkeypatch):
    """break_rule(name): what breaks this refusal, before the launcher's, the trainer's or a worker's check."""
    from verl.trainer.distillation import distillation_ppo_loss
    from verl.workers.engine import EngineRegistry

    from era.language_config import EraConfig
    from era.verl import config, launch, worker

    actor = config.FSDPActorConfig(rollout_n=1, use_dynamic_bsz=True, era={"enable": True})

    def replaced_engine():
        @EngineRegistry.register(model_type="language_model", backend="fsdp", device="cuda", vendor="other")
        class OtherEngine(worker.FSDPEngineWithLMHead):
            pass

        monkeypatch.setenv("VERL_ENGINE_VENDOR", "other")
        worker.EraTrainingWorker(SimpleNamespace(model_type="language_model", engine_config=actor.engine))

    def another_loss():
        new = worker.EraTrainingWorker.__new__(worker.EraTrainingWorker)
        new.set_loss_fn(partial(distillation_ppo_loss, config=actor))

    elsewhere = {
        "replaced engine": replaced_engine,
        "another loss": another_loss,
        "kernels on Megatron": lambda: config.check(compose(ON, *MEGATRON, FUSED), EraConfig(enable=True)),
    }
    return lambda name: elsewhere[name]() if name in elsewhere else launch.prepare(compose(ON, *BREAKS[name]))


# ../test_declared_refusals.py has those of fused kernels.
@pytest.mark.parametrize("name", [name for name in VERL_0_9 if name not in FUSED_REFUSALS])
def test_whatever_is_declared_is_refused(break_rule, name):
    with llm_helpers.refused(VERL_0_9[name]):
        break_rule(name)


def test_an_engine_that_is_not_eras_is_refused_after_verl_built_it(verl):
    from verl.workers.engine import FSDPEngineWithLMHead

    from era.language_config import EraConfig
    from era.verl.worker import EraTrainingWorker

    worker = EraTrainingWorker.__new__(EraTrainingWorker)
    worker.engine = FSDPEngineWithLMHead.__new__(FSDPEngineWithLMHead)
    with pytest.raises(ValueError, match="FSDPEngineWithLMHead, which verl built in the place of ERA's"):
        worker._set_engine(EraConfig(enable=True), use_kl_loss=False)


@pytest.mark.parametrize("overrides, words", BAD)
def test_what_else_is_wrong_is_named(compose, overrides, words):
    from era.verl.launch import prepare

    with pytest.raises(ValueError) as error:
        prepare(compose(ON, *overrides))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("version", environment.VERSIONS)
def test_verls_own_keys_are_not_taken_for_eras(version):
    assert llm_helpers.keys_taken_for_era(environment.tree_of(version), ["verl/trainer/config"]) == []


@pytest.mark.parametrize("overrides, target", ACCEPTED)
def test_what_is_accepted(compose, overrides, target):
    from era.verl.launch import prepare

    config, on = compose(*overrides), ON in overrides
    prepare(config)
    actor = config.actor_rollout_ref.actor
    # off, all is verl's own, whose classes refuse the group
    assert (actor._target_, config.trainer.v1.trainer_mode, "era" in actor) == (target, "era" if on else "sync", on)


def test_each_mode_of_verls_trainer_becomes_eras(compose):
    from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync, get_trainer_cls

    import era.verl.trainer  # noqa: F401 - registers itself
    from era.verl.launch import prepare

    for mode, plain in (("sync", PPOTrainerSync), ("colocate_async", PPOTrainerColocateAsync)):
        config = compose(ON, f"trainer.v1.trainer_mode={mode}")
        prepare(config)
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)
        assert issubclass(trainer, plain) and trainer.mode == mode
        config = compose(ON, f"trainer.v1.trainer_mode={config.trainer.v1.trainer_mode}", f"{ERA}enable=False")
        with pytest.raises(ValueError, match=f"set trainer_mode to {mode} for verl's own"):
            trainer(config)


def test_fused_kernels_on_megatron_are_left_out_with_a_line(compose, capsys):
    """By ERA's start; a launcher of one's own refuses them. Without a change to the training they are verl's."""
    from era.verl.launch import prepare

    for extra, kept in (([], False), ([f"{ERA}k=1"], True), ([f"{ERA}enable=False"], True)):
        config = compose(ON, *MEGATRON, FUSED, *extra)
        capsys.readouterr()
        prepare(config)
        assert config.actor_rollout_ref.model.use_fused_kernels == kept
        assert ("use_fused_kernels is now False" in capsys.readouterr().err) != kept


def test_the_launcher_says_whether_era_is_on_and_names_a_schedule_that_is_too_long(compose, monkeypatch, capsys):
    from era.verl import launch

    monkeypatch.setattr(launch.verl_main.main, "__wrapped__", lambda config: None)
    monkeypatch.setattr(launch.verl_main, "run_ppo", lambda config, **_: None)
    monkeypatch.setattr(launch, "validate_config", lambda **_: None)
    launch.main.__wrapped__(compose())
    assert capsys.readouterr().err.startswith("ERA is off: EraConfig(")
    schedule = [f"{ERA}low_end=0.2", f"{ERA}schedule_steps=40"]
    for steps, warned in (("30", True), ("40", False), ("null", False)):
        launch.main.__wrapped__(compose(ON, *schedule, f"trainer.total_training_steps={steps}"))
        said = capsys.readouterr().err
        assert (
            said.startswith("ERA is on: EraConfig(") and ("schedule_steps is 40, but this training" in said) == warned
        )


def test_another_verl_is_named(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "verl", raising=False)
    for version in environment.VERSIONS:
        monkeypatch.syspath_prepend(environment.tree_of(version))
        assert compatibility.problems() == []
    copy = shutil.copytree(environment.tree_of("0.9.1") / "verl", tmp_path / "verl")
    monkeypatch.syspath_prepend(tmp_path)
    file = copy / "workers/engine_workers.py"
    file.write_text(file.read_text().replace("def train_mini_batch", "def train_batch"))
    assert "has no method train_mini_batch" in compatibility.problems()[0]
    assert compatibility.warning() == "", "0.9.1 is tested"
    (copy / "workers/engine/fsdp/transformer_impl.py").unlink()
    assert "has no method prepare_model_inputs" in compatibility.problems()[1]
    for older in ("0.8.0", "0.9.0.dev", "0.9.0rc1", "main"):
        (copy / "version/version").write_text(older)
        assert f"or newer, found {older} in" in compatibility.problems()[0]


@pytest.mark.parametrize("version", ["0.9.2", "0.10.0.dev"])
def test_a_newer_verl_is_warned_of_and_starts(tmp_path, version):
    """It goes on to the check of its configuration, which ends the start before Ray without a traceback."""
    copy = shutil.copytree(environment.tree_of("0.9.1") / "verl", tmp_path / "verl")
    (copy / "version/version").write_text(version)
    command = ["-m", "era.verl.main_ppo", "trainer.use_v1=False", ON, f"hydra.run.dir={tmp_path}"]
    result = environment.run(command, verl=tmp_path)
    assert f"warning: era.verl was tested with verl 0.9.0 to 0.9.1, found {version} in {copy}, which" in result.stderr
    assert result.returncode == 1 and "trainer.use_v1=False: the legacy" in result.stderr, result.stderr
    assert "ray init" not in result.stdout and "Traceback" not in result.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_a_launcher_of_ones_own(compose, engine):
    """verl's driver refuses bad values, and ERA's trainer refuses what cannot be combined with ERA."""
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.config import validate_config

    import era.verl.trainer  # noqa: F401 - registers itself

    own = [f"{ACTOR}_target_=era.verl.config.{engine}ActorConfig", f"{ACTOR}use_dynamic_bsz=True"]
    own += ["trainer.v1.trainer_mode=era", "algorithm.rollout_correction.bypass_mode=True", *ENGINES[engine]]

    def config(*fields):
        return compose(*own, *(f"+{ERA}{field}" for field in fields), name="ppo_trainer")

    validate_config(config("enable=True"), False, False)
    forgotten = compose(*own, f"+{ERA}enable=True", "trainer.v1.trainer_mode=sync", name="ppo_trainer")
    with pytest.raises(ValueError, match="trainer_mode=sync is not ERA's trainer.*Set it to era or era_colocate_async"):
        validate_config(forgotten, False, False)
    with pytest.raises(ValueError, match="algorithm.min_advantage would be ignored"):
        get_trainer_cls("era")(compose(*own, f"+{ERA}enable=True", "+algorithm.min_advantage=0", name="ppo_trainer"))
    with pytest.raises(Exception, match=r"era\.k is 0\.5"):
        validate_config(config("enable=True", "k=0.5"), False, False)
    for fields, word in ((["enable=True"], "bypass_mode=True"), (["enable=False"], "trainer_mode=era")):
        with pytest.raises(ValueError, match=word):
            get_trainer_cls("era")(config(*fields))


def test_a_worker_process_of_such_a_launcher_can_import_the_worker():
    """The process may import the worker before verl, and verl itself imports the trainer."""
    script = "import sys, era.verl.worker; assert 'era.verl.trainer' in sys.modules"
    variables = {"VERL_USE_EXTERNAL_MODULES": "era.verl.trainer", "VERL_PLATFORM": ""}
    result = environment.run(["-c", script], verl=environment.tree_of("0.9.1"), environment=variables)
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
print("REFUSED", *sorted(ADV_ESTIMATOR_REGISTRY.keys() - set(RESPONSE_ADVANTAGES)))
"""


@pytest.mark.parametrize("version", environment.VERSIONS)
def test_estimators_with_one_advantage_per_response(version):
    """Whatever the tokens' rewards. A new estimator of verl's fails here, and is looked at before it is accepted."""
    refused = "gae optimal_token_baseline reinforce_plus_plus remax tir_optimal_token_baseline"
    result = environment.run(["-c", ESTIMATORS], verl=environment.tree_of(version))
    assert f"REFUSED {refused}\n" in result.stdout, result.stderr[-3000:]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_worker_refuses_a_configuration_with_era(verl, engine):
    from verl.workers.engine import EngineRegistry

    from era.verl import config

    actor = getattr(config, f"{engine}ActorConfig")(rollout_n=1, use_dynamic_bsz=True, era={"enable": True})
    with pytest.raises((ValueError, AssertionError), match="in a worker that is not ERA's"):
        EngineRegistry.get_engine_cls("language_model", actor.engine.strategy)
