# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Grade the texts of an evaluation again, with either grader, and without its model or a GPU.

    python -m recipes.llm.grade FOLDER [--grader release strict]

FOLDER is the --out of recipes.llm.evaluate, of either protocol. The grades go to FOLDER/by-GRADER/, in the form of
FOLDER itself, and a table compares the graders. The choice of the grader can move a score by more than methods differ
(docs/llm/evaluation.md).
"""

import argparse
import json
from pathlib import Path

from recipes import whole
from recipes.llm import release as authors
from recipes.llm.data import SETS
from recipes.llm.evaluate import (
    add_release,
    default_pass_at,
    grade_as_released,
    grade_strictly,
    read_samples,
    summarize,
    write_summary,
)

GRADERS = ("release", "strict")


def read_texts(folder: Path) -> tuple[dict, dict[str, list[dict]]]:
    """The summary of an evaluation, and the samples of each of its mathematical benchmarks."""
    file = folder / whole.EVALUATION
    try:
        summary = json.loads(file.read_text())
        benchmarks, model = dict(summary["benchmarks"]), summary["model"]
        if not isinstance(model, str) or not model:
            raise ValueError("it names no model")
        for name, scores in benchmarks.items():
            whole.check_benchmark(name, scores)
        names = [name for name in benchmarks if SETS.get(name, {}).get("pin", {}).get("make") == "math"]
        return summary, {
            name: read_samples(folder / f"{name}.samples.jsonl", benchmarks[name]["protocol"]) for name in names
        }
    except FileNotFoundError as error:
        raise SystemExit(f"error: {folder} is not a whole evaluation: there is no {error.filename}.") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise SystemExit(f"error: {folder} is not a whole evaluation with its model's name: {reason}.") from None


def in_the_releases_order(name: str, samples: list[dict], truths: dict[int, str]) -> list[dict]:
    """The samples, of the protocol `strict`, in the order of the release's problems.

    Its AIME 2025 is another file than ours, with the same problems: there the answers, all different, name them.
    """
    first = {sample["index"]: sample["ground_truth"] for sample in samples}
    if all(truths.get(index) == truth for index, truth in first.items()):
        return samples
    number = {"".join(filter(str.isdigit, truth)): index for index, truth in truths.items()}
    if len({*first.values()}) != len(first) or first.keys() != truths.keys() or {*first.values()} != {*number}:
        raise SystemExit(
            f"error: the problems of {name} are not the release's, so its grader cannot judge their texts. Give "
            "--grader strict."
        )
    return sorted(samples, key=lambda sample: (number[sample["ground_truth"]], sample["sample"]))


def grade(
    folder: Path, grader: str, summary: dict, samples: dict[str, list[dict]], release: authors.Release
) -> tuple[dict, dict]:
    """Grades all samples, writes them and their summary, and returns the summaries and the samples by benchmark."""
    out = folder / f"by-{grader}"
    out.mkdir(exist_ok=True)
    new, graded = {**summary, "benchmarks": {}}, {}
    for name, drawn in samples.items():
        scores, of_release = summary["benchmarks"][name], {}
        protocol = scores["protocol"]
        if grader == "release":
            kinds = [*(folder / "tokenizer").glob("*")]
            if len(kinds) != 1:
                raise SystemExit(f"error: {folder} has no tokenizer/KIND, which the release's grader starts with.")
            if protocol["protocol"] != "release":
                drawn = in_the_releases_order(name, drawn, release.ground_truths(name))
            graded[name], of_release = grade_as_released(release, name, drawn, protocol, kinds[0])
        else:
            graded[name] = grade_strictly(drawn)
        lines = "".join(json.dumps(sample) + "\n" for sample in graded[name])
        (out / f"{name}.samples.jsonl").write_text(lines)
        as_paper = scores["as_paper"] if grader == protocol["protocol"] else False
        head = {"protocol": protocol, "grader": grader, "as_paper": as_paper}
        pass_at = default_pass_at(protocol["samples"])
        write_summary(out, new, name, head | summarize(graded[name], pass_at) | of_release)
    return new["benchmarks"], graded


def table(scores: dict[str, dict], graded: dict[str, dict[str, list[dict]]]) -> str:
    """A line for each benchmark: its scores by the graders, in percent, and how many texts they judge differently."""
    lines = [f"{'':<14}" + "".join(f"{grader:>10}" for grader in scores) + ("   differ" if len(scores) > 1 else "")]
    for name in next(iter(graded.values())):
        shares = "".join(f"{100 * scores[grader][name]['accuracy']:10.1f}" for grader in scores)
        verdicts = [{(s["index"], s["sample"]): s["correct"] for s in graded[grader][name]} for grader in graded]
        differ = sum(len({verdict[key] for verdict in verdicts}) > 1 for key in verdicts[0])
        lines.append(f"{name:<14}{shares}" + (f"{differ:6} of {len(verdicts[0])}" if len(scores) > 1 else ""))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of an evaluation")
    parser.add_argument("--grader", nargs="+", choices=GRADERS, default=[*GRADERS], help="default: both")
    add_release(parser)
    args = parser.parse_args(arguments)
    summary, samples = read_texts(args.folder)
    release = authors.Release(args.release_checkout, args.release_python)
    if "release" in args.grader:
        release.refuse_another_checkout()
    scores, graded = {}, {}
    for each in dict.fromkeys(args.grader):
        scores[each], graded[each] = grade(args.folder, each, summary, samples, release)
    print(table(scores, graded))
    print("\n" + "\n".join(f"summary  {args.folder}/by-{each}/summary.json" for each in graded))


if __name__ == "__main__":
    main()
