# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The readme on PyPI: docs/library.md, for a reader who has no clone. All else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

ADDRESS = re.search(r'^Repository = "(.+)"', Path("pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)


def link(match: "re.Match[str]") -> str:
    """A link to another page leads to the repository, and is plain text as long as that has no address."""
    words, page = match.groups()
    return f"[{words}]({ADDRESS[1]}/blob/main/docs/{page})" if ADDRESS else words


CLONE = {" In a clone of this project:\n": "\n", "'.[": "'era-overlays[", "install .": "install era-overlays"}

text = Path("docs/library.md").read_text(encoding="utf-8")
text = re.sub(r"\[([^\[\]]+)\]\((?!\w+:)([^()\s]+)\)", link, text)
for clone, package in CLONE.items():
    text = text.replace(clone, package)
setup(long_description=text, long_description_content_type="text/markdown")
