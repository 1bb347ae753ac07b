# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m era.verl.main_ppo: verl's entry point, with ERA as `actor_rollout_ref.actor.era`.

Takes the overrides of `python -m verl.trainer.main_ppo`. With `actor_rollout_ref.actor.era.enable=True` the actor's
configuration, worker and trainer are ERA's; otherwise verl's own code runs, and no other.
"""

import sys

from era.verl import compatibility


def main() -> None:
    """Check the version of verl, then train with era.verl.launch."""
    if problems := compatibility.problems():
        sys.exit("error: " + "\nerror: ".join(problems) + "\nNothing was started.")
    if untested := compatibility.warning():
        print(f"warning: {untested}", file=sys.stderr)
    from era.verl import launch

    launch.main()


if __name__ == "__main__":
    main()
