"""Environments, one file per family. Nothing here imports torch."""
