"""One call of apply.py: what was asked for, and on which checkouts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path

from engine.checkout import Checkout, evaluate, in_force, lock_checkout, look
from engine.context import Context
from engine.errors import INTERRUPTED, OK, SOURCE, WRONG_BASE, Stop
from engine.project import Upstream
from engine.source import Cache


@dataclasses.dataclass
class Run:
    context: Context
    verb: str
    upstreams: dict[str, Upstream]
    names: list[str]
    named: bool  # by the user; otherwise `names` are the upstreams that a verb without names applies to
    paths: list[str]
    cache: Cache
    checkouts: Path
    checkout: Path | None
    options: argparse.Namespace
    result: dict = dataclasses.field(default_factory=dict)
    left_out: dict[str, Stop] = dataclasses.field(default_factory=dict)

    @property
    def code(self) -> int:
        return SOURCE if self.left_out else OK

    @contextlib.contextmanager
    def or_left_out(self, name: str):
        """An upstream that nobody named is left out where its source is unavailable; main() reports it at the end."""
        try:
            yield
        except Stop as stop:
            if self.named or stop.code != SOURCE:
                raise
            self.left_out[name] = stop
            self.result[name]["error"] = "\n".join(stop.lines)

    def path(self, name: str) -> Path:
        return self.checkout or self.checkouts / name

    def look(self, name: str) -> Checkout:
        return look(self.context, name, self.path(name), given=self.checkout is not None)

    def each(self):
        for name in self.names:
            yield self.upstreams[name], self.look(name)

    @contextlib.contextmanager
    def held(self):
        """The locks of all checkouts of this run, taken in one order so that two runs cannot block each other."""
        with contextlib.ExitStack() as stack:
            paths = sorted({self.path(name) for name in self.names})
            for path in [] if self.options.dry_run else paths:
                stack.enter_context(lock_checkout(self.context, path, given=self.checkout is not None))
            yield set(paths)


def refuse_interrupted(checkout: Checkout) -> None:
    if checkout.journal:
        raise Stop(
            INTERRUPTED,
            f"{checkout.path}: an earlier {checkout.journal['verb']} was cut short",
            f"run `{checkout.context.command('apply', checkout.name)}` first to complete it. Nothing was changed",
        )


def applied_record(up: Upstream, checkout: Checkout, requested: str | None = None) -> dict | None:
    """The record of an applied overlay, None where there is none (absent or clean)."""
    refuse_interrupted(checkout)
    status = evaluate(up, checkout, requested if checkout.git is None else None)
    if status.state == "wrong-base":
        raise Stop(WRONG_BASE, f"{checkout.path}: {status.note}", "nothing was changed")
    return in_force(checkout)
