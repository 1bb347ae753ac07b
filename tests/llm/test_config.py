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
KEY = "actor_rollout_ref.actor.era"


@pytest.fixture
def config_of(patched_verl, monkeypatch):
    monkeypatch.chdir(patched_verl)  # verl's recipes find its configuration relative to the checkout

    def read(*overrides, folder="verl/trainer/config", name="ppo_trainer"):
        with initialize_config_dir(str(patched_verl / folder), version_base=None):
            return compose(name, overrides=list(overrides))

    return read


@pytest.fixture
def start(config_of, import_verl):
    """The real RayPPOTrainer's check of its configuration, without building the trainer."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    def check(*overrides, **where):
        trainer = SimpleNamespace(
            config=config_of(*ENOUGH, *overrides, **where), use_critic=False, use_reference_policy=False
        )
        RayPPOTrainer._validate_config(trainer)

    return check


def test_group_defaults_equal_the_dataclass(config_of, era):
    assert dict(config_of().actor_rollout_ref.actor.era) == dataclasses.asdict(era.EraConfig())


def test_upstream_defaults_and_good_settings_start(start):
    start()
    start(*ON_POLICY)
    start(*ON_POLICY, f"{KEY}.high=inf", f"{KEY}.low=0.2", f"{KEY}.top_k=20", f"{KEY}.scale_advantages=True")


def test_infinity_reaches_the_dataclass(config_of, era):
    group = config_of(f"{KEY}.high=inf").actor_rollout_ref.actor.era
    assert era.EraConfig.from_mapping(group).high == math.inf


@pytest.mark.parametrize(
    "override",
    [
        "k=0.5",
        "k=-1",
        "k=inf",
        "k=two",
        "low=4",
        "low=nan",
        "high=.1",
        "top_k=0",
        "top_k=2.5",
        "top_fraction=0",
        "top_fraction=1.5",
        "min_advantage=-1",
        "enable=1",
    ],
)
def test_bad_values_fail_at_start_with_the_full_key(start, override):
    with pytest.raises(ValueError, match=rf"{KEY}\.\w+ is .*expected"):
        start(*ON_POLICY, f"{KEY}.{override}")


def test_everything_wrong_is_named_at_once(start):
    with pytest.raises(ValueError) as error:
        start(
            f"{KEY}.k=0.5",
            f"{KEY}.top_k=0",
            f"{KEY}.low=9",
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
            "actor_rollout_ref.actor.policy_loss.forking_fraction=0",
        )
    for problem in (
        f"{KEY}.k is 0.5",
        f"{KEY}.top_k is 0",
        f"{KEY}.low is 9",
        "forking_fraction is 0",
        "loss_agg_mode is token-mean",
    ):
        assert problem in str(error.value)


def test_bad_values_fail_even_when_disabled(start):
    with pytest.raises(ValueError, match=rf"{KEY}\.k is 0"):
        start(f"{KEY}.k=0")


def test_unknown_field_is_named(start):
    with pytest.raises(ValueError, match=rf"{KEY}\.omega_low is not a field"):
        start(f"+{KEY}.omega_low=0.45")


FUSED = "++actor_rollout_ref.model.use_fused_kernels=True"
UNSOUND = {  # overrides: what the message names
    (
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
    ): "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
    ("actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov",): "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov",
    (
        "actor_rollout_ref.actor.policy_loss.forking_fraction=0.2",
    ): "actor_rollout_ref.actor.policy_loss.forking_fraction=0.2",
    (
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
        "algorithm.adv_estimator=grpo",
        "+algorithm.filter_groups.enable=False",
    ): "actor_rollout_ref.rollout.multi_turn.enable=True",
    (FUSED, "data.train_batch_size=512"): "512 prompts in mini-batches of 256",
    (FUSED, "+data.gen_batch_size=768"): "768 prompts",
    (FUSED, "actor_rollout_ref.actor.ppo_epochs=2"): "ppo_epochs=2",
    (FUSED, f"{KEY}.top_k=20"): f"{KEY}.top_k=20",
    (FUSED, "actor_rollout_ref.actor.entropy_coeff=0.01"): "actor_rollout_ref.actor.entropy_coeff=0.01",
    (FUSED, "actor_rollout_ref.actor.use_kl_loss=True"): "actor_rollout_ref.actor.use_kl_loss=True",
    (
        FUSED,
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
        "actor_rollout_ref.model.use_remove_padding=True",
    ): "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
}


@pytest.mark.parametrize("overrides", UNSOUND, ids=lambda overrides: overrides[-1])
def test_unsound_settings_are_refused_only_where_era_changes_the_training(start, overrides):
    with pytest.raises(ValueError, match=rf"{KEY}\.enable=True does not go together with") as error:
        start(*ON_POLICY, *overrides)
    assert UNSOUND[overrides] in str(error.value)
    start(*ON_POLICY, *overrides, f"{KEY}.k=1")
    start(*ON_POLICY, *overrides, f"{KEY}.enable=False")


SOUND = [
    ("data.train_batch_size=512",),
    ("actor_rollout_ref.actor.ppo_epochs=2",),
    ("actor_rollout_ref.actor.entropy_coeff=0.01", "actor_rollout_ref.actor.use_kl_loss=True"),
    (
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
        "algorithm.adv_estimator=grpo",
    ),
    ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"),
    (FUSED,),
]


@pytest.mark.parametrize("overrides", SOUND, ids=lambda overrides: overrides[0])
def test_what_era_supports_starts(start, overrides):
    start(*ON_POLICY, *overrides)


BASELINES = {
    "actor_rollout_ref.actor.policy_loss.forking_fraction=0": r"policy_loss\.forking_fraction is 0; expected",
    "actor_rollout_ref.actor.policy_loss.forking_fraction=1.5": r"policy_loss\.forking_fraction is 1\.5; expected",
    "actor_rollout_ref.actor.policy_loss.loss_mode=gspo": r"loss_agg_mode is token-mean; expected seq-mean-token-mean",
}


def test_forking_tokens_with_a_cov_loss_are_refused(start):
    with pytest.raises(ValueError, match="forking_fraction=0.2 does not go together with loss_mode=kl_cov"):
        start(
            "actor_rollout_ref.actor.policy_loss.forking_fraction=0.2",
            "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov",
        )


@pytest.mark.parametrize("override", BASELINES)
def test_bad_settings_of_the_baselines_fail_at_start(start, override):
    with pytest.raises(ValueError, match=BASELINES[override]):
        start(override)


@pytest.mark.parametrize("policy_loss", [{"forking_fraction": 0.2}, {"loss_mode": "gspo"}], ids=str)
def test_megatron_would_ignore_the_baselines(import_verl, policy_loss):
    from verl.utils import era_checks

    actor = {"strategy": "megatron", "policy_loss": policy_loss, "loss_agg_mode": "seq-mean-token-mean"}
    with pytest.raises(ValueError, match="needs the FSDP actor"):
        era_checks.validate_trainer_config({"actor_rollout_ref": {"actor": actor}})


def test_all_unsound_settings_are_named_at_once(start):
    with pytest.raises(ValueError) as error:
        start(
            *ON_POLICY,
            FUSED,
            "actor_rollout_ref.actor.use_kl_loss=True",
            "data.train_batch_size=512",
            "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov",
        )
    assert str(error.value).count("\n  - ") == 3


@pytest.mark.parametrize("k", [1.0, 2.0])
def test_megatron_is_refused_as_nothing_would_be_logged_either(import_verl, k):
    from verl.utils import era

    config = {"actor_rollout_ref": {"actor": {"strategy": "megatron", "era": {"enable": True, "k": k}}}}
    with pytest.raises(ValueError, match="FSDP actor"):
        era.validate_trainer_config(config)


def test_a_configuration_without_the_group_is_a_disabled_era(import_verl):
    from verl.utils import era

    assert not era.validate_trainer_config({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}).enable


def test_dynamic_sampling_trims_the_batch(start):
    """DAPO's generation batch may be larger than the training batch, which is what the update sees."""
    start(*ON_POLICY, "+data.gen_batch_size=768", "+algorithm.filter_groups.enable=True")


def test_recipe_holds_the_papers_values(config_of, start):
    where = {"folder": "recipe/era/config", "name": "era_math"}
    config = config_of(**where)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, config.data.max_response_length) == (
        256,
        256,
        8192,
    )
    assert (actor.optim.lr, actor.optim.weight_decay, actor.optim.lr_warmup_steps_ratio, actor.optim.warmup_style) == (
        1e-6,
        0,
        0,
        "constant",
    )
    assert (rollout.n, rollout.temperature, rollout.top_p, config.algorithm.filter_groups.enable) == (8, 1.0, 1.0, True)
    assert (
        actor.entropy_coeff,
        actor.use_kl_loss,
        config.algorithm.use_kl_in_reward,
        config.reward_model.overlong_buffer.enable,
    ) == (0, False, False, False)
    start(f"{KEY}.enable=True", f"{KEY}.top_k=20", **where)
