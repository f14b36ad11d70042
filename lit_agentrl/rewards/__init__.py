"""Rewards: pure functions of text and answers. Nothing here imports torch."""
