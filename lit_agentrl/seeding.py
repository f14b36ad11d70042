"""Randomness from identity: a draw depends on what it is for, never on when it happens.

Python's `hash` is salted per process, so seeds come from blake2b over a canonical encoding.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np

_SEED_VARIABLE = "PL_GLOBAL_SEED"


def derive_seed(run_seed: int, purpose: str, *path: int) -> int:
    """Return a 63-bit seed for one purpose at one place.

    Args:
        run_seed: The seed of the whole run.
        purpose: What is drawn, for example `"sample"` or `"task"`.
        path: Where it is drawn: group, sample, attempt, turn, node, as far as they apply.
    """
    canonical = f"{run_seed}|{purpose}|{'/'.join(str(int(part)) for part in path)}"
    digest = hashlib.blake2b(canonical.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def uniforms(seed: int, count: int) -> np.ndarray:
    """Return `count` float64 uniforms in [0, 1): a counter-based stream, so entry i depends on seed and i alone."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def permutation(seed: int, count: int) -> np.ndarray:
    """Return a permutation of range(count) that depends on the seed alone."""
    return np.random.Generator(np.random.Philox(key=seed)).permutation(count)


def resolve_run_seed(seed: int | None) -> int:
    """Return the given seed, or what `seed_everything` set for the process, or 0."""
    return seed if seed is not None else int(os.environ.get(_SEED_VARIABLE, "0"))
