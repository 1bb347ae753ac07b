"""python -m rivals.report: writes the tables and pictures of docs/rivals/ and of PPO and SAC anew, from records/ alone.

A page has its tables between <!-- table NAME --> and <!-- end -->.
"""

import re
from pathlib import Path

from rivals import control, llm_report, records, vision
from rivals.stages import FRESH_SEEDS, TUNING_SEEDS

DOCS = records.PROJECT / "docs"
PLACE = re.compile(r"(<!-- table (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def vision_tables(folder: Path) -> dict[str, str]:
    rows = records.read(folder / "measures.csv")
    if not rows:
        return {}
    settings = vision.choose(rows, TUNING_SEEDS)
    return {
        "tuning": vision.tuning_table(rows, settings, TUNING_SEEDS),
        "results": vision.table(rows, settings, FRESH_SEEDS),
        "differences": vision.differences_table(rows, settings, FRESH_SEEDS),
        "best": vision.best_table(rows, settings, vision.best_arms(rows, settings, TUNING_SEEDS), FRESH_SEEDS),
    }


def filled(page: str, tables: dict[str, str]) -> str:
    """The page with its tables; a table that it does not have a place for is an error of the page's."""
    places = [name for _, name, _ in PLACE.findall(page)]
    if sorted(places) != sorted(tables):
        raise ValueError(f"tables: {sorted(tables)}, places in the page: {sorted(places)}")
    return PLACE.sub(lambda found: found[1] + (tables[found[2]] + "\n" if tables[found[2]] else "") + found[3], page)


def pages() -> dict[Path, str]:
    """The pages with their tables, as the records have them; without records a page stays as it is."""
    tables = {
        "rivals/llm": llm_report.tables(llm_report.read(records.RECORDS / "llm")),
        "rivals/vision": vision_tables(records.RECORDS / "vision"),
        "rivals/control": {"targets": control.ppo_table("H0 (sigma)", control.TARGETS)},
        "control/ppo": {"arms": control.ppo_table("sigma", control.ARMS)},
        "control/sac": {"alpha": control.alpha_table()},
    }
    files = {DOCS / f"{name}.md": found for name, found in tables.items() if found}
    return {file: filled(file.read_text(), found) for file, found in files.items()}


def main() -> None:
    for file, text in pages().items():
        file.write_text(text)
    if runs := llm_report.read(records.RECORDS / "llm"):
        for name, draw in llm_report.PICTURES.items():
            draw(runs, DOCS / "img" / name)
    if rows := records.read(records.RECORDS / "vision/measures.csv"):
        settings = vision.choose(rows, TUNING_SEEDS)
        vision.picture(rows, settings, FRESH_SEEDS, DOCS / "img/rivals-vision.png")
    print(f"Tables in {DOCS}/rivals and {DOCS}/control, pictures in {DOCS}/img")


if __name__ == "__main__":
    main()
