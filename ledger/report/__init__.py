"""The pages: the paper's tables and figures with ours beside them, as one HTML file and in Markdown."""

import base64
from pathlib import Path

import jinja2

from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.report import text
from ledger.report.page import Page, make
from ledger.results import Collected

_TEMPLATES = Path(__file__).parent / "templates"


def write(ledger: Ledger, collected: Collected, out: Path) -> Path:
    """index.html contains its figures; report.md links to those in figures/. Returns the former."""
    try:
        return write_page(make(ledger, collected, out), out)
    except OSError as error:
        what = f"{error.filename or out} cannot be written ({error.strerror})"
        raise LedgerError(f"{what}. The pages there may be of two reports: write them again.") from None


def write_page(page: Page, out: Path) -> Path:
    """Names of files that are not UTF-8 are written with backslashes."""
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.glob("*.svg"):
        old.unlink()
    for picture in page.pictures:
        (figures / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
    (out / "report.md").write_text(render("report.md", page), encoding="utf-8", errors="backslashreplace")
    index = out / "index.html"
    index.write_text(render("index.html", page), encoding="utf-8", errors="backslashreplace")
    return index


def render(template: str, page: Page) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=template.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(symbols=text.SYMBOLS, meanings=text.MEANINGS, css=(_TEMPLATES / "style.css").read_text())
    environment.filters.update(
        number=text.number,
        measured=text.measured,
        metric=text.metric,
        counted=text.counted,
        md=text.escape_markdown,
        data_uri=lambda svg: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(),
    )
    return environment.get_template(template).render(page=page)
