"""What is wrong in experiments.toml is said, all of it, and by its name."""

import re

import pytest

from ledger import experiments
from ledger.errors import LedgerError

ENTRY = '[experiment.main-grpo]\nplace = "tab:main_results"\nrow = "GRPO"\n'
WRONG = {
    "no TOML": ("paper = ", "paper ", "Expected '='"),
    "an unknown part": ("[solved_at]", "[solved]", "solved: no such part of the ledger"),
    "an unknown field": (
        "[experiment.main-era]",
        "[experiment.main-era]\ncolour = 1",
        "experiment.main-era: unknown: colour. Known: block, cannot",
    ),
    "a place that is not there": (
        '[experiment.gspo]\nplace = "table:moremodels"',
        '[experiment.gspo]\nplace = "table:more"',
        "there is no place.table:more",
    ),
    "a group that is not there": (
        'demo = { group = "demo"',
        'demo = { group = "demos"',
        "run.demo: there is no group.demos",
    ),
    "a run that is not there": ('run = "llm-gspo"', 'run = "llm-gsp"', "experiment.gspo: there is no run.llm-gsp"),
    "an earlier run that is not there": (
        'after = "llm-stage1"',
        'after = "llm-stage"',
        "run.llm-stage2: there is no run.llm-stage",
    ),
    "another version": (
        "timm v1.0.20",
        "timm v1.0.19",
        "run.vision-cifar10: upstream 'timm v1.0.19', and upstreams.json pins timm v1.0.20",
    ),
    "a list that is not there": (
        'over = { TASKS = "gym" }',
        'over = { TASKS = "gyms" }',
        "experiment.ppo: there is no list.gyms",
    ),
    "a text that is not there": (
        'cannot = "no-obac"',
        'cannot = "no-obc"',
        "cannot: a sentence expected, or the name of a text; there is no text.no-obc",
    ),
    "two ways": (
        "[experiment.mnse]",
        '[experiment.mnse]\nrun = "demo"',
        "experiment.mnse: one of run or evaluation, gain, cannot expected",
    ),
    "a gain over nothing": (
        'gain = ["gspo-era", "gspo"]',
        'gain = ["gspo-era", "gsp"]',
        "experiment.gspo-gain: gain: there is no experiment.gsp",
    ),
    "numbers without a tolerance": (
        'average = 50.2 }\ntolerance = "answers"',
        "average = 50.2 }",
        "main-era: tolerance: when do its numbers count as reproduced?",
    ),
    "a tolerance that is not there": (
        'average = 50.2 }\ntolerance = "answers"',
        'average = 50.2 }\ntolerance = "none"',
        "main-era: there is no tolerance.none",
    ),
    "no folder": (
        'run = "vision-cifar10"\nfolder = "cifar10"\n',
        'run = "vision-cifar10"\n',
        "experiment.cifar10: folder: the name of its results expected",
    ),
    "a field of no over": (
        'folder = "imagenet-era{H0}"',
        'folder = "imagenet-era{H1}"',
        "experiment.sweep-imagenet: {H1}: not in over",
    ),
    "an unknown test": (
        'test = "spread"\nof = "sweep-cifar10"',
        'test = "range"\nof = "sweep-cifar10"',
        "claim.sweep-cifar10: test 'range': one of higher, above",
    ),
    "a bound without a number": (
        "value = 0.2\n",
        "",
        "claim.second-bound-holds: value: a number expected for the test at_least",
    ),
    "an order of one": (
        'than = "hb-fasttd3"\n',
        "",
        "claim.fastsac-era: than: expected for the tests higher, above and overhead",
    ),
    "rows of a place that shows none": (
        'no_result = "settings"',
        "",
        "place.tab:combined_hyperparameters: experiments, or same_as, or no_result expected",
    ),
    "another place that is not there": (
        'same_as = ["fig:preview_results"]',
        'same_as = ["fig:results"]',
        "same_as names fig:results, which is no place",
    ),
    "TOML cut short": ("[place.ood_figure]", "[place.ood_figure", "line"),
    "the same twice": (ENTRY, ENTRY + ENTRY, "twice"),
    "unknown field": (ENTRY, ENTRY + "colour = 3\n", "experiment.main-grpo: unknown: colour"),
    "unknown part": ("[tolerance.answers]", "[tolerances.answers]", "tolerances: no such part of the ledger"),
    "a number as text": (
        "answers = { aime24 = 480",
        'answers = { aime24 = "480"',
        "tolerance.answers: answers.aime24 is '480', and a whole number expected",
    ),
    "the paper's number as text": (
        "average = 50.2 }",
        'average = "50.2" }',
        "experiment.main-era: paper.average is '50.2', and a number or [number, error] expected",
    ),
    "no table": (
        "paper = { top1 = [74.75, 0.38], top5 = [92.04, 0.23] }",
        "paper = 74.75",
        "experiment.imagenet: paper is 74.75, and a table whose values are a number or [number, error] expected",
    ),
    "text as a number": (
        'title = "Three out-of-distribution benchmarks"',
        "title = 3",
        "place.ood_figure: title is 3, and text expected",
    ),
    "a list as text": (
        'judged = ["average"]',
        'judged = "average"',
        "tolerance.answers: judged is 'average', and a list expected",
    ),
    "nothing judged": (
        'judged = ["average"]',
        'judged = ["averge"]',
        "numbers expected for what tolerance.answers judges: averge",
    ),
    "not a number": (
        "low = 0.0\nhigh = 0.06",
        "low = nan\nhigh = 0.06",
        "claim.low-responses: low is nan, and a number expected",
    ),
    "true for a number": ("window = 20", "window = true", "window is True, and a whole number expected"),
    "upstream no text": ('upstream = "verl v0.4.1"', "upstream = 4", "upstream is 4, and text expected"),
    "unknown list": ('over = { TASKS = "h1hand" }', 'over = { TASKS = "h2hand" }', "there is no list.h2hand"),
    "unknown drawing": ('draws = "aggregate"', 'draws = "pie"', "draws 'pie': one of table, curves"),
    "no return that solves it": (
        "h1hand-run-v0 = 700",
        "h1hand-run-v1 = 700",
        "a number above 0 in solved_at expected",
    ),
    "claim of nothing": ('of = "entropy-era"', 'of = ""', "claim.entropy-floor: there is no experiment."),
    "claim over other values": (
        'of = "hb-fastsac-era"',
        'of = "truncated"',
        "experiments over the same values expected",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(tmp_path, case):
    old, new, said = WRONG[case]
    text = experiments.LEDGER.read_text()
    assert old in text
    (tmp_path / "experiments.toml").write_text(text.replace(old, new))
    with pytest.raises(LedgerError, match=re.escape(said)):
        experiments.load(tmp_path / "experiments.toml")


def test_all_that_is_wrong_is_named_at_once(tmp_path):
    text = (
        experiments.LEDGER.read_text()
        .replace('cannot = "no-obac"', 'cannot = "no-obc"')
        .replace('test = "spread"', 'test = "range"')
    )
    (tmp_path / "experiments.toml").write_text(text)
    with pytest.raises(LedgerError) as refused:
        experiments.load(tmp_path / "experiments.toml")
    assert len(str(refused.value).splitlines()) == 4


def test_there_is_a_ledger(tmp_path):
    with pytest.raises(LedgerError, match="No such file"):
        experiments.load(tmp_path / "experiments.toml")


def test_the_docs_count_as_the_ledger_does():
    ledger = experiments.load()
    cannot = sum(bool(entry.experiment.cannot) for entry in ledger.entries.values())
    for name in ("README.md", "docs/reproduce.md"):
        text = " ".join((experiments.ROOT / name).read_text().split())
        assert f"{len(ledger.entries)} rows and curves" in text and f" {cannot} " in text and "10 of them" in text, name
    assert sum(entry.experiment.place == experiments.HERE for entry in ledger.entries.values()) == 10
    for domain, title in (("llm", "LLM"), ("vision", "vision"), ("control", "control")):
        places = {place.id for place in ledger.places.values() if place.domain == domain and ledger.at(place.id)}
        entries = [entry for entry in ledger.entries.values() if entry.experiment.place in places]
        runnable = [entry for entry in entries if not entry.experiment.cannot]
        counts = len(places), len({entry.experiment.place for entry in runnable}), len(entries), len(runnable)
        claims = sum(claim.place in places for claim in ledger.claims.values())
        assert (
            f"| {title} | {' | '.join(map(str, (*counts, claims)))} |"
            in (experiments.ROOT / "docs/reproduce.md").read_text()
        )


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("main-erq", "main-era"),
        ("MAIN-ERA", "main-era"),
        ("hb-fastsac-era/h1hand-wak-v0", "hb-fastsac-era/h1hand-walk-v0"),
        ("zzzz", "`reproduce.py list` names all"),
    ],
)
def test_near_names_are_said_once(wrong, near):
    with pytest.raises(LedgerError, match="there is no experiment") as error:
        experiments.load().find(wrong)
    assert near in str(error.value) and len(
        set(named := str(error.value).partition("Near it: ")[2].rstrip(".").split(", "))
    ) == len(named)


@pytest.mark.parametrize("text", ["{", "[]", '{"verl": {}}', '{"verl": 3}', "\udcff", None])
def test_a_damaged_list_of_upstreams_is_said(tmp_path, text):
    file = tmp_path / "upstreams.json"
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(LedgerError, match="upstreams.json (is not the list|cannot be read)"):
        experiments.load(upstreams=file)
