"""Rollouts: environment workers, episodes, segments and training batches."""
