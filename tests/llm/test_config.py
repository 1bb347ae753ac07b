"""The hydra group, through verl's own configuration files and its own start-up check."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir

ENOUGH = [
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
]
ON_POLICY = ["data.train_batch_size=256", "actor_rollout_ref.actor.era.enable=True"]
ACTOR = "actor_rollout_ref.actor"
KEY = f"{ACTOR}.era"
OWN_LOSS = f"{ACTOR}.policy_loss.loss_mode=recovery"  # of the user's, and no covariance loss
FUSED = "++actor_rollout_ref.model.use_fused_kernels=True"


@pytest.fixture
def config_of(patched_verl, monkeypatch):
    monkeypatch.chdir(patched_verl)  # verl's recipes find its configuration relative to the checkout

    def read(*overrides):
        with initialize_config_dir(str(patched_verl / "verl/trainer/config"), version_base=None):
            return compose("ppo_trainer", overrides=list(overrides))

    return read


@pytest.fixture
def start(config_of, import_verl):
    """The real RayPPOTrainer's check of its configuration, without building the trainer."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    def check(*overrides):
        config = config_of(*ENOUGH, *overrides)
        RayPPOTrainer._validate_config(SimpleNamespace(config=config, use_critic=False, use_reference_policy=False))

    return check


def test_forking_tokens_with_a_covariance_loss_are_refused(start):
    losses = [f"{ACTOR}.policy_loss.{override}" for override in ("forking_fraction=0.2", "loss_mode=kl_cov")]
    with pytest.raises(ValueError, match="forking_fraction=0.2 does not go together with loss_mode=kl_cov"):
        start(*losses)
    start(*losses, OWN_LOSS)


def test_group_defaults_equal_the_dataclass(config_of, era):
    """But for those that have no line of their own in an upstream file."""
    others = {"triton": True, "entropy_coeff_delta": 0.0}
    assert {**config_of().actor_rollout_ref.actor.era, **others} == dataclasses.asdict(era.EraConfig())


def test_upstream_defaults_and_good_settings_start(start):
    start()
    start(*ON_POLICY)
    start(*ON_POLICY, f"{KEY}.high=inf", f"{KEY}.low=0.2", f"{KEY}.top_k=20", f"{KEY}.scale_advantages=True")


def test_infinity_reaches_the_dataclass(config_of, era):
    group = config_of(f"{KEY}.high=inf").actor_rollout_ref.actor.era
    assert era.EraConfig.from_mapping(group).high == math.inf


def test_everything_wrong_is_named_at_once(start):
    """Even where ERA is off."""
    losses = ("policy_loss.loss_mode=gspo", "policy_loss.forking_fraction=0")
    with pytest.raises(ValueError) as error:
        start(f"{KEY}.k=0.5", f"{KEY}.top_k=0", f"{KEY}.low=9", *(f"{ACTOR}.{loss}" for loss in losses))
    for problem in ("era.k is 0.5", "era.top_k is 0", "era.low is 9", "fraction is 0", "loss_agg_mode is token-mean"):
        assert problem in str(error.value)
    with pytest.raises(ValueError) as error:
        unsound = (f"{ACTOR}.policy_loss.forking_fraction=0.2", f"{ACTOR}.policy_loss.loss_mode=kl_cov")
        start(*ON_POLICY, OWN_LOSS, *unsound)
    assert str(error.value).count("\n  - ") == 2


MULTI_TURN = ("multi_turn.enable=True", "multi_turn.tool_config_path=tools.yaml")
MULTI_TURN = (*(f"actor_rollout_ref.rollout.{override}" for override in MULTI_TURN), "algorithm.adv_estimator=grpo")
ULYSSES = (f"{ACTOR}.ulysses_sequence_parallel_size=2", "actor_rollout_ref.model.use_remove_padding=True")
UNSOUND = [  # overrides, and what the message names
    ((f"{ACTOR}.policy_loss.loss_mode=clip_cov",), f"{ACTOR}.policy_loss.loss_mode=clip_cov"),
    ((f"{ACTOR}.policy_loss.loss_mode=kl_cov",), f"{ACTOR}.policy_loss.loss_mode=kl_cov"),
    ((f"{ACTOR}.policy_loss.forking_fraction=0.2",), f"{ACTOR}.policy_loss.forking_fraction=0.2"),
    ((*MULTI_TURN, "+algorithm.filter_groups.enable=False"), "actor_rollout_ref.rollout.multi_turn.enable=True"),
    ((FUSED, *ULYSSES, f"{ACTOR}.use_kl_loss=True"), f"{ACTOR}.ulysses_sequence_parallel_size=2"),
    ((FUSED, *ULYSSES, "algorithm.use_kl_in_reward=True"), "a KL loss or penalty"),
]


@pytest.mark.parametrize("overrides, named", UNSOUND)
def test_unsound_settings_are_refused_only_where_era_changes_the_training(start, overrides, named):
    with pytest.raises(ValueError, match=rf"{KEY}\.enable=True does not go together with") as error:
        start(*ON_POLICY, *overrides)
    assert named in str(error.value)
    start(*ON_POLICY, *overrides, f"{KEY}.k=1")
    start(*ON_POLICY, *overrides, f"{KEY}.enable=False")


SOUND = [
    ("data.train_batch_size=512",),
    (f"{ACTOR}.ppo_epochs=2",),
    (f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.use_kl_loss=True"),
    MULTI_TURN,
    (f"{ACTOR}.policy_loss.loss_mode=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
    (OWN_LOSS,),
    (FUSED, f"{ACTOR}.ppo_epochs=2", f"{KEY}.top_k=20", f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.use_kl_loss=True"),
    (FUSED, *ULYSSES, f"{ACTOR}.use_kl_loss=True", "actor_rollout_ref.model.lora_rank=8"),
    # DAPO's generation batch may be larger than the training batch, which is what the update sees.
    ("+data.gen_batch_size=768", "+algorithm.filter_groups.enable=True"),
]


@pytest.mark.parametrize("overrides", SOUND, ids=lambda overrides: overrides[0])
def test_what_era_supports_starts(start, overrides):
    start(*ON_POLICY, *overrides)


def test_an_adaptive_entropy_bonus_is_alone(start):
    bonus = f"+{KEY}.entropy_coeff_delta=0.001"
    start(*ON_POLICY, f"{KEY}.k=1", bonus)
    with pytest.raises(ValueError, match="era.k is 2.0; expected 1 with"):
        start(*ON_POLICY, bonus)
    with pytest.raises(ValueError, match="entropy_coeff is 0.01, but .*expected 0"):
        start(*ON_POLICY, f"{KEY}.k=1", bonus, f"{ACTOR}.entropy_coeff=0.01")


MEGATRON_WOULD_IGNORE = [
    {"policy_loss": {"forking_fraction": 0.2}},
    {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "seq-mean-token-mean"},
    {"era": {"enable": True, "k": 1.0}},
]


@pytest.mark.parametrize("actor", MEGATRON_WOULD_IGNORE, ids=str)
def test_megatron_is_refused(import_verl, actor):
    from verl.utils import era_checks

    with pytest.raises(ValueError, match="FSDP actor"):
        era_checks.validate_trainer_config({"actor_rollout_ref": {"actor": {"strategy": "megatron", **actor}}})


def test_a_configuration_without_the_group_is_a_disabled_era(import_verl):
    from verl.utils import era

    assert not era.validate_trainer_config({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}).enable
