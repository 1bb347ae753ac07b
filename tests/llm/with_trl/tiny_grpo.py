# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""TRL's GRPOTrainer on a tiny Qwen2, with and without ERA; the micro-batches of its updates are kept."""

import contextlib
import copy
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="this needs the environment of make test-trl")

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers.models.qwen2 import modeling_qwen2  # noqa: E402
from transformers.models.qwen2_moe import modeling_qwen2_moe  # noqa: E402
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer  # noqa: E402

from demo.llm import chain, models  # noqa: E402
from era.trl import EraGRPOConfig, EraGRPOTrainer, EraMixin  # noqa: E402

warnings.filterwarnings("ignore", "`use_cache=True` is incompatible")
transformers.logging.disable_progress_bar()

ALPHABET = chain.ALPHABET + "*? .,:abcdefghijklmnopqrstuvwxyz"
LETTERS = len(models.SPECIAL), len(models.SPECIAL) + len(ALPHABET)  # their token ids: from, to

# Of child processes. The TRL that is tested may stand on PYTHONPATH.
PATHS = (*(str(Path(__file__).resolve().parents[up]) for up in (3, 1)), os.environ.get("PYTHONPATH"))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, PATHS)),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

BASE = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 3,
    "learning_rate": 0.01,
    "optim": "sgd",
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "weight_decay": 0.0,
    "temperature": 0.9,
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "report_to": [],
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "save_strategy": "no",
    "disable_tqdm": True,
    "log_level": "error",
    "seed": 5,
}
# Between these lie about half of the responses of the model below; the others are scaled, some by k and some by 1/k.
ERA = {"era_enable": True, "era_low": 2.85, "era_high": 3.0}
# Two micro-batches a step, four a generation, each batch twice: most ratios are not 1, and some are clipped.
OFF_POLICY = {
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "max_steps": 8,
    "learning_rate": 0.005,
    "epsilon": 0.002,
}

IN_FP64 = {"experts_implementation": "eager"}  # the grouped product of a mixture is for 32 bits and fewer


def tokenizer():
    made = models.character_tokenizer(list(ALPHABET))
    made.chat_template = None
    return made


def in_fp64(norm_class):
    """transformers' RMSNorm computes in fp32 whatever the model's dtype, and processors round differently there."""
    of_transformers = norm_class.forward

    def forward(self, hidden):
        if hidden.dtype != torch.double:
            return of_transformers(self, hidden)
        return self.weight * hidden * (hidden.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    norm_class.forward = forward


in_fp64(modeling_qwen2.Qwen2RMSNorm)
in_fp64(modeling_qwen2_moe.Qwen2MoeRMSNorm)


def model(dtype=torch.double, kind="Qwen2", tie=False, sharpness=16, **more):
    """Two layers with a sharp head, loaded from a folder: TRL loads the reference policy by its name."""
    return load(write(tempfile.mkdtemp(), dtype, kind, tie, sharpness, **more))


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **IN_FP64)


def write(folder, dtype, kind="Qwen2", tie=False, sharpness=16, **more):
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_dropout": 0.0}
    config = getattr(transformers, f"{kind}Config")(
        max_position_embeddings=128,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=models.EOS,
        pad_token_id=models.PAD,
        **{"vocab_size": LETTERS[1], **shape, **heads, **more},
    )
    made = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(sharpness)
    made.to(dtype).save_pretrained(folder)
    return folder


def reward(completions, **_):
    """Differs between the answers of most groups."""
    return [sum(letter.isdigit() for letter in answer) / 8 + (len(answer) % 3) * 0.1 for answer in completions]


def prompts(count=64):
    rng = random.Random(0)
    return Dataset.from_dict({"prompt": [chain.prompt(rng.choice(chain.STARTS)) for _ in range(count)]})


class Recording:
    """Keeps what TRL hands to the loss, in the order of the updates."""

    def __init__(self, *args, **kwargs):
        self.seen = []
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs):
        if self.model.training:
            self.seen.append({k: v.clone() if torch.is_tensor(v) else v for k, v in inputs.items()})
        return super()._compute_loss(model, inputs)

    def get_high_entropy_mask(self, *args, **kwargs):
        found = super().get_high_entropy_mask(*args, **kwargs)
        self.seen[-1]["entropy_mask"] = found
        return found


class Plain(Recording, trl.GRPOTrainer):
    pass


class Era(Recording, EraGRPOTrainer):
    pass


class EraGMPO(Recording, EraMixin, GMPOTrainer):
    """TRL's experimental trainer, which replaces GRPOTrainer's loss."""


@dataclass
class EraGMPOConfig(GMPOConfig, EraGRPOConfig):
    pass


CONFIGS = {Plain: trl.GRPOConfig, EraGMPO: EraGMPOConfig}


class Sampler:
    """A sampler in the place of vLLM's engine; its answers are those of `answers`."""

    def __init__(self, *args, **kwargs):
        pass

    def sync_weights(self):
        pass


def answers(prompts, trainer):
    """TRL's rollout_func: random answers with a tool's tokens in the middle, and log-probs as a sampler's."""
    rng = torch.Generator().manual_seed(len(trainer.seen))
    lengths = [5 + i % 4 for i in range(len(prompts))]
    ids = [torch.randint(*LETTERS, (n,), generator=rng).tolist() + [models.EOS] for n in lengths]
    return {
        "prompt_ids": [trainer.processing_class(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": ids,
        "logprobs": [[-2.0 - 0.1 * (i % 5) for i in range(len(answer))] for answer in ids],
        "env_mask": [[int(not 2 <= i < 4) for i in range(len(answer))] for answer in ids],
    }


def build(
    trainer_class,
    model,
    *,
    peft_config=None,
    rollout_func=None,
    processing_class=None,
    reward=reward,
    train_dataset=None,
    **settings,
):
    """A trainer, and a copy of the model that it starts from."""
    start = copy.deepcopy(model)
    trainer = trainer_class(
        model=model,
        reward_funcs=reward,
        args=CONFIGS.get(trainer_class, EraGRPOConfig)(**{"output_dir": tempfile.mkdtemp(), **BASE, **settings}),
        train_dataset=train_dataset or prompts(),
        eval_dataset=prompts(2) if "eval_strategy" in settings else None,
        processing_class=processing_class or tokenizer(),
        rollout_func=rollout_func,
        peft_config=peft_config,
    )
    if peft_config is not None:
        start = copy.deepcopy(trainer.model)
        for module in start.modules():  # without TRL's and ERA's
            module.__dict__.pop("forward", None)
    return trainer, start


def train(trainer_class, model, *, resume=None, **settings):
    trainer, start = build(trainer_class, model, **settings)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train(resume_from_checkpoint=resume)
    return trainer, start


def weights(trainer):
    return trainer.accelerator.unwrap_model(trainer.model).state_dict()


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one) and one.keys() == other.keys()


def known(*names):
    """Whether this TRL has these settings."""
    return set(names) <= set(trl.GRPOConfig.__dataclass_fields__)


def on_two_processes(script, *arguments):
    """What a script of this folder prints as JSON, from two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    result = subprocess.run(
        [*command, Path(__file__).with_name(script), *arguments],
        env={**ENVIRONMENT, "DS_ACCELERATOR": "cpu"},
        **{"capture_output": True, "text": True, "timeout": 600},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads([line for line in result.stdout.splitlines() if line.startswith("{")][-1])
