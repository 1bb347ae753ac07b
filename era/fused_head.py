# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The head of a model with verl's fused kernels: hidden states and weight in the place of logits.

verl 0.4.1 and 0.9 both replace the forward of the model's class by one that calls verl's kernel.
ERA in turn replaces the forward of the model itself, by one that calls the functions of
era/log_probs_fused.py.
"""

import re
from typing import Any, Callable

import torch

# Keys of transformers' configurations by which some models multiply or cap their logits otherwise:
# logit_scale, logits_scaling, logits_soft_cap, output_logit_soft_cap, lm_head_multiplier,
# output_multiplier, logits_mup_width_multiplier, ... verl has replaced the forward that would tell.
_OTHER_HEADS = re.compile(r"(logits?|lm_head|output)_.*(scal|cap|multipl)")
_OF_OTHER_LOGITS = re.compile(r"attn|attention|router|final_logit_softcapping|_init_value")


class FusedHead:
    """The head of a model whose forward verl has replaced for fused kernels.

    `replace` puts another forward in the place of verl's. That forward passes what `arguments`
    returns to a function of era.log_probs_fused.

    Args:
        module: what verl trains; the model is in it.
        use_kl_loss: whether there is a reference policy, whose log-probs verl's own kernel makes.

    Raises:
        ValueError: verl has not replaced the model's forward; the model's logits are more than a
            linear layer and a soft-cap; or the head has a bias or a soft-cap, which verl's kernel
            would ignore in the reference policy.
    """

    def __init__(self, module: torch.nn.Module, use_kl_loss: bool):
        fused = "actor_rollout_ref.model.use_fused_kernels=True with ERA"
        to_do = "Set use_fused_kernels to False. Nothing was trained."
        for model in module.modules():
            self._forward_globals = getattr(type(model).forward, "__globals__", {})
            if "forward_base_model" in self._forward_globals and hasattr(model, "lm_head"):
                break
        else:
            raise ValueError(
                f"{fused} needs a text model with an lm_head whose forward verl has replaced. This "
                "is another model, or fused_kernel_options.impl_backend is none of verl's kernels. "
                f"{to_do}"
            )
        self._model, config = model, model.config.get_text_config()
        head, self.softcap = model.lm_head, getattr(config, "final_logit_softcapping", None)
        found = [
            f"config.{name} is {value}"
            for name, value in vars(config).items()
            if _OTHER_HEADS.search(name) and not _OF_OTHER_LOGITS.search(name)
            if value not in (None, 1)
        ]
        if not isinstance(head, torch.nn.Linear):
            found.append(f"lm_head is a {type(head).__name__}")
        elif use_kl_loss:
            ignored = {"lm_head.bias": head.bias, "config.final_logit_softcapping": self.softcap}
            found += [
                f"{name}, which verl's kernel for the reference policy of the KL loss ignores"
                for name, value in ignored.items()
                if value is not None
            ]
        if found:
            raise ValueError(
                f"{fused} makes the logits of {type(model).__name__} from a linear lm_head and "
                f"config.final_logit_softcapping alone, but it has {', and '.join(found)}. {to_do}"
            )

    def replace(self, forward: Callable) -> None:
        self._model.forward = forward

    def restore(self) -> None:
        del self._model.forward

    def arguments(self, **inputs) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, Any]]:
        """Hidden states (bsz, seqlen, width) and weight, and bias and soft-cap, by name.

        To be called in the model's forward, where FSDP has gathered the weight.

        Args:
            inputs: the model's, without those for verl's kernel.
        """
        hidden = self._forward_globals["forward_base_model"](self._model, **inputs)[0]
        head = self._model.lm_head
        return (hidden, head.weight), {"bias": head.bias, "softcap": self.softcap}
