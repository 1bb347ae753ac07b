# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""verl's FSDP engine, with a scale on the logits of each token."""

from typing import Any

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.ulysses import ulysses_pad_and_slice_inputs
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine.utils import pad_packed_inputs

from era.language import divide_rows_, logprobs

# Nested (bsz, prompt + response), fp32: the scale of the token that each position predicts.
LOGIT_SCALE = "era_logit_scale"
# Nested (bsz, prompt + response), in the model's output for the KL loss: log-probs of the original policy.
ORIGINAL_LOG_PROBS = "era_original_log_probs"
_DIVISOR = "era_divisor"


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "npu"], vendor="era")
class EraFSDPEngine(FSDPEngineWithLMHead):
    """A micro-batch with the key `era_logit_scale` gets the log-probs of the transformed policy, any other verl's.

    Attributes:
        top_k: take log-probs over this many largest logits; None for all.
        needs_kl: the loss also needs the log-probs of the original policy.
        scales_apart: the logits themselves stay those of the original policy, for the KL loss, the entropies or the
            top-k filter. Otherwise the division by the temperature applies the scale.
    """

    top_k: int | None = None
    needs_kl = False
    scales_apart = False

    def prepare_model_inputs(self, micro_batch) -> tuple[dict[str, Any], dict[str, Any]]:
        model_inputs, output_args = super().prepare_model_inputs(micro_batch)
        if LOGIT_SCALE in micro_batch:
            output_args[_DIVISOR] = self._divisor(micro_batch, output_args, model_inputs["input_ids"].shape)
        return model_inputs, output_args

    def _divisor(self, micro_batch, output_args: dict[str, Any], shape: torch.Size) -> torch.Tensor:
        """Temperature / scale at each position of the logits: (1, tokens of this rank), or padded (bsz, seqlen)."""
        scale = micro_batch[LOGIT_SCALE]
        if not _is_packed(micro_batch):
            return output_args["temperature"].unsqueeze(-1) / scale.to_padded_tensor(1.0, output_size=shape)
        packed = scale.values().unsqueeze(0)
        packed, _ = pad_packed_inputs(packed, None, self._get_packed_pad_size(packed.size(-1)), pad_value=1)
        if self.use_ulysses_sp:
            packed, *_ = ulysses_pad_and_slice_inputs(packed, None, self.ulysses_sequence_parallel_size, pad_value=1)
        return output_args["temperature_rmpad"] / packed

    def prepare_model_outputs(self, output, output_args, micro_batch, logits_processor_func) -> dict[str, torch.Tensor]:
        divisor = output_args.pop(_DIVISOR, None)
        if divisor is None:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        name = "temperature_rmpad" if _is_packed(micro_batch) else "temperature"
        if not self.scales_apart:
            output.logits = divide_rows_(output.logits, divisor.unsqueeze(-1))
            # verl 0.9.1 skips the division by 1; 0.9.0 knows no such flag and divides.
            output_args |= {name: torch.ones_like(output_args[name]), "temperature_is_one": True}
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        entropy_alone = micro_batch.copy()
        tu.assign_non_tensor(entropy_alone, distillation_only=True)  # verl's switch for "no log-probs"
        result = super().prepare_model_outputs(output, output_args, entropy_alone, logits_processor_func)
        temperature = output_args[name].to(divisor.dtype).view(divisor.size(0), -1).expand_as(divisor)
        return result | self._log_probs(output.logits, output_args, micro_batch, temperature, divisor)

    def _log_probs(self, logits, output_args, micro_batch, temperature, divisor) -> dict[str, torch.Tensor]:
        labels = output_args["input_ids_rmpad_rolled"]
        offsets = micro_batch["input_ids"].offsets()
        if _is_packed(micro_batch):
            labels = labels.unsqueeze(0)
        else:
            labels = torch.nested.nested_tensor_from_jagged(labels, offsets)
            labels = labels.to_padded_tensor(0, output_size=divisor.shape)
        if not self.needs_kl:
            found = {"log_probs": logprobs(logits, labels, 1 / divisor, self.top_k)}
        elif self.top_k is None:  # both in one sweep over the logits
            both = logprobs(logits, labels, torch.stack([1 / temperature, 1 / divisor], dim=-1))
            found = dict(zip((ORIGINAL_LOG_PROBS, "log_probs"), both.unbind(-1)))
        else:
            found = {
                ORIGINAL_LOG_PROBS: logprobs(logits, labels, 1 / temperature),
                "log_probs": logprobs(logits, labels, 1 / divisor, self.top_k),
            }
        if _is_packed(micro_batch):
            flat = {k: self._gather_and_unpad_packed(v.squeeze(0), output_args["pad_size"]) for k, v in found.items()}
        else:
            lengths = offsets.diff().tolist()
            flat = {k: torch.cat([row[:n] for row, n in zip(v, lengths)]) for k, v in found.items()}
        return {k: torch.nested.nested_tensor_from_jagged(v, offsets) for k, v in flat.items()}


def _is_packed(micro_batch) -> bool:
    return tu.get_non_tensor_data(micro_batch, "use_remove_padding", True)
