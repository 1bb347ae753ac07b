# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""verl's Megatron engine, with a scale on the logits of each token. Imported only where Megatron trains."""

import torch
from megatron.core import parallel_state
from verl.models.mcore.util import preprocess_bshd_engine, preprocess_thd_engine
from verl.utils import tensordict_utils as tu
from verl.utils.megatron_utils import unwrap_model
from verl.workers.engine import EngineRegistry, MegatronEngineWithLMHead

from era.log_probs import policy_terms
from era.verl.engine import LOGIT_SCALE, named


@EngineRegistry.register(model_type="language_model", backend="megatron", vendor="era")
class EraMegatronEngine(MegatronEngineWithLMHead):
    """A Megatron engine that gives a micro-batch with the key `era_logit_scale` log-probs of the transformed policy.

    A micro-batch without the key is verl's. All terms take one read of the logits, which the gradient overwrites. As
    verl's, they are over all columns of the logits, those with which Megatron pads the vocabulary included.

    Attributes: top_k, needs_kl and compile of EraFSDPEngine.
    """

    top_k: int | None = None
    needs_kl = False
    compile = True

    def _lm_head_logits_processor(
        self, logits, label, temperature, *, calculate_entropy, batch, data_format, **options
    ):
        if LOGIT_SCALE not in batch:
            options |= {"calculate_entropy": calculate_entropy, "batch": batch, "data_format": data_format}
            return super()._lm_head_logits_processor(logits, label, temperature, **options)
        scale = self._as_labels(batch[LOGIT_SCALE], batch, data_format)
        terms = policy_terms(
            logits,
            label,
            scale,
            temperature.clamp(min=1e-8),  # as verl's
            top_k=self.top_k,
            original=self.needs_kl,
            entropy=calculate_entropy,
            mask=scale > 0,
            inplace_backward=logits.requires_grad,
            compile=self.compile,
            group=parallel_state.get_tensor_model_parallel_group(),
        )
        return named(terms)

    def _as_labels(self, values: torch.Tensor, batch, data_format: str) -> torch.Tensor:
        """Values as verl lays out the labels, (1, tokens of this rank) or padded, with 0 where there are none.

        Args:
            values: nested (bsz, prompt + response).
        """
        config = self.engine_config
        common = {"pre_process": True, "use_fp8_padding": self.tf_config.fp8 in ("e4m3", "hybrid")}
        if data_format == "bshd":
            length = tu.get_non_tensor_data(batch, "forced_max_seqlen", None)
            return preprocess_bshd_engine(values, forced_max_seqlen=length, **common)[0]
        bucket = config.pad_to_length_bucket if config.pad_to_length else None
        layout = self._get_context_parallel_layout(unwrap_model(self.module[0]))
        return preprocess_thd_engine(values, pad_to_length_bucket=bucket, cp_layout=layout, **common)[0]
