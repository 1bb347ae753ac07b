# SPDX-License-Identifier: Apache-2.0
# Copyright 2026 The ERA overlays authors
"""The paper's experiments with SAC, OBAC and their ERA agents, by sbx (JAX), and two of CPU size."""

from recipes.control.script import Agent, ControlScript, Grid

HUMANOIDBENCH = tuple(f"h1-{task}-v0" for task in ("walk", "run", "stand", "hurdle", "stair", "crawl"))
THREE = ("h1-run-v0", "h1-hurdle-v0", "h1-stair-v0")  # "three challenging" ones; the paper does not name them
DMC = ("dog-trot", "dog-walk", "dog-run", "humanoid-run", "humanoid-walk", "humanoid-stand")
FOUR = ("dog-run", "dog-trot", "humanoid-run", "humanoid-walk")
GYM = ("HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4", "Humanoid-v4", "Swimmer-v4")
THREE_SEEDS, FIVE_SEEDS, TEN_SEEDS = (tuple(range(1, count + 1)) for count in (3, 5, 10))
# "an action repeat of 2 and disabled episode termination"
MODIFIED = ("--action_repeat", "2", "--no_termination")


def era(name: str = "", *flags: str) -> Agent:
    return Agent(f"sac_era{name}", ("--era", *flags))


BASELINE, ERA = Agent("sac"), era()
TANH, LEARNED, BATCH = ("--distribution", "tanh"), "--learn_delta", ("--level", "batch")
OBAC, OBAC_ERA = Agent("obac", ("--obac", "soft")), Agent("obac_era", ("--obac", "soft", "--era"))
# OBAC's switch compares SAC's value, which includes entropy, with mu*'s, which does not. With ERA neither does, so
# OBAC-ERA changes two things at once. In this arm neither value includes entropy, but the policy's is that of critics
# which the policy does not maximise.
OBAC_REWARD = Agent("obac-reward", ("--obac", "reward"))
# Fig. ablation_entropy names no targets: round values around the paper's own, SAC_TARGET, which BASELINE and ERA have.
TARGETS = ("-0.25", "-0.75", "-1.0")


class SAC(ControlScript):
    host = "sac"
    file = "recipes/control/sac_train.py"
    packages = ("sbx", "jax", "flax", "optax", "stable_baselines3", "gymnasium", "mujoco", "torch")
    apart = ("alpha", "obac")
    experiments = {
        # fig. hb_sac, and the SAC of fig. preview_results
        "sac-humanoidbench": (Grid((BASELINE, ERA), HUMANOIDBENCH, TEN_SEEDS, MODIFIED),),
        "sac-dmc": (Grid((BASELINE, ERA), DMC, TEN_SEEDS),),
        # fig. hb_obac
        "obac-humanoidbench": (Grid((OBAC, OBAC_ERA), HUMANOIDBENCH, TEN_SEEDS, MODIFIED),),
        # fig. mujoco, and SAC's half of fig. compare_mnse
        "sac-gym": (Grid((BASELINE, ERA), GYM, TEN_SEEDS),),
        # fig. ablation_entropy
        "sac-targets": (
            Grid(
                (
                    *(BASELINE, ERA, Agent("sac-no_entropy", ("--alpha_init", "0"))),
                    *(Agent(f"sac-target_{target}", ("--target_entropy", target)) for target in TARGETS),
                    *(era(f"-target_{target}", "--target_entropy", target) for target in TARGETS),
                ),
                FOUR,
                FIVE_SEEDS,
            ),
        ),
        # fig. humanoidbench_sac
        "sac-standard": (
            Grid((BASELINE,), THREE, TEN_SEEDS, MODIFIED),
            Grid((Agent("sac-standard"),), THREE, TEN_SEEDS),
        ),
        # fig. ablation_distribution; ERA is the truncated one with constant delta
        "sac-distribution": (
            Grid(
                (ERA, era("-learned", LEARNED), era("-tanh", *TANH), era("-tanh-learned", *TANH, LEARNED)),
                FOUR,
                FIVE_SEEDS,
            ),
        ),
        # fig. batch_era
        "sac-batch": (Grid((BASELINE, ERA, era("-batch", *BATCH)), FOUR, FIVE_SEEDS),),
        # Not in the paper: how well ERA and SAC's alpha hold the same entropy, at a length that fits a CPU.
        "alpha": (
            Grid(
                (BASELINE, Agent("sac-alpha_0.01", ("--alpha_init", "0.01")), ERA),
                GYM[:1],
                THREE_SEEDS,
                ("--total_timesteps", "20000", "--eval_every", "1000", "--width", "256"),
            ),
        ),
        # Not in the paper: the same agents at a size that fits a CPU, and what the switch does without ERA.
        "obac": (
            Grid(
                (BASELINE, OBAC, OBAC_REWARD, ERA, OBAC_ERA),
                GYM[:1],
                THREE_SEEDS,
                ("--total_timesteps", "100000", "--width", "256"),
            ),
        ),
    }

    def flags(self, task: str, agent: Agent, seed: int) -> tuple[str, ...]:
        return ("--task", task, "--seed", str(seed), *agent.flags)
