# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What a user meets: refusals, odd inputs, the command line, and the task on which GRPO's entropy collapses."""

import copy
import json
import math
import pickle
import random
import subprocess
import sys
import tempfile

import pytest
import tiny_grpo
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig
from tiny_grpo import BASE, ERA, OFF_POLICY, Era, Plain, build, known, load, model, same, train, weights, write

import era.trl
from demo.llm import chain, warmup
from era.trl import EraGRPOConfig, EraGRPOTrainer, EraMixin

pytestmark = pytest.mark.usefixtures("one_thread")


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "field, values",
    [
        ("enable", ("yes", None)),
        ("low", (3.5, math.nan, "0.45", None)),
        ("high", (math.nan, None)),
        ("k", (0.5, math.inf, math.nan, "2")),
        ("top_fraction", (0, 1.5, math.nan)),
        ("top_k", (0, 2.5)),
        ("min_advantage", (-0.1, math.inf)),
        ("scale_advantages", ("no",)),
        ("compile", (None,)),
    ],
)
def test_fields_out_of_range_are_named(field, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"era_{field} is .*; expected"):
            EraGRPOConfig(**BASE, output_dir=tempfile.mkdtemp(), **{f"era_{field}": value})


def test_all_fields_out_of_range_are_named_at_once():
    with pytest.raises(ValueError, match="(?s)era_k is 0.5.*era_low is 9"):
        EraGRPOConfig(**BASE, output_dir=tempfile.mkdtemp(), era_low=9, era_k=0.5)


def arguments(config_class, **more):
    return {
        "model": model(torch.float32),
        "reward_funcs": tiny_grpo.reward,
        "args": config_class(output_dir=tempfile.mkdtemp(), **BASE, **more),
        "train_dataset": tiny_grpo.prompts(),
        "processing_class": tiny_grpo.tokenizer(),
    }


def test_era_is_never_left_out_silently():
    with pytest.raises(TypeError, match="Take era.trl.EraGRPOTrainer"):
        trl.GRPOTrainer(**arguments(EraGRPOConfig, era_enable=True))
    with pytest.raises(TypeError, match="EraGRPOTrainer has GRPOConfig for args"):
        EraGRPOTrainer(**arguments(trl.GRPOConfig))
    with pytest.raises(TypeError, match="EraGRPOTrainer has NoneType for args"):
        EraGRPOTrainer(**{**arguments(trl.GRPOConfig), "args": None})
    with pytest.raises(TypeError, match="era_enable"):
        trl.GRPOConfig(era_enable=True)
    trl.GRPOTrainer(**arguments(EraGRPOConfig))  # off


def test_arguments_of_a_trainer_with_era_are_none_for_one_without():
    given = arguments(EraGRPOConfig, era_enable=True)
    trainer = EraGRPOTrainer(**given)
    for args in (given["args"], copy.deepcopy(trainer.args), pickle.loads(pickle.dumps(trainer.args))):
        with pytest.raises(TypeError, match="Take era.trl.EraGRPOTrainer"):
            trl.GRPOTrainer(**{**given, "args": args})
        assert EraGRPOTrainer(**{**given, "args": args}).era.enable
    assert given["args"].to_sanitized_dict()["era_enable"] is True


def test_fields_of_era_without_era_are_said():
    with pytest.warns(UserWarning, match="era_low without era_enable=True: this trains without ERA"):
        EraGRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, era_low=1.0)


class MoreLoss(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) + 1


class OwnLogProbs(trl.GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)


@pytest.mark.parametrize(
    "base, settings, said",
    [
        (MoreLoss, {"beta": 0.1}, "would count twice"),
        (OwnLogProbs, {}, "OwnLogProbs._get_per_token_logps_and_entropies, which ERA would not call"),
    ],
)
def test_what_a_subclass_replaces_is_refused(base, settings, said):
    with pytest.raises(ValueError, match=said):
        type("Mine", (EraMixin, base), {})(**arguments(EraGRPOConfig, **ERA, **settings))
    type("Mine", (EraMixin, MoreLoss), {})(**arguments(EraGRPOConfig, **ERA))  # without beta it is called once


def test_a_trainer_that_is_no_grpo_trainer_is_refused():
    class EraRLOO(EraMixin, trl.RLOOTrainer):
        pass

    with pytest.raises(TypeError, match="EraRLOO: EraMixin is for TRL's GRPOTrainer alone"):
        EraRLOO(model=model(), reward_funcs=tiny_grpo.reward)


def test_a_trl_that_does_not_fit_is_named():
    with pytest.raises(ImportError, match="era.trl is for TRL 1.10.0 or newer, found 1.9.2"):
        era.trl.check_trl("1.9.2", trl.GRPOTrainer)
    with pytest.raises(ImportError, match=r"TRL 1.30.0: GRPOTrainer has no _compute_loss, in which"):
        moved = type("GRPOTrainer", (), {name: None for name in era.trl.OVERRIDDEN if name != "_compute_loss"})
        era.trl.check_trl("1.30.0", moved)
    with pytest.warns(UserWarning, match=f"{era.trl.NEWEST}, found 1.30.0"):
        era.trl.check_trl("1.30.0", trl.GRPOTrainer)


class WithoutLogProbs(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return sum(parameter.sum() for parameter in model.parameters())


class OwnOldLogProbs(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return {**output, "old_per_token_logps": output["old_per_token_logps"].clone()}


@pytest.mark.parametrize(
    "base, said",
    [(WithoutLogProbs, "did not ask for the log-probs"), (OwnOldLogProbs, "old log-probs that ERA did not make")],
)
def test_a_trainer_in_which_something_moved_ends_in_the_first_step(base, said):
    mine = type("Mine", (EraMixin, base), {})
    trainer = mine(**arguments(EraGRPOConfig, **ERA, num_iterations=2))
    with pytest.raises(RuntimeError, match=said):
        trainer.train()


LORA = {"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
REFUSED = [  # of the model, of the settings; what is said
    ({"kind": "Granite", "logits_scaling": 4.0}, {}, "GraniteForCausalLM, whose logits are not those of its head"),
    ({"kind": "Mixtral", "num_local_experts": 2}, {}, "the auxiliary loss of a mixture of experts"),
    ({}, {"era_top_k": 5, "off_policy_mask_threshold": 0.1}, "era_top_k and off_policy_mask_threshold"),
    ({}, {"peft_config": LoraConfig(**LORA, modules_to_save=["lm_head"])}, "a head that is a ModulesToSaveWrapper"),
    ({}, {"peft_config": PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")}, "prompt learning of PEFT"),
]


@pytest.mark.parametrize("architecture, settings, said", REFUSED, ids=[one[2] for one in REFUSED])
def test_what_would_be_silently_wrong_is_refused(architecture, settings, said):
    with pytest.raises(ValueError, match=f"(?s)does not go together with.*{said}.*Nothing was trained"):
        build(Era, model(torch.float32, **architecture), **ERA, **settings)
    build(Era, model(torch.float32, **architecture), **ERA, **settings, era_k=1.0)  # which only logs


def test_advantages_of_tokens_are_refused_with_another_loss():
    with pytest.raises(ValueError, match="GMPOTrainer._compute_loss may need one advantage for a response"):
        build(tiny_grpo.EraGMPO, model(), **ERA, era_scale_advantages=True)


# -------------------------------------------------------------------------------------------------- odd inputs


def test_experts_without_their_loss_train():
    train(Era, model(torch.float32, kind="Mixtral", num_local_experts=2), **ERA, router_aux_loss_coef=0.0, max_steps=1)


def test_a_constant_reward_scales_nothing_and_is_logged():
    trainer, start = train(Era, model(), **ERA, reward=lambda completions, **_: [1.0] * len(completions))
    log = trainer.state.log_history[0]
    assert log["era/scaled_token_fraction"] == 0 < log["era/low_fraction"] + log["era/high_fraction"]
    assert same(weights(trainer), start.state_dict())


def test_responses_of_length_0():
    """All of them truncated: no response has an entropy, nothing is trained, and no NaN is logged for ERA."""
    settings = {**ERA, **OFF_POLICY, "max_completion_length": 2, "mask_truncated_completions": True, "max_steps": 2}
    never = model()
    never.generation_config.suppress_tokens = [tiny_grpo.models.EOS]
    trainer, start = train(Era, never, **settings)
    assert all(not batch["completion_mask"].any() for batch in trainer.seen)
    assert same(weights(trainer), start.state_dict())
    logged = {key for log in trainer.state.log_history for key in log if key.startswith("era/")}
    assert "era/response_entropy" not in logged


def test_evaluation_is_trls_own():
    found = []
    for trainer_class, settings in ((Plain, {}), (Era, ERA)):
        trainer, _ = build(trainer_class, model(), **settings, beta=0.1, eval_strategy="steps", eval_steps=10)
        found.append(trainer.evaluate())
    plain, with_era = ({k: v for k, v in one.items() if "time" not in k and "per_second" not in k} for one in found)
    assert with_era == plain and "eval_loss" in plain


@pytest.mark.skipif(not known("use_adaptive_entropy"), reason="this TRL has no adaptive bonus")
def test_beside_trls_adaptive_bonus():
    settings = {"use_adaptive_entropy": True, "entropy_target": 5.0, "entropy_coef_delta": 0.01}
    trainer, start = train(Era, model(), **ERA, **settings, beta=0.1)
    coefficients = [log["entropy_coef"] for log in trainer.state.log_history if "entropy_coef" in log]
    assert coefficients == pytest.approx([0.01, 0.02, 0.03])  # once a step, also with the second pass for the KL loss
    assert not same(weights(trainer), start.state_dict())


# ------------------------------------------------------------------------------------------------ command line


@pytest.fixture
def command(tmp_path):
    """command(*arguments, launcher=[]): python -m era.trl on a tiny model, one step."""
    folder = write(tmp_path / "model", torch.float32)
    tiny_grpo.tokenizer().save_pretrained(folder)
    (tmp_path / "data").mkdir()
    rows = [json.dumps({"prompt": row["prompt"]}) for row in tiny_grpo.prompts()]
    (tmp_path / "data/train.jsonl").write_text("\n".join(rows))
    (tmp_path / "my_reward.py").write_text("def length(completions, **_): return [len(c) / 8 for c in completions]")
    options = {
        **{"model_name_or_path": folder, "dataset_name": tmp_path / "data", "reward_funcs": "my_reward.length"},
        **{"output_dir": tmp_path / "out", "per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 1},
        **{"max_completion_length": 8, "logging_steps": 1, "report_to": "none", "dtype": "float32"},
        **{"bf16": False, "gradient_checkpointing": False, "use_cpu": True},
    }
    given = [str(part) for name, value in options.items() for part in (f"--{name}", value)]

    def run(*arguments, launcher=()):
        return subprocess.run(
            [sys.executable, *launcher, "-m", "era.trl", *given, *arguments],
            **{"cwd": tmp_path, "env": tiny_grpo.ENVIRONMENT, "capture_output": True, "text": True, "timeout": 600},
        )

    return run


def test_command_line(command):
    result = command("--era_enable", "--era_low", "0.5", "--era_high", "inf", "--era_top_k", "20")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "era/response_entropy" in result.stdout
    result = command("--era_enable", "--era_lwo", "0.5")
    assert result.returncode != 0 and "--era_lwo" in result.stderr
    result = command("--era_enable", "--era_k", "0.5")
    assert result.returncode == 2 and "era_k is 0.5" in result.stderr and "Traceback" not in result.stderr


def test_accelerate_launches_it_on_two_processes(command):
    launcher = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--main_process_port", "0"]
    result = command("--era_enable", launcher=launcher)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "era/response_entropy" in result.stdout


# ------------------------------------------------------------------------------------------------ the chain task


def chain_run(folder, era_k, steps=150):
    """H_resp, token entropy and reward, means over the last 15 steps."""
    rng = random.Random(0)
    rows = {"prompt": [chain.prompt(rng.choice(chain.STARTS)) for _ in range(4096)]}

    def right(prompts, completions, **_):
        return [float(chain.is_right(chain.start_of(p), c)) for p, c in zip(prompts, completions)]

    settings = {
        **{"per_device_train_batch_size": 128, "num_generations": 8, "max_completion_length": chain.RESPONSE_LENGTH},
        **{"max_steps": steps, "learning_rate": 5e-4, "optim": "adamw_torch", "temperature": 1.0, "seed": 1},
    }
    trainer = EraGRPOTrainer(
        model=load(folder),
        reward_funcs=right,
        args=EraGRPOConfig(
            **{**BASE, **settings, "output_dir": tempfile.mkdtemp()},
            **{"era_enable": True, "era_k": era_k, "era_low": chain.Task().omega_low, "era_high": math.inf},
        ),
        train_dataset=Dataset.from_dict(rows),
        processing_class=warmup.make_tokenizer(),
    )
    trainer.processing_class.chat_template = None
    trainer.train()
    last = [log for log in trainer.state.log_history if "reward" in log][-15:]
    return [sum(log[key] for log in last) / 15 for key in ("era/response_entropy", "entropy", "reward")]


def test_where_grpos_entropy_collapses_eras_stays_at_its_bound(tmp_path):
    """From the same warm-up; k = 1 is GRPO. As in the demo of verl, omega_low is 0.66."""
    warmup.write_model(tmp_path, chain.Task(), seed=1)
    grpo, with_era = (chain_run(tmp_path, era_k) for era_k in (1.0, 2.0))
    print(f"H_resp, token entropy, reward: GRPO {grpo}, ERA {with_era}")
    assert grpo[0] < 0.3 and abs(with_era[0] - 0.66) < 0.15
    assert with_era[1] > 2 * grpo[1]
    assert min(grpo[2], with_era[2]) > 0.8
