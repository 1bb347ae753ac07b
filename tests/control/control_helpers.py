"""What the tests of the policies share: the activation, and the limits they use."""

import math
import os

import torch

from era import continuous as ERA  # noqa: F401

# For tensors this small, threads and processes cost more than they save.
torch.set_num_threads(1)
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

C = 0.5 * math.log(2 * math.pi * math.e)  # entropy of a Gaussian with sigma = 1, in nats
LOW, HIGH = -8.0, 0.0  # ln sigma in the paper's release
