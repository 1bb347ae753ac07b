# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""Writes the tables and pictures of docs/rivals/, of PPO and of SAC, and README's lines on PPO, from records/ alone.

The tables of each page are in the module of its name: llm_page.py and trl_page.py, beside which llm.py and trl.py have
the runs that are still trained; those of trl-hold.md in hold.py.
"""

import argparse
from pathlib import Path

from recipes import PROJECT
from recipes.curves import at_end, over_all
from recipes.pages import filled, wrapped
from rivals import control, hold, llm_page, pictures, records, trl_page, vision

DOCS = PROJECT / "docs"


def pages() -> dict[Path, str]:
    """The pages with their tables, as the records have them."""
    of_trl, of_llm = trl_page.recorded_runs(), llm_page.recorded_runs()
    tables = {
        "rivals/llm": llm_page.tables(of_llm),
        "rivals/trl": trl_page.tables(of_trl),
        "rivals/trl-hold": hold.tables(of_trl, of_llm),
        "rivals/vision": {"results": vision.results_table(vision.measures(records.read("vision/measures")))},
        "rivals/control": {"targets": control.ppo_table("H0 (sigma)", control.TARGETS)},
        "control/ppo": {
            "figure": wrapped(control.figure_text()),
            "tasks": control.tasks_table(at_end),
            "efficiency": control.tasks_table(over_all),
            "aggregate": control.aggregate_table(),
            "seeds": control.seeds_table(),
            "arms": control.arms_table(),
            "eapo": control.ppo_table("", control.EAPO, "eapo_3m", control.EAPO_SEEDS),
        },
        "control/sac": {"alpha": control.alpha_table(), "obac": control.obac_table()},
    }
    files = {DOCS / f"{name}.md": text for name, text in tables.items()}
    files[PROJECT / "README.md"] = {"ppo": control.readme_text()}
    return {file: filled(file.read_text(), text) for file, text in files.items()}


def draw(folder: Path) -> None:
    results = llm_page.results_of_parts(llm_page.recorded_runs())
    parts = {title: (part.task, part.chosen) for title, part in results.items() if part.tuned}
    pictures.frontiers(records.read("llm/samples"), parts, folder / "rivals-frontiers.png")
    pictures.trl_curves(records.read("trl/curves"), folder / "rivals-trl.png")
    held = ((hold.TRL, hold.trl_tasks(trl_page.recorded_runs())), (hold.VERL, hold.verl_tasks()))
    for host, tasks in held:
        pictures.held_curves(hold.panels(host, tasks), folder / f"rivals-hold-{host.curves}.png")
    returns = {agent: control.evaluations("control-ppo", agent) for agent in control.ARMS}
    of_eapo = {agent: control.evaluations("control-ppo", agent, control.EAPO_SEEDS) for agent in control.EAPO}
    pictures.returns(
        {"HalfCheetah-v4: other sigmas": (returns, control.ARMS), "HalfCheetah-v4: EAPO": (of_eapo, control.EAPO)},
        10,
        folder / "control-ppo.png",
    )
    of_obac = {agent: control.evaluations("obac", agent) for agent in control.OBAC}
    pictures.returns({"OBAC and SAC on HalfCheetah-v4": (of_obac, control.OBAC)}, 1, folder / "control-obac.png")
    chosen, fresh = vision.chosen_runs(vision.measures(records.read("vision/measures")))
    pictures.arms(chosen, fresh, folder / "rivals-vision.png")


def main() -> None:
    argparse.ArgumentParser("python -m rivals.report", description=__doc__).parse_args()
    for file, text in pages().items():
        file.write_text(text)
    draw(DOCS / "img")
    print(f"Tables in {DOCS}/rivals and {DOCS}/control, pictures in {DOCS}/img")


if __name__ == "__main__":
    main()
