# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The folder of the model of an LLM run, by the standard library alone.

verl and vLLM would stop at what is wrong with it, but only after the cluster is up and the weights are loaded.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QWEN_MATH_POSITIONS = 32768  # as verl's recipe/dapo/test_dapo_7b_math.sh asks; Qwen2.5-Math itself has 4,096
# The keys of config.json for the number of positions, as in vLLM's _get_and_verify_max_len; the smallest counts.
POSITIONS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length"),
    *("max_seq_length", "seq_len"),
)


def model_problems(folder: Path, longest: int, override: int | None = None) -> Iterator[str]:
    """What the model's folder lacks for sequences of `longest` tokens.

    Args:
        override: max_position_embeddings of verl's override_config, which reaches the actor and not vLLM.
    """
    file = folder / "config.json"
    if not file.is_file():
        yield (
            f"model: no {file}. `make llm-model` downloads the paper's models; MODEL_PATH names another folder, not a "
            "name on a hub."
        )
        return
    index = folder / "model.safetensors.index.json"
    try:
        settings = json.loads(file.read_text())
        has, is_scaled = positions(settings), bool(settings.get("rope_scaling"))
        shards = {*json.loads(index.read_text())["weight_map"].values()} if index.is_file() else set()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        yield f"model: {file}, or {index.name} beside it, is not a model's: {error!r}. Mend it, or download it again."
        return
    if missing := sorted(shard for shard in shards if not (folder / shard).is_file()):
        yield f"model: {folder} lacks {', '.join(missing)} of {index.name}. Download the model again."
    elif not shards and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        yield f"model: {folder} has no weights (*.safetensors or *.bin). Download the model again."
    if override is not None and has is not None and override != has:
        yield (
            f"positions: override_config.max_position_embeddings={override}, but vLLM reads {has:g} from {file}. Write "
            "it there, and leave the override out."
        )
    elif has is not None and has < longest:
        where = "with its rope_scaling" if is_scaled else 'the line "max_position_embeddings"'
        yield (
            f"positions: prompt and response need {longest} positions, and {file} has {has:g} ({where}). For "
            f"Qwen2.5-Math, `make llm-model` makes a folder with {QWEN_MATH_POSITIONS}, as verl's DAPO recipe asks. "
            "For another model, give it more in a copy of the folder if it can have them, or set a shorter response."
        )


def positions(settings: dict[str, Any]) -> float | None:
    """How many positions the model of this config.json has; None if it has none of the usual keys.

    With rope_scaling (rope_parameters since transformers 5), vLLM multiplies them as its _get_and_verify_max_len says.
    YaRN under a name of a model's own, as deepseek_yarn, has counted its factor already: vLLM multiplies once more
    before its pull request 56446, and the model has no such positions.
    """
    settings = settings.get("text_config") or settings
    counts = [settings[key] for key in POSITIONS if settings.get(key) is not None]
    if wrong := [count for count in counts if not isinstance(count, (int, float))]:
        raise TypeError(f"the number of positions is {wrong[0]!r}, not a number")
    count = min(counts, default=None)
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type") or ""
    if count is None or kind in ("su", "longrope", "llama3") or "gemma3" in settings.get("model_type", ""):
        return count
    if kind == "yarn":
        count = rope.get("original_max_position_embeddings", count)
    elif "yarn" in kind:
        return count
    return count * rope.get("factor", 1)


def heads(folder: Path) -> tuple[int, int] | None:
    """The numbers of attention heads, and of those for keys and values; None where config.json does not say them."""
    try:
        settings = json.loads((folder / "config.json").read_text())
        settings = settings.get("text_config") or settings
        of_queries = settings.get("num_attention_heads") or settings.get("n_head")
        return (of_queries, settings.get("num_key_value_heads") or of_queries) if of_queries else None
    except (OSError, ValueError, AttributeError):  # of which model_problems has told
        return None
