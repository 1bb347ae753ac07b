"""Time and peak memory of verl 0.9's training worker with ERA and without, as ratios in one run.

    make bench-actor VERL=0.9.1

Verl's own worker trains GRPO, that of `era.verl` the other arms: those of `tools.bench.actor`, with its model, batch,
passes and measurement, but without the release's way, which 0.9 does not have, and fused kernels. On a CPU.
"""

import argparse
import gc
import os
import tempfile
import warnings
from functools import partial

from demo.llm.verl_0_9 import cpu

os.environ.update(cpu.ENVIRONMENT)

import torch
import torch.distributed as dist
from tensordict import TensorDict
from transformers.utils import logging
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from era.verl.config import FSDPActorConfig as EraFSDPActorConfig
from era.verl.worker import EraTrainingWorker
from tools.bench import actor as shared
from tools.bench.actor import ARMS, RESPONSES

NAMES = [name for name, arm in ARMS.items() if not arm.release and not arm.actor.get("use_fused_kernels")]


def nested(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class Bench:
    """One policy, in verl's worker and in ERA's, and one batch. Settings as of `tools.bench.actor.Bench`."""

    def __init__(self, settings):
        self.settings = settings
        torch.manual_seed(0)
        model, self.padded = shared.build_model(settings), shared.make_batch(settings)
        shared.set_label_probabilities(model, self.padded)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            workers = TrainingWorker, EraTrainingWorker
            self.verls, self.eras = (self._build_worker(worker, folder) for worker in workers)
        self.low, self.high = self._decide_bounds()

    def _build_worker(self, worker_class, folder):
        precision = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
        engine = FSDPEngineConfig(strategy="fsdp", mixed_precision=precision, use_torch_compile=False)
        engine.use_dynamic_bsz = True
        for name in ("max_token_len_per_gpu", "infer_max_token_len_per_gpu"):
            object.__setattr__(engine, name, self.settings.tokens)
        model = HFModelConfig(
            path=folder,
            load_tokenizer=False,
            use_remove_padding=True,
            override_config={"attn_implementation": "sdpa"},
        )
        optimizer = FSDPOptimizerConfig(lr=0.0, weight_decay=0.0, total_training_steps=1)
        worker = worker_class(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=model,
                engine_config=engine,
                optimizer_config=optimizer,
                checkpoint_config=CheckpointConfig(),
            )
        )
        worker.reset()
        return worker

    def _decide_bounds(self):
        data, _ = self._old_log_prob(self.verls, self._data())
        h = data["entropy"].to_padded_tensor(0).mean(-1)
        advantages, bounds = shared.advantages_and_bounds(h)
        self.padded["advantages"] = advantages.unsqueeze(-1).expand_as(self.padded["responses"])
        return bounds

    def _data(self):
        """The batch as the V1 trainer hands it out: nested."""
        responses = ("responses", "advantages", "ref_log_prob")
        data = {name: nested(self.padded[name]) for name in ("input_ids", "position_ids", *responses)}
        prompt = self.padded["input_ids"].size(1) - self.padded["responses"].size(1)
        mask = torch.ones_like(self.padded["input_ids"])
        mask[:, :prompt] = 0
        data["loss_mask"], data["response_mask"] = nested(mask), nested(mask[:, prompt:])
        data["prompts"] = nested(self.padded["input_ids"][:, :prompt])
        data = TensorDict(data, batch_size=RESPONSES)
        tu.assign_non_tensor(data, temperature=self.settings.temperature)
        return data

    def _old_log_prob(self, worker, data, measure=lambda run: (run(), None)):
        asked = data.copy()
        tu.assign_non_tensor(asked, calculate_entropy=True, compute_loss=False)
        found, measured = measure(lambda: worker.infer_batch(asked))
        for name, key in (("old_log_probs", "log_probs"), ("entropy", "entropy")):
            data[name] = response_from_nested(found[key], data["response_mask"])
        return data, measured

    def actor(self, arm):
        """The arm's worker and configuration."""
        actor = {key: value for key, value in arm.actor.items() if key != "ppo_mini_batch_size"}
        common = {"rollout_n": 1, "use_dynamic_bsz": True, **actor}
        if arm.era is None:
            return self.verls, FSDPActorConfig(**common)
        era = {"enable": True, "low": self.low, "high": self.high, "k": self.settings.k, **arm.era}
        return self.eras, EraFSDPActorConfig(era=era, **common)

    def take_turn(self, arm, actor, measure):
        """One step of training; as `tools.bench.actor.Bench.take_turn`."""
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
        return dict(zip(shared.PASSES, (old_measured, update_measured))), data, tu.get(output, "metrics")

    def zero_grad(self):
        for worker in (self.verls, self.eras):
            worker.engine.optimizer_zero_grad()

    def assert_work_was_done(self, name, actor, metrics):
        arm = ARMS[name]
        if arm.era is not None:
            fraction = metrics["era/scaled_token_fraction"]
            expected = 0.0 if arm.era == {"k": 1.0} else shared.SCALED_FRACTION
            assert fraction == expected, f"{name}: {fraction} of the tokens were scaled, expected {expected}"
        assert all(0 < norm < float("inf") for norm in metrics["grad_norm"]), f"{name}: {metrics['grad_norm']}"


def prepare_verl():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cpu.install_stand_ins()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", RAY_LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # verl's worker reads them, the group is there


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared.add_size_arguments(parser, NAMES)
    args = parser.parse_args()
    if problems := shared.size_problems(args):
        parser.error("; ".join(problems))
    args.dtype = torch.float32
    return args


def main():
    args = read_arguments()
    warnings.filterwarnings("ignore")
    with shared.quiet():
        prepare_verl()
        shared.limit_memory()
        machine = shared.environment(args)
    shared.measure_sizes(Bench, args, machine)


if __name__ == "__main__":
    main()
