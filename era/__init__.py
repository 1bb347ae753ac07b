"""Entropy Regularizing Activation (ERA): a minimum entropy without an entropy term in the loss.

    era.discrete    classifiers: logits whose softmax has a minimum entropy
    era.continuous  Gaussian policies: standard deviations with a minimum entropy
    era.language    language-model policies: log-probs of sharpened or flattened logits
    era.verl        a plug-in for verl 0.9.0 and 0.9.1
    era.trl, era.axolotl, era.slime
                    plug-ins for these; era.refusals says what is not supported with ERA
    era.timm        the classifiers of an installed timm, 1.0.20 to 1.0.31
    era.stable_baselines3, era.sbx, era.rsl_rl
                    policies for these frameworks; era.continuous_jax is era.continuous in JAX

Import from these modules: this one imports nothing. All entropies are in nats.
"""

__version__ = "0.1.0"
