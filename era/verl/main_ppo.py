# Copyright 2026 The ERA overlays authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""python -m era.verl.main_ppo: verl's entry point, with ERA as `actor_rollout_ref.actor.era`.

Takes the overrides of `python -m verl.trainer.main_ppo`. With `actor_rollout_ref.actor.era.enable=True` the actor's
configuration, worker and trainer are ERA's; otherwise verl's own code runs, and no other.
"""

import sys

from era.verl import compatibility


def main() -> None:
    if found := compatibility.problems():
        sys.exit("error: " + "\nerror: ".join(found) + "\nNothing was started.")
    from era.verl import launch

    launch.main()


if __name__ == "__main__":
    main()
