"""python preflight.py [--environment-to-come] -- OVERRIDES: name all that a run on verl 0.9 still lacks.

OVERRIDES are those of the run. In an environment with verl, era.verl's and verl's own checks of the whole configuration
are made too; before there is one, only the values that the overrides name are checked, and the run script checks again
then. Exit code 0: nothing is missing.
"""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "recipes/llm"), str(ROOT / "recipes")]

from run_checks import (  # noqa: E402
    ACTOR,
    BATCH,
    GPUS_PER_NODE,
    NNODES,
    PROMPTS,
    Settings,
    batch_problems,
    expectations,
    flattened,
    gpu_problems,
    input_problems,
    is_there,
    lacking_packages,
    main,
    named_settings,
    python_problems,
    wrong_settings,
)

from era.verl import compatibility  # noqa: E402

CONFIG = ROOT / "recipes/llm/verl-0.9/config/era_math.yaml"
STRATEGY = f"{ACTOR}.strategy"
FETCHED = "data.gen_batch_size"
# The GPUs of a data-parallel rank, and among them those that share a sequence.
GROUPS = {
    "fsdp": (f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",),
    "megatron": tuple(
        f"{ACTOR}.megatron.{kind}_parallel_size" for kind in ("context", "tensor_model", "pipeline_model")
    ),
}
MEGATRON_MODULES = ("megatron.core", "megatron.bridge", "transformer_engine")


def read_settings(overrides: list[str]) -> tuple[Settings, list[str]]:
    """The run's settings by dotted key, and what is wrong with them.

    All of verl's settings where hydra can compose them, else those that the overrides name.
    """
    settings = named_settings(overrides)
    if not is_there("hydra") or not is_there("verl"):
        return settings, []
    if found := compatibility.problems():
        return settings, [f"packages: {problem}" for problem in found]
    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from era.verl import launch

    try:
        with hydra.initialize_config_dir(str(CONFIG.parent), version_base=None):
            config = hydra.compose(CONFIG.stem, overrides)
        settings = flattened(OmegaConf.to_container(config, resolve=True))
        launch.prepare(config)
        launch.validate_config(config, use_reference_policy=False, use_critic=False)
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        return settings, [f"settings: {error}".replace("\n", "\n    ")]
    return settings, []


def packages_problems(settings: Settings) -> list[str]:
    """What this Python lacks of what the run will import."""
    is_megatron = settings.get(STRATEGY) == "megatron" or settings.get("model_engine") == "megatron"
    modules = ["verl", "transfer_queue", *(MEGATRON_MODULES if is_megatron else ["flash_attn"])]
    where = (
        "verl makes such an environment from its own wheels and images (docs/llm/verl-0.9.md)"
        if is_megatron
        else "`make llm-qwen3-8b-era` makes one"
    )
    return lacking_packages(settings, modules, where)


def find_problems(overrides: list[str], environment_to_come: bool) -> list[str]:
    settings, problems = read_settings(overrides)
    groups = GROUPS["megatron" if settings.get(STRATEGY) == "megatron" else "fsdp"]
    verl = importlib.util.find_spec("verl")
    expected = expectations(settings, groups, verl and Path(verl.submodule_search_locations[0]))
    wrong = wrong_settings(settings, expected)
    right = {key: value for key, value in settings.items() if key not in wrong}
    problems += wrong.values()
    if not environment_to_come:
        problems += python_problems() + packages_problems(settings)
    if {NNODES, GPUS_PER_NODE} <= right.keys():
        problems += gpu_problems(right[NNODES], right[GPUS_PER_NODE], environment_to_come)
        if {*BATCH, *groups} <= right.keys():
            problems += batch_problems(right, right[NNODES] * right[GPUS_PER_NODE], PROMPTS, groups)
    return problems + input_problems(right, wrong, groups[0], FETCHED)


if __name__ == "__main__":
    sys.exit(main(__doc__, find_problems, ROOT, is_papers=False))
