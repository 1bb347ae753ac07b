# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""One call of apply.py: what was asked for, and on which checkouts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path

from engine import switch
from engine.checkout import Checkout, examine, find, refuse_unfinished
from engine.project import Upstream
from engine.session import SOURCE, Stop
from engine.source import Cache


@dataclasses.dataclass
class Call:
    """What the user asked apply.py for, and what came of it."""

    upstreams: dict[str, Upstream]
    names: list[str]
    named: bool  # by the user; otherwise `names` are those that a verb without names applies to
    paths: list[str]
    cache: Cache
    checkouts: Path
    clone: Path | None  # --checkout
    options: argparse.Namespace
    result: dict = dataclasses.field(default_factory=dict)  # for --json
    left_out: dict[str, Stop] = dataclasses.field(default_factory=dict)

    def label(self, up: Upstream) -> str | None:
        """Return the label of the version that --version asks for, None without one."""
        return up.version(self.options.version).label if self.options.version else None

    def onto(self, up: Upstream) -> str | None:
        """Return the revision that --onto asks for; `1.0.28` is as good as `v1.0.28`."""
        onto = self.options.onto
        return f"v{onto}" if f"v{onto}" in up.versions and not self.clone else onto

    def look(self, name: str, repair: bool = False) -> Checkout:
        """Return a checkout with its state. With `repair` a switch that was cut short is taken back first."""
        path = self.clone or self.checkouts / name
        checkout = find(name, path)
        if repair and checkout.git:
            if switch.recover(checkout):
                checkout = find(name, path)
            refuse_unfinished(checkout)
        return examine(self.upstreams[name], checkout, self.label(self.upstreams[name]))

    @contextlib.contextmanager
    def or_left_out(self, name: str):
        """Leave out an upstream that nobody named if its source is unavailable, and go on with the others."""
        try:
            yield
        except Stop as stop:
            if self.named or stop.code != SOURCE:
                raise
            self.left_out[name] = stop
            self.result[name] = {**self.result.get(name, {}), "error": "\n".join(stop.lines)}
