"""Agents: the episode loop and its parts."""
