# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""ERA for verl 0.9.0 and 0.9.1, through verl's own points of extension: no line of verl is changed.

    main_ppo       python -m era.verl.main_ppo: verl's entry point, with the group `actor_rollout_ref.actor.era`
    compatibility  what must be installed, and which symbols of verl must be there
    config         the actor's configuration; which settings of a run ERA does not work with
    launch         verl's launcher with ERA, which main_ppo calls: checks the configuration, before Ray starts
    trainer        verl's trainers sync and colocate_async, with ERA's workers
    worker         decides the scale of each token, or response, before an update; the policy loss
    engine         applies each token's scale to the logits (FSDP); on VeOmni the worker puts a response's into verl's
                   temperature
    megatron_engine  the same for Megatron

Importing this package imports neither verl nor Ray.
"""
