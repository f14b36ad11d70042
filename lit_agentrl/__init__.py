"""lit_agentrl: a PyTorch Lightning experiment framework for agentic reinforcement learning of language models.

Importing the package is cheap on purpose: environment workers and `--help` must not pay for torch.
"""

__version__ = "0.1.0"
