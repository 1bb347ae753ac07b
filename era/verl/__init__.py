# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for verl 0.9.0 and 0.9.1, through verl's own points of extension: no line of verl is changed.

    main_ppo       python -m era.verl.main_ppo: verl's entry point, with the group `actor_rollout_ref.actor.era`
    compatibility  what must be installed, and which symbols of verl must be there
    config         the actor's configuration; what of the whole configuration ERA does not go together with
    trainer        verl's synchronous trainer, with ERA's workers
    worker         decides the scale of each token, or response, before an update; the policy loss
    engine         applies the scales of tokens to the logits (FSDP); those of responses are verl's own temperature

Importing this package imports neither verl nor Ray.
"""
