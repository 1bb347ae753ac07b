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
"""python preflight.py [--environment-to-come] -- OVERRIDES: name all that a run still lacks.

OVERRIDES are those of the run. Hydra composes them with verl's whole configuration. Before there is
an environment with hydra, only the values that the overrides name are checked; the run script
checks again once there is one. Exit code 0: nothing is missing.
"""

import importlib.util
import re
import sys
from pathlib import Path

from run_checks import (
    ACTOR,
    BATCH,
    COUNT,
    ENGINE,
    GPUS_PER_NODE,
    NNODES,
    PROMPT_LENGTH,
    PROMPTS,
    RESPONSE_LENGTH,
    RESPONSES,
    ROLLOUT,
    Settings,
    batch_problems,
    expectations,
    flattened,
    gpu_problems,
    input_problems,
    lacking_packages,
    main,
    named_settings,
    python_problems,
    wrong_settings,
)

CHECKOUT = Path(__file__).resolve().parent.parent.parent
CONFIG = CHECKOUT / "recipe/era/config/era_math.yaml"

GENERATED_PROMPTS = "data.gen_batch_size"
ULYSSES = f"{ACTOR}.ulysses_sequence_parallel_size"
CHUNKED_PREFILL = f"{ROLLOUT}.enable_chunked_prefill"
BATCHED_TOKENS = f"{ROLLOUT}.max_num_batched_tokens"


# The configuration of the run


def read_settings(overrides: list[str]) -> tuple[Settings, list[str]]:
    """The run's settings by dotted key, and what is wrong with them.

    All of verl's settings where hydra can compose them, else those that the overrides name.
    """
    if importlib.util.find_spec("hydra") is None:
        return named_settings(overrides), []
    import hydra
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    settings, problems = named_settings(overrides), []
    try:
        with hydra.initialize_config_dir(str(CONFIG.parent), version_base=None):
            config = OmegaConf.to_container(hydra.compose(CONFIG.stem, overrides), resolve=True)
        settings = flattened(config)
        problems += policy_loss_problems(config)
        problems += era_problems(config)
    except (HydraException, OmegaConfBaseException) as error:
        named = f"{error.override}: " if isinstance(error, OverrideParseException) else ""
        problems.append(f"settings: {named}{error}".replace("\n", " "))
    except (KeyError, TypeError) as error:
        problems.append(f"settings: an override deletes or replaces what verl needs ({type(error).__name__}: {error}).")
    return settings, problems


def era_problems(config: dict) -> list[str]:
    # By its path: era_config.py needs only OmegaConf, while `import verl` loads all of it.
    spec = importlib.util.spec_from_file_location("checkout_era", CHECKOUT / "verl/utils/era_config.py")
    era = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = era
    spec.loader.exec_module(era)
    try:
        era.check_trainer_config(config)
    except ValueError as error:
        return [f"settings: {error}".replace("\n", "\n    ")]
    return []


def policy_loss_problems(config: dict) -> list[str]:
    """Names that verl would refuse at the first update, after the first responses were drawn."""
    actor, model = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["model"]
    sources = [(CHECKOUT / f"verl/trainer/ppo/{name}.py").read_text() for name in ("core_algos", "gspo")]
    losses = re.findall(r'@register_policy_loss\("(\w+)"\)', "".join(sources))
    known = {
        "policy_loss.loss_mode": (actor["policy_loss"]["loss_mode"], ["vanilla", *losses]),
        "loss_agg_mode": (
            actor["loss_agg_mode"],
            re.findall(r'if loss_agg_mode == "([\w-]+)"', sources[0]),
        ),
    }
    if model.get("external_lib"):  # which may register losses of its own
        del known["policy_loss.loss_mode"]
    return [
        f"settings: {ACTOR}.{key} is {value!r}, expected one of {', '.join(names)}."
        for key, (value, names) in known.items()
        if value not in names
    ]


# The environment, the batch and the checkout


def packages_problems(settings: Settings) -> list[str]:
    """What this Python lacks of what the run will import."""
    override = "actor_rollout_ref.model.override_config."
    attention = (
        settings.get(f"{override}_attn_implementation")
        or settings.get(f"{override}attn_implementation")
        or "flash_attention_2"  # verl's default
    )
    needs_flash = attention == "flash_attention_2" or settings.get("actor_rollout_ref.model.use_remove_padding")
    modules = ["flash_attn"] if needs_flash else []
    return lacking_packages(settings, modules, "`make llm-...` makes one")


def generation_problems(settings: Settings, gpus: int) -> list[str]:
    """Where verl would stop after the start."""
    trained, n = trained_prompts(settings), settings[RESPONSES]
    prompts, generated = settings[trained], settings[GENERATED_PROMPTS]
    problems = []
    if prompts * n % gpus:
        problems.append(
            f"batch: {trained}={prompts} x {RESPONSES}={n} = {prompts * n} responses do not divide among {gpus} GPUs."
        )
    if generated % gpus:
        problems.append(f"batch: {GENERATED_PROMPTS}={generated} prompts do not divide among {gpus} GPUs.")
    return problems


def trained_prompts(settings: Settings) -> str:
    """The filter of recipe/dapo cuts what was generated to train_batch_size.

    Without it all of that is trained on.
    """
    return PROMPTS if settings.get("algorithm.filter_groups.enable") else GENERATED_PROMPTS


def recipe_problems() -> list[str]:
    if (CHECKOUT / "recipe/dapo/main_dapo.py").is_file():
        return []
    return [
        "recipe: this checkout has no recipe/dapo, because it was made from the source package, "
        "which lacks it. Make it from git: python apply.py apply verl --source git --checkouts "
        "<an empty folder>."
    ]


def chunked_prefill_problems(settings: Settings) -> list[str]:
    prompt, response = settings[PROMPT_LENGTH], settings[RESPONSE_LENGTH]
    is_chunked = settings[ENGINE] == "vllm" and settings.get(CHUNKED_PREFILL)
    if not is_chunked or settings[BATCHED_TOKENS] >= prompt + response:
        return []
    return [
        f"lengths: verl wants {BATCHED_TOKENS}={settings[BATCHED_TOKENS]} to hold "
        f"{PROMPT_LENGTH}={prompt} + {RESPONSE_LENGTH}={response} = {prompt + response} tokens."
    ]


def find_problems(overrides: list[str], environment_to_come: bool) -> list[str]:
    settings, problems = read_settings(overrides)
    expected = expectations(settings, (GENERATED_PROMPTS, ULYSSES), CHECKOUT / "verl")
    if settings.get(ENGINE) == "vllm" and settings.get(CHUNKED_PREFILL):
        expected[BATCHED_TOKENS] = COUNT
    wrong = wrong_settings(settings, expected)
    right = {key: value for key, value in settings.items() if key not in wrong}
    problems += wrong.values()
    if not environment_to_come:
        problems += python_problems() + packages_problems(settings)
    if {NNODES, GPUS_PER_NODE} <= right.keys():
        nodes = (right[NNODES], right[GPUS_PER_NODE])
        slurm = ", or submit recipe/era/slurm_ray.sbatch"
        problems += gpu_problems(*nodes, environment_to_come, slurm)
        if {*BATCH, GENERATED_PROMPTS, ULYSSES} <= right.keys():
            gpus = nodes[0] * nodes[1]
            problems += batch_problems(right, gpus, trained_prompts(right), [ULYSSES])
            problems += generation_problems(right, gpus)
    if {PROMPT_LENGTH, RESPONSE_LENGTH, ENGINE, BATCHED_TOKENS} <= right.keys():
        problems += chunked_prefill_problems(right)
    problems += input_problems(right, wrong, ULYSSES, GENERATED_PROMPTS)
    return problems + recipe_problems()


if __name__ == "__main__":
    sys.exit(main(__doc__, find_problems, CHECKOUT))
