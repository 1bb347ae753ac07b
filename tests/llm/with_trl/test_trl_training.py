# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""What a user meets: refusals, odd inputs and the command line."""

import copy
import json
import pickle
import re
import subprocess
import sys
import tempfile

import pytest
import tiny_grpo
import torch
import transformers
import trl
from llm_helpers import refused
from peft import LoraConfig, PromptTuningConfig
from tiny_grpo import BASE, ERA, OFF_POLICY, Era, Plain, build, known, model, same, train, weights, write

import era.trl
from era.refusals import TRL
from era.trl import EraGRPOConfig, EraGRPOTrainer, EraMixin

pytestmark = pytest.mark.usefixtures("one_thread")


# ------------------------------------------------------------------------------------------------------ refusals


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
        assert EraGRPOTrainer(**{**given, "args": args}).era_config.enable
    assert given["args"].to_sanitized_dict()["era_enable"] is True


def test_what_was_forgotten_or_misplaced_ends_with_the_reason():
    with pytest.raises(ValueError, match="era_low without era_enable=True, so that this would train without ERA"):
        EraGRPOConfig(output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, era_low=1.0)
    given = arguments(EraGRPOConfig, **ERA)
    first = [given.pop(name) for name in ("model", "reward_funcs", "args")]
    assert EraGRPOTrainer(*first, **given).era_config.enable
    with pytest.raises(TypeError, match="Take era.trl.EraGRPOTrainer"):
        trl.GRPOTrainer(*first, **given)
    for trainer_class in (trl.GRPOTrainer, EraGRPOTrainer):
        with pytest.raises(TypeError, match="era_enable"):
            trainer_class(*first, **given, era_enable=True)
    with pytest.raises(TypeError, match="GRPOTrainer precedes EraMixin.*Put EraMixin first"):
        type("Mine", (MoreLoss, EraMixin), {})
    first[-1].era_lwo = 0.5
    with pytest.raises(TypeError, match="EraGRPOConfig has no era_lwo, which was set on it"):
        EraGRPOTrainer(*first, **given)
    for settings, changed in ((ERA, {"era_k": 3.0}), ({}, {"era_enable": True})):
        trainer, _ = build(Era, model(), **settings)
        vars(trainer.args).update(changed)
        with pytest.raises(ValueError, match="changed after the trainer was made"):
            trainer.train()


def test_a_trainer_says_whether_era_is_on(capsys):
    """era_low=0.45, the default, cannot be told from no setting: without era_enable it is no error."""
    for settings, said in (
        ({"era_low": 0.45}, "off: EraConfig(enable=False"),
        ({"era_enable": True}, "on: EraConfig("),
    ):
        EraGRPOTrainer(**arguments(EraGRPOConfig, **settings))
        assert capsys.readouterr().err.count(f"ERA is {said}") == 1


class MoreLoss(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) + 1


class OwnLogProbs(trl.GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)


def test_a_loss_of_ones_own_without_beta_is_called_once_and_accepted():
    type("Mine", (EraMixin, MoreLoss), {})(**arguments(EraGRPOConfig, **ERA))


OTHER_TRAINERS = {"RLOOTrainer": "trl", "AsyncGRPOTrainer": "trl.experimental.async_grpo", "Trainer": "transformers"}


@pytest.mark.parametrize("name", OTHER_TRAINERS)
def test_a_trainer_that_is_no_grpo_trainer_is_refused(name):
    base = getattr(pytest.importorskip(OTHER_TRAINERS[name]), name)
    reason = re.escape(TRL[name].why) if name in TRL else "Nothing was trained"
    with pytest.raises(TypeError, match=f"Mine: EraMixin is for TRL's GRPOTrainer and classes derived.*{reason}"):
        type("Mine", (EraMixin, base), {})(model=model())


def test_a_trl_that_does_not_fit_is_named():
    with pytest.raises(ImportError, match="era.trl is for TRL 1.9.0 or newer, found 1.8.0"):
        era.trl.check_trl("1.8.0", trl.GRPOTrainer)
    with pytest.raises(ImportError, match=r"TRL 1.30.0: GRPOTrainer has no _compute_loss, in which"):
        kept = {name: getattr(trl.GRPOTrainer, name) for name in era.trl.OVERRIDDEN if name != "_compute_loss"}
        moved = type("GRPOTrainer", (), {**kept, "__module__": "trl"})
        era.trl.check_trl("1.30.0", moved)
    with pytest.warns(UserWarning, match=f"{era.trl.RELEASES.newest}, found 1.30.0"):
        era.trl.check_trl("1.30.0", trl.GRPOTrainer)


@pytest.mark.parametrize("module, before", [("UnslothGRPOTrainer", "unsloth"), ("others", "what imports that")])
def test_a_trl_whose_trainer_another_package_has_replaced_is_refused_at_import(module, before):
    """As Unsloth does it, by a module that it writes, whose trainer need not have all of TRL's methods."""
    methods = "_generate_and_score_completions = _compute_loss = lambda *_: None"
    replaced = f"""
import sys, trl, types
other = types.ModuleType({module!r})
exec("import trl\\nclass GRPOTrainer(trl.RLOOTrainer): {methods}", vars(other))
trl.GRPOTrainer = other.GRPOTrainer
"""
    said = f"ImportError: {module} has replaced trl.GRPOTrainer by its own, in which ERA cannot act. Import era.trl "
    for first, second in ((replaced, "import era.trl"), ("import era.trl", replaced)):
        result = subprocess.run(
            [sys.executable, "-c", f"{first}\n{second}\nfrom era.trl import EraGRPOTrainer"],
            **{"env": tiny_grpo.ENVIRONMENT, "capture_output": True, "text": True, "timeout": 600},
        )
        assert (result.returncode != 0) == (first is replaced), result.stderr
        assert (f"{said}before {before}." in result.stderr) == (first is replaced)


def step_of_its_own(trainer, model, inputs, *_):
    loss = trl.GRPOTrainer._compute_loss(trainer, model, trainer._prepare_inputs(inputs))
    loss.backward()
    return loss.detach()


def without_super(name):
    """Derived from the trainer with ERA: what it does is TRL's, without ERA."""
    trls = step_of_its_own if name == "training_step" else getattr(trl.GRPOTrainer, name)
    return type("Mine", (Era,), {name: lambda self, *args, **kwargs: trls(self, *args, **kwargs)})


class WithoutLogProbs(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return sum(parameter.sum() for parameter in model.parameters())


class WithoutEntropies(trl.GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        log_probs, *_ = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return log_probs, None, None

    _get_per_token_logps_and_entropies.__module__ = "trl.newer"


class OtherRows(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "completion_ids": inputs["completion_ids"].flip(0)})


def swap(batch):
    """The first answer and the last change places, in TRL's tensors alone."""
    for tensor in without_eras(batch).values():
        if torch.is_tensor(tensor) and tensor.dim():
            tensor[[0, -1]] = tensor[[-1, 0]]
    return batch


def without_eras(batch):
    return {name: value for name, value in batch.items() if not name.startswith("era_")}


def with_more_tokens(batch):
    return {**batch, "completion_mask": torch.ones_like(batch["completion_mask"])}


def with_other_signs(batch):
    return {**batch, "advantages": -batch["advantages"]}


def with_a_longer_answer(batch):
    """As where a replayed answer is longer than those of the batch."""
    longer = ("completion_ids", "completion_mask", "old_per_token_logps")
    return {**batch, **{name: torch.nn.functional.pad(batch[name], (0, 1)) for name in longer}}


def with_old_log_probs_of_its_own(batch):
    return {**batch, "old_per_token_logps": batch["old_per_token_logps"] - 1}


def editing(base, edit):
    def edited(self, inputs):
        return edit(base._generate_and_score_completions(self, inputs))

    return type("Mine", (base,), {"_generate_and_score_completions": edited})


def behind_era(base):
    return type("Mine", (EraMixin, base), {})


K_1, TWICE = {"era_k": 1.0}, {"num_iterations": 2}
DID_NOT_ACT, UNDECIDED = "an update in which ERA did not act", "Mine: an update has answers without what ERA decided"
NOT_ERAS = "gave answers with old log-probs that ERA did not make, as where rows"
ENDS = [  # a class in which ERA does not get what it needs, its settings, and what is said
    *(
        (without_super(name), settings, f"{DID_NOT_ACT}; Mine.{name}.* may lack")
        for name in ("_compute_loss", "training_step")
        for settings in (OFF_POLICY, {**OFF_POLICY, **K_1})
    ),
    (without_super("_get_per_token_logps_and_entropies"), {**OFF_POLICY, **K_1}, DID_NOT_ACT),
    (without_super("_get_per_token_logps_and_entropies"), OFF_POLICY, "old log-probs that ERA did not make"),
    (without_super("_generate_and_score_completions"), OFF_POLICY, UNDECIDED),
    (behind_era(WithoutLogProbs), TWICE, "did not ask for the log-probs"),
    (behind_era(WithoutLogProbs), {**TWICE, **K_1}, DID_NOT_ACT),
    (behind_era(WithoutEntropies), {**TWICE, **K_1}, "gave no entropies"),
    (behind_era(OtherRows), TWICE, UNDECIDED),
    # The first get the batch after ERA has decided, the others before: ERA gets it last.
    *(
        (editing(Era, edit), OFF_POLICY, f"{UNDECIDED} for them")
        for edit in (swap, without_eras, with_more_tokens, with_other_signs, with_a_longer_answer)
    ),
    *(
        (behind_era(editing(trl.GRPOTrainer, edit)), TWICE, NOT_ERAS)
        for edit in (swap, with_more_tokens, with_a_longer_answer, with_old_log_probs_of_its_own)
    ),
]


@pytest.mark.parametrize("mine, settings, said", ENDS)
def test_a_class_in_which_era_cannot_act_ends_in_the_first_step(mine, settings, said):
    trainer, start = build(mine, model(), **ERA, **settings)
    with pytest.raises(RuntimeError, match=said):
        trainer.train()
    assert same(weights(trainer), start.state_dict())


LORA = {"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
CUT_LOGITS = {
    "RecurrentGemma": {"kind": "RecurrentGemma", "num_hidden_layers": 3, "lru_width": 32, "sharpness": 1},
    "xLSTM": {"kind": "xLSTM", "embedding_dim": 32, "num_heads": 4, "num_blocks": 2, "sharpness": 1},
    "Inkling": {
        **{"kind": "InklingText", "vocab_size": 80, "unpadded_vocab_size": tiny_grpo.LETTERS[1]},
        **{"moe_intermediate_size": 16, "n_routed_experts": 8},
    },
    "Granite": {"kind": "Granite", "logits_scaling": 4.0},
}
MIXTURE = {"kind": "Qwen2Moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SETTINGS = {  # by refusal, what breaks it and no other: how it is shown, of the model, of the settings
    "logits": [(f"{name}ForCausalLM", architecture, {}) for name, architecture in CUT_LOGITS.items()],
    "top-k with an off-policy mask": [("era_top_k with", {}, {"era_top_k": 5, "off_policy_mask_threshold": 0.1})],
    "head": [("a head that is a ModulesToSave", {}, {"peft_config": LoraConfig(**LORA, modules_to_save=["lm_head"])})],
    "prompt learning": [
        ("prompt", {}, {"peft_config": PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")})
    ],
}


def derived(base, **settings):
    type("Mine", (EraMixin, base), {})(**arguments(EraGRPOConfig, **{**ERA, **settings}))


def in_an_older_trl(monkeypatch, of_args, of_trainer):
    monkeypatch.setattr(trl, "__version__", "1.9.2")
    monkeypatch.delattr(trl.trainer.utils, "add_fused_lm_head", raising=False)
    trainer, _ = build(Era, model(torch.float32), **ERA)
    for values, owner in ((of_args, trainer.args), (of_trainer, trainer)):
        for name, value in values.items():
            monkeypatch.setattr(owner, name, value, raising=False)
    era.trl._refuse(trainer, trainer.model)


def with_another_auxiliary_loss(monkeypatch):
    own = transformers.models.qwen2_moe.modeling_qwen2_moe
    monkeypatch.setattr(own, "load_balancing_loss_func", lambda *_: torch.tensor(1.9))
    build(Era, model(**MIXTURE), **ERA, router_aux_loss_coef=0.0)
    build(Era, model(**MIXTURE), **ERA, router_aux_loss_coef=0.1)


METHOD = "OwnLogProbs._get_per_token_logps_and_entropies"
ELSE = {  # the same of all other refusals: how it is shown, a function of monkeypatch
    "own log-probs": [(METHOD, lambda _, k=k: derived(OwnLogProbs, era_k=k)) for k in (1.0, 2.0)],
    "own loss with KL": [("MoreLoss._compute_loss with beta", lambda _: derived(MoreLoss, beta=0.1))],
    "own loss with advantages": [
        (
            "era_scale_advantages with GMPOTrainer._compute_loss",
            lambda _: build(tiny_grpo.EraGMPO, model(), **ERA, era_scale_advantages=True),
        ),
        *(
            (
                "era_hold with MoreLoss._compute_loss",
                lambda _, k=k: derived(MoreLoss, era_hold=True, era_k=k),
            )
            for k in (1.0, 2.0)
        ),
    ],
    "Liger": [("", lambda patch: in_an_older_trl(patch, {"use_liger_kernel": True}, {"compute_liger_loss": None}))],
    "LUSPO": [("", lambda patch: in_an_older_trl(patch, {"loss_type": "luspo"}, {}))],
    "images": [("", lambda patch: in_an_older_trl(patch, {}, {"_is_vlm": True}))],
    "auxiliary loss": [("Qwen2MoeForCausalLM", with_another_auxiliary_loss)],
}


@pytest.mark.parametrize("name", [name for name in TRL if name not in OTHER_TRAINERS])
def test_whatever_is_declared_is_refused(name, monkeypatch):
    for shown, architecture, settings in SETTINGS.get(name, ()):
        with refused(TRL[name], shown):
            build(Era, model(torch.float32, **architecture), **ERA, **settings)
        build(Era, model(torch.float32, **architecture), **ERA, **settings, era_k=1.0)  # which only logs
    for shown, break_rule in ELSE[name] if name not in SETTINGS else ():
        with refused(TRL[name], shown):
            break_rule(monkeypatch)


# -------------------------------------------------------------------------------------------------- odd inputs


def test_a_constant_reward_scales_nothing_and_is_logged():
    trainer, start = train(Era, model(), **ERA, reward=lambda completions, **_: [1.0] * len(completions))
    log = trainer.state.log_history[0]
    assert log["era/scaled_token_fraction"] == 0 < log["era/low_fraction"] + log["era/high_fraction"]
    assert same(weights(trainer), start.state_dict())


@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"peft_config": "lora"}], ids=["fp32", "bf16", "lora"])
def test_a_deep_copy_computes_with_its_own_weights(settings):
    if "peft_config" in settings:
        settings = {"peft_config": LoraConfig(**LORA, init_lora_weights="gaussian")}
    trainer, _ = train(Era, model(torch.float32), **ERA, **settings, max_steps=1)
    ids = torch.arange(*tiny_grpo.LETTERS).view(3, -1)
    mask = torch.ones_like(ids)

    def computed(model):
        with torch.no_grad():
            ours = trainer._era_forward(model.eval(), ids, mask, mask[:, -6:], trainer._era_branches)["original"]
            return model(input_ids=ids).logits, ours

    kept = copy.deepcopy(trainer.model)
    before = computed(trainer.model)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(1.5)
    assert all(map(torch.equal, computed(kept), before))
    assert not any(map(torch.equal, computed(trainer.model), before))


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


ON_TWO_PROCESSES = "-m accelerate.commands.launch --cpu --num_processes 2 --main_process_port 0"


@pytest.mark.parametrize("launcher", ["", ON_TWO_PROCESSES])
def test_command_line(launcher, tmp_path):
    """One step of a tiny model."""
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
        **{"era_enable": True, "era_low": 0.5, "era_high": "inf", "era_top_k": 20},
    }
    given = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    result = subprocess.run(
        [sys.executable, *launcher.split(), "-m", "era.trl", *given],
        **{"cwd": tmp_path, "env": tiny_grpo.ENVIRONMENT, "capture_output": True, "text": True, "timeout": 600},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "era/response_entropy" in result.stdout


@pytest.mark.parametrize(
    "written, words, said",
    [
        ("era_enabled: true", "", "Unknown arguments from config file: ['--era_enabled', 'True']"),
        ("era_low: 0.3", "", "era_low without era_enable=True"),
        ("era_enable: true\nera_k: 0.5", "", "era_k is 0.5"),
        ("era_enable: {true", "", "run.yaml"),
        (None, "", "run.yaml"),
        ("", "--era_enable --era_lwo 0.5", "--era_lwo"),
        ("", "--era_enable --era_k 0.5", "era_k is 0.5"),
    ],
)
def test_a_command_line_or_its_file_with_a_mistake_is_refused(written, words, said, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.yaml"
    if written is not None:
        path.write_text(f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\n{written}")
    for name in ("GRPOConfig", "GRPOTrainer"):  # which main replaces
        monkeypatch.setattr(trl, name, getattr(trl, name))
    monkeypatch.setattr(sys, "argv", ["era.trl", "--config", str(path), *words.split()])
    with pytest.raises(SystemExit) as ended:
        era.trl.main()
    assert ended.value.code == 2 and said in capsys.readouterr().err
