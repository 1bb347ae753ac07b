"""What counts as reproduced: the ledger's numbers and claims against what was collected."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean

from ledger import statistics
from ledger.experiments import Claim, Entry, Experiment, Ledger
from ledger.results import CANNOT, FAILED, NOT_REPRODUCED, NOT_RUN, PARTIAL, REPRODUCED, RUN, Collected, Curve, Result


@dataclass(frozen=True)
class Cell:
    """One number of a row: the paper's, ours (the mean over the seeds), and whether they agree.

    interval: half-width, 95 %. interval_of: "seeds", or "problems" or "images" where there is one run alone.
    within: None where nothing is tested.
    """

    metric: str
    paper: float | None
    paper_error: float | None
    ours: float | None = None
    interval: float | None = None
    interval_of: str = ""
    seeds: int = 0
    difference: float | None = None
    allowed: float | None = None
    within: bool | None = None


@dataclass(frozen=True)
class Outcome:
    """Of an entry of the ledger. seeds, wanted: how many there are and should be, at least. notes: why it is partial or failed, in words."""

    id: str
    state: str
    cells: list[Cell] = field(default_factory=list)
    seeds: int = 0
    wanted: int = 1
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """One comparison of a claim. entry: of its `of`. measured: in words. interval: half-width of value, 95 %."""

    entry: str
    measured: str
    value: float | None = None
    interval: float | None = None
    passed: bool | None = None


@dataclass(frozen=True)
class ClaimOutcome:
    """notes: what it lacks, in words."""

    id: str
    state: str
    parts: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def judged(ledger: Ledger, collected: Collected) -> Collected:
    """With outcomes and claims."""
    outcomes, claims = judge(ledger, collected)
    return replace(
        collected,
        outcomes={name: asdict(outcome) for name, outcome in outcomes.items()},
        claims={name: asdict(outcome) for name, outcome in claims.items()},
    )


def judge(ledger: Ledger, collected: Collected) -> tuple[dict[str, Outcome], dict[str, ClaimOutcome]]:
    """By entry id and by claim id."""
    found = {entry.id: Found(ledger, collected, entry) for entry in ledger.entries.values()}
    claims = {claim.id: judge_claim(ledger, claim, found) for claim in ledger.claims.values()}
    rows = {name: judge_row(ledger, item) for name, item in found.items() if not item.entry.experiment.gain}
    gains = {name: judge_gain(ledger, item.entry, rows) for name, item in found.items() if item.entry.experiment.gain}
    outcomes = {name: {**rows, **gains}[name] for name in found}
    return {
        name: with_claims(ledger, ledger.entries[name].experiment, outcome, claims)
        for name, outcome in outcomes.items()
    }, claims


class Found:
    """What was collected for an entry."""

    def __init__(self, ledger: Ledger, collected: Collected, entry: Entry):
        experiment = entry.experiment
        self.entry = entry
        self.wanted = len(ledger.seeds_of(experiment))
        kind = "evaluation" if experiment.evaluation else "training"
        results = collected.of(entry.folder, kind) if entry.folder else []
        self.used = [result for result in results if result.used and is_complete(result, experiment)]
        self.notes = list(
            dict.fromkeys(f"{result.label}: {reason}" for result in results if (reason := self._why_not(result)))
        )
        modified = sum(result.state == "modified" for result in self.used)
        self.notes += [f"of a modified checkout: {modified} of {len(self.used)} runs"] if modified else []
        last = next((record for record in reversed(collected.records) if entry.id in record.get("experiments", ())), {})
        ended_early = last.get("state") == "failed" and not results
        self.notes += [f"{last['command']} failed; its log is among the runs"] if ended_early else []
        self.failed = ended_early or any(result.failed for result in results) and not self.used
        self.started = bool(results) or ended_early

    def _why_not(self, result: Result) -> str:
        if result in self.used:
            return ""
        if not result.used:
            return "not used, see the problems"
        return f"{'failed' if result.failed else 'unfinished'}, {result.steps}{f' of {result.total}' if result.total else ''} steps"

    @property
    def is_whole(self) -> bool:
        return len(self.used) >= self.wanted and all(self.values(metric, self.wanted) for metric in self.entry.metrics)

    def values(self, metric: str, at_least: int = 1) -> list[float]:
        """The metric's number of each run, at the end of its curve if it has one; none if fewer runs than `at_least` have it."""
        numbers = [
            number for result in self.used if (number := final(result, metric, self.entry.experiment.until)) is not None
        ]
        return numbers if len(numbers) >= at_least else []

    def curves(self, metric: str) -> list[Curve]:
        return [result.curves[metric] for result in self.used if metric in result.curves]


def is_complete(result: Result, experiment: Experiment) -> bool:
    return result.finished or experiment.until is not None and result.steps >= experiment.until


def final(result: Result, metric: str, until: int | None = None) -> float | None:
    """until: of a run that goes on behind it, its number there."""
    if until is not None and (
        curve := result.curves.get(f"eval_{metric}")
    ):  # timm's numbers are those of the last epoch
        return next((y for x, y in zip(curve.x, curve.y) if x >= until), None)
    if metric in result.values:
        return result.values[metric]
    if metric not in result.curves:
        return None
    return statistics.end(result.curves[metric], math.inf if until is None else until)


def judge_row(ledger: Ledger, found: Found) -> Outcome:
    experiment = found.entry.experiment
    if experiment.cannot:
        return Outcome(
            found.entry.id, CANNOT, [_paper_cell(experiment, metric) for metric in experiment.paper], 0, found.wanted
        )
    cells = [judge_cell(ledger, found, metric) for metric in found.entry.metrics]
    notes = list(found.notes)
    if found.used and len(found.used) < found.wanted:
        notes.insert(0, f"{len(found.used)} of {found.wanted} seeds")
    runs = len(found.used)
    notes += [
        f"{cell.metric} is lacking" + (f" in {runs - cell.seeds} of {runs} runs" if cell.seeds else "")
        for cell in cells
        if cell.seeds < runs
    ]
    if not found.started:
        state = NOT_RUN
    elif found.failed:
        state = FAILED
    elif not found.is_whole:
        state = PARTIAL
    else:
        state = _judged(ledger, experiment, cells)
    if state == REPRODUCED and (outside := [cell.metric for cell in cells if cell.within is False]):
        notes.append(
            f"by its {' and '.join(ledger.tolerances[experiment.tolerance].judged)}; outside the tolerance: {', '.join(outside)}"
        )
    return Outcome(found.entry.id, state, cells, runs, max(runs, found.wanted), notes)


def _judged(ledger: Ledger, experiment: Experiment, cells: Sequence[Cell]) -> str:
    if not experiment.tolerance:
        return RUN
    return _verdict(cells, ledger.tolerances[experiment.tolerance].judged)


def _verdict(cells: Sequence[Cell], judged: Sequence[str]) -> str:
    return REPRODUCED if all(cell.within for cell in cells if cell.metric in judged) else NOT_REPRODUCED


def _paper_cell(experiment: Experiment, metric: str) -> Cell:
    number = experiment.paper.get(metric)
    return Cell(metric, number and number.value, number and number.error)


def judge_cell(ledger: Ledger, found: Found, metric: str) -> Cell:
    experiment = found.entry.experiment
    paper, values = _paper_cell(experiment, metric), found.values(metric)
    if not values:
        return paper
    ours, interval, of = fmean(values), statistics.t_interval(values), "seeds"
    if interval is None:
        interval, of = found.used[0].intervals.get(metric), found.used[0].interval_of
    shown = replace(
        paper, ours=ours, interval=interval, interval_of=of if interval is not None else "", seeds=len(values)
    )
    if paper.paper is None:
        return shown
    allowed = allowed_difference(ledger, experiment, metric, interval, len(values))
    difference = ours - paper.paper
    within = None if allowed is None else abs(difference) <= allowed
    return replace(shown, difference=difference, allowed=allowed, within=within)


def allowed_difference(
    ledger: Ledger, experiment: Experiment, metric: str, interval: float | None, runs: int
) -> float | None:
    """By the experiment's tolerance; None where it says nothing of the metric. The average of benchmarks is that of their shares."""
    answers = ledger.tolerances[experiment.tolerance].answers
    if not answers:
        error = experiment.paper[metric].error
        return None if interval is None or error is None else math.hypot(interval, error)
    if metric == "average":
        widths = [
            statistics.share_half_width(experiment.paper[name].value, count, runs) for name, count in answers.items()
        ]
        return math.hypot(*widths) / len(widths)
    return (
        statistics.share_half_width(experiment.paper[metric].value, answers[metric], runs)
        if metric in answers
        else None
    )


def judge_gain(ledger: Ledger, entry: Entry, rows: dict[str, Outcome]) -> Outcome:
    """A row that compares two others: in percent of the second, or in points. It is reproduced if it is the paper's within what
    the two rows may be off; but not where ours is too noisy to show a gain that the paper's own errors do show."""
    experiment = entry.experiment
    of, over = (rows[name] for name in experiment.gain)
    cells = [_gain_cell(experiment, metric, _cell(of, metric), _cell(over, metric)) for metric in experiment.paper]
    seeds, wanted = min(of.seeds, over.seeds), min(of.wanted, over.wanted)
    notes = [f"{row.id}: {row.state}" for row in (of, over) if row.state in (PARTIAL, FAILED, NOT_RUN)]
    if len(notes) == 2 and {of.state, over.state} == {NOT_RUN}:
        return Outcome(entry.id, NOT_RUN, cells, 0, wanted)
    if notes:
        return Outcome(entry.id, PARTIAL, cells, seeds, wanted, notes)
    judged = ledger.tolerances[ledger.experiments[experiment.gain[0]].tolerance].judged
    too_noisy = [
        cell
        for cell in cells
        if cell.metric in judged and _hides_the_gain(cell, _cell(of, cell.metric), _cell(over, cell.metric))
    ]
    if too_noisy:
        notes = [
            f"{cell.metric}: our interval, ± {cell.interval:.2g}, is wider than the paper's gain; more seeds would tell"
            for cell in too_noisy
        ]
        return Outcome(entry.id, PARTIAL, cells, seeds, wanted, notes)
    return Outcome(entry.id, _verdict(cells, judged), cells, seeds, wanted)


def _hides_the_gain(gain: Cell, of: Cell, over: Cell) -> bool:
    """Where the paper prints no errors its numbers are shares of answers, and the tolerance says what they can show."""
    if None in (gain.interval, of.paper_error, over.paper_error):
        return False
    return gain.interval > abs(gain.paper) > math.hypot(of.paper_error, over.paper_error)


def _cell(outcome: Outcome, metric: str) -> Cell:
    return next(cell for cell in outcome.cells if cell.metric == metric)


def _gain_cell(experiment: Experiment, metric: str, of: Cell, over: Cell) -> Cell:
    paper = experiment.paper[metric].value
    if of.ours is None or over.ours is None or experiment.gain_in == "percent" and over.ours <= 0:
        return Cell(metric, paper, None)
    # How far the gain moves with each of the two numbers: in percent it is 100 (of / over - 1).
    by_of, by_over = (100 / over.ours, 100 * of.ours / over.ours**2) if experiment.gain_in == "percent" else (1.0, 1.0)
    ours = by_of * (of.ours - over.ours)
    interval = (
        None if None in (of.interval, over.interval) else math.hypot(by_of * of.interval, by_over * over.interval)
    )
    allowed = None if None in (of.allowed, over.allowed) else math.hypot(by_of * of.allowed, by_over * over.allowed)
    within = None if allowed is None else abs(ours - paper) <= allowed
    kind = of.interval_of if interval is not None else ""
    return Cell(metric, paper, None, ours, interval, kind, min(of.seeds, over.seeds), ours - paper, allowed, within)


def with_claims(ledger: Ledger, experiment: Experiment, outcome: Outcome, claims: dict[str, ClaimOutcome]) -> Outcome:
    """A curve has no number of the paper's: it came out if the claims did that it takes part in."""
    if outcome.state != RUN:
        return outcome
    about = [claim for claim in ledger.claims.values() if experiment.id in (claim.of, claim.than)]
    states = {_claim_state(claims[claim.id], outcome.id) for claim in about}
    if not states:
        return outcome
    state = next(state for state in (NOT_REPRODUCED, PARTIAL, REPRODUCED) if state in states)
    notes = [
        f"claim {claim.id}: {'; '.join(claims[claim.id].notes)}" for claim in about if claims[claim.id].state == PARTIAL
    ]
    return Outcome(outcome.id, state, outcome.cells, outcome.seeds, outcome.wanted, [*outcome.notes, *notes])


def _claim_state(claim: ClaimOutcome, entry: str) -> str:
    """Of the part of a claim that is about the entry (or the entry at the same value of the other experiment)."""
    value = entry.partition("/")[2]
    passed = [part.passed for part in claim.parts if part.entry.partition("/")[2] == value]
    if claim.state == NOT_RUN or not passed or None in passed:
        return PARTIAL if claim.state in (NOT_RUN, PARTIAL) else claim.state
    return REPRODUCED if all(passed) else NOT_REPRODUCED


def judge_claim(ledger: Ledger, claim: Claim, found: dict[str, Found]) -> ClaimOutcome:
    of = [found[entry.id] for entry in ledger.experiments[claim.of].entries]
    than = [found[entry.id] for entry in ledger.experiments[claim.than].entries] if claim.than else []
    if not any(item.started for item in (*of, *than)):
        return ClaimOutcome(claim.id, NOT_RUN)
    parts = list(PARTS[claim.test, claim.aggregate](ledger, claim, of, than))
    notes = [f"{item.entry.id}: {_lack(item)}" for item in (*of, *than) if not item.is_whole]
    if notes or not parts or any(part.passed is None for part in parts):
        return ClaimOutcome(claim.id, PARTIAL, parts, notes or ["it cannot be tested on what is there"])
    return ClaimOutcome(claim.id, REPRODUCED if all(part.passed for part in parts) else NOT_REPRODUCED, parts)


def _lack(item: Found) -> str:
    if not item.started:
        return NOT_RUN
    return f"{len(item.used)} of {item.wanted} seeds" if len(item.used) < item.wanted else "a metric is lacking"


def _metric(claim: Claim, item: Found) -> str:
    return claim.metric or item.entry.metrics[0]


def _pairs(
    claim: Claim, of: Sequence[Found], than: Sequence[Found]
) -> Iterator[tuple[Found, list[float], list[float]]]:
    """The entries of both that were run, with their numbers."""
    for one, other in zip(of, than, strict=True):
        values = one.values(_metric(claim, one)), other.values(_metric(claim, other))
        if all(values):
            yield one, *values


def higher(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    if claim.value is not None:
        yield from _gain_of_average(claim, of, than)
        return
    for item, ones, others in _pairs(claim, of, than):
        difference, interval = statistics.welch(ones, others)
        text = f"{fmean(ones):.4g} against {fmean(others):.4g}, difference {difference:+.4g}"
        text += f" ± {interval:.3g}" if interval is not None else ", one seed: the sign alone"
        yield Part(item.entry.id, text, difference, interval, difference > (interval or 0))


def _gain_of_average(claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    pairs = list(_pairs(claim, of, than))
    if len(pairs) == len(of):
        one, other = (fmean(fmean(values[side]) for _, *values in pairs) for side in (0, 1))
        gain = 100 * (one / other - 1) if other > 0 else None
        said = "no percentage of it" if gain is None else f"{gain:+.1f} %"
        text = f"average of {len(pairs)}: {one:.4g} against {other:.4g}, {said}; the paper {claim.value:+g} %"
        yield Part(claim.of, text, gain, None, one > other if gain is None else gain >= claim.value - claim.tolerance)


def above(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    """The means of the seeds, at the points that both curves have."""
    for one, other in zip(of, than, strict=True):
        both = one.curves(_metric(claim, one)), other.curves(_metric(claim, other))
        if not all(both):
            continue
        ours, others = (dict(zip(mean.x, mean.mean)) for mean in map(statistics.mean_curve, both))
        differences = [ours[x] - others[x] for x in ours if x in others]
        if differences:
            higher, lower, mean = (
                sum(part > 0 for part in differences),
                sum(part < 0 for part in differences),
                fmean(differences),
            )
            text = f"above at {higher} and below at {lower} of {len(differences)} points, on average {mean:+.4g}"
            yield Part(one.entry.id, text, mean, None, not lower and mean > 0)


def higher_aggregate(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    pairs = list(_pairs(claim, of, than))
    if not pairs:
        return
    ones, others = (
        [[value / ledger.solved_at[item.entry.value] for value in values[side]] for item, *values in pairs]
        for side in (0, 1)
    )
    difference, low, high = statistics.iqm_difference(ones, others)
    text = f"interquartile mean over {len(pairs)} tasks, difference {difference:+.3f}"
    text += f", interval {low:+.3f} to {high:+.3f}" if low is not None else ", one seed of a task: the sign alone"
    interval = None if low is None else (high - low) / 2
    yield Part(claim.of, text, difference, interval, (difference if low is None else low) > 0)


def overhead(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    ratios = [fmean(ones) / fmean(others) for _, ones, others in _pairs(claim, of, than)]
    if ratios:
        mean, interval = fmean(ratios) - 1, statistics.t_interval(ratios)
        text = f"{100 * mean:+.1f} %" + (
            f" ± {100 * interval:.1f} over {len(ratios)} tasks" if interval is not None else ""
        )
        text += f", the paper {100 * claim.value:+.3g} %" if claim.value is not None else ""
        yield Part(claim.of, text, mean, interval, mean <= (claim.value or 0) + claim.tolerance)


def bounds(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    """at_least and within: of each run's curve by itself; the worst one counts."""
    for item in of:
        curves = item.curves(_metric(claim, item))
        if not curves:
            continue
        lows, highs = zip(*(statistics.extremes(curve, claim.after, claim.window) for curve in curves))
        if claim.test == "at_least":
            floor = claim.value - claim.tolerance
            yield Part(
                item.entry.id,
                f"smallest {min(lows):.4g}, at least {floor:.4g} expected",
                min(lows),
                None,
                min(lows) >= floor,
            )
        else:
            passed = claim.low <= min(lows) and max(highs) <= claim.high
            yield Part(
                item.entry.id,
                f"from {min(lows):.4g} to {max(highs):.4g}, {claim.low:g} to {claim.high:g} expected",
                max(highs),
                None,
                passed,
            )


def spread(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    for metric in ledger.experiments[claim.of].metric:
        means = [fmean(values) for item in of if (values := item.values(metric))]
        if len(means) > 1:
            size = max(means) - min(means)
            text = f"{metric}: {size:.2f} between the largest and smallest of {len(means)}, at most {claim.value:g} expected"
            yield Part(claim.of, text, size, None, size <= claim.value)


PARTS = {
    ("higher", False): higher,
    ("higher", True): higher_aggregate,
    ("above", False): above,
    ("overhead", False): overhead,
    ("at_least", False): bounds,
    ("within", False): bounds,
    ("spread", False): spread,
}
