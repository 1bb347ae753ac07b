"""docs/engine/drift.md, from the result that drift.json holds."""

import textwrap

INTRODUCTION = """\
How far ERA works on the releases of its hosts, from the first that it was made for. Each release got the patches that
merge, as git sees it, and what these give was started on a CPU ({environment}), as was the plug-in on the release as it
is. The patches of a pinned version are tried up to the next pinned one. Written by `make drift` on {date}; each commit,
hunk and outcome is in `drift.json` beside this page."""
LEGEND = """\
`clean`: every hunk stands at its line. `offset`: git's three-way merge succeeds, hunks or their context moved.
`landed`: the change is upstream already. `conflict`: at least one hunk does not merge; the patch is left out. `gone`: a
file to patch does not exist there. `trains`: it takes training steps. `starts`: one call does what it should. An empty
cell: the plug-in is not for this release, or the repository has no such tag."""
NOTES = {
    "verl": "Log-probs: `logprobs_from_logits` with a scale for each token, against fp64 arithmetic. The actor's "
    "update: one of `DataParallelPPOActor` with ERA and GSPO. `era.verl`: one of verl's worker and FSDP engine.",
    "timm": "`train.py` and `validate.py` are timm's own, on 60 generated images; `inference.py` and `onnx_export.py` "
    "were not started. `create_model` and `era.timm` make a classifier whose gradients and entropy floor are checked.",
    "fasttd3": "`train.py` is FastTD3's own: FastSAC-ERA for 101 steps of Gymnasium's Reacher. `load_policy` loads the "
    "checkpoint of that run.",
}


def page(result: dict) -> str:
    parts = ["# Drift", filled(INTRODUCTION.format(**result)), filled(LEGEND)]
    for name, host in result["upstreams"].items():
        parts += [f"## {name}", filled(NOTES.get(name, ""))]
        plugins, known = host["plugins"], {row["release"] for v in host["versions"].values() for row in v["releases"]}
        others = [release for release in plugins if release not in known]
        for label, version in host["versions"].items():
            last = label == list(host["versions"])[-1]
            parts += section(name, label, version, plugins, others if last else [])
    return "\n\n".join(part for part in parts if part) + "\n"


def filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def section(name: str, label: str, version: dict, plugins: dict, others: list[str]) -> list[str]:
    """One pinned version: its table, and what failed or was not tried. others: releases that only a plug-in is for."""
    files, rows = version["patches"], version["releases"]
    plugin = next((item["what"] for item in plugins.values()), "")
    lines = [["release", "date", *(file[:4] for file in files), "started", *([f"`{plugin}`"] if plugin else [])]]
    for row in rows:
        release, results = row["release"], {item["patch"]: item["result"] for item in row["patches"]}
        branch = "" if "." in release or row["commit"].startswith(release) else f" ({row['commit'][:7]})"
        own = [plugins[release]["outcome"] if release in plugins else ""] if plugin else []
        cells = [results.get(file, "?") for file in files]
        lines.append([release + branch, row["date"] or "?", *cells, started(row["started"]), *own])
    lines += [[release, "", *[""] * len(files), "", plugins[release]["outcome"]] for release in others]
    reasons = [(row["release"], item) for row in rows for item in row["started"]]
    shown = {row["release"] for row in rows}.union(others)
    reasons += [(release, plugins[release]) for release in plugins if release in shown]
    unread = [f"- {row['release']} was not read: {row['problem']}." for row in rows if row["problem"]]
    unread += [f"- Nothing was tried: {problem}." for problem in version["problems"]]
    title = f"The [patches for {label}](../../patches/{name}/{label}/series):" if files else f"{label} has no patches."
    return [title, table(lines), "\n".join(unread + listed(reasons))]


def started(outcomes: list[dict]) -> str:
    """Such as `trains: train.py; starts: validate.py`."""
    seen = {}
    for item in outcomes:
        seen.setdefault(item["outcome"], []).append(item["what"])
    words = [f"{word}: {', '.join(seen[word])}" for word in ("fails", "trains", "starts") if word in seen]
    return "; ".join(words) or "not tried"


def listed(reasons: list[tuple[str, dict]]) -> list[str]:
    """What failed, and why the rest was not tried, each reason once with the releases that it holds for."""
    found = {}
    for release, item in reasons:
        if item["reason"]:
            found.setdefault((item["outcome"] != "fails", item["what"], item["reason"]), []).append(release)
    return [
        f"- {', '.join(releases)}: {what} " + (f"was not tried: {reason}" if untried else f"fails: `{reason}`")
        for (untried, what, reason), releases in sorted(found.items(), key=lambda entry: entry[0][0])
    ]


def table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows)
