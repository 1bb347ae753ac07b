# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time and memory of the two passes of verl's actor with ERA and without, as ratios in one run.

    python -m tools.bench.actor --checkout checkouts/verl [--tokens 8192 16384 30720] [--csv FILE]

With --checkout the actor is v0.4.1's DataParallelPPOActor. Without, it is the TrainingWorker of the installed verl 0.9,
on a CPU, with the arms that 0.9 has. The two passes are old_log_prob and update. The model is a Qwen2 of few layers
with a head of full size. It trains with remove-padding, one dynamic batch of --tokens tokens, gradient checkpointing,
and a learning rate of 0, so that each turn has the same policy. Two of eight responses have a positive advantage and
are scaled, which is asserted in every turn. The dtype is bfloat16 on a GPU, fp32 elsewhere. On a CPU v0.4.1's padding
functions are plain torch, and attention spans the pack: a little more work, the same in all arms. Each arm is compared
with its own baseline, turn by turn.
"""

import argparse
import copy
import math
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

# Without this the memory pool fragments, because the arms' sizes differ.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import torch.distributed as dist

from tools.bench import measure

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
RESPONSES = 8
ADVANTAGES = [1.5, -0.5, -0.5, -0.5] * 2  # a positive one in each of two mini-batches
ERA = {"enable": True, "low": 99.0, "high": 100.0, "k": 2.0}  # nats: each response has too little entropy
ARMS = measure.trainer_arms(
    **{
        "2 mini-batches": {"ppo_mini_batch_size": RESPONSES // 2},
        "KL loss": {"use_kl_loss": True},
        "entropy bonus": {"entropy_coeff": 0.001},
        "fused kernels (torch)": {"use_fused_kernels": True},
    }
) | {"ERA, top-k 20": measure.TrainerArm("GRPO", {"top_k": 20})}


def build_model(tokens, args):
    """A Qwen2 of this width, with room for this many tokens."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    heads = max(1, args.width // 128)
    config = Qwen2Config(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=tokens,
        tie_word_embeddings=False,
    )
    attention = "flash_attention_2" if DEVICE == "cuda" else "sdpa"
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=DTYPE, attn_implementation=attention)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def make_batch(tokens, vocabulary):
    """Full-length responses to prompts of a fifth of the length, as the paper's 2,048 + 8,192."""
    length = tokens // RESPONSES
    prompt = length // 5
    ids = torch.randint(vocabulary, (RESPONSES, length))
    batch = {
        "input_ids": ids,
        "prompts": ids[:, :prompt],
        "responses": ids[:, prompt:].clone(),
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(length).repeat(RESPONSES, 1),
        "ref_log_prob": -4 * torch.rand(RESPONSES, length - prompt),
        "advantages": torch.tensor(ADVANTAGES).unsqueeze(-1).repeat(1, length - prompt),
    }
    return {name: values.to(DEVICE) for name, values in batch.items()}


def check(arm, metrics, norms):
    """Assert that a turn has scaled what it should, and that it has trained."""
    arm.check_scaled([value for name, value in metrics.items() if name == "era/scaled_token_fraction"], share=0.25)
    may_be_0 = arm.era is not None and "top_k" in arm.era  # random labels are rarely among the likeliest k
    assert all(0 < norm < math.inf or may_be_0 and norm == 0 for norm in norms), f"{arm}: gradient norms {norms}"


# v0.4.1


def with_fused_kernels(model):
    """The same parameters in a model of a class of its own: verl replaces the forward of the class, for good."""
    from verl.models.transformers.monkey_patch import patch_forward_with_backends

    fused = copy.copy(model)
    fused.__class__ = type("Fused", (type(model),), {})
    patch_forward_with_backends(fused, use_fused_kernels=True, fused_kernels_backend="torch")
    return fused


class Actor:
    """v0.4.1's actor: one policy and one batch of this many tokens, for all arms."""

    def __init__(self, tokens, args):
        self.tokens = tokens
        torch.manual_seed(0)
        self.model = build_model(tokens, args)
        self.fused_model = with_fused_kernels(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # AdamW's state is there before the first update is measured
        self.optimizer.zero_grad()
        self.batch = make_batch(tokens, args.vocabulary)

    def prepare(self, arm):
        """The arm's actor."""
        from omegaconf import OmegaConf
        from verl.workers.actor import dp_actor

        config = {
            "ppo_mini_batch_size": RESPONSES,
            "use_dynamic_bsz": True,
            "ppo_max_token_len_per_gpu": self.tokens,
            "use_remove_padding": True,
            "use_fused_kernels": False,
            "use_torch_compile": DEVICE == "cuda",
            **({} if arm.era is None else {"era": ERA | arm.era}),
            **arm.settings,
        }
        file = Path(dp_actor.__file__).parents[2] / "trainer/config/ppo_trainer.yaml"
        config = OmegaConf.merge(OmegaConf.load(file).actor_rollout_ref.actor, config)
        actor = dp_actor.DataParallelPPOActor(
            config, self.fused_model if config.use_fused_kernels else self.model, self.optimizer
        )
        if DEVICE == "cpu":
            actor.device_name = "cuda"  # so that it does not cast to bfloat16 on the CPU
        return actor

    def take_turn(self, arm, actor):
        """The costs of both passes of one step of training."""
        from tensordict import TensorDict
        from verl import DataProto

        batch = TensorDict({name: values.clone() for name, values in self.batch.items()}, batch_size=[RESPONSES])
        meta = {"micro_batch_size": RESPONSES, "use_dynamic_bsz": True, "max_token_len": self.tokens}
        data, metrics = DataProto(batch=batch, meta_info={"temperature": 1.0, **meta}), {}

        def old_log_prob():
            log_probs, entropys = actor.compute_log_prob(data, calculate_entropy=True)
            tensors = {"old_log_probs": log_probs} | actor.era_hooks.old_log_prob_tensors(log_probs, entropys)
            for name, values in tensors.items():
                data.batch[name] = values

        def update():
            metrics.update(actor.update_policy(data))

        costs = {"old_log_prob": measure.cost(old_log_prob, DEVICE), "update": measure.cost(update, DEVICE)}
        check(arm, metrics, metrics["actor/grad_norm"])
        return costs


def prepare_0_4(checkout):
    """Make `import verl` the checkout, and its actor run on this machine, in a group of one process."""
    sys.path.insert(0, str(checkout))
    from tools.bench.stand_ins import install_memory_counters, install_padding_functions

    if DEVICE == "cpu":
        install_padding_functions()
        install_memory_counters()
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)


# 0.9


class Worker:
    """0.9's worker, and ERA's, with the same policy and batch; methods as `Actor`'s."""

    def __init__(self, tokens, args):
        from verl.workers.engine_workers import TrainingWorker

        from era.verl.worker import EraTrainingWorker

        torch.manual_seed(0)
        model, self.batch = build_model(tokens, args), make_batch(tokens, args.vocabulary)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self.verls, self.eras = (
                build_worker(worker, folder, tokens) for worker in (TrainingWorker, EraTrainingWorker)
            )

    def prepare(self, arm):
        """The arm's worker and configuration."""
        from verl.workers.config import FSDPActorConfig

        from era.verl.config import FSDPActorConfig as EraFSDPActorConfig

        settings = {key: value for key, value in arm.settings.items() if key != "ppo_mini_batch_size"}
        common = {"rollout_n": 1, "use_dynamic_bsz": True, **settings}
        if arm.era is None:
            return self.verls, FSDPActorConfig(**common)
        return self.eras, EraFSDPActorConfig(era=ERA | arm.era, **common)

    def _data(self):
        """The batch as the V1 trainer hands it out: nested."""
        from tensordict import TensorDict
        from verl.utils import tensordict_utils as tu

        prompt, mask = self.batch["prompts"].size(1), self.batch["attention_mask"].clone()
        mask[:, :prompt] = 0
        padded = {**self.batch, "loss_mask": mask, "response_mask": mask[:, prompt:]}
        del padded["attention_mask"]
        rows = {name: torch.nested.as_nested_tensor([*rows], layout=torch.jagged) for name, rows in padded.items()}
        data = TensorDict(rows, batch_size=RESPONSES)
        tu.assign_non_tensor(data, temperature=1.0)
        return data

    def take_turn(self, arm, actor):
        """The costs of both passes of one step of training."""
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.losses import ppo_loss
        from verl.workers.utils.padding import response_from_nested

        worker, config = actor
        worker.set_loss_fn(partial(ppo_loss, config=config))
        data, metrics = self._data(), {}

        def old_log_prob():
            rows = data.copy()
            tu.assign_non_tensor(rows, calculate_entropy=True, compute_loss=False)
            inferred = worker.infer_batch(rows)
            for name, key in (("old_log_probs", "log_probs"), ("entropy", "entropy")):
                data[name] = response_from_nested(inferred[key], data["response_mask"])

        def update():
            metrics.update(tu.get(worker.train_mini_batch(data), "metrics"))

        costs = {"old_log_prob": measure.cost(old_log_prob)}
        mini_batch = arm.settings.get("ppo_mini_batch_size", RESPONSES)
        tu.assign_non_tensor(
            data,
            calculate_entropy=config.entropy_coeff != 0,
            global_batch_size=mini_batch,
            mini_batch_size=mini_batch,
            epochs=1,
            dataloader_kwargs={"shuffle": False},
        )
        costs["update"] = measure.cost(update)
        check(arm, metrics, metrics["grad_norm"])
        return costs


def build_worker(worker_class, folder, tokens):
    """A worker of this class with the folder's model, for batches of this many tokens."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers import config as verl

    precision = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    engine = verl.FSDPEngineConfig(strategy="fsdp", mixed_precision=precision, use_torch_compile=False)
    engine.use_dynamic_bsz = True
    for name in ("max_token_len_per_gpu", "infer_max_token_len_per_gpu"):
        object.__setattr__(engine, name, tokens)
    attention = {"attn_implementation": "sdpa"}
    config = verl.TrainingWorkerConfig(
        model_type="language_model",
        model_config=verl.HFModelConfig(
            path=folder, load_tokenizer=False, use_remove_padding=True, override_config=attention
        ),
        engine_config=engine,
        optimizer_config=verl.FSDPOptimizerConfig(lr=0.0, weight_decay=0.0, total_training_steps=1),
        checkpoint_config=CheckpointConfig(),
    )
    worker = worker_class(config)
    worker.reset()
    return worker


def prepare_0_9():
    """Make the installed verl run on this CPU, in a group of one process."""
    from demo.llm.verl_0_9 import cpu

    os.environ.update(cpu.ENVIRONMENT)
    cpu.install_stand_ins()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", RAY_LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # verl's worker reads these although the group exists


def number_of_tokens(text):
    """The number in an argument of --tokens."""
    tokens = int(text)
    if tokens < 8 * RESPONSES or tokens % RESPONSES:
        raise argparse.ArgumentTypeError(f"multiples of {RESPONSES}, at least {8 * RESPONSES}, are needed")
    return tokens


GPU = DEVICE == "cuda"
ARGUMENTS = {
    "--checkout": {"type": Path, "help": "of verl v0.4.1 with the ERA overlay; else verl 0.9 is measured"},
    "--tokens": {
        "type": number_of_tokens,
        "nargs": "+",
        "default": [8192, 16384, 30720] if GPU else [512],
        "help": f"multiples of {RESPONSES}, prompts included; several for several sizes",
    },
    **measure.VOCABULARY,
    "--width": {"type": int, "default": 3584 if GPU else 128},
    "--layers": {"type": int, "default": 4 if GPU else 2},
}


def tables(args):
    """A table for each number of tokens and pass."""
    arms = {name: arm for name, arm in ARMS.items() if args.checkout or "use_fused_kernels" not in arm.settings}
    baselines = {name: arm.baseline for name, arm in arms.items()}
    prepare_0_4(args.checkout) if args.checkout else prepare_0_9()
    for tokens in args.tokens:
        bench = (Actor if args.checkout else Worker)(tokens, args)
        turns = {name: partial(bench.take_turn, arm, bench.prepare(arm)) for name, arm in arms.items()}
        for pass_, rows in measure.compare(turns, args.turns, ratio=baselines).items():
            yield rows, {"pass": pass_, "tokens": tokens}


if __name__ == "__main__":
    measure.main(__doc__, ARGUMENTS, tables, device=DEVICE)
