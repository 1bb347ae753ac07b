# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's continuous control: FastTD3, PPO, SAC and TD-MPC2, each with ERA and without."""

from recipes.control.fasttd3 import FastTD3
from recipes.control.ppo import PPO
from recipes.control.sac import SAC
from recipes.control.tdmpc2 import TDMPC2

SCRIPTS = {name: script for script in (FastTD3, PPO, SAC, TDMPC2) for name in script.experiments}  # by experiment
