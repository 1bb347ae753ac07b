# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The hydra group, through verl's own configuration files and its own start-up check."""

import dataclasses
import math

import pytest
from omegaconf import OmegaConf

from era.language_config import EraConfig, check_trainer_config, refuse_elsewhere

ACTOR = "actor_rollout_ref.actor"
KEY = f"{ACTOR}.era"
LOSS = f"{ACTOR}.policy_loss"
ON = [f"{KEY}.enable=True"]

BAD = {  # key of the group; values that are refused with the full key
    "k": (0.99, 0, -2, 1e308, math.inf, math.nan, "two", None, True),
    "low": (3.5, math.nan, "low", None, [0.45]),
    "high": (math.nan, "high", None, 0.1, 1e39, -math.inf),
    "top_fraction": (0, -0.2, 1.0001, math.nan, None),
    "top_k": (0, -20, 2.5, 20.0, True),
    "min_advantage": (-0.1, 1e39, math.inf, math.nan, None),
    "hold": (2, None, "perhaps"),
    "enable": ("perhaps", None, 2, -1),
    "scale_advantages": (2,),
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
    [{"low": bound, "high": math.inf} for bound in (math.inf, 1e39)]
    + [{"low": -0.1}, {"enable": 1}, {"compile": "yes"}, {"compile": None}]
    + [{"low": "0.45"}, {"k": "2"}, {"scale_advantages": "no"}, {"hold": 1}]
    + [{name: True} for name in ("k", "top_fraction", "top_k", "min_advantage")],
    ids=str,
)
def test_bad_values_in_python(fields):
    with pytest.raises(ValueError, match=rf"^{next(iter(fields))} is .*; expected"):
        EraConfig(**fields)


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
            EraConfig(**fields)
    era = EraConfig(enable=True, low_end=0.2, schedule_steps=40)
    assert "this training has 30 updates" in era.schedule_exceeds(30)
    assert not era.schedule_exceeds(40) and not era.schedule_exceeds(-1)


def test_values_as_text_act():
    text = {"enable": "true", "low": "0.3", "high": "inf", "top_k": "20"}
    assert EraConfig.from_mapping(text) == EraConfig(enable=True, low=0.3, high=math.inf, top_k=20)


def test_good_values():
    assert EraConfig(enable=True, low=0.2, high=math.inf, k=2, top_fraction=1).scales_logits
    assert not EraConfig(enable=True, k=1).changes_training and not EraConfig(k=2).scales_logits
    alone = EraConfig(enable=True, k=1, hold=True)
    assert alone.changes_training and alone.changes_advantages and not alone.scales_logits
    assert not EraConfig(enable=True, k=1, scale_advantages=True).changes_advantages
    assert not EraConfig(hold=True).changes_training and not EraConfig(hold=True).changes_advantages
    assert EraConfig.from_mapping(None) == EraConfig()
    assert not check_trainer_config({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}).enable


def test_era_is_said_to_be_on_and_fields_without_enable_are_refused(capsys):
    for era, said in (({}, ""), ({"enable": True}, "ERA is on: EraConfig(enable=True")):
        check_trainer_config({"actor_rollout_ref": {"actor": {"era": era}}})
        assert capsys.readouterr().err.startswith(said) if said else not capsys.readouterr().err
    check_trainer_config({"actor_rollout_ref": {"actor": {"era": {"enable": True, "k": 1}}}})
    assert capsys.readouterr().err.endswith("; k=1 without hold only logs metrics\n")
    with pytest.raises(ValueError, match=rf"{KEY}\.k, {KEY}\.hold without {KEY}\.enable=True, so that this would"):
        check_trainer_config({"actor_rollout_ref": {"actor": {"era": {"k": 3, "hold": True}}}})


def test_defaults_are_those_of_the_dataclass_and_infinity_reaches_it(config_of):
    group = config_of(f"{KEY}.high=inf").actor_rollout_ref.actor.era
    without_line = {"low_end": None, "high_end": None, "schedule_steps": None, "compile": True}
    assert {**group, "high": 3.0, **without_line} == dataclasses.asdict(EraConfig())
    assert EraConfig.from_mapping(group).high == math.inf


# What somebody writes who misspelt, misplaced or forgot a part of a key, and the key's place in ACTOR. That verl's
# start-up checks it: test_declared_refusals.py and current/test_refusals.py.
ELSEWHERE = {
    **dict.fromkeys(("actor_rollout_ref.era", "trainer.era", "era", f"{ACTOR}.ERA", f"{ACTOR}.use_era"), "era"),
    **dict.fromkeys((f"{ACTOR}.useERA", f"{ACTOR}.eraa", f"{ACTOR}.ear", f"{ACTOR}.era_kwargs"), "era"),
    f"{ACTOR}.entropy_regularizing_activation": "era",
    f"{ACTOR}.era_enable": "era.enable",
    "trainer.eraEnable": "era.enable",
    f"{ACTOR}.era-low": "era.low",
    f"{LOSS}.omega_low": "era.low",
    **dict.fromkeys((f"{ACTOR}.low", "algorithm.low"), "era.low"),
    "critic.lowEnd": "era.low_end",
    "actor_rollout_ref.top_fraction": "era.top_fraction",
    **dict.fromkeys(("hold", "trainer.era_hold", f"{LOSS}.hold", "critic.holds"), "era.hold"),
    **dict.fromkeys(("k", f"{LOSS}.k"), "era.k"),
    "algorithm.scale_advantages": "era.scale_advantages",
    "trainer.schedule_steps": "era.schedule_steps",
    **dict.fromkeys(("data.mine.min_advantage", f"{ACTOR}.min_advantag"), "era.min_advantage"),
    **dict.fromkeys((f"{ACTOR}.forking_fraction", f"{LOSS}.forking_fracton"), "policy_loss.forking_fraction"),
    **dict.fromkeys(("actor_rollout_ref.adaptive_entropy", f"{ACTOR}.adaptive_entrpy"), "adaptive_entropy"),
}


@pytest.mark.parametrize("key", ELSEWHERE)
def test_keys_of_era_elsewhere_are_refused(key):
    config = OmegaConf.create()
    OmegaConf.update(config, key, {"enable": True} if ELSEWHERE[key] == "era" else 0.3)
    with pytest.raises(ValueError) as error:
        refuse_elsewhere(config)
    said = f"{key} would be ignored: its place is {ACTOR}.{ELSEWHERE[key]}.\nNothing was started."
    assert str(error.value) == said


def test_a_key_of_era_within_a_list_is_refused():
    with pytest.raises(ValueError, match=r"trainer\.mine\.era would be ignored"):
        refuse_elsewhere({"trainer": {"mine": [{"era": {"enable": True}}]}})


@pytest.mark.parametrize(
    "key", [KEY, f"{KEY}.k", f"{KEY}.low_end", f"{LOSS}.forking_fraction", f"{ACTOR}.adaptive_entropy"]
)
def test_keys_of_era_without_a_value_are_refused(key):
    config = OmegaConf.create()
    OmegaConf.update(config, key, None if key == KEY else "???")
    with pytest.raises(ValueError, match=f"^{key} has no value"):
        refuse_elsewhere(config)
