# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Time of ERA, of the paper's listing and of no activation, alone and in steps of timm models, as ratios.

    python -m tools.bench.vision --checkout checkouts/timm [--turns 15] [--device cuda] [--csv FILE]

First the activation alone, between logits and cross-entropy; then whole steps of timm models: forward, cross-entropy,
backward and SGD, on a GPU with automatic mixed precision as in train.py --amp. Both are measured in training, and in
evaluation without gradients, eager and compiled. What is compiled is the model or the activation; the loss stays
outside, as in train.py. The listing (paper, code:image) is reproduced here, including its unused maximum.

A step's own noise may hide the activation's share of it. So the activation is also measured alone with the step's
batch, and the last column is its time divided by the step's. Memory is what autograd keeps for the backward pass.
OMP_NUM_THREADS sets the number of threads.
"""

import argparse
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
PASSES = ("training", "evaluation")
COLUMNS = {
    "ms": ("seconds", 1e3, 3),
    "x plain": ("ratio", 1, 3),
    "p20-p80": ("ratio", 1, 3, True),
    "x listing": ("listing_ratio", 1, 3),
    "kept, MiB": ("kept_mib", 1, 2),
    "alone, %": ("alone_share", 100, 3),
}


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
    from timm.layers.era import EntropyRegularizingActivation

    min_entropy = paper_min_entropy(num_classes)
    era = {
        arm: EntropyRegularizingActivation(num_classes, min_entropy, inverse=inverse)
        for arm, inverse in INVERSES.items()
    }
    return {"plain": nn.Identity(), "listing": Listing(num_classes, min_entropy), **era}


def classifiers(model):
    """A copy of a timm model for each arm."""
    from timm.layers.era import attach_era

    min_entropy = paper_min_entropy(model.num_classes)
    era = {arm: attach_era(copy.deepcopy(model), min_entropy, inverse=inverse) for arm, inverse in INVERSES.items()}
    return {
        "plain": model,
        "listing": nn.Sequential(copy.deepcopy(model), Listing(model.num_classes, min_entropy)),
        **era,
    }


def loss_function(arm):
    """With ERA, train.py measures the entropies of the predictions beside the loss."""
    from timm.utils.era import EntropyMeter

    return EntropyMeter(nn.CrossEntropyLoss()) if arm == "logged" else F.cross_entropy


def compiled(module, mode):
    return module if mode == "eager" or isinstance(module, nn.Identity) else torch.compile(module, dynamic=False)


def activation_runs(args, batch, num_classes, pass_, mode):
    """For each arm a function that runs it once, and one that runs only what keeps tensors for the backward pass."""
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(batch, num_classes, generator=generator)).to(args.device)
    logits.requires_grad_(pass_ == "training")
    target = torch.randint(num_classes, (batch,), generator=generator).to(args.device)

    def functions(activation, loss_fn):
        def loss():
            return loss_fn(activation(logits), target)

        def train():
            logits.grad = None
            loss().backward()

        return (train if pass_ == "training" else loss), loss

    return {
        arm: functions(compiled(module.to(args.device), mode), loss_function(arm))
        for arm, module in activations(num_classes).items()
    }


def step_runs(args, model, pass_, mode):
    """Like activation_runs, for training steps or evaluations of a model."""
    images = torch.randn(args.batch, *model.pretrained_cfg["input_size"], device=args.device)
    target = torch.randint(model.num_classes, (args.batch,), device=args.device)

    def functions(classifier, loss_fn):
        classifier = classifier.to(args.device).train(pass_ == "training")
        # lr=0: the weights stay, so that all turns are alike.
        optimizer = torch.optim.SGD(classifier.parameters(), lr=0.0, momentum=0.9, nesterov=True)
        scaler = torch.amp.GradScaler(args.device, enabled=args.device == "cuda")
        forward = compiled(classifier, mode)

        def loss():
            with torch.autocast(args.device, torch.float16) if args.device == "cuda" else contextlib.nullcontext():
                return loss_fn(forward(images), target)

        def train():
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            scaler.step(optimizer)
            scaler.update()

        return (train if pass_ == "training" else loss), loss

    return {arm: functions(classifier, loss_function(arm)) for arm, classifier in classifiers(model).items()}


def kept_mib(loss):
    """MiB that autograd keeps between forward and backward pass, without parameters; each storage counts once."""
    kept = []

    def keep(tensor):
        if not isinstance(tensor, nn.Parameter):
            kept.append(tensor)  # keeps its storage's address from being reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = loss()  # its graph holds the tensors
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    del result
    return sum(sizes.values()) / 2**20


def measure(args, runs, pass_):
    """A row for each arm: seconds, the ratios to plain and to the listing, and MiB kept in training."""
    with torch.set_grad_enabled(pass_ == "training"):
        arms = {}
        for arm, (run, _) in runs.items():
            for _ in range(2):  # compilation, the allocator, cuDNN's choice
                run()
            repeats = max(1, round(tables.TURN_SECONDS / tables.seconds_of(run, args.device, 3)))
            arms[arm] = partial(tables.seconds_of, run, args.device, repeats)
        seconds = tables.take_turns(arms, args.turns)
        kept = {arm: kept_mib(loss) if pass_ == "training" else None for arm, (_, loss) in runs.items()}
    beside_listing = tables.ratios(seconds, dict.fromkeys(runs, "listing"), "listing_ratio").filter(like="listing")
    table = tables.ratios(seconds, dict.fromkeys(runs, "plain")).join(beside_listing)
    return table.assign(kept_mib=kept, alone_share=None)


def measure_activation(args, batch, num_classes, pass_, mode):
    torch._dynamo.reset()  # otherwise the arms of all sizes reach the limit on recompilations of one function
    return measure(args, activation_runs(args, batch, num_classes, pass_, mode), pass_)


def measure_steps(args, name, pass_, mode):
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=args.classes)
    torch._dynamo.reset()
    table = measure(args, step_runs(args, model, pass_, mode), pass_)
    alone = measure_activation(args, args.batch, args.classes, pass_, mode).seconds
    return table.assign(alone_share=(alone - alone["plain"]) / table.seconds["plain"])


def size(text):
    batch, _, classes = text.partition("x")
    if not (batch.isdigit() and classes.isdigit() and int(batch) >= 1 and int(classes) >= 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not BATCHxCLASSES, such as 256x1000, with at least 10 classes")
    return int(batch), int(classes)


def read_arguments():
    parser = tables.parser(__doc__, turns=15)
    tables.add_checkout(parser, "timm", "timm/layers/era.py")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    help_ = "of the logits of the activation alone (default: 64x10 256x1000 64x21841)"
    sizes = [(64, 10), (256, 1000), (64, 21841)]
    parser.add_argument("--sizes", type=size, nargs="*", default=sizes, metavar="BATCHxCLASSES", help=help_)
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
    machine, written = {**tables.machine(args.device), "timm": timm.__version__}, []
    planned = [("activation", *size_, measure_activation, size_) for size_ in args.sizes]
    planned += [(name, args.batch, args.classes, measure_steps, (name,)) for name in args.models]
    for what, batch, classes, measure_table, arguments in planned:
        for mode in args.modes:
            for pass_ in PASSES:
                table = measure_table(args, *arguments, pass_, mode)
                title = f"{what}, {batch} x {classes:,} logits, {pass_}, {mode}"
                tables.show(title, table.rename(index=ARMS), COLUMNS)
                shape = {"what": what, "batch": batch, "classes": classes, "pass": pass_, "mode": mode}
                written.append(table.assign(**shape, turns=args.turns, **machine))
                tables.write_csv(args.csv, written)


if __name__ == "__main__":
    main()
