# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m recipes.control EXPERIMENT [flags of the script]: trains FastTD3, PPO, SAC or TD-MPC2 and their ERA agents.

The same command again skips finished runs, resumes PPO's from their checkpoints and starts the others over, because
they keep no replay buffer. Your flags come after the run's own and win.
"""

import sys

from recipes import grid
from recipes.control import SCRIPTS
from recipes.launch_options import CONTROL

if __name__ == "__main__":
    sys.exit(grid.main(CONTROL, __doc__, SCRIPTS, lambda name, added: grid.launch(SCRIPTS[name](name, added))))
