# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA's terms in the forward of a model that TRL trains, and whether a model allows that."""

import functools
import inspect
import types
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Optional

import torch


class HeadCall:
    """What the keyword `era_call` of a forward holds.

    Deliberately not a tuple, dict or dataclass: DDP and FSDP would move and cast the tensors in
    those.

    Attributes:
        compute: takes a dict, the arguments of `fused_policy_terms` for hidden states, labels and
            head.
        labels: (B, T).
    """

    def __init__(self, compute: Callable[[dict[str, Any]], dict[str, Any]], labels: torch.Tensor):
        self.compute, self.labels = compute, labels


def add_forward(model: torch.nn.Module, args: Any) -> None:
    """Give `model` a keyword `era_call`, with which its forward ends in ERA's terms, not in logits.

    The terms are made in the forward because DDP, FSDP, PEFT and autocast wrap it. TRL 1.15 and
    newer do the same for their own head. The head computes the terms in its own forward: where
    FSDP2 shards the head apart from the model, that is where its weights are, and where its
    gradient becomes the mean over the ranks.
    """
    head, softcap = model.get_output_embeddings(), _softcap(model)
    # What was there before is kept on the instances: copy.deepcopy binds a method there to the
    # copy. In a closure it would go on to compute with the original's weights, as what TRL keeps in
    # one does. An earlier trainer of the same model has set these, and this forward replaces its.
    vars(model).setdefault("_era_plain", _inside_trls(model.forward))
    vars(head).setdefault("_era_plain", head.forward)
    model._era_fused = model.forward

    @functools.wraps(type(model).forward)  # generate() looks at the signature
    def with_era(
        self, *positional, era_call: Optional[HeadCall] = None, fused_lm_head=False, **kwargs
    ):
        if era_call is None and fused_lm_head:
            return self._era_fused(*positional, fused_lm_head=True, **kwargs)
        if era_call is None:
            return self._era_plain(*positional, **kwargs)

        states = self.base_model(*positional, **kwargs, use_cache=False)
        hidden = states.last_hidden_state[:, -era_call.labels.size(1) - 1 : -1]
        context = nullcontext()
        if args.cast_lm_head_to_fp32:
            hidden, context = hidden.float(), torch.autocast(hidden.device.type, enabled=False)
        with context:
            terms = self.get_output_embeddings()(hidden, era_call=era_call)
        if kwargs.get("output_router_logits"):
            terms["aux_loss"] = _aux_loss(self, states, kwargs["attention_mask"])
        return terms

    def head_with_era(self, hidden, era_call: Optional[HeadCall] = None):
        if era_call is None:
            return self._era_plain(hidden)
        weights = {"weight": self.weight, "bias": self.bias, "softcap": softcap}
        terms = era_call.compute({"hidden": hidden, "labels": era_call.labels, **weights})
        # Clones: writing into a view of FSDP2's output would lose its hook, and with it a gradient.
        return {name: None if term is None else term.clone() for name, term in terms.items()}

    model.forward = types.MethodType(with_era, model)
    head.forward = types.MethodType(head_with_era, head)


def _inside_trls(forward: Callable) -> Callable:
    """The model's own forward; TRL 1.15 and newer put theirs around it, once for each trainer."""
    while inspect.isfunction(function := getattr(forward, "__func__", None)):
        inner = inspect.getclosurevars(function).nonlocals.get("original_forward")
        if inner is None:
            break
        forward = inner
    return forward


def _aux_loss(model, states, attention_mask) -> torch.Tensor:
    """The loss by which a mixture balances its experts, of the outputs of the model's backbone."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    config = model.config.get_text_config()
    count = getattr(config, "num_experts", None) or config.num_local_experts
    return load_balancing_loss_func(
        states.router_logits, count, config.num_experts_per_tok, attention_mask
    )


@contextmanager
def _tried(model: torch.nn.Module):
    """Run the model as it evaluates, without a gradient.

    Weights that ZeRO-3 has split at load are gathered module by module, as in training; DeepSpeed's
    own hooks come with its engine, later.
    """
    split, handles, open_ = hasattr(model.get_output_embeddings().weight, "ds_id"), [], {}

    def gather(module, _):
        weights = list(module.parameters(recurse=False))
        open_[module] = deepspeed.zero.GatheredParameters(weights)
        open_[module].__enter__()

    def release(module, *_):
        open_.pop(module).__exit__(None, None, None)

    if split:
        import deepspeed

        for module in model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                handles.append(module.register_forward_pre_hook(gather))
                handles.append(module.register_forward_hook(release, always_call=True))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()


def makes_the_aux_loss(model: torch.nn.Module) -> bool:
    """Whether `_aux_loss` is the model's own. Some mixtures have another one, or none."""
    device = model.get_output_embeddings().weight.device
    if device.type == "meta":  # as in makes_the_logits
        return True
    ids = torch.arange(4, device=device).unsqueeze(0)
    inputs = {"input_ids": ids, "attention_mask": ids.new_ones(ids.shape)}
    try:
        with _tried(model):
            own = model(**inputs, output_router_logits=True).aux_loss
            states = model.base_model(**inputs, output_router_logits=True)
        return torch.allclose(_aux_loss(model, states, inputs["attention_mask"]), own, rtol=0.01)
    except (AttributeError, TypeError):  # what one of them needs is not there
        return False


def _softcap(model: torch.nn.Module) -> Optional[float]:
    return getattr(model.config.get_text_config(), "final_logit_softcapping", None)


def makes_the_logits(model: torch.nn.Module) -> bool:
    """Whether the model hands its last hidden state to its head and takes its logits from there.

    Some models multiply, cap or cut their logits. A small model, or a young one, has logits that a
    cap leaves as they are, so the head is made to return some as large as a training makes them:
    up to 1, 10, 100 and 1000 for four tokens. A difference by rounding is allowed.
    """
    head = model.get_output_embeddings()
    if head.weight.is_meta:  # FSDP's other ranks have loaded nothing yet; the first one looks
        return True
    taken, planted = [], []

    def plant(_, inputs, output):
        size = torch.logspace(3, 0, output[..., 0].numel(), device=output.device)
        made = size.unsqueeze(-1) * torch.linspace(-1, 1, output.size(-1), device=output.device)
        taken.append(inputs[0])
        planted.append(made.view(output.shape).to(output.dtype))
        return planted[-1]

    hook = head.register_forward_hook(plant)
    try:
        with _tried(model):
            ids = torch.arange(4, device=head.weight.device).unsqueeze(0)
            logits = model(input_ids=ids).logits
            hidden = getattr(model.base_model(input_ids=ids), "last_hidden_state", None)
    finally:
        hook.remove()
    if len(taken) != 1 or hidden is None:
        return False

    wanted = planted[0].float()
    if softcap := _softcap(model):
        wanted = softcap * torch.tanh(wanted / softcap)
    return all(
        actual.shape == expected.shape
        and bool(((actual - expected).abs().amax(-1) <= 0.01 * expected.abs().amax(-1)).all())
        for actual, expected in ((taken[0].float(), hidden.float()), (logits.float(), wanted))
    )
