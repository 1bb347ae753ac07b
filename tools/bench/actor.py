# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time of the two passes of verl's actor with ERA, without, and with the release's way of scaling, as ratios.

    python -m tools.bench.actor --checkout checkouts/verl [--tokens 8192 16384 30720] [--csv FILE]

With --checkout it is v0.4.1's DataParallelPPOActor; without, the TrainingWorker of the verl 0.9 that is installed, for
the arms that it has, on a CPU. The two passes are old_log_prob and update, of a Qwen2 of few layers with a head of full
size: remove-padding, one dynamic batch of --tokens tokens, gradient checkpointing, a learning rate of 0, so that each
turn has the same policy. Eight responses; of those with a positive advantage, the one with the lowest and the one with
the highest entropy are scaled. bfloat16 on a GPU, fp32 elsewhere. Without flash-attn v0.4.1's padding functions are
plain torch, and attention spans the pack: a little more work, the same in all arms.

Each arm is compared with its own baseline, turn by turn. On a GPU a last turn takes the allocator's peak beyond what
was held before the pass. That the arms scale the tokens that they are to scale is asserted in every turn.
"""

import contextlib
import copy
import dataclasses
import gc
import importlib.util
import io
import math
import os
import sys
import tempfile
import types
import warnings
from functools import partial
from pathlib import Path

# The arms' sizes differ: without it the pool fragments.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import torch.distributed as dist

from tools.bench import tables

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
HAS_FLASH_ATTENTION = DEVICE == "cuda" and importlib.util.find_spec("flash_attn") is not None
RESPONSES, K, TOP_K = 8, 2.0, 20
LOGIT_STD = 3.0
SCALED_FRACTION = 2 / RESPONSES
# By rank of H_resp. All positive ones pass the release's gate, so that it scales what ERA scales.
ADVANTAGES = [1.5, -0.5, 1.5, -0.5, 1.5, -0.5, -0.5, 1.5]
PASSES = ("old_log_prob", "update")


@dataclasses.dataclass(frozen=True)
class Arm:
    """era: what is set beside low, high and k; None for off. actor: of the actor's configuration."""

    title: str
    baseline: str
    era: dict | None = None
    actor: dict = dataclasses.field(default_factory=dict)
    release: bool = False

    @property
    def is_in_0_9(self) -> bool:
        return not self.release and "use_fused_kernels" not in self.actor


OFF_POLICY = {"ppo_mini_batch_size": RESPONSES // 2}
KL, ENTROPY, FUSED = {"use_kl_loss": True}, {"entropy_coeff": 0.001}, {"use_fused_kernels": True}
ARMS = {
    "grpo": Arm("GRPO", "grpo"),
    "grpo-logging": Arm("GRPO logging ERA's metrics (k 1)", "grpo", {"k": 1.0}),
    "era": Arm("ERA", "grpo", {}),
    "era-topk": Arm(f"ERA, top-k {TOP_K}", "grpo", {"top_k": TOP_K}),
    "release": Arm("the release's way", "grpo", {}, release=True),
    "release-topk": Arm(f"the release's way, top-k {TOP_K}", "grpo", {"top_k": TOP_K}, release=True),
    "grpo-offpolicy": Arm("GRPO, 2 mini-batches", "grpo-offpolicy", actor=OFF_POLICY),
    "era-offpolicy": Arm("ERA, 2 mini-batches", "grpo-offpolicy", {}, OFF_POLICY),
    "grpo-kl": Arm("GRPO, KL loss", "grpo-kl", actor=KL),
    "era-kl": Arm("ERA, KL loss", "grpo-kl", {}, KL),
    "grpo-entropy": Arm("GRPO, entropy bonus", "grpo-entropy", actor=ENTROPY),
    "era-entropy": Arm("ERA, entropy bonus", "grpo-entropy", {}, ENTROPY),
    "grpo-fused": Arm("GRPO, fused kernels (torch)", "grpo-fused", actor=FUSED),
    "era-fused": Arm("ERA, fused kernels (torch)", "grpo-fused", {}, FUSED),
}


# The policy and the batch


def build_model(args):
    from transformers import AutoModelForCausalLM, Qwen2Config

    heads = max(1, args.width // 128)
    config = Qwen2Config(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=args.tokens,
        tie_word_embeddings=False,
    )
    attention = "flash_attention_2" if HAS_FLASH_ATTENTION else "sdpa"
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=DTYPE, attn_implementation=attention)
    # Fresh logits hardly differ.
    torch.nn.init.constant_(model.model.norm.weight, LOGIT_STD / (config.initializer_range * args.width**0.5))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def make_batch(args):
    """Full-length responses. Each repeats one word, so that its tokens have nearly the same entropy at any length."""
    from tensordict import TensorDict

    length = args.tokens // RESPONSES
    prompt = length // 5  # as the paper's 2,048 + 8,192
    tokens = torch.randperm(args.vocabulary)[:RESPONSES, None].repeat(1, length)
    batch = {
        "input_ids": tokens,
        "responses": tokens[:, prompt:].clone(),
        "attention_mask": torch.ones_like(tokens),
        "position_ids": torch.arange(length).repeat(RESPONSES, 1),
        "ref_log_prob": -4 * torch.rand(RESPONSES, length - prompt),
        "advantages": torch.zeros(RESPONSES, length - prompt),
    }
    return TensorDict(batch, batch_size=[RESPONSES]).to(DEVICE)


@torch.no_grad()
def set_label_probabilities(model, batch):
    """Set rows of the head so that each response's word is likely there, and that the H_resp lie apart."""
    packed = {key: batch[key].view(1, -1) for key in ("input_ids", "position_ids")}
    hidden = model.model(**packed, use_cache=False).last_hidden_state
    hidden = hidden.view(RESPONSES, -1, model.config.hidden_size).mean(1)
    probabilities = torch.linspace(0.95, 0.05, RESPONSES, device=hidden.device)
    logits = probabilities.logit() + model.lm_head(hidden).float().logsumexp(-1)
    rows = logits.unsqueeze(-1) * hidden / hidden.float().square().sum(-1, keepdim=True)
    model.lm_head.weight[batch["input_ids"][:, 0]] = rows.to(hidden.dtype)


def set_advantages(batch, h):
    """ADVANTAGES by the responses' rank in H_resp. Returns bounds between the second and the third from either end."""
    ranked, order = h.sort()
    advantages = torch.empty(RESPONSES, device=h.device)
    advantages[order] = torch.tensor(ADVANTAGES, device=h.device)
    batch["advantages"] = advantages.unsqueeze(-1).expand_as(batch["responses"]).contiguous()
    return {"low": ranked[1:3].mean().item(), "high": ranked[-2:].mean().item()}


def assert_scaled(arm, fractions, norms):
    """That the arm scaled the share of tokens that it is to scale, and updated with finite numbers."""
    expected = 0.0 if arm.era in (None, {"k": 1.0}) else SCALED_FRACTION
    assert all(fraction == expected for fraction in fractions), f"{arm}: scaled {fractions}, expected {expected}"
    assert all(0 < norm < math.inf for norm in norms), f"{arm}: gradient norms {norms}"


# v0.4.1


def with_fused_kernels(model):
    """The same parameters in a model of a class of its own: verl replaces the forward of the class, for good."""
    from verl.models.transformers.monkey_patch import patch_forward_with_backends

    fused = copy.copy(model)
    fused.__class__ = type("Fused", (type(model),), {})
    patch_forward_with_backends(fused, use_fused_kernels=True, fused_kernels_backend="torch")
    return fused


class Actor:
    """v0.4.1's actor: one policy and one batch, for all arms. args: of `read_arguments`, with one number of tokens."""

    def __init__(self, args):
        self.tokens = args.tokens
        torch.manual_seed(0)
        self.model = build_model(args)
        self.fused_model = with_fused_kernels(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # AdamW's state is there before the first update is measured
        self.optimizer.zero_grad()
        self.batch, self.bounds = make_batch(args), {}
        set_label_probabilities(self.model, self.batch)
        _, entropys = self.prepare(ARMS["grpo"]).compute_log_prob(self._data(), calculate_entropy=True)
        self.bounds = set_advantages(self.batch, entropys.float().mean(-1))

    def _data(self):
        from verl import DataProto

        meta = {
            "temperature": 1.0,
            "micro_batch_size": RESPONSES,
            "use_dynamic_bsz": True,
            "max_token_len": self.tokens,
        }
        return DataProto(batch=self.batch.clone(), meta_info=meta)

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
            **arm.actor,
        }
        era = {"k": K, **self.bounds, **(arm.era or {})}
        if arm.era is not None and not arm.release:
            config["era"] = {"enable": True, **era}
        file = Path(dp_actor.__file__).parents[2] / "trainer/config/ppo_trainer.yaml"
        config = OmegaConf.merge(OmegaConf.load(file).actor_rollout_ref.actor, config)
        actor = dp_actor.DataParallelPPOActor(
            config, self.fused_model if config.use_fused_kernels else self.model, self.optimizer
        )
        if DEVICE == "cpu":
            actor.device_name = "cuda"  # so that it does not cast to bfloat16 on the CPU
        if arm.release:
            from tools.bench.release_way import ReleaseHooks

            actor.era = ReleaseHooks(actor, **era)
        return actor

    def take_turn(self, arm, actor, measure):
        """One step of training. measure(run): what `run` returns, and a number.

        Returns:
            The numbers of both passes, and the batch as the update saw it.
        """
        data = self._data()
        gc.collect()  # gradient checkpointing leaves cycles that hold logits

        def old_log_prob():
            # The release's hooks take the entropies themselves; verl's worker asks for them in this pass.
            log_probs, entropys = actor.compute_log_prob(data, calculate_entropy=not arm.release)
            return {"old_log_probs": log_probs} | actor.era.old_log_prob_tensors({}, data, log_probs, entropys)

        tensors, old_measured = measure(old_log_prob)
        for key, value in tensors.items():
            data.batch[key] = value
        gc.collect()
        metrics, update_measured = measure(lambda: actor.update_policy(data))
        fractions = [metrics["era/scaled_token_fraction"]] if arm.era is not None and not arm.release else []
        fractions += [fraction.item() for fraction in actor.era.scaled_fractions[-2:]] if arm.release else []
        assert_scaled(arm, fractions, metrics["actor/grad_norm"])
        return (old_measured, update_measured), data.batch


def prepare_0_4(checkout):
    """Makes `import verl` the checkout, and its actor run on this machine, in a group of one process."""
    sys.path.insert(0, str(checkout))
    if DEVICE == "cuda" and not HAS_FLASH_ATTENTION:  # dp_actor imports these where there is a GPU
        names = ("index_first_axis", "pad_input", "rearrange", "unpad_input")
        sys.modules["flash_attn.bert_padding"] = types.SimpleNamespace(**dict.fromkeys(names))
    from tools.bench.stand_ins import install_memory_counters, install_padding_functions

    if not HAS_FLASH_ATTENTION:
        install_padding_functions()
    if DEVICE == "cpu":
        install_memory_counters()
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)


# 0.9


def nested(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class Worker:
    """0.9's worker, and ERA's, with the same policy and batch; methods as `Actor`'s."""

    def __init__(self, args):
        from verl.workers.engine_workers import TrainingWorker

        from era.verl.worker import EraTrainingWorker

        torch.manual_seed(0)
        model, self.padded = build_model(args), make_batch(args)
        set_label_probabilities(model, self.padded)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            self.verls, self.eras = (
                build_worker(worker, folder, args.tokens) for worker in (TrainingWorker, EraTrainingWorker)
            )
        data, _ = self._old_log_prob(self.verls, self._data(), lambda run: (run(), None))
        self.bounds = set_advantages(self.padded, data["entropy"].to_padded_tensor(0).mean(-1))

    def _data(self):
        """The batch as the V1 trainer hands it out: nested."""
        from tensordict import TensorDict
        from verl.utils import tensordict_utils as tu

        names = ("input_ids", "position_ids", "responses", "advantages", "ref_log_prob")
        data = {name: nested(self.padded[name]) for name in names}
        prompt = self.padded["input_ids"].size(1) - self.padded["responses"].size(1)
        mask = torch.ones_like(self.padded["input_ids"])
        mask[:, :prompt] = 0
        data["loss_mask"], data["response_mask"] = nested(mask), nested(mask[:, prompt:])
        data["prompts"] = nested(self.padded["input_ids"][:, :prompt])
        data = TensorDict(data, batch_size=RESPONSES)
        tu.assign_non_tensor(data, temperature=1.0)
        return data

    def _old_log_prob(self, worker, data, measure):
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.padding import response_from_nested

        asked = data.copy()
        tu.assign_non_tensor(asked, calculate_entropy=True, compute_loss=False)
        found, measured = measure(lambda: worker.infer_batch(asked))
        for name, key in (("old_log_probs", "log_probs"), ("entropy", "entropy")):
            data[name] = response_from_nested(found[key], data["response_mask"])
        return data, measured

    def prepare(self, arm):
        """The arm's worker and configuration."""
        from verl.workers.config import FSDPActorConfig

        from era.verl.config import FSDPActorConfig as EraFSDPActorConfig

        actor = {key: value for key, value in arm.actor.items() if key != "ppo_mini_batch_size"}
        common = {"rollout_n": 1, "use_dynamic_bsz": True, **actor}
        if arm.era is None:
            return self.verls, FSDPActorConfig(**common)
        era = {"enable": True, "k": K, **self.bounds, **arm.era}
        return self.eras, EraFSDPActorConfig(era=era, **common)

    def take_turn(self, arm, actor, measure):
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.losses import ppo_loss

        worker, config = actor
        worker.set_loss_fn(partial(ppo_loss, config=config))
        gc.collect()
        data, old_measured = self._old_log_prob(worker, self._data(), measure)
        mini_batch = arm.actor.get("ppo_mini_batch_size", RESPONSES)
        tu.assign_non_tensor(
            data,
            calculate_entropy=config.entropy_coeff != 0,
            global_batch_size=mini_batch,
            mini_batch_size=mini_batch,
            epochs=1,
            dataloader_kwargs={"shuffle": False},
        )
        gc.collect()
        output, update_measured = measure(lambda: worker.train_mini_batch(data))
        metrics = tu.get(output, "metrics")
        fractions = [metrics["era/scaled_token_fraction"]] if arm.era is not None else []
        assert_scaled(arm, fractions, metrics["grad_norm"])
        return (old_measured, update_measured), data


def build_worker(worker_class, folder, tokens):
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
    from demo.llm.verl_0_9 import cpu

    os.environ.update(cpu.ENVIRONMENT)
    cpu.install_stand_ins()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", RAY_LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # verl's worker reads them, the group is there


# Measuring


def seconds_of(run):
    results = []
    measured = tables.seconds_of(lambda: results.append(run()), DEVICE)
    return results[0], measured


def peak_mib(run):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    return result, (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(bench, names, turns):
    """A table for each pass."""
    arms = {name: partial(bench.take_turn, ARMS[name], bench.prepare(ARMS[name])) for name in names}
    for take_turn in arms.values():  # warm up
        take_turn(seconds_of)
    found = tables.take_turns({name: partial(take_turn, seconds_of) for name, take_turn in arms.items()}, turns)
    baselines = {name: ARMS[name].baseline for name in names}
    memory = {name: take_turn(peak_mib)[0] for name, take_turn in arms.items()} if DEVICE == "cuda" else {}
    for number, pass_ in enumerate(PASSES):
        seconds = {name: [measured[number] for measured, _ in turns_of_arm] for name, turns_of_arm in found.items()}
        table = tables.ratios(seconds, ratio=baselines)
        if memory:
            table["mib"] = {name: measured[number] for name, measured in memory.items()}
            table["mib_ratio"] = table.mib / [table.mib[baselines[name]] for name in names]
        yield pass_, table, baselines


def read_arguments():
    gpu = DEVICE == "cuda"
    parser = tables.parser(__doc__)
    tables.add_checkout(parser, "verl v0.4.1", "verl/utils/era_fsdp.py", required=False)
    help_ = f"multiples of {RESPONSES}, prompts included; several for several sizes"
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384, 30720] if gpu else [512], help=help_)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=3584 if gpu else 128)
    parser.add_argument("--layers", type=int, default=4 if gpu else 2)
    help_ = f"of {', '.join(ARMS)}; their baselines are added"
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM", help=help_)
    args = parser.parse_args()
    if any(tokens < 8 * RESPONSES or tokens % RESPONSES for tokens in args.tokens):
        parser.error(f"--tokens: multiples of {RESPONSES}, at least {8 * RESPONSES}, are needed")
    return args


def main():
    args = read_arguments()
    warnings.filterwarnings("ignore")
    written = tables.Tables(args.csv, DEVICE)
    with contextlib.redirect_stdout(io.StringIO()):  # every actor of verl announces itself
        prepare_0_4(args.checkout) if args.checkout else prepare_0_9()
    arms = [name for name in args.arms if args.checkout or ARMS[name].is_in_0_9]
    names = [name for name in ARMS if name in arms or name in {ARMS[arm].baseline for arm in arms}]
    titles = {name: arm.title for name, arm in ARMS.items()}
    for tokens in args.tokens:
        with contextlib.redirect_stdout(io.StringIO()):
            bench = (Actor if args.checkout else Worker)(types.SimpleNamespace(**vars(args) | {"tokens": tokens}))
            found = list(measure(bench, names, args.turns))
        shape = {name: getattr(args, name) for name in ("vocabulary", "width", "layers", "turns")}
        for pass_, table, baselines in found:
            title = f"{pass_}: {tokens:,} tokens x {args.vocabulary:,}, ratios to the arm's baseline"
            written.add(title, table, titles, **{"pass": pass_}, tokens=tokens, baseline=baselines, **shape)


if __name__ == "__main__":
    main()
