# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Writes the tables and pictures of docs/rivals/, of PPO and of SAC, and README's lines on PPO, from records/ alone.

The tables of each page are in the module of its name, those of trl-hold.md in hold.py.
"""

import argparse
from pathlib import Path

from recipes import PROJECT
from recipes.curves import at_end, over_all
from recipes.pages import filled, wrapped
from rivals import control, control_page, hold, llm_page, pictures, records, trl, trl_page, vision, vision_page

DOCS = PROJECT / "docs"


def pages() -> dict[Path, str]:
    """The pages with their tables, as the records have them."""
    of_trl, of_llm = trl_page.recorded_runs(), llm_page.recorded_runs()
    tables = {
        "rivals/llm": llm_page.tables(of_llm),
        "rivals/trl": trl_page.tables(of_trl),
        "rivals/trl-bound": trl_page.bound_tables(of_trl),
        "rivals/trl-hold": hold.tables(of_trl, of_llm),
        "rivals/vision": vision_page.tables(vision.measures(records.read("vision/measures"))),
        "rivals/control": {"targets": control_page.ppo_table("H0 (sigma)", control.TARGETS)},
        "control/ppo": {
            "figure": wrapped(control_page.figure_text()),
            "tasks": control_page.tasks_table(at_end),
            "efficiency": control_page.tasks_table(over_all),
            "aggregate": control_page.aggregate_table(),
            "seeds": control_page.seeds_table(),
            "arms": control_page.arms_table(),
            "eapo": control_page.ppo_table("", control.EAPO, "eapo_3m", control.EAPO_SEEDS),
        },
        "control/sac": {"alpha": control_page.alpha_table(), "obac": control_page.obac_table()},
    }
    files = {DOCS / f"{name}.md": text for name, text in tables.items()}
    files[PROJECT / "README.md"] = {"ppo": control_page.readme_text()}
    return {file: filled(file.read_text(), text) for file, text in files.items()}


def draw(folder: Path) -> None:
    numbers = llm_page.recorded_runs()
    results = llm_page.results_of_parts(numbers)
    parts = {title: (part.task, part.chosen) for title, part in results.items() if part.tuned}
    pictures.frontiers(records.read("llm/samples"), parts, folder / "rivals-frontiers.png")
    pictures.settings(numbers, folder / "rivals-settings.png")
    pictures.examples(records.read("llm/curves"), folder / "rivals-examples.png")
    of_trl = records.read("trl/curves")
    of_trl = of_trl[of_trl.seed.isin(trl.SEEDS)]
    pictures.trl_curves(of_trl, folder / "rivals-trl.png")
    panels = {task: {trl_page.bound_name(*arm): arm for arm in arms} for task, arms in trl_page.BOUND_PANELS.items()}
    pictures.bound_curves(of_trl, panels, trl.BOUND, folder / "rivals-trl-bound.png")
    held = ((hold.TRL, hold.held_in_trl(trl_page.recorded_runs())), (hold.VERL, hold.held_in_verl()))
    for host, tasks in held:
        pictures.held_curves(hold.panels(host, tasks), folder / f"rivals-hold-{host.curves}.png")
    returns = {agent: control_page.evaluations("control-ppo", agent) for agent in control.ARMS}
    of_eapo = {agent: control_page.evaluations("control-ppo", agent, control.EAPO_SEEDS) for agent in control.EAPO}
    pictures.returns(
        {"PPO-ERA and other sigmas": (returns, control.ARMS), "EAPO, three seeds": (of_eapo, control.EAPO)},
        10,
        folder / "control-ppo.png",
    )
    labels = {"ppo": "PPO", "ppo_era": "PPO-ERA", "ppo_constant": "PPO, a constant sigma with ERA's entropy"}
    entropies = {agent: control_page.evaluations("control-ppo", agent, column="entropy_per_dim") for agent in labels}
    pictures.return_and_entropy(returns, entropies, labels, folder / "halfcheetah.png")
    of_obac = {agent: control_page.evaluations("obac", agent) for agent in control.OBAC}
    pictures.returns({"OBAC and SAC on HalfCheetah-v4": (of_obac, control.OBAC)}, 1, folder / "control-obac.png")
    chosen, fresh = vision_page.chosen_runs(vision.measures(records.read("vision/measures")))
    labels = [f"{vision_page.arm_name(arm)} ({setting})" for arm, setting in chosen.items()]
    pictures.arms(fresh, labels, vision_page.REFERENCE, folder / "rivals-vision.png")


def main() -> None:
    argparse.ArgumentParser("python -m rivals.report", description=__doc__).parse_args()
    for file, text in pages().items():
        file.write_text(text)
    draw(DOCS / "img")
    print(f"Tables in {DOCS}/rivals and {DOCS}/control, pictures in {DOCS}/img")


if __name__ == "__main__":
    main()
