# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Whether an installed framework is of a release that ERA was tested with."""

import re
from typing import NamedTuple


def order(version: str) -> tuple[int, ...]:
    """A version as numbers that compare as versions do; a text without three numbers is ().

    0.9.1 is (0, 9, 1, 0); 0.9.1.dev and 0.9.1rc1, which come before it, are (0, 9, 1, -1).
    """
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)\.?(dev|a|b|rc)?", version)
    return (*map(int, parts.groups()[:3]), -bool(parts[4])) if parts else ()


class Releases(NamedTuple):
    """The releases of a framework that a plug-in was tested with.

    Attributes:
        module: the plug-in.
        framework: its name, as its users write it.
        oldest: a release before it has other interfaces, and is refused.
        newest: the tests ran with none after it, which is warned of.
        install: the command that installs one of them.
    """

    module: str
    framework: str
    oldest: str
    newest: str
    install: str

    def too_old(self, installed: str, where: str = "") -> str:
        """A sentence where the installed version is older than all of them, else ""."""
        if order(installed) >= order(self.oldest):
            return ""
        return (
            f"{self.module} is for {self.framework} {self.oldest} or newer, found {installed}"
            f"{where}. {self.install}"
        )

    def untested(self, installed: str, where: str = "") -> str:
        """A sentence where the installed version is newer than all of them, else ""."""
        if order(installed) <= order(self.newest):
            return ""
        return (
            f"{self.module} was tested with {self.framework} {self.oldest} to {self.newest}, found "
            f"{installed}{where}. {self.install}"
        )
