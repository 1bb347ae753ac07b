# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The frameworks of README, by their package: what drift, the wheel's trial and its check need to know of each."""

from typing import NamedTuple


class Host(NamedTuple):
    """A framework.

    Attributes:
        page: in docs/, which names the newest release that the tests ran with.
        modules: those of era that need it; the page of the wheel says how the first one is switched on.
        extra: of the wheel, which installs it; empty where none does.
        tested: the newest release that the tests ran with, if requirements/ does not pin it.
        git: the repository whose tags are its releases, if it has no package.
    """

    page: str
    modules: tuple[str, ...] = ()
    extra: str = ""
    tested: str = ""
    git: str = ""


PLUG_INS, OWN_LOOP = "control/plug-ins.md", "control/own-loop.md"
VERL = tuple(f"era.verl.{name}" for name in ("main_ppo", "launch", "config", "trainer", "worker", "engine"))
HOSTS = {
    "verl": Host("llm/verl-0.9.md", VERL, extra="verl"),
    "trl": Host("llm/trl.md", ("era.trl",), extra="trl"),
    "axolotl": Host("llm/axolotl.md", ("era.axolotl",)),
    # PyPI's slime is another project.
    "slime": Host("llm/slime.md", ("era.slime",), tested="0.3.1", git="https://github.com/THUDM/slime"),
    "timm": Host("vision/plug-in.md", ("era.timm",), extra="timm"),
    "torch": Host("release.md", tested="2.15.0"),
    "stable-baselines3": Host(PLUG_INS, ("era.stable_baselines3",), extra="stable-baselines3"),
    "sbx-rl": Host(PLUG_INS, ("era.sbx", "era.continuous_jax"), extra="sbx"),
    "rsl-rl-lib": Host(PLUG_INS, ("era.rsl_rl",), extra="rsl-rl"),
    "brax": Host(PLUG_INS, ("era.brax", "era.continuous_jax"), extra="brax"),
    **dict.fromkeys(("skrl", "torchrl", "rl-games"), Host(OWN_LOOP)),
}
