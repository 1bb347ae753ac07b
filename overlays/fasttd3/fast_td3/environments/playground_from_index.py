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
"""mujoco_playground as released on the Python index (`pip install playground`), for FastTD3.

FastTD3 asks for a fork of it, whose environments report the observation before the automatic reset
at an episode's end (`raw_obs`). Here the released package reports it too. Where the fork is
installed, what it reports is left as it is.
"""

import difflib
import importlib.util
import subprocess
import sys
from typing import Any, Dict, Optional, Tuple

import torch
from environments import egl

__all__ = ["prepare", "registry", "wrapper_torch"]

OTHER_TASKS = "Names of other kinds of tasks begin with h1-, h1hand-, Isaac-, MTBench- or Gym-."


def refuse(message: str) -> None:
    raise SystemExit(f"error: {message}\nNothing was started.")


def import_package() -> None:
    """Imports mujoco_playground without downloading all robot models, which many tasks do not need.

    The robot models are those of mujoco_menagerie.
    """
    spec = importlib.util.find_spec("mujoco_playground")
    if spec is None:
        raise ModuleNotFoundError("No module named 'mujoco_playground'")
    sys.modules[spec.name] = package = importlib.util.module_from_spec(spec)
    from mujoco_playground._src import mjx_env

    download, mjx_env.ensure_menagerie_exists = mjx_env.ensure_menagerie_exists, lambda: None
    spec.loader.exec_module(package)
    mjx_env.ensure_menagerie_exists = download


no_egl = egl.problem()
if no_egl:
    refuse(f"{no_egl} mujoco_playground cannot be imported without them.")
try:
    import_package()
    import jax
    from mujoco_playground import dm_control_suite, registry, wrapper, wrapper_torch
    from mujoco_playground._src.mjx_env import MENAGERIE_PATH, ensure_menagerie_exists
# AttributeError, RuntimeError: versions of jax, jaxlib and brax that do not work together.
except (ImportError, AttributeError, RuntimeError) as error:
    refuse(
        f"mujoco_playground, for tasks of any other name, cannot be imported in {sys.prefix}: "
        f"{type(error).__name__}: {error}. {OTHER_TASKS} requirements/fasttd3-playground.txt of "
        "the ERA overlays is a set of versions that work together."
    )


class KeepsObservation(wrapper.Wrapper):
    """Keeps an episode's last observation, which the automatic reset above it replaces.

    The reset puts the first observation of the next episode in its place.
    """

    def reset(self, rng: jax.Array) -> Any:
        state = self.env.reset(rng)
        state.info["raw_obs"] = state.obs
        return state

    def step(self, state: Any, action: jax.Array) -> Any:
        state = self.env.step(state, action)
        state.info["raw_obs"] = state.obs
        return state


class TrueObservationsWrapper(wrapper_torch.RSLRLBraxWrapper):
    """Adds infos["observations"]["raw"], the observations before an automatic reset.

    "obs" is (num_envs, num_obs) and "critic_obs" (num_envs, num_privileged_obs), or None where the
    critic has the same.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.env.env = KeepsObservation(self.env.env)  # jit has not traced it yet

    def step(
        self, action: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, Dict[str, Any]]:
        observations, rewards, dones, infos = super().step(action)
        if "raw" not in infos["observations"]:
            raw, to_torch = self.env_state.info["raw_obs"], wrapper_torch._jax_to_torch
            if self.asymmetric_obs:
                infos["observations"]["raw"] = {
                    "obs": to_torch(raw["state"]),
                    "critic_obs": to_torch(raw["privileged_state"]),
                }
            else:
                infos["observations"]["raw"] = {"obs": to_torch(raw), "critic_obs": None}
        return observations, rewards, dones, infos


wrapper_torch.RSLRLBraxWrapper = TrueObservationsWrapper


def prepare(env_name: str, device_rank: Optional[int]) -> Optional[int]:
    """Prepare a task: refuse unknown names, and download the robot models if the task needs them.

    Returns the rank of the GPU that FastTD3 should ask JAX for, None where JAX has no GPU.
    """
    if env_name not in registry.ALL_ENVS:
        close = difflib.get_close_matches(env_name, registry.ALL_ENVS)
        hint = f", perhaps {' or '.join(close)}" if close else " of mujoco_playground"
        refuse(f"--env_name {env_name}: no such task{hint}. {OTHER_TASKS}")
    if env_name not in dm_control_suite.ALL_ENVS:
        try:
            ensure_menagerie_exists()
        except (subprocess.CalledProcessError, OSError) as error:
            refuse(
                f"--env_name {env_name} needs the robot models of mujoco_menagerie in "
                f"{MENAGERIE_PATH}, and they could not be cloned: {error}"
            )
    backend = jax.default_backend()
    if backend != "gpu" and torch.cuda.is_available():
        print(
            f"note: torch has a GPU here, JAX ({backend}) has none: "
            "install jax[cuda12], or train with --no_cuda.",
            file=sys.stderr,
        )
    return device_rank if backend == "gpu" else None
