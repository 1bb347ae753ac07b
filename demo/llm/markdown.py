"""python -m demo.llm.markdown [FOLDER]: the finished demos of a results folder as the table in docs/llm/demo.md."""

import json
import sys
from pathlib import Path

# column: (start of the label in summary.json, format)
COLUMNS = {
    "reward, last 10": ("reward, last", "{:.2f}"),
    "reward, all": ("reward, all", "{:.2f}"),
    "distinct right of 8": ("distinct right answers of 8", "{:.1f}"),
    "of 32": ("distinct right answers of 32", "{:.1f}"),
    "pass@1 half-way": ("pass@1, validation half-way", "{:.2f}"),
    "end": ("pass@1, validation at the end", "{:.2f}"),
    "tokens scaled": ("share of tokens", "{:.3f}"),
    "s": ("seconds", "{:.0f}"),
    "GB": ("peak memory", "{:.1f}"),
}


def rows(summary: dict) -> list[str]:
    settings = summary["settings"]
    cells = [
        [settings["task"], str(settings["seed"]), name.upper(), *numbers(arm)] for name, arm in summary["arms"].items()
    ]
    return [f"| {' | '.join(row)} |" for row in cells]


def numbers(arm: dict) -> list[str]:
    entropies = " / ".join(f"{value:.3f}" for value in arm["response entropy at step"].values())
    others = [
        text.format(next(arm[label] for label in arm if label.startswith(start))) for start, text in COLUMNS.values()
    ]
    return [entropies, *others]


def markdown(summaries: list[dict]) -> str:
    header = ["task", "seed", "run", "response entropy at 1 / 50 / 100 / 150", *COLUMNS]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join(lines + [row for summary in summaries for row in rows(summary)])


def main(folder: Path) -> int:
    summaries = [json.loads(file.read_text()) for file in folder.glob("*/summary.json")]
    if not summaries:
        print(f"demo.llm.markdown: no finished demo in {folder}. Run: make demo", file=sys.stderr)
        return 1
    summaries.sort(
        key=lambda summary: (summary["settings"]["task"], summary["settings"]["steps"], summary["settings"]["seed"])
    )
    print(markdown(summaries))
    for machine in {json.dumps(summary["machine"]): summary["machine"] for summary in summaries}.values():
        packages = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        print(f"\n{machine['cores']} cores, {machine['cpu']}, {machine['system']}; {packages}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "results/demo")))
