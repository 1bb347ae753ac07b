# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m tools.refusals: the tables of docs/llm that say what is refused, from its declarations in era/."""

from collections.abc import Mapping
from pathlib import Path

from era.language_config import ACTOR, VERL_0_4_1, Refusal
from era.refusals import TRL, VERL_0_9
from tools.pages import filled, table

DOCS = Path(__file__).parents[1] / "docs/llm"


def refusals_table(refusals: Mapping[str, Refusal]) -> str:
    """In Markdown; a refusal that is not ERA's names its subject."""
    lines = []
    for setting, why, instead, _, subject in refusals.values():
        lines.append((f"{subject.replace(f'{ACTOR}.', '')}: {setting}" if subject else setting, why, instead))
    return table(("refused", "because", "instead"), lines)


def pages() -> dict[Path, str]:
    """The pages with their tables, as the declarations have them."""
    refusals = {DOCS / "verl.md": VERL_0_4_1, DOCS / "verl-0.9.md": VERL_0_9, DOCS / "trl.md": TRL}
    return {file: filled(file.read_text(), {"refused": refusals_table(refusals[file])}) for file in refusals}


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text)
