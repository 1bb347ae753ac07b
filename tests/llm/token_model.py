# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The policies that the actor tests train, and their batches."""

import torch
from tensordict import TensorDict
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

VOCABULARY = 40
PROMPT, RESPONSE = 4, 10


class TokenConfig(PretrainedConfig):
    model_type = "token"
    num_attention_heads = num_key_value_heads = 2  # these are read by verl 0.9

    def __init__(self, bias=False, **config):
        super().__init__(**{"tie_word_embeddings": False, **config})
        self.bias = bias


class Pretrained(PreTrainedModel):
    config_class = TokenConfig

    def _init_weights(self, module):
        pass  # as torch draws them


class TokenDecoder(Pretrained):
    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 16)

    def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
        x = self.embedding(input_ids) + position_ids.unsqueeze(-1).to(self.hidden.weight.dtype) / 10
        return BaseModelOutputWithPast(last_hidden_state=torch.tanh(self.hidden(x)) * 6)


class TokenForCausalLM(Pretrained, GenerationMixin):
    """A policy that sees only its own token and position: packing and slicing cannot change what it computes.

    verl 0.9 loads models by the end of their class's name.
    """

    base_model_prefix = "model"
    _no_split_modules = ["TokenDecoder"]

    def __init__(self, config):
        super().__init__(config)
        self.model = TokenDecoder(config)
        self.lm_head = nn.Linear(16, VOCABULARY, bias=config.bias)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
        logits = self.lm_head(self.model(input_ids, attention_mask, position_ids).last_hidden_state)
        if cap := getattr(self.config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        return CausalLMOutputWithPast(logits=logits)


AutoConfig.register("token", TokenConfig)
AutoModelForCausalLM.register(TokenConfig, TokenForCausalLM)


def token(**config):
    return TokenForCausalLM(TokenConfig(**config))


def qwen2():
    """Not the demo's model: it has a padding token, whose embedding Megatron trains and transformers does not."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "eager"}
    return Qwen2ForCausalLM(Qwen2Config(**shape, **heads))


def own_tokens(model):
    """The same weights with a softmax over one token: each is a sequence of its own."""

    class OwnToken(type(model)):
        def forward(self, input_ids, position_ids=None, **_):
            logits = super().forward(input_ids=input_ids.reshape(-1, 1)).logits
            return CausalLMOutputWithPast(logits=logits.view(*input_ids.shape, -1))

    model.__class__ = OwnToken
    return model


def fuse(model):
    """verl's fused kernels: it replaces the forward of the class, for good."""
    from verl.models.transformers.monkey_patch import patch_forward_with_backends

    model.__class__ = type("Fused", (type(model),), {})
    patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend="torch")


def build_model(settings, dtype):
    """The policy that the settings of actor_step.py name."""
    make = {"qwen2": qwen2, "token": token}[settings["model"]]
    model = make(**settings.get("head", {})).to(dtype)
    if settings.get("own_tokens"):
        model = own_tokens(model)
    if settings.get("fused"):
        fuse(model)
    if settings.get("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model,
            LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["hidden"], init_lora_weights=False),
        )
    return model


def make_batch(bsz, seed, dtype):
    """Left-padded prompts, responses of lengths 1 to RESPONSE, multi-turn loss masks with holes, mixed advantages."""
    g = torch.Generator().manual_seed(seed)
    prompt_length = torch.randint(1, PROMPT + 1, (bsz,), generator=g)
    response_length = torch.randint(1, RESPONSE + 1, (bsz,), generator=g)
    response_length[0] = RESPONSE
    position = torch.arange(PROMPT + RESPONSE)
    mask = ((position >= PROMPT - prompt_length[:, None]) & (position < PROMPT + response_length[:, None])).long()
    tokens = torch.randint(VOCABULARY, mask.shape, generator=g)
    advantages = 1.5 * torch.randn(bsz, 1, generator=g).expand(bsz, RESPONSE) * mask[:, PROMPT:]
    tool = torch.rand(mask.shape, generator=g) < 0.25
    tool[1] = True  # a response without a token of the policy's own
    return TensorDict(
        {
            "input_ids": tokens,
            "responses": tokens[:, PROMPT:].clone(),
            "attention_mask": mask,
            "loss_mask": mask * ~tool,
            "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
            "advantages": advantages.to(dtype),
            "ref_log_prob": -4 * torch.rand(bsz, RESPONSE, generator=g, dtype=torch.double).to(dtype),
        },
        batch_size=[bsz],
    )
