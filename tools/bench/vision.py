# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time of ERA, of the paper's listing and of no activation, alone and in training steps of timm models, as ratios.

    python -m tools.bench.vision --checkout checkouts/timm [--turns 15] [--device cuda] [--csv FILE]

First the activation alone, between logits and cross-entropy, forward and backward; then whole steps of timm models:
forward, cross-entropy, backward and SGD, on a GPU with automatic mixed precision as in train.py --amp. Both eager and
compiled. What is compiled is the model or the activation; the loss stays outside, as in train.py. The listing (paper,
code:image) is reproduced here, including its unused maximum.

A step's own noise may hide the activation's share of it. So the activation is also measured alone with the step's
batch; activation_share is that divided by the step's time. OMP_NUM_THREADS sets the number of threads.
"""

import contextlib
import copy
import math
import sys
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

from tools.bench import tables

ARMS = {
    "plain": "cross-entropy",
    "listing": "the listing",
    "approx": "ERA, approx",
    "exact": "ERA, exact",
    "logged": "ERA, entropies logged",
}
INVERSES = {"approx": "approx", "exact": "exact", "logged": "approx"}
TURN_SECONDS = 0.02  # a turn repeats what is shorter


class Listing(nn.Module):
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
    return 0.6 if num_classes == 10 else 1.2  # CIFAR-10, ImageNet


def activations(num_classes):
    from timm.layers.era import EntropyRegularizingActivation as Activation

    min_entropy = paper_min_entropy(num_classes)
    era = {arm: Activation(num_classes, min_entropy, inverse=inverse) for arm, inverse in INVERSES.items()}
    return {"plain": nn.Identity(), "listing": Listing(num_classes, min_entropy), **era}


def classifiers(model):
    """A copy of a timm model for each arm."""
    from timm.layers.era import attach_era

    min_entropy = paper_min_entropy(model.num_classes)
    era = {arm: attach_era(copy.deepcopy(model), min_entropy, inverse=inverse) for arm, inverse in INVERSES.items()}
    listing = nn.Sequential(copy.deepcopy(model), Listing(model.num_classes, min_entropy))
    return {"plain": model, "listing": listing, **era}


def loss_function(arm):
    """With ERA, train.py measures the entropies of the predictions beside the loss."""
    from timm.utils.era import EntropyMeter

    return EntropyMeter(nn.CrossEntropyLoss()) if arm == "logged" else F.cross_entropy


def compiled(module, mode):
    return module if mode == "eager" or isinstance(module, nn.Identity) else torch.compile(module, dynamic=False)


def activation_step(device, batch, num_classes, activation, loss_fn):
    """A function that runs it between logits and cross-entropy, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(batch, num_classes, generator=generator)).to(device).requires_grad_()
    target = torch.randint(num_classes, (batch,), generator=generator).to(device)
    return lambda: torch.autograd.grad(loss_fn(activation(logits), target), logits)


def training_step(device, images, target, classifier, forward, loss_fn):
    """A function that takes a step. forward: the classifier, maybe compiled."""
    optimizer = torch.optim.SGD(classifier.parameters(), lr=0.0, momentum=0.9, nesterov=True)  # turns are alike
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16) if device == "cuda" else contextlib.nullcontext():
            loss = loss_fn(forward(images), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def measure(steps, args):
    """A row for each arm: seconds, and the ratios to plain and to the listing."""
    arms = {}
    for arm, step in steps.items():
        tables.seconds_of(step, args.device, 2)  # compilation, the allocator, cuDNN's choice
        repeats = max(1, round(TURN_SECONDS / tables.seconds_of(step, args.device, 3)))
        arms[arm] = partial(tables.seconds_of, step, args.device, repeats)
    return tables.ratios(tables.take_turns(arms, args.turns), ratio="plain", listing_ratio="listing")


def measure_activation(args, mode, batch, num_classes):
    torch._dynamo.reset()  # otherwise the arms of all sizes reach the limit on recompilations of one function
    modules = {arm: compiled(module.to(args.device), mode) for arm, module in activations(num_classes).items()}
    make = partial(activation_step, args.device, batch, num_classes)
    return measure({arm: make(module, loss_function(arm)) for arm, module in modules.items()}, args)


def measure_model(args, mode, name):
    import timm

    torch.manual_seed(0)
    torch._dynamo.reset()
    model, steps = timm.create_model(name, num_classes=args.classes), {}
    images = torch.randn(args.batch, *model.pretrained_cfg["input_size"], device=args.device)
    target = torch.randint(args.classes, (args.batch,), device=args.device)
    for arm, classifier in classifiers(model).items():
        classifier = classifier.to(args.device).train()
        forward = compiled(classifier, mode)
        steps[arm] = training_step(args.device, images, target, classifier, forward, loss_function(arm))
    table = measure(steps, args)
    alone = measure_activation(args, mode, args.batch, args.classes).seconds
    return table.assign(activation_share=(alone - alone["plain"]) / table.seconds["plain"])


def read_arguments():
    parser = tables.parser(__doc__, turns=15)
    tables.add_checkout(parser, "timm", "timm/layers/era.py")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    help_ = "of the logits of the activation alone (default: 64x10 256x1000 64x21841)"
    sizes = ["64x10", "256x1000", "64x21841"]
    parser.add_argument("--sizes", nargs="*", default=sizes, metavar="BATCHxCLASSES", help=help_)
    help_ = "of timm, whose steps are measured with their own image size (default: resnet50 test_resnet)"
    parser.add_argument("--models", nargs="*", default=["resnet50", "test_resnet"], metavar="MODEL", help=help_)
    parser.add_argument("--batch", type=int, help="images of a step (default: 8, on a GPU 64)")
    parser.add_argument("--classes", type=int, default=1000, help="of the models, at least 10")
    args = parser.parse_args()
    args.batch = args.batch or (64 if args.device == "cuda" else 8)
    return args


def main():
    args = read_arguments()
    sys.path.insert(0, str(args.checkout))
    import timm

    torch.backends.cudnn.benchmark = True  # as in train.py
    written = tables.Tables(args.csv, args.device)
    planned = [("activation", *map(int, text.split("x"))) for text in args.sizes]
    planned += [(name, args.batch, args.classes) for name in args.models]
    for what, batch, classes in planned:
        for mode in args.modes:
            alone = what == "activation"
            table = measure_activation(args, mode, batch, classes) if alone else measure_model(args, mode, what)
            shape = {"what": what, "batch": batch, "classes": classes, "mode": mode}
            title = f"{what}, {batch} x {classes:,} logits, {mode}"
            written.add(title, table, ARMS, **shape, turns=args.turns, timm=timm.__version__)


if __name__ == "__main__":
    main()
