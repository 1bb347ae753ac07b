"""The task of the smoke runs: four prompts whose answers have known entropies.

The prompt is one letter, the name of a band. The model (see bigram.py) draws every token of the answer from the band's
own distribution, so the H_resp of a response is the entropy of its band. The bands lie below, between and above the
recipes' two values of omega_low, and one above omega_high.

verl loads `compute_score` from this file by its path (`custom_reward_function.path`): standard library only.
"""

import math
import string

RESPONSE_LENGTH = 20
END = "<eos>"
# The tokens of a band's answers and their probabilities. In each band about half of the answers are right.
BANDS = {
    "a": {"0": 0.98, "1": 0.02},
    "b": {"2": 0.91, "3": 0.09},
    "c": dict.fromkeys("4567", 1 / 4),
    "d": dict.fromkeys([*string.ascii_uppercase, *"efghijklmnopq", END], 1 / 40),
}
ENTROPIES = {band: -sum(p * math.log(p) for p in tokens.values()) for band, tokens in BANDS.items()}  # nats


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's reward function: 1 if the character codes have an odd sum, else 0. DAPO's group filter reads `acc`."""
    right = float(sum(map(ord, solution_str)) % 2)
    return {"score": right, "acc": right}
