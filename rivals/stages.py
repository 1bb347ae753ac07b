"""The runs of docs/rivals/ in their order: each stage's settings are chosen from the runs before it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rivals import llm, vision

TUNING_SEEDS, FRESH_SEEDS = (1, 2), (11, 12, 13, 14, 15)
# The task on which settings are chosen, the one on which they are reported, and whether updates are off-policy.
LLM_PARTS = (
    ("chain", "chain", False),
    ("chain", "chain-biased", False),
    ("chain", "chain-single", False),
    ("chain", "chain", True),
    ("chain-goal", "chain-goal", False),  # the longest of them
)


@dataclass(frozen=True)
class Run:
    name: str
    task: str
    agent: str  # the method
    command: tuple[str, ...]


Settings = Mapping[str, Sequence[str]]  # of each method


def runs(module: str, task: str, settings: Settings, seeds: Sequence[int], *flags: str) -> list[Run]:
    """Seed by seed, so that the first runs already compare all methods."""
    return [
        Run(
            f"{task}-{method}-{setting}-seed{seed}",
            task,
            method,
            (module, *flags, "--method", method, "--setting", setting, "--seed", str(seed)),
        )
        for seed in seeds
        for method, values in settings.items()
        for setting in values
    ]


def llm_runs(task: str, settings: Settings, seeds: Sequence[int]) -> list[Run]:
    return runs("rivals.llm_run", task, settings, seeds, "--task", task)


def llm_stages(output: Path) -> Iterator[list[Run]]:
    """Each is asked for once the runs of those before it are finished."""
    for tuned_on, task, off_policy in LLM_PARTS:
        methods = {name: one.settings for name, one in llm.METHODS.items() if one.off_policy == off_policy}
        tuning = llm_runs(tuned_on, methods, TUNING_SEEDS)
        yield tuning
        found = [llm.read(output / run.name) for run in tuning]
        chosen = {method: (llm.choose(found, tuned_on, method, TUNING_SEEDS),) for method in methods}
        yield llm_runs(task, chosen, FRESH_SEEDS)
    # Beside the protocol, for a picture in docs/when-to-use.md.
    yield llm_runs("chain-single", {"grpo": ("1",), "era": ("0.3",)}, (1,))


def vision_runs(settings: Settings, seeds: Sequence[int]) -> list[Run]:
    return runs("rivals.vision_run", vision.TASK, settings, seeds)


def vision_stages(output: Path) -> Iterator[list[Run]]:
    tuning = vision_runs(vision.METHODS, TUNING_SEEDS)
    yield tuning
    rows = [row for run in tuning for row in vision.read(output / run.name)]
    chosen = {}
    for (method, _), setting in vision.choose(rows, TUNING_SEEDS).items():
        chosen.setdefault(method, {})[setting] = None
    yield vision_runs(chosen, FRESH_SEEDS)
