# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Both graders on the same texts: the ground truths of the six mathematical sets, in forms in which models write them.

    python -m tools.compare_graders OUT [--sets NAME ...]

Of each text it is known whether it is right. OUT/SET.jsonl gets a line for each text, with both judgements; a set whose
file is there is not graded again. The table counts wrong judgements, and who is right where the graders differ.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.llm import models
from recipes.llm import evaluate, grading
from recipes.llm.release import Release

NUMBER = re.compile(r"[-+]?\d*\.?\d+")
WHOLE = re.compile(r"(?<![\d.])\d+(?![\d.])")
THOUSANDS = re.compile(r"(?:\\\$)?\d{1,3}(?:,(?:\\!)?\s*\d{3})+")
UNIT = re.compile(
    r"\\\$(?P<dollars>\d[\d,.\\!]*)|(?P<number>-?\d+(?:\.\d+)?|\\frac\{\d+\}\d)"
    r"(?:\^\\circ|\^\{\\circ\}|\s*\\?%|\s*\\(?:text|mbox)\{ \w+\}(?:\^\d)?)"
)


def every(truth: str) -> list[str]:
    return [truth]


def number(truth: str) -> list[str]:
    return [truth] if NUMBER.fullmatch(truth) else []


def with_unit(truth: str) -> list[str]:
    return [truth] if UNIT.fullmatch(truth) else []


def without_unit(truth: str) -> list[str]:
    unit = UNIT.fullmatch(truth)
    return [unit["dollars"] or unit["number"]] if unit else []


def other_unit(truth: str) -> list[str]:
    return [rf"{bare}\text{{ kg}}" for bare in without_unit(truth)]


def values(truth: str) -> list[str]:
    """The different values that commas outside of brackets part; none where there is one value."""
    depth, found = 0, [""]
    for sign in truth:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    found = [value.strip() for value in found]
    is_list = len({*found}) == len(found) > 1 and not THOUSANDS.fullmatch(truth) and "where" not in truth
    return found if is_list else []


def spoken(truth: str) -> list[str]:
    *others, last = [f"${value}$" for value in values(truth)] or [""]
    return [f"{', '.join(others)} and {last}"] if others else []


def reversed_values(truth: str) -> list[str]:
    return [", ".join(reversed(values(truth)))] if values(truth) else []


def first_value(truth: str) -> list[str]:
    return values(truth)[:1]


def raised(truth: str) -> list[str]:
    first = [*WHOLE.finditer(truth)][:6]  # 2,242 of 2,441: a few truths have dozens
    return [f"{truth[: n.start()]}{int(n[0]) + 1}{truth[n.end() :]}" for n in first]


# What a text says, what stands in it for GT, and whether it is right.
FORMS = (
    (r"\boxed{GT}", "", every, True),
    (r"\boxed{\displaystyle GT}", "", every, True),
    (r"\boxed{ GT . }", "a full stop in the box", every, True),
    (r"\fbox{GT}", "", every, True),
    ("The final answer is $GT$.", "", every, True),
    ("So we get $GT$.", "neither box nor phrase", every, True),
    (r"\boxed{\text{GT}}", "plain numbers", number, True),
    (r"\boxed{GT\text{ cm}}", "plain numbers, a unit added", number, True),
    (r"\boxed{GT}", "with its unit", with_unit, True),
    (r"\boxed{GT}", "its unit removed", without_unit, True),
    (r"\boxed{GT}", "another unit in its place", other_unit, False),
    ("The answer is GT.", "several values: $a$, $b$ and $c$", spoken, True),
    (r"\boxed{GT}", "several values in reverse order", reversed_values, True),
    (r"\boxed{GT}", "the first of several values alone", first_value, False),
    ("The answer is $GT$ or $7654321$.", "plain numbers, a second value", number, False),
    (r"\boxed{GT}", "one of the first six whole numbers raised by 1", raised, False),
)


def judge(release: Release, name: str) -> list[dict]:
    """All texts of a set, with both graders' judgements."""
    truths = release.ground_truths(name)
    texts = {
        index: [
            {"set": name, "index": index, "ground_truth": truth, "form": i, "text": text.replace("GT", given)}
            for i, (text, _, form, _) in enumerate(FORMS)
            for given in form(truth)
        ]
        for index, truth in truths.items()
    }
    most = max(map(len, texts.values()))
    options = {"samples": most, "temperature": 0.7, "top_p": 1.0, "max_tokens": 3000, "limit": None}
    padded = [text for each in texts.values() for text in [*(row["text"] for row in each), *["."] * (most - len(each))]]
    with TemporaryDirectory(prefix="era-") as tokenizer:  # the release's script wants one; no text depends on it
        models.character_tokenizer([*map(chr, range(32, 127)), "\n"]).save_pretrained(tokenizer)
        answered = release.answer(name, Path(tokenizer), options, padded)
    theirs = {problem["idx"]: problem["score"] for problem in answered.problems}
    rows = [row | {"release": bool(score)} for i, each in texts.items() for row, score in zip(each, theirs[i])]
    grades = grading.grade_all([(row["text"], row["ground_truth"], 0, False) for row in rows], seconds=60)
    # On a busy machine the table blames the release for these.
    late = answered.metrics["timeout_samples"]
    print(f"{name}: the release took too long for {late} of {len(rows)} texts", flush=True)
    return [row | {"strict": ours.correct} for row, ours in zip(rows, grades)]


def table(rows: list[dict], names: list[str]) -> str:
    """Markdown; a set's column has the wrong judgements of the release and of ours."""
    head = ["the answer", "texts", *names, "they differ", "right then: release, ours"]
    lines = [head, ["---"] * len(head)]
    for i, (text, note, _, right) in enumerate(FORMS):
        counts: dict[str, Counter] = {name: Counter() for name in ["all", *names]}
        for row in (row for row in rows if row["form"] == i):
            wrong = {grader: int(row[grader] != right) for grader in ("release", "strict")}
            for name in ("all", row["set"]):
                counts[name].update(wrong, texts=1, differ=wrong["release"] ^ wrong["strict"])
                counts[name].update(only=wrong["strict"] > wrong["release"])
        cells = [f"{count['release']} / {count['strict']}" if count["texts"] else "" for count in counts.values()][1:]
        whole = counts["all"]
        said = f"`{text}`" + (f", {note}" if note else "") + ("" if right else " (wrong)")
        differ = [whole["differ"], f"{whole['only']}, {whole['differ'] - whole['only']}"]
        lines.append([said, whole["texts"], *cells, *differ])
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=[*evaluate.PAPER_AVERAGE])
    evaluate.add_release(parser)
    args = parser.parse_args()
    release = Release(args.release_checkout, args.release_python)
    release.refuse_another_checkout()
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for name in args.sets:
        file = args.out / f"{name}.jsonl"
        if not file.exists():
            new = file.with_suffix(".new")
            new.write_text("".join(json.dumps(row) + "\n" for row in judge(release, name)))
            new.replace(file)
        rows += map(json.loads, file.read_text().splitlines())
    print(table(rows, args.sets))


if __name__ == "__main__":
    main()
