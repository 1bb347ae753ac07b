# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m recipes.vision EXPERIMENT [flags of train.py]: trains the paper's image classifiers with timm's scripts.

The same command again skips finished runs and resumes the others from their last checkpoints. Your flags come after
the run's own and win.
"""

import sys

from recipes import grid
from recipes.launch_options import VISION
from recipes.vision.timm import Timm

if __name__ == "__main__":
    sys.exit(grid.main(VISION, __doc__, Timm.experiments, lambda name, added: grid.launch(Timm(name, added))))
