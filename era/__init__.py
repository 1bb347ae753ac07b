"""Entropy Regularizing Activation (ERA): a minimum entropy without an entropy term in the loss.

    era.discrete    classifiers: logits whose softmax has a minimum entropy
    era.continuous  Gaussian policies: standard deviations with a minimum entropy
    era.language    language-model policies: log-probs of sharpened or flattened logits

A plug-in has the name of its host: era.trl, era.timm, era.brax, ... README.md lists them, and
era.refusals says what is not supported in those for language models. Import from these modules:
this one imports nothing. All entropies are in nats.
"""

__version__ = "0.1.0"
