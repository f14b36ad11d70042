"""Engines draw completions from a policy."""
