# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Both graders on the same texts: the ground truths of the six mathematical sets, in forms in which models write them.

    python -m tools.compare_graders --tokenizer FOLDER [--sets NAME ...] [--jsonl FILE]

Of each text it is known whether it is right. The table says how many of a form each grader judges wrongly. FOLDER is a
model's, with any tokenizer that has a chat template: the release's script wants one, and no text depends on it.
"""

import argparse
import json
import os
import re
from collections import Counter
from pathlib import Path

from recipes.llm import evaluate, grading
from recipes.llm.release import Release

NUMBER = re.compile(r"[-+]?\d*\.?\d+")
WHOLE = re.compile(r"(?<![\d.])\d+(?![\d.])")


def raised(truth: str) -> str | None:
    """The ground truth with its last whole number raised by one. Bases and exponents of units stay out of it."""
    if re.search(r"_\{?\d+\}?$|\\mbox", truth) or not (numbers := [*WHOLE.finditer(truth)]):
        return None
    start, end = numbers[-1].span()
    return f"{truth[:start]}{int(numbers[-1][0]) + 1}{truth[end:]}"


def forms(truth: str) -> dict[str, tuple[str, bool]]:
    """Texts by the names of their forms, and whether they are right."""
    found = {
        r"`\boxed{GT}`": (rf"\boxed{{{truth}}}", True),
        r"`\boxed{\displaystyle GT}`": (rf"\boxed{{\displaystyle {truth}}}", True),
        r"`\boxed{ GT . }`, a full stop in the box": (rf"\boxed{{ {truth} . }}", True),
        r"`The final answer is $GT$.`": (f"The final answer is ${truth}$.", True),
        r"`\fbox{GT}`": (rf"\fbox{{{truth}}}", True),
    }
    if NUMBER.fullmatch(truth):
        found[r"`\boxed{\text{GT}}`, plain numbers"] = (rf"\boxed{{\text{{{truth}}}}}", True)
        found[r"`\boxed{GT\text{ cm}}`, plain numbers"] = (rf"\boxed{{{truth}\text{{ cm}}}}", True)
        found["`The answer is $GT$ or $7654321$.`, plain numbers"] = (f"The answer is ${truth}$ or $7654321$.", False)
    values = truth.split(",")
    if len(values) > 1 and all(NUMBER.fullmatch(value.strip()) for value in values):
        found["`The answer is $a$ and $b$.`, all values of GT"] = (
            f"The answer is {' and '.join(f'${value.strip()}$' for value in values)}.",
            True,
        )
        found[r"`\boxed{a}`, one value of several"] = (rf"\boxed{{{values[0]}}}", False)
    if wrong := raised(truth):
        found["`\\boxed{GT}`, one whole number raised by 1"] = (rf"\boxed{{{wrong}}}", False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=[*evaluate.PAPER_AVERAGE])
    parser.add_argument("--jsonl", type=Path, help="a line for each text that a grader judges wrongly")
    evaluate.add_release(parser)
    args = parser.parse_args()
    release = Release(args.release_checkout, args.release_python)
    release.refuse_what_cannot_run()
    counts: dict[str, Counter] = {}
    for name in args.sets:
        texts = {index: forms(truth) for index, truth in release.ground_truths(name).items()}
        most = max(map(len, texts.values()))
        options = {"samples": most, "temperature": 0.7, "top_p": 1.0, "max_tokens": 3000, "limit": None}
        padded = [(*(text for text, _ in each.values()), *["."] * (most - len(each))) for each in texts.values()]
        answered = release.answer(name, args.tokenizer, options, [text for each in padded for text in each])
        theirs = {problem["idx"]: problem["score"] for problem in answered.problems}
        cases = [
            (form, index, number, text, right)
            for index, each in texts.items()
            for number, (form, (text, right)) in enumerate(each.items())
        ]
        truths = release.ground_truths(name)
        grades = grading.grade_all([(text, truths[index], 0, False) for _, index, _, text, _ in cases], seconds=60)
        for (form, index, number, text, right), ours in zip(cases, grades):
            released = bool(theirs[index][number])
            counts.setdefault(form, Counter()).update(
                texts=1, release=released != right, strict=ours.correct != right, differ=released != ours.correct
            )
            if args.jsonl and (released != right or ours.correct != right):
                row = {"set": name, "index": index, "form": form, "text": text, "right": right}
                row |= {"ground_truth": truths[index], "release": released, "strict": ours.correct}
                with args.jsonl.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        late = answered.metrics["timeout_samples"]  # on a busy machine the table blames the release for them
        print(f"{name}: the release took too long for {late} of {len(cases)} answers", flush=True)
    print(
        "| the answer | texts | the release judges wrongly | ours judges wrongly | they differ |\n|---|---|---|---|---|"
    )
    for form, count in counts.items():
        print(f"| {form} | {count['texts']} | {count['release']} | {count['strict']} | {count['differ']} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
