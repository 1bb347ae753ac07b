# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The site in site/, as mkdocs.yml describes it, from the pages that GitHub shows: python -m tools.site

Zensical reads a copy of the pages, which differs in four ways. A link to a file that is no page leads to the address
in pyproject.toml, under [project.urls] as Repository, and is plain text as long as there is none. Lists are written as
Python-Markdown wants them. docs/api.md has the docstrings of the names in its table. Formulas, in ```math blocks or
between dollars, become MathML, which browsers show without a script. A picture leads to itself, in its own size.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib
from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor

COPY = Path("build/site-pages")
PICTURE = re.compile(r"^!\[[^\]]*\]\(([^)]+\.png)\)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^()\s#:]+)(#[^()\s]*)?\)")
# The options of mkdocstrings for a module, whose heading is the page's, and for a name in it.
MODULE, NAME = "{members: false, show_root_heading: false, show_root_toc_entry: false}", "{heading_level: 3}"
PUBLIC = re.compile(r"^\| `(era\.\w+)` \| (.*) \|$", re.MULTILINE)
# A formula in a line, by GitHub's rule, which leaves "$5 and $10" alone; and what the built page then must not have.
INLINE = r"(?<![\w$\\])\$(?!\s)([^$]*[^\s$])\$(?!\w)"
CODE, LITERAL = re.compile(r"<(code|script|style)\b.*?</\1>", re.DOTALL), re.compile(r"\$(?!\d).*|<mi>\\.*?</mi>")


def formula(latex: str, *_: Any, **__: Any) -> str:
    """The HTML of a ```math block; mkdocs.yml names this function."""
    return f'<div class="math">{convert(latex, display="block")}</div>'


class Inline(InlineProcessor):
    """A formula between dollars."""

    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(match[1])), match.start(), match.end()


class Formulas(Extension):
    """Formulas between dollars; mkdocs.yml names this class."""

    def extendMarkdown(self, md: Markdown) -> None:
        # After code (190), in which a dollar is a dollar, and before backslashes (180).
        md.inlinePatterns.register(Inline(INLINE, md), "formula", 185)


def with_links(text: str, page: Path, pages: set[Path], address: str | None) -> str:
    """The text of a page without links to files that are not among the pages."""

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match.groups()
        path = (page.parent / target).resolve()
        if path in pages or not path.exists():  # Zensical reports what does not exist
            return match[0]
        return f"[{words}]({address}/blob/main/{path.relative_to(Path.cwd())}{anchor or ''})" if address else words

    return LINK.sub(link, text)


def with_large_pictures(text: str) -> str:
    """The text of a page whose pictures lead to themselves: on a phone a tap shows them in their own size."""
    return PICTURE.sub(r"[\g<0>](\1)", text)


def with_lists(text: str) -> str:
    """The text of a page, where what belongs to an item of a list begins in column four, and the block ends before the
    next item. GitHub needs neither."""
    lines: list[str] = []
    width, in_code, in_block = 0, False, False
    for line in text.splitlines():
        item = None if in_code else re.match(r"(?:[-*]|\d+\.) +(?=\S)", line)
        if item:
            lines += [""] * in_block
            width, in_block = item.end(), False
        elif width and line.startswith(" " * width):
            in_block = in_block or not lines[-1]
            line = " " * (4 - width) + line
        elif line:
            width, in_block = 0, False
            in_code ^= line.startswith("```")
        lines.append(line)
    return "\n".join(lines) + "\n"


def with_docstrings(text: str) -> str:
    """The text of docs/api.md, in which the names of the table lead to their docstrings below it."""

    def row(match: re.Match[str]) -> str:
        module, names = match.groups()
        linked = re.sub(r"`(\w+)`", rf"[`\1`](#{module}.\1)", names)
        return f"| [`{module}`](#{module}) | {linked} |"

    sections = []
    for module, names in PUBLIC.findall(text):
        sections.append(f"## {module} {{ #{module} }}\n\n::: {module}\n    options: {MODULE}")
        sections += [f"::: {module}.{name}\n    options: {NAME}" for name in re.findall(r"`(\w+)`", names)]
    return "\n\n".join([PUBLIC.sub(row, text), *sections]) + "\n"


def copy_pages(address: str | None) -> None:
    """Copy the pages, their pictures, their style, the notebook and the examples to COPY."""
    kinds = ["*.md", "docs/*.png", "docs/*.css", "docs/*.ipynb", "examples", ":!records"]
    command = ["git", "ls-files", "-co", "--exclude-standard", *kinds]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    files = [Path(name) for name in listing.stdout.splitlines() if Path(name).exists()]
    pages = {file.resolve() for file in files}
    shutil.rmtree(COPY, ignore_errors=True)
    for file in files:
        (COPY / file).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = with_large_pictures(with_lists(with_links(file.read_text(), file, pages, address)))
            (COPY / file).write_text(with_docstrings(text) if file.name == "api.md" else text)
        else:
            shutil.copy(file, COPY / file)


def main() -> None:
    urls = tomllib.loads(Path("pyproject.toml").read_text())["project"].get("urls", {})
    copy_pages(urls.get("Repository"))
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    build = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(build.stdout)
    literal = [
        f"{page}: {line}"
        for page in sorted(Path("site").rglob("*.html"))
        for line in LITERAL.findall(CODE.sub("", page.read_text()))
    ]
    if literal:
        print("A formula, a command in one, or a dollar outside code that is no amount stays as it is:")
        print(*literal, sep="\n")
    # Zensical prints what griffe says of a docstring, which the page then lacks, but does not count it.
    if build.returncode or literal or "griffe: " in build.stdout:
        sys.exit("error: the site is not whole, for the reasons above.")
    print("The site is in site/. To read it: python3 -m http.server -d site")


if __name__ == "__main__":
    main()
