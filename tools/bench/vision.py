# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time of ERA, of the paper's listing and of no activation, alone and in training steps of timm models, as ratios.

    python -m tools.bench.vision --checkout checkouts/timm [--turns 15] [--device cuda] [--csv FILE]

First the activation alone, between logits and cross-entropy, forward and backward, eager and compiled; the loss stays
outside of what is compiled, as in train.py. Then whole eager steps of timm models: forward, cross-entropy, backward and
SGD, on a GPU with automatic mixed precision as in train.py --amp. The listing (paper, code:image) is reproduced here,
including its unused maximum.

A step's own noise may hide the activation's share of it. So the activation is also measured alone with the step's
batch; activation_share is its own time divided by the step's. OMP_NUM_THREADS sets the number of threads.
"""

import contextlib
import copy
import math
import sys
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

from tools.bench import measure

PLAIN, LISTING, LOGGED = "cross-entropy", "the listing", "ERA, entropies logged"
INVERSES = {"ERA, approx": "approx", "ERA, exact": "exact", LOGGED: "approx"}
TURN_SECONDS = 0.02  # a turn repeats what is shorter


class Listing(nn.Module):
    """The paper's code:image, with its unused maximum."""

    def __init__(self, num_classes, min_entropy):
        super().__init__()
        c_h, upper_bound = math.exp(min_entropy - 1), math.log(4.0) / 4.0
        self.slope = (upper_bound - c_h / num_classes) / (1 - 1 / num_classes)
        self.b = (c_h - self.slope) / num_classes

    def forward(self, x):
        h = self.slope * x.softmax(dim=-1) + self.b
        u = -1 - torch.log(h)
        new_logits = (-1 - torch.sqrt(2 * u) - 3 / 4 * u).to(x.dtype)
        x = x - torch.max(x, dim=-1, keepdim=True).values.detach()
        return new_logits - torch.min(new_logits, dim=-1, keepdim=True).values.detach()


def paper_min_entropy(num_classes):
    """The paper's minimum in nats."""
    return 0.6 if num_classes == 10 else 1.2  # CIFAR-10, ImageNet


def activations(num_classes):
    """The module of each arm."""
    from timm.layers.era import EntropyRegularizingActivation as Activation

    min_entropy = paper_min_entropy(num_classes)
    era = {arm: Activation(num_classes, min_entropy, inverse=inverse) for arm, inverse in INVERSES.items()}
    return {PLAIN: nn.Identity(), LISTING: Listing(num_classes, min_entropy), **era}


def loss_function(arm):
    """With ERA, train.py measures the entropies of the predictions beside the loss."""
    from timm.utils.era import EntropyMeter

    return EntropyMeter(nn.CrossEntropyLoss()) if arm == LOGGED else F.cross_entropy


def compare(steps, args):
    """A row for each arm: seconds, and the ratios to plain and to the listing."""

    def repeated(step):
        once = partial(measure.cost, step, args.device, memory=False)
        once(repeats=2)  # compilation, the allocator, cuDNN's choice
        repeats = max(1, round(TURN_SECONDS / once(repeats=3)["seconds"]))
        return lambda: {"step": once(repeats=repeats)}

    arms = {arm: repeated(step) for arm, step in steps.items()}
    return measure.compare(arms, args.turns, warm_up=False, ratio=PLAIN, listing_ratio=LISTING)["step"]


def measure_activation(args, batch, num_classes, mode):
    """The table of the activation alone, between logits and cross-entropy, forward and backward."""
    torch._dynamo.reset()  # otherwise the arms of all sizes reach the limit on recompilations of one function
    generator, steps = torch.Generator().manual_seed(0), {}
    logits = (3 * torch.randn(batch, num_classes, generator=generator)).to(args.device).requires_grad_()
    target = torch.randint(num_classes, (batch,), generator=generator).to(args.device)

    def step(module, loss_fn):
        return torch.autograd.grad(loss_fn(module(logits), target), logits)

    for arm, module in activations(num_classes).items():
        if mode == "compiled" and arm != PLAIN:
            module = torch.compile(module, dynamic=False)
        steps[arm] = partial(step, module, loss_function(arm))
    return compare(steps, args)


def training_step(device, images, target, classifier, loss_fn):
    """A function that takes a step of training, of which none changes the classifier."""
    optimizer = torch.optim.SGD(classifier.parameters(), lr=0.0, momentum=0.9, nesterov=True)  # turns are alike
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16) if device == "cuda" else contextlib.nullcontext():
            loss = loss_fn(classifier(images), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def measure_model(args, name):
    """The table of steps of a timm model, with the activation's share of each."""
    import timm
    from timm.layers.era import attach_era

    torch.manual_seed(0)
    min_entropy = paper_min_entropy(args.classes)
    model, steps = timm.create_model(name, num_classes=args.classes), {}
    images = torch.randn(args.batch, *model.pretrained_cfg["input_size"], device=args.device)
    target = torch.randint(args.classes, (args.batch,), device=args.device)
    for arm in (PLAIN, LISTING, *INVERSES):
        classifier = copy.deepcopy(model)
        if arm == LISTING:
            classifier = nn.Sequential(classifier, Listing(args.classes, min_entropy))
        elif arm in INVERSES:
            attach_era(classifier, min_entropy, inverse=INVERSES[arm])
        classifier = classifier.to(args.device).train()
        steps[arm] = training_step(args.device, images, target, classifier, loss_function(arm))
    table = compare(steps, args)
    alone = measure_activation(args, args.batch, args.classes, "eager").seconds
    return table.assign(activation_share=(alone - alone[PLAIN]) / table.seconds[PLAIN])


ARGUMENTS = {
    **measure.CHECKOUT,
    **measure.DEVICE,
    "--modes": {"nargs": "+", "choices": ["eager", "compiled"], "default": ["eager", "compiled"]},
    "--sizes": {
        "nargs": "*",
        "default": ["64x10", "256x1000", "64x21841"],
        "metavar": "BATCHxCLASSES",
        "help": "of the logits of the activation alone (default: 64x10 256x1000 64x21841)",
    },
    "--models": {
        "nargs": "*",
        "default": ["resnet50", "test_resnet"],
        "metavar": "MODEL",
        "help": "of timm, whose steps are measured with their own image size (default: resnet50 test_resnet)",
    },
    "--batch": {"type": int, "help": "images of a step (default: 8, on a GPU 64)"},
    "--classes": {"type": int, "default": 1000, "help": "of the models, at least 10"},
}


def tables(args):
    """A table for each size of the logits and mode, then one for each model."""
    args.batch = args.batch or (64 if args.device == "cuda" else 8)
    sys.path.insert(0, str(args.checkout))
    import timm

    torch.backends.cudnn.benchmark = True  # as in train.py
    planned = [("activation", *map(int, size.split("x")), mode) for size in args.sizes for mode in args.modes]
    planned += [(name, args.batch, args.classes, "eager") for name in args.models]
    for what, batch, classes, mode in planned:
        rows = measure_activation(args, batch, classes, mode) if what == "activation" else measure_model(args, what)
        yield rows, {"what": what, "batch": batch, "classes": classes, "mode": mode, "timm": timm.__version__}


if __name__ == "__main__":
    measure.main(__doc__, ARGUMENTS, tables, turns=15)
