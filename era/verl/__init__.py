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
"""ERA for verl 0.9.0 and 0.9.1, through verl's own points of extension: no line of verl is changed.

    main_ppo       python -m era.verl.main_ppo: verl's entry point, with the group `actor_rollout_ref.actor.era`
    compatibility  what must be installed, and which symbols of verl must be there
    config         the actor's configuration; what of the whole configuration ERA does not go together with
    trainer        verl's synchronous trainer, with ERA's workers
    worker         decides the scale of each token, or response, before an update; the policy loss
    engine         applies the scales of tokens to the logits (FSDP); those of responses are verl's own temperature

Importing this package imports neither verl nor Ray.
"""
