# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The same numbers in less time: upstream's passes as graphs of torch operations.

With networks of 64 units most of the time goes to Python and to autograd's bookkeeping. So each
pass is recorded once, as the torch operations that upstream's own functions run (those of the
policy's loss are written out below), and TorchScript runs these without Python. The parameters of a
network lie in one tensor, which torch's function of Adam updates without the optimizer's
bookkeeping. The operations and the random numbers are upstream's, so all results are, to the bit.
"""

import argparse
from collections.abc import Callable

import eapo
import era_ppo
import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.adam import adam

MAX_NORM = 0.5  # of upstream's gradient clipping
ARITHMETIC = tuple(getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div"))


def keep_numbers_converted(operations: GraphModule) -> None:
    """Replaces numbers in float32 arithmetic by tensors: TorchScript converts a number at each run.

    The tensors have shape (1,): TorchScript would turn a scalar tensor back into a number.
    """
    graph = operations.graph
    for node in graph.nodes:
        if node.target not in ARITHMETIC or not isinstance(node.args[1], (int, float)):
            continue
        result, name = node.meta["val"], f"second_of_{node.name}"
        if result.dim() > 0 and result.dtype == torch.float:
            operations.register_buffer(name, torch.tensor([float(node.args[1])]))
            with graph.inserting_before(node):
                node.update_arg(1, graph.get_attr(name))
    operations.recompile()


class Call(nn.Module):
    """function(network, *inputs) as a module, for functional_call."""

    def __init__(self, network: nn.Module, function: Callable):
        super().__init__()
        self.network, self.function = network, function

    def forward(self, *inputs: torch.Tensor):
        return self.function(self.network, *inputs)


class Flat:
    """A network whose trained parameters are views of one tensor, and the Adam of that tensor."""

    def __init__(self, network: nn.Module, optimizer: torch.optim.Adam):
        self.network = network
        trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.names = [f"network.{name}" for name in trained]
        parameters = list(trained.values())
        # Large ones first: weights then start at multiples of 64 bytes, as upstream's do. From
        # other addresses, MKL on an AMD processor adds up products in another order.
        self.order = sorted(range(len(parameters)), key=lambda i: -parameters[i].numel())
        self.whole = self.laid_out([p.detach() for p in parameters])
        begin = 0
        for parameter in (parameters[i] for i in self.order):
            end = begin + parameter.numel()
            parameter.data = self.whole[begin:end].view_as(parameter)
            begin = end
        self.parameters = [p.detach() for p in parameters]
        settings = {key: optimizer.defaults[key] for key in ("lr", "eps")}
        self.optimizer = torch.optim.Adam([self.whole], **settings)

    def laid_out(self, tensors: list) -> torch.Tensor:
        return torch.cat([tensors[i].flatten() for i in self.order])

    def recorded(self, function: Callable, *example: torch.Tensor) -> Callable:
        """function(parameters, *inputs) without Python, for this network's parameters."""
        operations = make_fx(function)(self.parameters, *example)
        keep_numbers_converted(operations)
        count = len(self.parameters)

        def flat(*tensors):
            return operations(list(tensors[:count]), *tensors[count:])

        with torch.no_grad():
            graph = torch.jit.trace(flat, (*self.parameters, *example), check_trace=False)

        def run(*inputs):
            with torch.inference_mode():
                return graph(*self.parameters, *inputs)

        return run

    def value(self, function: Callable, *example: torch.Tensor) -> Callable:
        """function(network, *inputs), recorded."""
        call = Call(self.network, function)

        def value(parameters, *inputs):
            return functional_call(call, dict(zip(self.names, parameters)), inputs)

        return self.recorded(value, *example)

    def gradient(self, loss: Callable, clips: bool, *example: torch.Tensor) -> Callable:
        """The gradient of loss(network, *inputs), recorded; 1D, and clipped as upstream clips."""
        call = Call(self.network, loss)

        def gradient(parameters, *inputs):
            with torch.enable_grad():
                leaves = [parameter.detach().requires_grad_() for parameter in parameters]
                value = functional_call(call, dict(zip(self.names, leaves)), inputs)
                parts = torch.autograd.grad(value, leaves)
            whole = self.laid_out(parts)
            if clips:
                norms = torch.stack([torch.linalg.vector_norm(part) for part in parts])
                norm = torch.linalg.vector_norm(norms)
                whole = whole * torch.clamp(MAX_NORM / (norm + 1e-6), max=1.0)
            return whole

        return self.recorded(gradient, *example)

    def step(self, gradient: torch.Tensor) -> None:
        state, (group,) = self.optimizer.state[self.whole], self.optimizer.param_groups
        if not state:  # the optimizer makes it
            self.whole.grad = gradient
            self.optimizer.step()
            return
        beta1, beta2 = group["betas"]
        adam(
            *([self.whole], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]]),
            *([], [state["step"]]),
            **dict(lr=group["lr"], beta1=beta1, beta2=beta2, eps=group["eps"], weight_decay=0.0),
            **dict(amsgrad=False, maximize=False, foreach=False),
        )


class Fast:
    """Runs the passes of upstream's agent."""

    def __init__(self, agent, args: argparse.Namespace):
        Distribution.set_default_validate_args(False)
        self.mini_batch_size = args.mini_batch_size
        self.actor = Flat(agent.actor, agent.optimizer_actor)
        self.critic = Flat(agent.critic, agent.optimizer_critic)
        agent.optimizer_actor, agent.optimizer_critic = self.actor.optimizer, self.critic.optimizer

        def policy_loss(actor, state, action, old_log_prob, advantage):
            policy = actor.get_dist(state)
            entropy = policy.entropy().sum(1, keepdim=True)
            log_prob = policy.log_prob(action).sum(1, keepdim=True)
            ratio = torch.exp(log_prob - old_log_prob.sum(1, keepdim=True))
            clipped = torch.clamp(ratio, 1 - agent.epsilon, 1 + agent.epsilon_high)
            surrogate = torch.min(ratio * advantage, clipped * advantage)
            loss = -surrogate - agent.entropy_coef * entropy
            return era_ppo.mean_of_selected(loss, entropy, agent.selective)

        def value_loss(critic, state, value):
            return eapo.value_loss(value, critic(state))

        def act(actor, state):
            policy = actor.get_dist(state)
            action = torch.clamp(policy.sample(), -agent.max_action, agent.max_action)
            return action, policy.log_prob(action)

        # A tensor of its own for each input: make_fx takes one that is given twice for one input.
        widths = (args.state_dim, args.action_dim, args.action_dim, 1, eapo.value_outputs(args))
        states, actions, log_probs, advantages, values = (
            torch.zeros(args.mini_batch_size, width) for width in widths
        )
        clips = agent.use_grad_clip
        self.policy_gradient = self.actor.gradient(
            policy_loss, clips, states, actions, log_probs, advantages
        )
        self.value_gradient = self.critic.gradient(value_loss, clips, states, values)
        random_state = torch.get_rng_state()  # recording draws an action
        self.state = np.zeros((1, args.state_dim), np.float32)
        self.input = torch.from_numpy(self.state)
        self.act = self.actor.value(act, self.input)
        self.mean = self.actor.value(lambda actor, state: actor(state), self.input)
        torch.set_rng_state(random_state)
        agent.choose_action, agent.evaluate = self.choose_action, self.evaluate

    def choose_action(self, state: np.ndarray):
        self.state[0] = state
        action, log_prob = self.act(self.input)
        return action.numpy()[0], log_prob.numpy()[0]

    def evaluate(self, state: np.ndarray) -> np.ndarray:
        self.state[0] = state
        return self.mean(self.input).numpy()[0]

    def epoch(self, state, action, log_prob, advantage, value) -> None:
        """A step of the policy and one of the critic on each mini-batch of a batch's tensors."""
        for index in torch.randperm(len(state)).split(self.mini_batch_size):  # upstream's sampler
            states = state[index]
            self.actor.step(
                self.policy_gradient(states, action[index], log_prob[index], advantage[index])
            )
            self.critic.step(self.value_gradient(states, value[index]))
