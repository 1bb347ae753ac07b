"""Tables and pictures of docs/rivals/llm.md, from records/rivals/llm.

A run is a dictionary: a row of runs.csv, with the rows of samples.csv under `samples` and those of curves.csv under
`curves`. A part is a task and whether updates are off-policy.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from rivals import llm, markdown, records
from rivals.llm import METHODS, distinct_at
from rivals.stages import FRESH_SEEDS, LLM_PARTS, TUNING_SEEDS

PARTS = [(task, off_policy) for _, task, off_policy in LLM_PARTS]
TUNED = [(task, off_policy) for tuned_on, task, off_policy in LLM_PARTS if tuned_on == task]
HELD = 0.1  # nats from the setpoint


def read(folder: Path) -> list[dict]:
    tables = {name: records.read(folder / f"{name}.csv") for name in ("runs", "samples", "curves")}
    found = {records.key(row): {**row, "samples": [], "curves": []} for row in tables["runs"]}
    for name in ("samples", "curves"):
        for row in tables[name]:
            found[records.key(row)][name].append(row)
    return list(found.values())


def methods(off_policy: bool) -> list[str]:
    return [name for name, one in METHODS.items() if one.off_policy == off_policy]


def chosen(runs: list[dict], task: str, off_policy: bool) -> dict[str, str]:
    """The setting of each method whose tuning is complete; on the tasks without a tuning, that of `chain`."""
    tuned_on = task if (task, off_policy) in TUNED else "chain"
    found = {}
    for method in methods(off_policy):
        try:
            found[method] = llm.choose(runs, tuned_on, method, TUNING_SEEDS)
        except KeyError:
            continue
    return found


def of(runs: list[dict], task: str, method: str, setting: str, seeds: Sequence[int]) -> list[dict]:
    """In the order of the seeds, as far as they are there."""
    known = {records.key(run): run for run in runs}
    wanted = [(task, method, setting, seed) for seed in seeds]
    return [known[one] for one in wanted if one in known]


def complete(runs: list[dict], task: str, off_policy: bool) -> dict[str, list[dict]]:
    """The fresh runs of each method that has all of them, with its chosen setting."""
    found = {
        method: of(runs, task, method, setting, FRESH_SEEDS)
        for method, setting in chosen(runs, task, off_policy).items()
    }
    return {method: fresh for method, fresh in found.items() if len(fresh) == len(FRESH_SEEDS)}


def at(run: dict, column: str, temperature: float = 1.0) -> float:
    (row,) = (row for row in run["samples"] if row["temperature"] == temperature)
    return row[column]


def tuning_table(runs: list[dict], task: str, off_policy: bool) -> str:
    """Of every setting the mean score over the tuning seeds, and H_resp at the end for each of them; chosen: bold."""
    best, lines = chosen(runs, task, off_policy), [["method", *("setting: score (H_resp)",) * 5]]
    for method in methods(off_policy):
        line = [METHODS[method].title]
        for setting in METHODS[method].settings:
            found = of(runs, task, method, setting, TUNING_SEEDS)
            if len(found) < len(TUNING_SEEDS):
                line.append(f"{setting}: -")
                continue
            score = mean(map(llm.score, found))
            entropies = ", ".join(f"{at(run, 'response_entropy'):.2f}" for run in found)
            cell = f"{setting}: {score:.{2 if task == 'chain-goal' else 1}f} ({entropies})"
            line.append(f"**{cell}**" if best.get(method) == setting else cell)
        if of(runs, task, method, METHODS[method].settings[0], TUNING_SEEDS):
            lines.append(line)
    return markdown.table(lines)


def distinct(run: dict, accuracy: float = llm.ACCURACY) -> float:
    """0 where no temperature has that accuracy."""
    return distinct_at(run["samples"], accuracy) or 0.0


# label: measure of a run, decimals
MEASURES = {
    "H_resp": (lambda run: at(run, "response_entropy"), 2),
    "H_resp, last 10 steps": (lambda run: run["response_entropy"], 2),
    "lowest step": (lambda run: run["lowest_entropy"], 2),
    "reward, last 10": (lambda run: run["reward"], 2),
    "accuracy": (lambda run: at(run, "pass_at_1"), 2),
    "reward": (lambda run: at(run, "reward"), 2),
    "pass@32": (lambda run: at(run, "pass_at_32"), 2),
    "distinct of 256": (lambda run: at(run, "distinct_all"), 0),
    "entropy of an answer": (lambda run: at(run, "answer_entropy"), 1),
    "d@.95": (distinct, 1),
    "d@.90": (lambda run: distinct(run, 0.9), 1),
    "d@.80": (lambda run: distinct(run, 0.8), 1),
    "seconds of a step": (lambda run: run["step_seconds"], 2),
}
# With top_fraction=1 these entropies are means over all tokens; sampled hotter, they are those of another policy.
ENTROPIES = ("H_resp, last 10 steps", "lowest step")
NOT_COMPARABLE = {"adaptive-mean": ENTROPIES, "hotter": (*ENTROPIES, "reward, last 10")}


def results_table(runs: list[dict], task: str, off_policy: bool) -> str:
    """Mean (smallest to largest) over the fresh seeds, at temperature 1 where none is said."""
    settings = chosen(runs, task, off_policy)
    lines = [["method", "setting", *MEASURES]]
    for method, found in complete(runs, task, off_policy).items():
        cells = [
            "-" if label in NOT_COMPARABLE.get(method, ()) else markdown.spread([measure(run) for run in found], digits)
            for label, (measure, digits) in MEASURES.items()
        ]
        lines.append([METHODS[method].title.partition(",")[0], settings[method], *cells])
    return markdown.table(lines)


def compared(task: str) -> dict:
    """Label: measure of a run, decimals; fixed in the protocol."""
    if task == "chain-goal":
        return {
            "accuracy": (lambda run: max(row["pass_at_1"] for row in run["samples"]), 2),
            "pass@32": MEASURES["pass@32"],
        }
    return {name: MEASURES[name] for name in (("d@.95",) if task == "chain" else ("reward",))}


def differences(runs: list[dict], task: str, off_policy: bool) -> Iterator[tuple[str, list[float], int]]:
    """Of ERA to each other method: its name, the differences by seed in a measure, and that one's decimals."""
    found = complete(runs, task, off_policy)
    era = found.pop("off-era" if off_policy else "era", None)
    for method, others in found.items():
        for measure, digits in compared(task).values():
            if era:
                yield method, [measure(one) - measure(other) for one, other in zip(era, others)], digits


def differences_table(runs: list[dict], task: str, off_policy: bool) -> str:
    lines = {}
    for method, values, digits in differences(runs, task, off_policy):
        line = lines.setdefault(method, [METHODS[method].title.partition(",")[0]])
        line.append(markdown.difference(values, digits, each=True))
    return markdown.table([["ERA minus", *compared(task)], *lines.values()])


def setpoints_table(runs: list[dict]) -> str:
    """On `chain`, of ERA and the adaptive bonus on H_resp: H_resp at the end for each seed, tuning and fresh ones.

    Both only push upwards, so a floor is kept where the entropy ends above it, too.
    """
    lines = [["setpoint, nats", "ERA", "adaptive bonus on H_resp"]]
    for share in llm.SHARES:
        target = float(share) * llm.START["chain"][0]
        line = [f"{target:.2f}"]
        for method in ("era", "adaptive"):
            found = of(runs, "chain", method, share, (*TUNING_SEEDS, *FRESH_SEEDS))
            values = [run["response_entropy"] for run in found]
            kept = all(value >= target - HELD for value in values)
            reached = all(abs(value - target) <= HELD for value in values)
            each = ", ".join(f"{value:.2f}" for value in values)
            word = "reached" if reached else "kept" if kept else "not kept"
            line.append(f"{each}: {word}" if values else "-")
        if set(line[1:]) != {"-"}:
            lines.append(line)
    return markdown.table(lines)


def tables(runs: list[dict]) -> dict[str, str]:
    """By the name that marks their place in the page."""
    found = {"setpoints": setpoints_table(runs)}
    for task, off_policy in PARTS:
        name = f"{task}{'-off-policy' if off_policy else ''}"
        if (task, off_policy) in TUNED:
            found[f"tuning {name}"] = tuning_table(runs, task, off_policy)
        found[f"results {name}"] = results_table(runs, task, off_policy)
        found[f"differences {name}"] = differences_table(runs, task, off_policy)
    return found


# Dark to light; ERA and GRPO stand out in black and white too.
STYLES = {
    "grpo": dict(color="black", linestyle=(0, (4, 3))),
    "era": dict(color="#2b7bba", linewidth=2.5, marker="o"),
    "adaptive": dict(color="#d1611a", marker="s"),
    "adaptive-mean": dict(color="#e8a06b", marker="D"),
    "bonus": dict(color="#5f8f3e", marker="^"),
    "kl": dict(color="#8b5fa8", marker="v"),
    "hotter": dict(color="0.6", marker="x"),
    "clip-higher": dict(color="#a33b3b", marker="P"),
    "clip-cov": dict(color="#2f9c95", marker="*"),
    "kl-cov": dict(color="#b59a1f", marker="h"),
}


def style(method: str) -> dict:
    return {"linewidth": 1.2, "markersize": 4, **STYLES[method.removeprefix("off-")]}


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_frontiers(runs: list[dict], file: Path) -> None:
    """Accuracy against distinct answers over the temperatures, means over the fresh seeds."""
    pyplot = _pyplot()
    parts = [part for part in TUNED if complete(runs, *part)]
    size = (4.2 * len(parts), 4.6)
    figure, axes = pyplot.subplots(1, len(parts), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for (task, off_policy), axis in zip(parts, axes[0]):
        for method, found in complete(runs, task, off_policy).items():
            points = [
                [mean(at(run, column, row["temperature"]) for run in found) for column in ("pass_at_1", "distinct_32")]
                for row in found[0]["samples"]
            ]
            axis.plot(*zip(*points), label=METHODS[method].title.partition(",")[0], **style(method))
        axis.set(xlabel="accuracy", xlim=(0.5 if task == "chain" else 0, 1.005))
        axis.set_title(f"{task}{', off-policy' if off_policy else ''}", fontsize=10)
        axis.legend(fontsize=7, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("distinct right answers of 32")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_settings(runs: list[dict], file: Path) -> None:
    """H_resp at the end over the five settings of each method on `chain`, a dot for every seed."""
    pyplot = _pyplot()
    names = methods(False)
    unit = {"grpo": ", x the task's"} | dict.fromkeys(("era", "adaptive", "adaptive-mean"), ", x start")
    figure, axes = pyplot.subplots(1, len(names), figsize=(2 * len(names), 3.1), sharey=True, layout="constrained")
    for method, axis in zip(names, axes):
        settings = METHODS[method].settings
        for place, setting in enumerate(settings):
            found = of(runs, "chain", method, setting, (*TUNING_SEEDS, *FRESH_SEEDS))
            axis.plot(
                [place] * len(found), [at(run, "response_entropy") for run in found], "o", color="black", alpha=0.5
            )
            if method in ("era", "adaptive"):  # adaptive-mean's is of another entropy
                target = float(setting) * llm.START["chain"][0]
                axis.plot([place - 0.4, place + 0.4], [target] * 2, color="#2b7bba", linewidth=2)
        axis.set_xticks(range(len(settings)), settings, fontsize=7)
        title, label = METHODS[method].title.split(", ")
        axis.set_title(title.replace(" on ", "\non ").replace(" sampled ", "\nsampled "), fontsize=8)
        axis.set_xlabel(label + unit.get(method, ""), fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("response entropy at the end, nats")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


# title: task, setting of ERA
EXAMPLES = {
    "healthy": ("chain", "0.3"),
    "bound too high": ("chain", "0.7"),
    "useless: one right answer": ("chain-single", "0.3"),
}


def draw_examples(runs: list[dict], file: Path) -> None:
    """For docs/when-to-use.md: how ERA's metrics look when it helps, and when not; with GRPO, tuning seed 1."""
    pyplot = _pyplot()
    known = {records.key(run): run for run in runs}
    figure, axes = pyplot.subplots(3, len(EXAMPLES), figsize=(10, 6.4), sharex=True, sharey="row", layout="constrained")
    for (title, (task, share)), column in zip(EXAMPLES.items(), axes.T):
        bound = float(share) * llm.START[task][0]
        for method, setting in (("grpo", "1"), ("era", share)):
            curves = known[task, method, setting, 1]["curves"]
            steps = [row["step"] for row in curves]
            look = {**style(method), "marker": None, "label": METHODS[method].title.partition(",")[0]}
            column[0].plot(steps, [row["response_entropy"] for row in curves], **look)
            column[2].plot(steps, [row["reward"] for row in curves], **look)
        column[0].axhline(bound, color="0.5", linewidth=0.8, label="omega_low")
        for name, color in (("low_fraction", "#d1611a"), ("scaled_token_fraction", "#5f8f3e")):
            column[1].plot(steps, [row[name] for row in curves], color=color, label=f"era/{name}")
        column[0].set_title(f"{title}\n({task}, omega_low {bound:.2f})", fontsize=9)
        column[2].set_xlabel("step")
    for axis, label in zip(axes[:, 0], ("era/response_entropy, nats", "share, ERA's run", "reward")):
        axis.set_ylabel(label)
        axis.legend(fontsize=7, frameon=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


PICTURES = {
    "rivals-frontiers.png": draw_frontiers,
    "rivals-settings.png": draw_settings,
    "rivals-examples.png": draw_examples,
}
