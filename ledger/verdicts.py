"""What counts as reproduced: the ledger's numbers and claims against what was collected."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from ledger import statistics
from ledger.ledger import Claim, Entry, Experiment, Ledger
from ledger.results import (
    CANNOT,
    COMPLETE,
    FAILED,
    NOT_REPRODUCED,
    NOT_RUN,
    PARTIAL,
    REPRODUCED,
    Cell,
    ClaimOutcome,
    Collected,
    Curve,
    Outcome,
    Part,
    Result,
)


def judge(ledger: Ledger, collected: Collected) -> Collected:
    """With outcomes by entry id and claims by claim id."""
    found = {entry.id: Found(ledger, collected, entry) for entry in ledger.entries.values()}
    claims = {claim.id: judge_claim(ledger, claim, found) for claim in ledger.claims.values()}
    rows = {name: judge_row(ledger, item) for name, item in found.items() if not item.entry.experiment.gain}
    outcomes = {}
    for name, item in found.items():
        outcome = judge_gain(ledger, item.entry, rows) if item.entry.experiment.gain else rows[name]
        outcomes[name] = with_claims(ledger, item.entry.experiment, outcome, claims)
    return replace(collected, outcomes=outcomes, claims=claims)


class Found:
    """What was collected for an entry. used: the complete results that count."""

    def __init__(self, ledger: Ledger, collected: Collected, entry: Entry):
        experiment = entry.experiment
        self.entry = entry
        self.wanted = len(ledger.seeds_of(experiment))
        kind = "evaluation" if experiment.evaluation else "training"
        results = collected.of(entry.folder, kind) if entry.folder else []
        self.used = [result for result in results if result.used and is_complete(result, experiment)]
        left_out = [f"{result.label}: {_why_left_out(result)}" for result in results if result not in self.used]
        self.notes = list(dict.fromkeys(left_out))
        if shipped := sum(result.from_repository for result in self.used):
            self.notes.append(f"came with the repository: {shipped} of {len(self.used)} runs")
        if modified := sum(result.state == "modified" for result in self.used):
            self.notes.append(f"of a modified checkout: {modified} of {len(self.used)} runs")
        last = next((record for record in reversed(collected.records) if entry.id in record.get("experiments", ())), {})
        failed_early = last.get("state") == FAILED and not results
        if failed_early:
            self.notes.append(f"{last['command']} failed; its log is among the runs")
        self.failed = failed_early or any(result.failed for result in results) and not self.used
        self.started = bool(results) or failed_early

    @property
    def is_whole(self) -> bool:
        return len(self.used) >= self.wanted and all(
            len(self.values(metric)) >= self.wanted for metric in self.entry.metrics
        )

    def values(self, metric: str) -> list[float]:
        """The metric's number of each result that has it, at the end of its curve if it is one."""
        numbers = [final(result, metric, self.entry.experiment.until) for result in self.used]
        return [number for number in numbers if number is not None]

    def curves(self, metric: str) -> list[Curve]:
        return [result.curves[metric] for result in self.used if metric in result.curves]


def is_complete(result: Result, experiment: Experiment) -> bool:
    return result.finished or experiment.until is not None and result.steps >= experiment.until


def _why_left_out(result: Result) -> str:
    if not result.used:
        return "not used, see the problems"
    return f"{'failed' if result.failed else 'unfinished'}, {result.progress}"


def final(result: Result, metric: str, until: int | None = None) -> float | None:
    """until: the step at which a longer training is looked at."""
    at_epochs = result.curves.get(f"eval_{metric}")  # timm's values are those of the last epoch
    if until is not None and at_epochs:
        return next((y for x, y in zip(at_epochs.x, at_epochs.y) if x >= until), None)
    if metric in result.values:
        return result.values[metric]
    if metric not in result.curves:
        return None
    return statistics.end(result.curves[metric], math.inf if until is None else until)


# ------------------------------------------------------------------------------------------------------ rows of tables


def judge_row(ledger: Ledger, found: Found) -> Outcome:
    experiment, seeds = found.entry.experiment, len(found.used)
    if experiment.cannot:
        cells = [_paper_cell(experiment, metric) for metric in experiment.paper]
        return Outcome(found.entry.id, CANNOT, cells, 0, found.wanted)
    cells = [judge_cell(ledger, found, metric) for metric in found.entry.metrics]
    notes = [f"{seeds} of {found.wanted} seeds"] if 0 < seeds < found.wanted else []
    notes += found.notes
    for cell in cells:
        if cell.seeds < seeds:
            where = f" in {seeds - cell.seeds} of {seeds} runs" if cell.seeds else ""
            notes.append(f"{cell.metric} is missing{where}")
    if not found.started:
        state = NOT_RUN
    elif found.failed:
        state = FAILED
    elif not found.is_whole:
        state = PARTIAL
    elif not experiment.tolerance:
        state = COMPLETE
    else:
        judged = ledger.tolerances[experiment.tolerance].judged
        state = _verdict(cells, judged)
        if state == REPRODUCED and (outside := [cell.metric for cell in cells if cell.within is False]):
            notes.append(f"by its {' and '.join(judged)}; outside the tolerance: {', '.join(outside)}")
    return Outcome(found.entry.id, state, cells, seeds, max(seeds, found.wanted), notes)


def _verdict(cells: Sequence[Cell], judged: Sequence[str]) -> str:
    return REPRODUCED if all(cell.within for cell in cells if cell.metric in judged) else NOT_REPRODUCED


def _paper_cell(experiment: Experiment, metric: str) -> Cell:
    number = experiment.paper.get(metric)
    return Cell(metric, number and number.value, number and number.error)


def judge_cell(ledger: Ledger, found: Found, metric: str) -> Cell:
    experiment = found.entry.experiment
    cell, values = _paper_cell(experiment, metric), found.values(metric)
    if not values:
        return cell
    ours, interval, over = fmean(values), statistics.t_interval(values), "seeds"
    if interval is None:
        interval, over = found.used[0].intervals.get(metric), found.used[0].interval_of
    over = over if interval is not None else ""
    cell = replace(cell, ours=ours, interval=interval, interval_of=over, seeds=len(values))
    if cell.paper is None:
        return cell
    difference = ours - cell.paper
    allowed = allowed_difference(ledger, experiment, metric, interval, len(values))
    within = None if allowed is None else abs(difference) <= allowed
    return replace(cell, difference=difference, allowed=allowed, within=within)


def allowed_difference(
    ledger: Ledger, experiment: Experiment, metric: str, interval: float | None, seeds: int
) -> float | None:
    """By the experiment's tolerance; None for a metric that it does not cover. `average` is that of its benchmarks."""
    answers = ledger.tolerances[experiment.tolerance].answers
    if not answers:
        error = experiment.paper[metric].error
        return None if interval is None or error is None else math.hypot(interval, error)
    names = list(answers) if metric == "average" else [metric] if metric in answers else []
    widths = [statistics.share_half_width(experiment.paper[name].value, answers[name], seeds) for name in names]
    return math.hypot(*widths) / len(widths) if widths else None


# --------------------------------------------------------------------------------------------------------------- gains


def judge_gain(ledger: Ledger, entry: Entry, rows: Mapping[str, Outcome]) -> Outcome:
    """A row that compares two others: in percent of the second, or in points.

    It is reproduced if it is the paper's within what the two rows may be off; but not where ours is too noisy to show a
    gain that the paper's own errors do show."""
    experiment = entry.experiment
    of, over = (rows[name] for name in experiment.gain)
    cells = [_gain_cell(experiment, metric, _cell(of, metric), _cell(over, metric)) for metric in experiment.paper]
    seeds, wanted = min(of.seeds, over.seeds), min(of.wanted, over.wanted)
    if of.state == over.state == NOT_RUN:
        return Outcome(entry.id, NOT_RUN, cells, 0, wanted)
    notes = [f"{row.id}: {row.state}" for row in (of, over) if row.state in (PARTIAL, FAILED, NOT_RUN)]
    judged = ledger.tolerances[ledger.experiments[experiment.gain[0]].tolerance].judged
    for cell in cells if not notes else ():
        if cell.metric in judged and _hides_the_gain(cell, _cell(of, cell.metric), _cell(over, cell.metric)):
            what = f"our interval, ± {cell.interval:.2g}, is wider than the paper's gain; more seeds would tell"
            notes.append(f"{cell.metric}: {what}")
    return Outcome(entry.id, PARTIAL if notes else _verdict(cells, judged), cells, seeds, wanted, notes)


def _hides_the_gain(gain: Cell, of: Cell, over: Cell) -> bool:
    """Where the paper prints no errors its numbers are shares of answers, and the tolerance says what they can show."""
    if None in (gain.interval, of.paper_error, over.paper_error):
        return False
    return gain.interval > abs(gain.paper) > math.hypot(of.paper_error, over.paper_error)


def _cell(outcome: Outcome, metric: str) -> Cell:
    return next(cell for cell in outcome.cells if cell.metric == metric)


def _gain_cell(experiment: Experiment, metric: str, of: Cell, over: Cell) -> Cell:
    paper, in_percent = experiment.paper[metric].value, experiment.gain_in == "percent"
    if of.ours is None or over.ours is None or in_percent and over.ours <= 0:
        return Cell(metric, paper, None)
    # How far the gain moves with each of the two numbers: in percent it is 100 (of / over - 1).
    by_of, by_over = (100 / over.ours, 100 * of.ours / over.ours**2) if in_percent else (1.0, 1.0)

    def combined(of_width: float | None, over_width: float | None) -> float | None:
        return None if None in (of_width, over_width) else math.hypot(by_of * of_width, by_over * over_width)

    ours, interval = by_of * (of.ours - over.ours), combined(of.interval, over.interval)
    allowed = combined(of.allowed, over.allowed)
    within = None if allowed is None else abs(ours - paper) <= allowed
    kind = of.interval_of if interval is not None else ""
    return Cell(metric, paper, None, ours, interval, kind, min(of.seeds, over.seeds), ours - paper, allowed, within)


# ---------------------------------------------------------------------------------------------------- claims on curves


def with_claims(
    ledger: Ledger, experiment: Experiment, outcome: Outcome, claims: Mapping[str, ClaimOutcome]
) -> Outcome:
    """The paper has no number for a curve: it is reproduced if the claims hold that it takes part in."""
    about = [claims[claim.id] for claim in ledger.claims_about(experiment)]
    if outcome.state != COMPLETE or not about:
        return outcome
    states = {_claim_state(claim, outcome.id) for claim in about}
    state = next(state for state in (NOT_REPRODUCED, PARTIAL, REPRODUCED) if state in states)
    notes = [f"claim {claim.id}: {'; '.join(claim.notes)}" for claim in about if claim.state == PARTIAL]
    return replace(outcome, state=state, notes=[*outcome.notes, *notes])


def _claim_state(claim: ClaimOutcome, entry: str) -> str:
    """Of the part of a claim that is about the entry (or the entry at the same value of the other experiment)."""
    value = entry.partition("/")[2]
    passed = [part.passed for part in claim.parts if part.entry.partition("/")[2] == value]
    if claim.state == NOT_RUN or not passed or None in passed:
        return PARTIAL if claim.state in (NOT_RUN, PARTIAL) else claim.state
    return REPRODUCED if all(passed) else NOT_REPRODUCED


def judge_claim(ledger: Ledger, claim: Claim, found: Mapping[str, Found]) -> ClaimOutcome:
    of = [found[entry.id] for entry in ledger.experiments[claim.of].entries]
    than = [found[entry.id] for entry in ledger.experiments[claim.than].entries] if claim.than else []
    if not any(item.started for item in (*of, *than)):
        return ClaimOutcome(claim.id, NOT_RUN)
    parts = list(TESTS[claim.test, claim.aggregate](ledger, claim, of, than))
    notes = [f"{item.entry.id}: {_missing(item)}" for item in (*of, *than) if not item.is_whole]
    if notes or not parts or any(part.passed is None for part in parts):
        return ClaimOutcome(claim.id, PARTIAL, parts, notes or ["it cannot be tested on what there is"])
    return ClaimOutcome(claim.id, REPRODUCED if all(part.passed for part in parts) else NOT_REPRODUCED, parts)


def _missing(item: Found) -> str:
    if not item.started:
        return NOT_RUN
    return f"{len(item.used)} of {item.wanted} seeds" if len(item.used) < item.wanted else "a metric is missing"


def _metric(claim: Claim, item: Found) -> str:
    return claim.metric or item.entry.metrics[0]


def _pairs(
    claim: Claim, of: Sequence[Found], than: Sequence[Found]
) -> Iterator[tuple[Found, list[float], list[float]]]:
    """The entries for which both have results, with their numbers; `than` may have one for all."""
    for one, other in zip(of, than * len(of) if len(than) == 1 else than, strict=True):
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
        text += f" ± {interval:.4g}" if interval is not None else ", one seed: the sign alone"
        yield Part(item.entry.id, text, difference, interval, difference > (interval or 0))


def not_higher(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    for part in higher(ledger, claim, of, than):
        yield replace(part, passed=not part.passed)


def lower(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    for part in higher(ledger, claim, of, than):
        yield replace(part, passed=part.value < -(part.interval or 0))


def _gain_of_average(claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    pairs = list(_pairs(claim, of, than))
    if len(pairs) == len(of):
        one, other = (fmean(fmean(values[side]) for _, *values in pairs) for side in (0, 1))
        gain = 100 * (one / other - 1) if other > 0 else None
        shown = "no percentage of it" if gain is None else f"{gain:+.1f} %"
        text = f"average of {len(pairs)}: {one:.4g} against {other:.4g}, {shown}; the paper {claim.value:+g} %"
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
            count, mean = len(differences), fmean(differences)
            above, below = sum(part > 0 for part in differences), sum(part < 0 for part in differences)
            text = f"above at {above} and below at {below} of {count} points, on average {mean:+.4g}"
            yield Part(one.entry.id, text, mean, None, not below and mean > 0)


def higher_aggregate(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    pairs = list(_pairs(claim, of, than))
    if not pairs:
        return
    scales = [ledger.scales[item.entry.value] for item, *_ in pairs]
    ones, others = (
        [[value / scale for value in values[side]] for (_, *values), scale in zip(pairs, scales)] for side in (0, 1)
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
        text = f"{100 * mean:+.1f} %"
        text += f" ± {100 * interval:.1f} over {len(ratios)} tasks" if interval is not None else ""
        text += f", the paper {100 * claim.value:+.3g} %" if claim.value is not None else ""
        yield Part(claim.of, text, mean, interval, mean <= (claim.value or 0) + claim.tolerance)


def bounds(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    """at_least and within: each curve is tested by itself, and the worst one counts."""
    for item in of:
        curves = item.curves(_metric(claim, item))
        if not curves:
            continue
        lows, highs = zip(*(statistics.extremes(curve, claim.after, claim.window) for curve in curves))
        low, high = min(lows), max(highs)
        if claim.test == "at_least":
            floor = claim.value - claim.tolerance
            text = f"smallest {low:.4g}, at least {floor:.4g} expected"
            yield Part(item.entry.id, text, low, None, low >= floor)
        else:
            text = f"from {low:.4g} to {high:.4g}, {claim.low:g} to {claim.high:g} expected"
            yield Part(item.entry.id, text, high, None, claim.low <= low and high <= claim.high)


def spread(ledger: Ledger, claim: Claim, of: Sequence[Found], than: Sequence[Found]) -> Iterator[Part]:
    for metric in ledger.experiments[claim.of].metric:
        means = [fmean(values) for item in of if (values := item.values(metric))]
        if len(means) > 1:
            size = max(means) - min(means)
            text = f"{metric}: {size:.2f} between the largest and smallest of {len(means)}"
            yield Part(claim.of, f"{text}, at most {claim.value:g} expected", size, None, size <= claim.value)


# By Claim.test and Claim.aggregate.
TESTS = {
    ("higher", False): higher,
    ("higher", True): higher_aggregate,
    ("not_higher", False): not_higher,
    ("lower", False): lower,
    ("above", False): above,
    ("overhead", False): overhead,
    ("at_least", False): bounds,
    ("within", False): bounds,
    ("spread", False): spread,
}
