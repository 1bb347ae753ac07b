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

from .language_config import CONFIG_KEY, FUSED_REFUSALS, refuse

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
        models = [
            model
            for model in module.modules()
            if "forward_base_model" in _globals_of_forward(model) and hasattr(model, "lm_head")
        ]
        _refuse({"another model": not models and f"fused kernels with {type(module).__name__}"})
        self._model = model = models[0]

        # Logits that are more than a linear layer and a soft-cap.
        config, head = model.config.get_text_config(), model.lm_head
        self.softcap = getattr(config, "final_logit_softcapping", None)
        more = [
            f"config.{name} is {value}"
            for name, value in vars(config).items()
            if _OTHER_HEADS.search(name) and not _OF_OTHER_LOGITS.search(name)
            if value not in (None, 1)
        ]
        if not isinstance(head, torch.nn.Linear):
            more.append(f"lm_head is a {type(head).__name__}")
        kernels, name = "fused kernels", type(model).__name__
        present = {"another head": more and f"{kernels} with {name}, whose {' and '.join(more)}"}

        # The reference policy's log-probs come from verl's own kernel.
        if use_kl_loss:
            values = {"lm_head.bias": getattr(head, "bias", None), "a soft-cap": self.softcap}
            ignored = " and ".join(key for key, value in values.items() if value is not None)
            present["head of the reference policy"] = ignored and (
                f"{kernels} and a KL loss with {name}, which has {ignored}"
            )
        _refuse(present)

    def replace(self, forward: Callable) -> None:
        self._model.forward = forward

    def restore(self) -> None:
        del self._model.forward

    def arguments(self, **inputs) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, Any]]:
        """What log_probs_fused.py takes: (hidden, weight), and bias and soft-cap by name.

        To be called in the model's forward, where FSDP has gathered the weight.

        Args:
            inputs: the model's, without those for verl's kernel.
        """
        forward = _globals_of_forward(self._model)["forward_base_model"]
        hidden = forward(self._model, **inputs)[0]
        head = self._model.lm_head
        return (hidden, head.weight), {"bias": head.bias, "softcap": self.softcap}


def _globals_of_forward(model: torch.nn.Module) -> dict[str, Any]:
    """The module's names for the forward of a model's class, which verl may have replaced."""
    return getattr(type(model).forward, "__globals__", {})


def _refuse(present: dict[str, Any]) -> None:
    refuse(FUSED_REFUSALS, present, f"{CONFIG_KEY}.enable=True")
