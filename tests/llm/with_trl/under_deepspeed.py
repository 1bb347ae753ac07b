# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""... torch.distributed.run ... under_deepspeed.py FOLDER STAGE: updates of the model in FOLDER by ZeRO; prints JSON.

STAGE is none (DDP), 1, 2, 3, or "3 at load": the weights are split while the model is loaded (zero3_init_flag).
"""

import contextlib
import json
import os
import sys
import tempfile

import deepspeed
import plain_grpo
import torch
import torch.distributed as dist
import transformers
from accelerate import PartialState
from tiny_grpo import BASE, ERA, OFF_POLICY, Era, load, prompts, reward, tokenizer, weights

from era.trl import EraGRPOConfig

torch.set_num_threads(1)
folder, stage = sys.argv[1:]
split, zero = stage.startswith("3"), stage != "none"
if zero:
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
# Under DeepSpeed accelerate chooses a backend by the kind of GPU, and without one takes each process for the only one.
PartialState(**{"backend": "gloo"} if zero else {"cpu": True})

config = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 0.0,
    "zero_allow_untested_optimizer": True,  # SGD
    "zero_force_ds_cpu_optimizer": False,
    # 0: small weights are split too
    "zero_optimization": {"stage": int(stage[0]) if zero else 0, "stage3_param_persistence_threshold": 0},
}
start = load(folder)
settings = {
    **{**BASE, **OFF_POLICY, **ERA, "loss_type": "grpo", "output_dir": tempfile.mkdtemp()},
    **{"beta": 0.2, "use_bias_correction_kl": True},
    **{"use_cpu": not zero, "accelerator_config": {"use_configured_state": True}},
    **{"deepspeed": config if zero else None, "model_init_kwargs": {"dtype": "float32"}},
}
args = EraGRPOConfig(**settings)
model = folder if "load" in stage else start
trainer = Era(model=model, reward_funcs=reward, args=args, train_dataset=prompts(), processing_class=tokenizer())
at_start = [parameter.numel() for parameter in trainer.model.parameters()]
with contextlib.redirect_stdout(sys.stderr):
    trainer.train()
with deepspeed.zero.GatheredParameters(list(trainer.model.parameters())) if split else contextlib.nullcontext():
    reached = {name: value.clone() for name, value in weights(trainer).items()}
batches = [None, None]
dist.all_gather_object(batches, trainer.seen)
transformers.integrations.deepspeed.unset_hf_deepspeed_config()
start = load(folder)
wanted, scales = plain_grpo.trained(start, batches, trainer.args, trainer.era_config)
if dist.get_rank() == 0:
    print(
        json.dumps(
            {
                "error": plain_grpo.error(reached, wanted, start),
                "optimizer": type(getattr(trainer.model_wrapped, "optimizer", None)).__name__,
                "split at load": not any(at_start),
                "split": not any(parameter.numel() for parameter in trainer.model.parameters()),
                "samples differ": not torch.equal(batches[0][0]["completion_ids"], batches[1][0]["completion_ids"]),
                "scaled": (torch.cat(scales[:4]) != 1).double().mean().item(),
                "logged": trainer.state.log_history[0]["era/scaled_token_fraction"],
            }
        )
    )
dist.barrier()
dist.destroy_process_group()
