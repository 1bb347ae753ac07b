# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The hydra group, through verl's own configuration files and its own start-up check."""

import dataclasses
import math
import re
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from llm_helpers import ELSEWHERE, keys_taken_for_era

from era.language_config import EraConfig, check_trainer_config, refuse_elsewhere

ACTOR = "actor_rollout_ref.actor"
KEY = f"{ACTOR}.era"
LOSS = f"{ACTOR}.policy_loss"
ON = [f"{KEY}.enable=True"]

BAD = {  # key of the group; values that are refused with the full key
    "k": (0.99, 0, -2, math.inf, math.nan, "two", None, True),
    "low": (3.5, math.nan, "low", None, [0.45]),
    "high": (math.nan, "high", None, 0.1),
    "top_fraction": (0, -0.2, 1.0001, math.nan, None),
    "top_k": (0, -20, 2.5, 20.0, True),
    "min_advantage": (-0.1, math.inf, math.nan, None),
    "enable": ("perhaps", None),
    "low_end": (3.5, math.inf, "low"),
    "high_end": (math.inf, math.nan, 0.4),
    "schedule_steps": (0, -5, 2.5, 10, True),
    "omega_low": (0.45,),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused_with_the_full_key(name):
    for value in BAD[name]:
        with pytest.raises(ValueError, match=rf"actor_rollout_ref\.actor\.era\.({name}|low)\b"):
            EraConfig.from_mapping({name: value})
    with pytest.raises(ValueError):
        EraConfig.from_mapping(True)


@pytest.mark.parametrize(
    "fields",
    [{"low": math.inf, "high": math.inf}, {"low": -math.inf}, {"enable": 1}, {"compile": "yes"}]
    + [{name: True} for name in ("k", "top_fraction", "top_k", "min_advantage")],
    ids=str,
)
def test_bad_values_in_python(fields):
    with pytest.raises(ValueError, match=rf"^{next(iter(fields))} is .*; expected"):
        EraConfig(**fields, prefix="")


def test_a_schedule_is_linear_and_stays_at_its_end():
    era = EraConfig(enable=True, low=0.6, low_end=0.2, high=3.0, high_end=1.0, schedule_steps=40)
    for step, low, high in ((0, 0.6, 3.0), (1, 0.59, 2.95), (30, 0.3, 1.5), (40, 0.2, 1.0), (99, 0.2, 1.0)):
        now = era.at(step)
        assert (now.low, now.high) == pytest.approx((low, high), rel=1e-12)
        assert now.scheduled == {"era/low": now.low, "era/high": now.high} and now.k == era.k
    assert (era.at(40).low, era.at(0).high) == (0.2, 3.0)
    rising = EraConfig(low=0.1, low_end=0.5, high=math.inf, schedule_steps=2).at(1)
    assert (rising.low, rising.high, rising.scheduled) == (pytest.approx(0.3), math.inf, {"era/low": rising.low})
    assert EraConfig().at(7) == EraConfig() and EraConfig().scheduled == {}


def test_half_a_schedule_is_refused_and_one_longer_than_the_training_is_named():
    for fields in ({"low_end": 0.2}, {"high_end": 1.0}, {"high": math.inf, "high_end": 1.0, "schedule_steps": 5}):
        with pytest.raises(ValueError, match="(schedule_steps|high_end) is .*; expected"):
            EraConfig(**fields, prefix="")
    era = EraConfig(enable=True, low_end=0.2, schedule_steps=40)
    assert "this training has 30 updates" in era.schedule_exceeds(30)
    assert not era.schedule_exceeds(40) and not era.schedule_exceeds(-1)


def test_values_as_text_act():
    text = {"enable": "true", "low": "0.3", "high": "inf", "top_k": "20"}
    assert EraConfig.from_mapping(text) == EraConfig(enable=True, low=0.3, high=math.inf, top_k=20)


def test_good_values():
    assert EraConfig(enable=True, low=0.2, high=math.inf, k=2, top_fraction=1).changes_training
    assert not EraConfig(enable=True, k=1).changes_training and not EraConfig(k=2).changes_training
    assert EraConfig.from_mapping(None) == EraConfig()
    assert not check_trainer_config({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}).enable


def test_whether_era_is_on_is_said_once_something_of_it_is_set(capsys):
    for era, said in (({}, ""), ({"enable": True}, "ERA is on: EraConfig(enable=True"), ({"k": 3}, "ERA is off: ")):
        check_trainer_config({"actor_rollout_ref": {"actor": {"era": era}}})
        assert capsys.readouterr().err.startswith(said) if said else not capsys.readouterr().err


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

    passes = (
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    )

    def check(*overrides):
        config = config_of(*passes, "data.train_batch_size=256", *overrides)
        RayPPOTrainer._validate_config(SimpleNamespace(config=config, use_critic=False, use_reference_policy=False))

    return check


def test_defaults_are_those_of_the_dataclass_and_infinity_reaches_it(config_of):
    group = config_of(f"{KEY}.high=inf").actor_rollout_ref.actor.era
    without_line = {"compile": True, "low_end": None, "high_end": None, "schedule_steps": None}
    assert {**group, "high": 3.0, **without_line} == dataclasses.asdict(EraConfig())
    assert EraConfig.from_mapping(group).high == math.inf


def test_compile_has_an_older_name(caplog):
    assert EraConfig.from_mapping({"enable": True, "triton": False}) == EraConfig(enable=True, compile=False)
    assert caplog.messages == [f"{KEY}.triton is now called {KEY}.compile."]


COVARIANCE, FORKING, GSPO = f"{LOSS}.loss_mode=kl_cov", f"{LOSS}.forking_fraction=0.2", f"{LOSS}.loss_mode=gspo"
MULTI_TURN = [f"actor_rollout_ref.rollout.multi_turn.{item}" for item in ("tool_config_path=tools.yaml", "enable=True")]
MULTI_TURN = ["algorithm.adv_estimator=grpo", *MULTI_TURN]
KL_LOSS = f"{ACTOR}.use_kl_loss=True"
FUSED = "actor_rollout_ref.model.use_fused_kernels=True"
ULYSSES = [f"{ACTOR}.ulysses_sequence_parallel_size=2", "actor_rollout_ref.model.use_remove_padding=True", FUSED]
BONUS = [f"+{ACTOR}.adaptive_entropy.{item}" for item in ("target=0.5", "delta=0.005")]
MEGATRON = f"{ACTOR}.strategy=megatron"
SEQUENCE_MEAN = f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"
ONLY_WITH_ERA = [  # what is refused where ERA changes the training; the last of it is named
    [COVARIANCE],
    [f"{LOSS}.loss_mode=clip_cov"],
    [FORKING],
    ["+algorithm.filter_groups.enable=False", *MULTI_TURN],
    [KL_LOSS, *ULYSSES],
    ["algorithm.use_kl_in_reward=True", *ULYSSES],
]
ALWAYS = [
    [FORKING, COVARIANCE],
    [GSPO, f"{ACTOR}.loss_agg_mode=token-mean"],
    [FORKING, MEGATRON],
    [SEQUENCE_MEAN, GSPO, MEGATRON],
    [f"{KEY}.k=1", *ON, MEGATRON],
    [*ON, *BONUS, f"{KEY}.k=1", f"{ACTOR}.entropy_coeff=0.01"],
]
BAD_BONUS = [
    [f"+{ACTOR}.adaptive_entropy=0.1"],
    BONUS[:1],
    BONUS,
    [*ON, *BONUS],
    [*ON, f"{KEY}.k=1", BONUS[0], f"+{ACTOR}.adaptive_entropy.delta=0"],
]
REFUSED = [(overrides, f"- {overrides[-1]}: ") for overrides in (*([*ON, *each] for each in ONLY_WITH_ERA), *ALWAYS)]
REFUSED += [(overrides, f"{ACTOR}.adaptive_entropy ") for overrides in BAD_BONUS]
REFUSED += [([f"{LOSS}.forking_fraction={of}"], f"fraction is {of}; expected a number") for of in ("0", "'0.2'")]


@pytest.mark.parametrize("override", ELSEWHERE)
def test_keys_of_era_elsewhere_are_refused(start, override):
    named = re.escape(ELSEWHERE[override])
    with pytest.raises(ValueError, match=rf"^{named} would be ignored: its place is actor_rollout_ref\.actor\."):
        start(f"+{override}")


def test_upstreams_own_keys_are_not_taken_for_eras(upstream_verl, patched_verl):
    assert keys_taken_for_era(upstream_verl, ["verl"]) + keys_taken_for_era(patched_verl, ["recipe"]) == []
    words = ["operational", "generation", "temperature", "num_iterations", "overall", "era5", "camera", "low", "top_k"]
    refuse_elsewhere({"trainer": dict.fromkeys(words)})


@pytest.mark.parametrize("overrides, named", REFUSED)
def test_what_would_be_silently_wrong_is_refused(start, overrides, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        start(*overrides)


ACCEPTED = [
    [],
    *([*ON, *overrides, switch] for overrides in ONLY_WITH_ERA for switch in (f"{KEY}.k=1", f"{KEY}.enable=False")),
    [*ON, *BONUS, f"{KEY}.k=1"],
    [*ON, f"{KEY}.high=inf", f"{KEY}.low=0.2", f"{KEY}.top_k=20", f"{KEY}.scale_advantages=True"],
    [*ON, f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.entropy_coeff=0.01", KL_LOSS, FUSED],
    [*ON, *MULTI_TURN],
    [*ON, GSPO, SEQUENCE_MEAN],
    [*ON, f"{LOSS}.loss_mode=recovery"],  # the user's own loss, not a covariance loss
    [*ON, *ULYSSES, KL_LOSS, "actor_rollout_ref.model.lora_rank=8"],
    # DAPO's generation batch may be larger than the training batch, which is what the update sees.
    [*ON, "+data.gen_batch_size=768", "+algorithm.filter_groups.enable=True"],
]


@pytest.mark.parametrize("overrides", ACCEPTED, ids=str)
def test_what_is_supported_starts(start, overrides):
    start(*overrides)
