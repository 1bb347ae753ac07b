# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's FSDP engine with a scale on the logits of each token, which are read once for all that the loss takes.

What an engine does with a micro-batch before and after its logits is verl's own. The scales come with the micro-batch,
from worker.py. Megatron's engine is in megatron_engine.py; VeOmni needs none, as its scales go into verl's temperature.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.ulysses import ulysses_pad_and_slice_inputs
from verl.workers import engine as verl_engine
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine.utils import pad_packed_inputs

from era.fused_head import FusedHead
from era.log_probs import PolicyTerms, policy_terms
from era.log_probs_fused import fused_policy_terms
from era.verl.config import FSDP_TURBO

# Nested (bsz, prompt + response), fp32: the scale of the token that each position predicts.
LOGIT_SCALE = "era_logit_scale"
# Nested (bsz, prompt + response), in the model's output for the KL loss: log-probs of the original policy.
ORIGINAL_LOG_PROBS = "era_original_log_probs"
_LAID_OUT_SCALE = "era_laid_out_scale"
# Keys of a micro-batch with which verl needs more of the logits than log-probs and entropies.
_OTHER_OUTPUTS = ("calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")


def named(terms: PolicyTerms) -> dict[str, torch.Tensor]:
    """The terms that are not None, by their names in the model's output."""
    names = "log_probs", ORIGINAL_LOG_PROBS, "entropy"
    return {name: term for name, term in zip(names, terms) if term is not None}


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "npu"], vendor="era")
class EraFSDPEngine(FSDPEngineWithLMHead):
    """An FSDP engine that makes log-probs and entropies in one read of the logits, which the gradient overwrites.

    A micro-batch with the key `era_logit_scale` gets the log-probs of the transformed policy. verl calls the hooks for
    each micro-batch in this order: `prepare_model_inputs` lays out the scales in output_args and, with fused kernels,
    replaces the model's forward by `_fused_forward`, which makes the terms; `prepare_model_outputs` puts verl's forward
    back, makes the terms of the logits where there are logits, and nests them.

    Attributes:
        enable: False is verl's engine.
        top_k: take log-probs of the transformed policy over this many largest logits; None for all.
        needs_kl: the loss also needs the log-probs of the original policy.
        compile: let compiled kernels read the logits where they can.
        head: with fused kernels, the model's head; the model then returns ERA's terms instead of logits. Else None.
    """

    enable = False
    top_k: int | None = None
    needs_kl = False
    compile = True
    head: FusedHead | None = None

    def prepare_model_inputs(self, micro_batch) -> tuple[dict[str, Any], dict[str, Any]]:
        model_inputs, output_args = super().prepare_model_inputs(micro_batch)
        if LOGIT_SCALE in micro_batch:
            output_args[_LAID_OUT_SCALE] = self._scale(micro_batch, model_inputs["input_ids"].shape)
        if self.head is not None:
            self.head.replace(partial(self._fused_forward, output_args, micro_batch))
        return model_inputs, output_args

    def _fused_forward(self, output_args, micro_batch, temperature=None, labels=None, shift_labels=None, **inputs):
        """Make the terms in the place of the model's forward; PEFT and verl's kernel have the arguments not used."""
        (hidden, weight), bias_and_softcap = self.head.arguments(**inputs)
        make = partial(fused_policy_terms, hidden, weight, **bias_and_softcap)
        return self._terms(make, hidden.shape[:2], output_args, micro_batch)

    def _scale(self, micro_batch, shape: torch.Size) -> torch.Tensor:
        """The scale at each position of the logits: (1, tokens of this rank), or padded (bsz, seqlen)."""
        scale = micro_batch[LOGIT_SCALE]
        if not _is_packed(micro_batch):
            return scale.to_padded_tensor(1.0, output_size=shape)
        packed = scale.values().unsqueeze(0)
        packed, _ = pad_packed_inputs(packed, None, self._get_packed_pad_size(packed.size(-1)), pad_value=1)
        if self.use_ulysses_sp:
            packed, *_ = ulysses_pad_and_slice_inputs(packed, None, self.ulysses_sequence_parallel_size, pad_value=1)
        return packed

    def prepare_model_outputs(self, output, output_args, micro_batch, logits_processor_func) -> dict[str, torch.Tensor]:
        if self.head is not None:
            self.head.restore()
        wants_other = any(tu.get_non_tensor_data(micro_batch, key, False) for key in _OTHER_OUTPUTS)
        if not self.enable or (wants_other and _LAID_OUT_SCALE not in output_args):
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)

        # What else verl wants of the logits is verl's to make, before the gradient overwrites them.
        result = {}
        if wants_other:
            rest = micro_batch.copy()
            tu.assign_non_tensor(rest, distillation_only=True, calculate_entropy=False)
            result = super().prepare_model_outputs(output, output_args, rest, logits_processor_func)

        # With fused kernels the model has returned the terms.
        terms = output
        if self.head is None:
            inplace = not wants_other and output.logits.requires_grad
            make = partial(policy_terms, output.logits, inplace_backward=inplace)
            terms = self._terms(make, output.logits.shape[:2], output_args, micro_batch)

        offsets = micro_batch["input_ids"].offsets()
        if _is_packed(micro_batch):
            flat = {k: self._gather_and_unpad_packed(v.squeeze(0), output_args["pad_size"]) for k, v in terms.items()}
        else:
            lengths = offsets.diff().tolist()
            flat = {k: torch.cat([row[:n] for row, n in zip(v, lengths)]) for k, v in terms.items()}
        return result | {k: torch.nested.nested_tensor_from_jagged(v, offsets) for k, v in flat.items()}

    def _terms(self, make: Callable, shape: torch.Size, output_args, micro_batch) -> dict[str, torch.Tensor]:
        """The log-probs and entropies (nats) of a micro-batch, and the original log-probs, of the labels' shape.

        Args:
            make: `policy_terms` of this micro-batch's logits, whose shape is (*shape, vocabulary).
        """
        scale = output_args.get(_LAID_OUT_SCALE)
        labels, mask = output_args["input_ids_rmpad_rolled"], None
        if _is_packed(micro_batch):
            temperature, labels = output_args["temperature_rmpad"].view(1, -1), labels.view(1, -1)
        else:
            temperature = output_args["temperature"].view(-1, 1)
            offsets = micro_batch["input_ids"].offsets()
            labels = torch.nested.nested_tensor_from_jagged(labels, offsets).to_padded_tensor(0, output_size=shape)
            mask = torch.arange(shape[1], device=labels.device) < offsets.diff().unsqueeze(-1)

        needs_kl = self.needs_kl and scale is not None
        terms = make(
            labels,
            scale,
            temperature.clamp(min=1e-8).expand(labels.shape),  # as verl's
            top_k=None if scale is None else self.top_k,
            original=needs_kl,
            entropy=tu.get_non_tensor_data(micro_batch, "calculate_entropy", False),
            mask=mask,
            compile=self.compile,
        )
        return named(terms)


if hasattr(verl_engine, "FSDPTurboEngineWithLMHead"):

    @EngineRegistry.register(model_type="language_model", backend=FSDP_TURBO, device=["cuda", "npu"], vendor="era")
    class EraFSDPTurboEngine(EraFSDPEngine, verl_engine.FSDPTurboEngineWithLMHead):
        """EraFSDPEngine on verl's FSDP-Turbo engine, which derives from FSDP's and leaves the logits to it."""


def _is_packed(micro_batch) -> bool:
    return tu.get_non_tensor_data(micro_batch, "use_remove_padding", True)
