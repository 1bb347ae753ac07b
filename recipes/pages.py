# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Tables in pages of docs/, between <!-- table NAME --> and <!-- end -->, which a program writes anew."""

import re
import textwrap
from collections.abc import Iterable, Sequence

PLACE = re.compile(r"(<!-- table (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """The Markdown of a table with this heading and these lines."""
    above, *below = (f"| {' | '.join(line)} |" for line in (heading, *lines))
    return "\n".join([above, f"|{'---|' * len(heading)}", *below])


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with these tables in their places. Raises ValueError unless it has places for exactly these."""
    places = [name for _, name, _ in PLACE.findall(page)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"tables: {sorted(tables)}, places in the page: {sorted(places)}")
    return PLACE.sub(lambda place: f"{place[1]}{tables[place[2]]}\n{place[3]}", page)


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
