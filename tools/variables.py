# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""python -m tools.variables: writes the tables of the launchers' variables into the pages of the recipes."""

from pathlib import Path

from recipes import PROJECT, launch_options
from tools.pages import filled, table

PAGES = {
    PROJECT / "docs/control/recipes.md": launch_options.CONTROL,
    PROJECT / "docs/vision/recipes.md": launch_options.VISION,
}


def pages() -> dict[Path, str]:
    """The text of each page with its table."""
    heading = ("variable", "value", "default", "")
    return {
        page: filled(page.read_text(), {"variables": table(heading, launch_options.rows(launcher))})
        for page, launcher in PAGES.items()
    }


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
