# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The rule, and the tables and pictures that the pages show; on runs made by hand, and on the records."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ledger.paper import load
from ledger.statistics import bootstrap, interquartile_difference
from recipes import PROJECT, pages
from recipes.curves import at_end, over_all
from rivals import comparisons, control, equal, hold, llm, llm_page, pictures, records, report, trl, trl_page, vision
from rivals.rule import FRESH_SEEDS, KEY, TUNING_SEEDS, choose, rows_of_seeds


def test_the_pages_have_the_tables_of_the_records():
    """If they do not, run python -m rivals.report."""
    for file, text in report.pages().items():
        assert file.read_text() == text, file


def test_the_pictures_of_the_pages_are_drawn(tmp_path):
    report.draw(tmp_path)
    shown = (report.DOCS / "img").iterdir()
    assert {file.name for file in tmp_path.iterdir()} == {
        file.name for file in shown if file.name.startswith(("rivals-", "control-"))
    }
    assert pictures.windows(pd.Series([1.0, 3.0, 5.0, 7.0], [10, 20, 30, 40]), 2).to_dict() == {20: 2, 40: 6}


def test_a_table_without_a_place_is_an_error():
    page = "before\n<!-- table one -->\nold\n<!-- end -->\nafter\n"
    assert pages.filled(page, {"one": "| new |"}) == "before\n<!-- table one -->\n| new |\n<!-- end -->\nafter\n"
    with pytest.raises(ValueError, match="two"):
        pages.filled(page, {"one": "", "two": ""})


def test_the_rule():
    """The largest mean over the tuning seeds; of equal ones the first; a missing run is an error."""
    scores = {("era", "0.2", 1): 12, ("era", "0.2", 2): 12, ("era", "0.3", 1): 30, ("era", "0.3", 2): 0}
    scores |= {("era", "0.45", seed): 15 for seed in TUNING_SEEDS} | {("era", "0.2", 11): 99}  # no tuning seed
    settings = {"era": ("0.2", "0.3", "0.45")}
    assert choose(pd.Series(scores), settings) == {"era": "0.3"}
    assert choose(pd.Series(scores | {("era", "0.3", 1): -math.inf}), settings) == {"era": "0.45"}
    with pytest.raises(ValueError, match=r"no run \('era', '0.7', 1\)"):
        choose(pd.Series(scores), {"era": ("0.2", "0.7")})


def test_holms_correction():
    """By hand: 0.05 / 14 is .0036, 0.05 / 13 .0038, 0.05 / 12 .0042."""
    p_values = {"b": 0.0037, "a": 0.001, "c": 0.0043, "none": math.nan}
    assert comparisons.holm(p_values, 14) == ["a", "b"]
    assert comparisons.holm({"c": 0.0037}, 14) == []


def test_single_seeds_and_equal_ones_have_no_interval():
    assert comparisons.difference(pd.Series([2.0]), pd.Series([1.5]), 1) == "+0.5"
    assert comparisons.difference(pd.Series([1.0, 1.0]), pd.Series([1.0, 1.0]), 2) == "+0.00"


# ----------------------------------------------------------------------------------------------------------- LLM, verl


@pytest.mark.parametrize(
    "points, expected",
    [
        ([(0.4, 1.0, 2), (1.0, 0.97, 10), (1.3, 0.93, 20)], 15),  # half-way between 1 and 1.3
        ([(0.4, 1.0, 2), (1.0, 0.9, 10), (1.3, 0.96, 20)], 20),  # the hottest counts
        ([(0.4, 0.9, 2), (1.0, 0.95, 10), (1.3, 0.0, 20)], 10),
        ([(0.4, 0.94, 2), (1.0, 0.9, 10)], 0),
    ],
)
def test_distinct_answers_at_equal_accuracy(points, expected):
    samples = pd.DataFrame(points, columns=["temperature", "pass_at_1", "distinct_32"])
    samples[KEY] = ["chain", "era", "0.3", 1]
    samples[["response_entropy", "answer_entropy"]] = 1.0
    (found,) = llm.measures(samples.sample(frac=1, random_state=0))["d@.95"]  # in any order
    assert found == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------------ LLM, TRL


def curve(entropies, rewards, distinct=2.0) -> pd.DataFrame:
    """A training's rows of curves.csv, one for five updates."""
    rows = {"step": range(5, 5 * len(entropies) + 1, 5), "response_entropy": entropies, "reward": rewards}
    return pd.DataFrame(rows).assign(distinct_right=distinct)


def test_a_rival_is_stopped_at_equal_reward_and_at_equal_entropy():
    """By hand. GRPO's means of 15 updates: H_resp 1.8, 1.5, 1.2, 0.9 and reward .3, .4, .5, .6 at steps 15 to 30."""
    grpo = curve([2.1, 1.8, 1.5, 1.2, 0.9, 0.6], [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]).sample(frac=1, random_state=0)
    run = curve([2.0, 1.4, 1.3, 1.2], [0.1, 0.44, 0.45, 0.46], 3.0)  # ends with 1.3 and .45
    found = equal.differences(run, grpo, equal.REWARD)  # half-way between steps 20 and 25, where GRPO has 1.35
    assert found.to_dict() == pytest.approx(
        {"response_entropy": -0.05, "reward": 0, "distinct_right": 1, "step": 22.5}, abs=1e-9
    )
    found = equal.differences(run, grpo, equal.ENTROPY)  # two thirds of the way, where GRPO has .4667
    assert found.to_dict() == pytest.approx(
        {"response_entropy": 0, "reward": -1 / 60, "distinct_right": 1, "step": 20 + 10 / 3}
    )
    better = run.assign(reward=0.9)
    assert equal.differences(better, grpo, equal.REWARD).isna().all()  # GRPO never has it
    assert equal.differences(run, grpo.assign(response_entropy=0.1), equal.ENTROPY).isna().all()


def test_sentences_on_grpo_stopped_earlier_have_the_records_numbers(monkeypatch):
    """In the main text those of the tables, and beside them those of other windows than 15 updates."""
    known = comparisons.curves_by_key("trl")

    def interval(arm, by, column, digits, updates=equal.WINDOW, task="pairs"):
        monkeypatch.setattr(equal, "WINDOW", updates)
        curves = comparisons.curves_of(known, (task, *arm), (task, "grpo", "0"), trl_page.SEEDS)
        values = comparisons.stopped_at(curves, by, [column])[column]
        mean, low, high = (
            f"{value:.{digits}f}" for value in (values.mean(), *stats.ttest_1samp(values, 0).confidence_interval())
        )
        spread = f"{low} to {high}"
        return mean, spread.replace("0.", ".") if column == "reward" else spread  # as the pages write shares

    weight, eight = ("era-negative", "0"), ("era-k", "8")
    page = " ".join((report.DOCS / "rivals/trl.md").read_text().split())
    mean, spread = interval(weight, equal.REWARD, "response_entropy", 2)
    others = [interval(weight, equal.REWARD, "response_entropy", 2, updates)[1] for updates in (10, 20, 25)]
    assert (
        f"{mean} nats ({spread}; with means of 10, 20 and 25 updates {others[0]}, {others[1]} and {others[2]})" in page
    )
    mean, spread = interval(weight, equal.REWARD, "distinct_right", 1)
    assert f"and {mean} more right answers of 8 ({spread})" in page
    mean, spread = interval(eight, equal.ENTROPY, "reward", 2)
    others = [interval(eight, equal.ENTROPY, "reward", 2, updates)[1] for updates in (10, 20, 25)]
    assert f"({spread}; with the others {others[0]}, {others[1]} and {others[2]})" in page
    second = [interval(arm, equal.REWARD, "response_entropy", 2, task="pairs50") for arm in (weight, eight)]
    assert f"{second[0][0]} nats without negative advantages ({second[0][1]})" in page
    assert f"k = 8 has {second[1][0]} ({second[1][1]})" in page
    for updates in (10, 20, 25):
        low, high = interval(weight, equal.REWARD, "response_entropy", 2, updates, "pairs50")[1].split(" to ")
        assert float(low) < 0 < float(high)


def accuracies(task, arm, seeds=llm.HOLD_SEEDS) -> pd.Series:
    """In verl, of the final weights, by seed."""
    return llm.measures(records.read("llm/samples")).pass_at_1[task][arm].loc[list(seeds)]


RANGES = {
    (".13", ".38"),
    (".70", ".90"),
    ("0", ".85"),
    ("-7.8", "12.1"),
    (".03", ".68"),
    (".01", ".11"),
}  # other tests have them


def test_intervals_in_sentences_are_those_of_the_tables():
    """And the means before them. A sentence may be about a table of another page, which it links."""
    files = [*sorted((report.DOCS / "rivals").glob("*.md")), report.DOCS / "when-to-use.md"]
    texts = {file.name: file.read_text().splitlines() for file in files}
    cells = [line for lines in texts.values() for line in lines if line.startswith("|")]
    cells += (records.RECORDS / "trl/comparisons.md").read_text().splitlines()
    for task, one, other, seeds in (  # of these the pages have sentences alone
        ("chain", ("era", "0.45"), ("adaptive-mean", "0.7"), FRESH_SEEDS),
        ("chain", ("era-hold", "8"), ("grpo", "1"), llm.HOLD_SEEDS),
        ("chain-single", ("era-hold", "8"), ("grpo", "1"), llm.HOLD_SEEDS),
    ):
        cells.append(comparisons.difference(accuracies(task, one, seeds), accuracies(task, other, seeds), 2))
    of_digits = vision.measures(records.read("vision/measures"))["nll"]
    off, on = (of_digits.loc[[(f"era, {how}", "0.3", seed) for seed in FRESH_SEEDS]] for how in ("off", "plain"))
    for images in (vision.TEST, vision.SHIFTED):
        cells.append(comparisons.difference(*(of[images].droplevel("arm") for of in (off, on)), 3))
    known = set()
    for cell in re.findall(r"([-+\d.,]+) \(([-+\d.,]+) to ([-+\d.,]+)\)", "\n".join(cells)):
        mean, low, high = (float(value.replace(",", "")) for value in cell)
        known |= {(mean, low, high), (-mean, -high, -low)}  # a sentence may have the difference the other way round
    number, checked = r"-?[\d.]*\d", 0
    for name, lines in texts.items():
        text = " ".join(" ".join(line for line in lines if not line.startswith("|")).split())
        for said in re.finditer(rf"(?:\(|(?<!to )(?<![-.\d])({number}), )({number}) to ({number})", text):
            own_mean, low, high = said.groups()
            if (low, high) in RANGES:
                continue
            means = [own_mean] if own_mean else re.findall(rf"(?<![.\d]){number}", text[: said.start()][-150:])
            signed = {(sign * float(mean), float(low), float(high)) for mean in means for sign in (1, -1)}
            assert signed & known, f"{name}: {text[max(0, said.start() - 80) : said.end()]}"
            checked += 1
    assert checked > 30


def test_ranges_in_sentences_have_the_records_numbers():
    of_verl, of_hold = ((report.DOCS / f"rivals/{name}.md").read_text() for name in ("llm", "trl-hold"))
    rows = [line for line in of_verl.splitlines() if line.startswith(("| GRPO sampled hotter |", "| clip-higher |"))]
    below = [cell for row in rows for cell in re.findall(r"\*\*\+0(\.\d+) \([^|]*\|$", row)]
    assert f"less reward at ERA's entropy** ({min(below)} to {max(below)})" in " ".join(of_verl.split())
    for task in ("chain-goal", "chain", "chain-biased"):
        without, hold_8 = accuracies(task, ("era-negative", "0")), accuracies(task, ("era-hold", "8"))
        spans = [
            f"{of.min():.2f} to {of.max():.2f}".replace("0.00", "0").replace("0.", ".") for of in (without, hold_8)
        ]
        assert (without > hold_8).all()
        assert re.search(rf"{spans[0]} on `{task}` \((hold )?{spans[1]}[);]", " ".join(of_hold.split())), (task, spans)


def test_what_is_said_of_hold_in_readme_and_in_when_to_use():
    """How many runs kept the bound on its two tasks in TRL, and how much less reward the end has than GRPO's."""
    numbers = trl_page.recorded_runs()
    page = hold.tables(numbers, llm_page.recorded_runs())["trl"]
    kept = re.findall(r"^\| ERA(?: with hold)?, k = 8 \|.* (\d of \d) \|", page, re.MULTILINE)
    assert kept[:4] == ["1 of 3", "1 of 3", "3 of 3", "2 of 3"]  # with hold and without it on each task
    held, of_grpo = (
        pd.concat([rows_of_seeds(numbers.reward, (task, *arm), trl.HOLD_SEEDS) for task in trl.BOUND])
        for arm in (("era-hold", "8"), ("grpo", "0"))
    )
    less = f"{(of_grpo - held).max():.2f}".removeprefix("0")
    with_hold, without_it = (
        pd.concat([rows_of_seeds(numbers, (task, *arm), trl.HOLD_SEEDS) for task in trl.BOUND])
        for arm in (("era-hold", "8"), ("era-k", "8"))
    )
    more_entropy = with_hold.training_response_entropy - without_it.training_response_entropy
    less_reward = without_it.reward - with_hold.reward
    spans = [f"{of.min():.2f} to {of.max():.2f}".replace("0.", ".") for of in (more_entropy, less_reward)]
    said = f"more entropy on all six seeds of the two tasks ({spans[0]} nats) and less reward ({spans[1]})"
    assert said in " ".join((report.DOCS / "rivals/trl-hold.md").read_text().split())
    assert f"more entropy ({spans[0]} on all six seeds)" in " ".join(
        (report.DOCS / "llm/when-it-holds.md").read_text().split()
    )
    readme, advice = (
        " ".join(file.read_text().split()) for file in (PROJECT / "README.md", report.DOCS / "when-to-use.md")
    )
    assert "With k = 8 one run of three kept it on one task, with [`hold`]" in readme
    assert "or without; on a second two without, and all with it." in readme
    assert "With k = 8 one of three runs kept it, with [`hold`]" in advice
    assert "and all three without negative advantages; on a second task all with `hold` did, and two without." in advice
    without = re.search(r"^\| ERA without negative advantages \|.* (\d of \d) \|", page, re.MULTILINE)
    assert without[1] == "3 of 3"
    assert f"up to {less} less at the end" in readme and f"GRPO's end up to {less} more" in advice


def test_on_how_many_seeds_hold_has_more_right_answers_than_grpo_stopped_at_its_reward():
    of_trl, of_verl = trl_page.recorded_runs().distinct_right, llm.measures(records.read("llm/samples")).distinct_32
    more = {}
    for of, task, seeds in (
        (of_trl, "pairs", trl.HOLD_SEEDS),
        (of_trl, "pairs50-400", trl.HOLD_SEEDS),
        (of_verl, "chain", llm.HOLD_SEEDS),
    ):
        held, stopped = (rows_of_seeds(of, (task, *arm), seeds) for arm in (("era-hold", "8"), hold.STOPPED))
        more[task] = f"{(held > stopped).sum()} of {len(seeds)}"
    assert more == {"pairs": "3 of 3", "pairs50-400": "3 of 3", "chain": "4 of 5"}
    said = "on all three seeds of `pairs` and of `pairs50-400` and on four of five of `chain`"
    assert said in " ".join((report.DOCS / "rivals/trl-hold.md").read_text().split())


def test_a_rival_that_ends_with_more_entropy_has_no_equal_point():
    """By hand: on the second of three seeds the rival never comes down to the run's H_resp."""
    run = pd.DataFrame({"step": range(5, 55, 5), "reward": 0.9, "response_entropy": 1.0})
    rival = run.assign(reward=0.5, response_entropy=[2.0 - 0.2 * i for i in range(10)])
    curves = [(run, rival), (run, rival.assign(response_entropy=1.6)), (run, rival.assign(reward=0.6))]
    assert comparisons.stopped_cell(curves, equal.ENTROPY, "reward", 2, within=0.1).endswith("; 2 seeds")
    assert "+0.35 (" in comparisons.stopped_cell(curves, equal.ENTROPY, "reward", 2, within=0.1)
    assert "seeds" not in comparisons.stopped_cell(curves, equal.ENTROPY, "reward", 2)


def test_rival_that_holds_an_entropy_is_stopped_at_its_last():
    """So it may go on learning there; one that ends with more entropy is taken at its end."""
    run = curve([1.0] * 3, [0.6] * 3)
    holds = curve([1.6, 1.6, 1.6, 0.8, 0.8, 0.8, 1.2, 1.2, 1.2], [0.3] * 6 + [0.9] * 3)
    assert equal.differences(run, holds, equal.ENTROPY)[["reward", "step"]].tolist() == pytest.approx([-0.3, 45])
    found = equal.differences(run, holds, equal.REWARD)
    assert found.step == pytest.approx(37.5)  # half-way between .5 at step 35 and .7 at 40
    first = curve([1.6] * 4, [0.7] * 4)
    assert equal.differences(run, first, equal.REWARD).step == 15  # its first mean already has more


def test_middle_of_the_first_updates_that_have_a_reward():
    """By hand: rewards 0.01, 0.02 and so on have 0.13 as the mean of updates 6 to 20; 5 to 19 have 0.12."""
    rewards = [update / 100 for update in range(1, 31)]
    assert equal.middle_update(rewards, 0.125) == 13
    assert equal.middle_update(rewards, -1) == 8 and equal.middle_update(rewards, 0.24) is None


def test_shortfall_below_a_bound_counts_from_its_first_reach():
    """By hand, with a bound of 1: 0.2, 0, 0.1, 0.3, 0.2 and 0 are lacking; the worst four rows in turn lack 0.2."""
    run = curve([2.0, 1.4, 0.8, 1.0, 0.9, 0.7, 0.8, 1.2], [0.5] * 8)
    assert equal.shortfall(run, 1.0) == pytest.approx({"mean": 0.8 / 6, "worst": 0.15})
    assert equal.shortfall(curve([2.0, 1.8, 1.7], [0.5] * 3), 1.7) == pytest.approx({"mean": 0, "worst": 0})
    assert all(map(math.isnan, equal.shortfall(run, 0.5).values()))


def test_holms_correction_of_what_holding_is_worth_counts_comparisons_without_all_runs(monkeypatch):
    """Of hold, which ends with 1.15 nats, and its five rivals, which once had that with half of its reward."""

    def text(keys):
        numbers = pd.DataFrame(index=pd.MultiIndex.from_tuples(keys, names=KEY))
        numbers[["reward", "pass_at_8", "distinct_right"]] = 1.0
        numbers["training_response_entropy"] = 1.15
        curves = []
        for key in keys:
            holds = key[1] == "era-hold"
            entropies = [2.0, *[1.15] * 5] if holds else [2.0, 1.5, 1.2, 0.9, 0.6, 0.3]
            rewards = [0.8 + key[3] / 100] * 6 if holds else [0.2, 0.3, 0.4, 0.6, 0.7, 0.75]
            curves.append(curve(entropies, rewards).assign(**dict(zip(KEY, key))))
        monkeypatch.setattr(records, "read", {"trl/curves": pd.concat(curves)}.get)
        return hold.host_tables(numbers, hold.TRL, hold.trl_tasks(numbers), "holm")["holm"]

    keys = [
        (task.name, *arm, seed)
        for task in hold.trl_tasks(pd.DataFrame())
        for arm in [*task.arms.values()][:6]
        for seed in task.seeds
    ]
    keys = list(dict.fromkeys(keys))  # GRPO's runs are the same for every bound
    of_all = [f"`{task}` at {bound:g} nats, {{}}: reward at equal H_resp" for task, bound in trl.BONUS_TARGETS]
    two = "; ".join(of_all[:2]).format("GRPO", "GRPO")
    whole = text(keys)
    assert f"of the two that decide: {two}. Of all 60: " in whole
    assert whole.count(": reward at equal H_resp") == 2 + 5 * 4 and whole.count(";") == 1 + 5 * 4 - 1
    fewer = text(keys[:-1])
    assert "Of all 60, of which 57 have all their runs: " in fewer
    assert fewer.count(": reward at equal H_resp") == 2 + 5 * 4 - 1


def test_every_arm_of_the_protocol_can_be_drawn():
    """The picture is made when the last run is there."""
    for task in (*hold.trl_tasks(pd.DataFrame()), *hold.verl_tasks()):
        assert all(pictures.color(*arm) for arm in task.arms.values())


def test_later_seeds_count_when_all_of_theirs_are_there():
    (later,) = (methods for task, methods, seeds in trl.HOLD if seeds == trl.LATER_SEEDS)
    keys = [("pairs", method, value, seed) for method in later for value in later[method] for seed in trl.LATER_SEEDS]
    for runs, seeds in ((keys, (*trl.HOLD_SEEDS, *trl.LATER_SEEDS)), (keys[1:], trl.HOLD_SEEDS)):
        numbers = pd.DataFrame(index=pd.MultiIndex.from_tuples(runs, names=KEY))
        of_task = {(task.name, task.bound): task.seeds for task in hold.trl_tasks(numbers)}
        assert of_task["pairs", 1.2] == seeds and of_task["pairs", 0.8] == (4, 5, 6)


# ------------------------------------------------------------------------------------------------------------- control


def test_what_is_said_of_the_tasks(monkeypatch):
    ends = {"HalfCheetah-v4": (9000, 1000), "Ant-v4": (100, 4000), "Hopper-v4": (500, 500)}
    pairs = {task: tuple(end + pd.Series([10, 20, 30]) for end in of_task) for task, of_task in ends.items()}
    monkeypatch.setattr(control, "seeds_by_task", lambda measure: pairs)
    said = "is above PPO on HalfCheetah, below PPO on Ant, and not told apart from it on Hopper."
    assert control.figure_text() == f"At the end PPO-ERA {said} Over the whole training PPO-ERA {said}"
    pairs["Hopper-v4"] = pairs["HalfCheetah-v4"]
    assert control.figure_text().count("is above PPO on HalfCheetah and Hopper, and below PPO on Ant.") == 2
    pairs["Ant-v4"] = pairs["Ant-v4"][0], pairs["Ant-v4"][1][:2]  # one more has been trained with ERA
    assert "| Ant-v4 | 2 and 3 | 4,015 (4,015) | 120 (120) |" in control.tasks_table(at_end)


def test_figure_is_not_reproduced_and_a_small_sigma_does_most_of_it():
    """Where new seeds say otherwise, README and docs/control/ppo.md must too."""
    told = {
        control.verdict(*pair) for measure in (at_end, over_all) for pair in control.seeds_by_task(measure).values()
    }
    assert told != {"above"}
    ppo, era, learned = (control.returns("control-ppo", agent).mean() for agent in ("ppo", "ppo_era", "ppo_parameter"))
    assert learned - ppo > 0.5 * (era - ppo)
    ends, *others = (control.returns("control-ppo", agent) for agent in control.ARMS)
    assert (ends < 2300).sum() == 9 and len(ends) == 10 and min(map(min, others)) > 4000
    page, lead = (report.DOCS / "control/ppo.md").read_text(), era - ends.max()
    assert f"that did not is {lead:,.0f} below PPO-ERA's mean" in " ".join(page.split())
    of_era, of_ppo = (control.returns("control-ppo", agent, "Ant-v4") for agent in ("ppo_era", "ppo"))
    stuck, learned_it = of_ppo[of_ppo < 100], of_ppo[of_ppo > 4000]
    (slow,) = of_ppo[(of_ppo >= 100) & (of_ppo <= 4000)]
    said = f"{len(stuck)} of {len(of_ppo)} end below 100, one at {slow:,.0f}, and {len(learned_it)} at"
    said += f" {learned_it.min():,.0f} to {learned_it.max():,.0f}, about PPO-ERA's mean."
    said += f" PPO-ERA's runs end at {of_era.min():,.0f} to {of_era.max():,.0f}."
    assert said in " ".join(page.split())
    low = control.returns("control-ppo", "ppo_era_-2.0")
    times = [of_arm.mean() / ppo for of_arm in (*others, low)]
    page = " ".join((report.DOCS / "when-to-use.md").read_text().split())
    assert f"has {min(times):.1f} to {max(times):.1f} times PPO's mean return" in page
    entropies = [at_end(rows.entropy_per_dim) for rows in control.runs("control-ppo", "ppo_parameter").values()]
    assert np.mean(entropies) == pytest.approx(-2.2, abs=0.05)


def of_ppo(agent, task=control.CHEETAH, seeds=None, measure=at_end) -> pd.Series:
    return control.returns("control-ppo", agent, task, seeds, measure)


def interval(one, other, form=",.0f") -> str:
    """As the pages write a difference of means in a sentence."""
    low, high = control.WELCH(one, other).confidence_interval()
    return f"{one.mean() - other.mean():{form}} ({low:{form}} to {high:{form}})"


def test_what_is_said_of_control_has_the_records_numbers():
    """What the first five seeds said, what PPO's runs that are not counted would change, and what small sigmas do."""
    page, sac = (" ".join((report.DOCS / f"control/{name}.md").read_text().split()) for name in ("ppo", "sac"))
    five = range(1, 6)
    of_five = [[of_ppo(agent, task, five) for task in control.TASKS] for agent in ("ppo_era", "ppo")]
    assert f"Ant at the end was not told apart, {interval(of_five[0][1], of_five[1][1], '+,.0f')}," in page
    walker = [of_ppo(agent, "Walker2d-v4", five, over_all) for agent in ("ppo_era", "ppo")]
    assert f"nor Walker2d over the training, {interval(*walker, '+,.0f')}," in page
    divided = [(ends / load().scales[task]).to_numpy() for side in of_five for task, ends in zip(control.TASKS, side)]
    middle, low, high = bootstrap(divided, interquartile_difference)
    assert f"nor the four tasks together at the end, {middle:+.2f} ({low:+.2f} to {high:+.2f})" in page
    assert low < 0

    ppo, era = of_ppo("ppo"), of_ppo("ppo_era")
    others = (6175, 6579)
    assert "the others {:,.0f} and {:,.0f};".format(*(era.mean() - end for end in others)) in page
    assert f"would be {interval(era, pd.concat([ppo, pd.Series(others)]), '+,.0f')}" in page

    learned, layer, no_bonus, noisy = map(of_ppo, ("ppo_parameter", "ppo_head", "ppo_no_bonus", "ppo_era_1.0"))
    assert f"without it PPO has [{no_bonus.mean():,.0f}](#eapo)" in page and f"PPO, has {noisy.mean():,.0f}" in page
    shares = [(arm.mean() - ppo.mean()) / (era.mean() - ppo.mean()) for arm in (learned, layer)]
    assert f"have {shares[0]:.2f} and {shares[1]:.2f} of PPO-ERA's gain".replace("0.", ".") in page
    over = interval(*(of_ppo(agent, measure=over_all) for agent in ("ppo_era", "ppo_head")))
    mean, spread = over.split(" ", 1)
    assert f"PPO-ERA is {mean} above its layer without ERA {spread}" in page
    ends = [at_end(rows.entropy_per_dim) for rows in control.runs("control-ppo", "ppo_head").values()]
    assert np.mean(ends) == pytest.approx(-1.8, abs=0.05)

    seconds = [
        {seed: rows.cpu_seconds.iloc[-1] for seed, rows in control.runs("control-ppo", agent, "Ant-v4").items()}
        for agent in ("ppo_era", "ppo")
    ]
    times = [seconds[0][seed] / seconds[1][seed] for seed in seconds[0]]
    assert f"took {min(times):.2f} to {max(times):.2f} times as much" in page
    one, other = (control.returns("obac", agent) for agent in ("sac_era", "obac-reward"))
    assert f"SAC-ERA minus OBAC with the reward switch, {interval(one, other, '+,.0f')}" in sac


def test_what_is_said_of_different_answers_and_of_prompts_given_up():
    """docs/when-to-use.md, of verl."""
    page = " ".join((report.DOCS / "when-to-use.md").read_text().split())
    runs = llm.measures(records.read("llm/samples"))

    def mean(task, method, setting, seeds, measure):
        return runs.loc[[(task, method, setting, seed) for seed in seeds], measure].mean()

    era, bonus, slow = (
        mean("chain", *arm, FRESH_SEEDS, "d@.95")
        for arm in (("era", "0.45"), ("adaptive-mean", "0.7"), ("grpo", "0.25"))
    )
    assert f"ERA has {era:.0f} different right answers at the hottest temperature at which .95 are right" in page
    assert f"a bonus on mean entropy {bonus:.0f}, GRPO with a quarter of the learning rate {slow:.0f}" in page
    fresh = mean("chain", "era", "0.45", FRESH_SEEDS, "pass_at_1")
    on_chain, shared = runs.pass_at_1["chain"], [*TUNING_SEEDS, 31]
    of_era = pd.concat([on_chain["era", "0.45"], on_chain["era-k", "2"]])  # seed 31, with the same bound
    own, of_grpo = of_era.loc[shared].mean(), on_chain["grpo", "1"].loc[shared].mean()
    said = f"{fresh:.2f} there; on three other seeds {own:.2f}, GRPO's {of_grpo:.2f}."
    assert f"ERA's accuracy is {said}".replace("0.", ".") in page
    half, high = (mean("chain-goal", *arm, FRESH_SEEDS, "pass_at_32") for arm in (("grpo", "0.5"), ("era", "0.7")))
    full, without = (
        mean("chain-goal", *arm, llm.HOLD_SEEDS, "pass_at_32") for arm in (("grpo", "1"), ("era-negative", "0"))
    )
    said = (
        f"right for {half:.2f} of them at half the learning rate, with ERA and a high bound for {high:.2f} (five seeds,"
    )
    assert said.replace("0.", ".") in page
    said = f"On five others GRPO at the full rate has {full:.2f}, ERA without negative advantages {without:.2f}."
    assert said.replace("0.", ".") in page


def test_what_is_said_of_later_seeds_and_of_runs_without_reward():
    """docs/rivals/llm.md and trl-hold.md, whose tables have none of these numbers."""
    of_verl, of_hold = (
        " ".join((report.DOCS / f"rivals/{name}.md").read_text().split()) for name in ("llm", "trl-hold")
    )
    runs = llm.measures(records.read("llm/samples"))
    of_chain = runs["d@.95"]["chain"]
    era = pd.concat([of_chain["era", "0.45"], of_chain["era-k", "2"]])  # seed 31, with the same bound
    slow, later = of_chain["grpo", "0.25"], [16, 23, 31]
    told = [f"{a:.0f}, {b:.0f} and {c:.0f}" for a, b, c in (era.loc[later], slow.loc[later])]
    all_eight = [*FRESH_SEEDS, *later]
    cell = comparisons.difference(era.loc[all_eight], slow.loc[all_eight], 1).replace("+", "").replace(" (", " more (")
    assert f"ERA has {told[0]} answers, slow GRPO {told[1]}: over all eight ERA has {cell}." in of_verl
    bonus, grpo = (runs.reward["chain-single"][arm][31] for arm in (("adaptive", "0.45"), ("grpo", "1")))
    assert f"had {bonus:.2f} of reward in its".replace("0.", ".") in of_verl
    assert f"(trl-hold.md#results-in-verl), GRPO {grpo:.2f}.".replace("0.", ".") in of_verl

    curves = comparisons.curves_by_key("llm")
    for task in ("chain", "chain-goal"):
        of_bonus = llm_page.recorded_runs().training_response_entropy[task]["adaptive"]
        is_kept = [
            equal.kept(curves.loc[[(task, "adaptive", share, seed)]], entropy, float(share) * llm.START[task])
            for (share, seed), entropy in of_bonus.items()
            if seed in (*TUNING_SEEDS, *FRESH_SEEDS)
        ]
        assert len(is_kept) == 15 and sum(is_kept) == 4
    assert "the worst 20 steps too, it has it in 4 of 15 on both" in of_verl

    (goal,) = (task for task in hold.verl_tasks() if task.name == "chain-goal")
    curves_of_both = goal.curves(curves, goal.arms[hold.HOLD_8], goal.arms["GRPO"])
    of_seeds = comparisons.stopped_at(curves_of_both, equal.ENTROPY, [equal.REWARD])[equal.REWARD]
    (lost,) = of_seeds.index[of_seeds.abs() < 0.005]
    without_it = f"without the seed on which both lost all reward {of_seeds.drop(lost).mean():.2f})"
    assert without_it.replace("0.", ".") in of_hold
    without, held = (
        runs.reward["chain-biased"][arm].loc[list(llm.HOLD_SEEDS)] for arm in (("era-negative", "0"), ("era-hold", "8"))
    )
    said = f"of its reward {without.min():.2f} to {without.max():.2f}, hold 0 to {held.max():.2f})"
    assert said.replace("0.", ".") in of_hold and held.min() < 0.005


def test_what_is_said_of_entropies_and_of_slow_grpo():
    """docs/when-to-use.md: omega_high never acted; docs/rivals/llm.md: the temperature on which an interval hangs."""
    curves = pd.concat([records.read("llm/curves"), records.read("trl/curves")])
    with_era = curves.method.str.contains("era")
    assert curves[with_era].response_entropy.max() < 2.2
    assert curves[curves.method.isin(("bonus", "adaptive"))].response_entropy.max() == pytest.approx(2.8, abs=0.05)
    samples = records.read("llm/samples")
    for kept, excludes in ((samples, False), (samples[samples.temperature != 1], True)):
        distinct = llm.measures(kept)["d@.95"]["chain"]
        era, slow = (distinct[arm].loc[list(FRESH_SEEDS)] for arm in (("era", "0.45"), ("grpo", "0.25")))
        assert (stats.ttest_rel(era, slow).confidence_interval().low > 0) == excludes
