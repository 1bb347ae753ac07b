# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m tools.declared: the tables and lists of docs/ that are printed from the code, written anew.

What is refused, from era/; the launchers' variables, from recipes/launch_options.py; what copied listings do, from
demo/copied.py. Tables of records are written by `python -m rivals.report`.
"""

from collections.abc import Mapping
from pathlib import Path

from demo import copied
from era.language_config import VERL_0_4_1, Refusal
from era.refusals import TRL, VERL_0_9
from recipes import PROJECT, launch_options
from recipes.pages import filled, table


def refusals_list(refusals: Mapping[str, Refusal]) -> str:
    """What is refused with ERA, in Markdown, without what baselines of the page refuse. The error says why."""
    return "\n".join(f"- {setting}" for setting, _, _, _, subject in refusals.values() if not subject)


def variables_table(launcher: str, linked: str | None = None) -> str:
    """The variables of one of launch_options.LAUNCHERS, in Markdown; what their values may be is in --help.

    Those that the linked launcher's table has are left out.
    """
    elsewhere = launch_options.rows(linked) if linked else []
    lines = (line for line in launch_options.rows(launcher) if line not in elsewhere)
    return table(("variable", "default", "meaning"), ((name, default, what) for name, _, default, what in lines))


def pages() -> dict[Path, str]:
    """The pages with their tables, as the code has them."""
    tables = {
        "llm/verl": {"refused": refusals_list(VERL_0_4_1)},
        "llm/verl-0.9": {"refused": refusals_list({k: v for k, v in VERL_0_9.items() if k not in VERL_0_4_1})},
        "llm/trl": {"refused": refusals_list(TRL)},
        "control/recipes": {"variables": variables_table(launch_options.CONTROL)},
        "vision/recipes": {"variables": variables_table(launch_options.VISION, launch_options.CONTROL)},
        "why-not-copy": {"copied": table(("what is copied, and where", "then", "here"), copied.lines())},
    }
    files = {PROJECT / f"docs/{name}.md": of_page for name, of_page in tables.items()}
    return {file: filled(file.read_text(), of_page) for file, of_page in files.items()}


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text)
