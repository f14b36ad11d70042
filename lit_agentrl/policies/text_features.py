"""Text as a vector: hashed words and pairs of neighbouring words, the same in every process."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re

import numpy as np

_WORD = re.compile(r"\w+|[^\w\s]")


@functools.lru_cache(maxsize=16384)
def text_features(text: str, num_features: int) -> np.ndarray:
    """Return a text as float32 [num_features]: how often its words and pairs of words occur, scaled to length 1.

    Words are runs of letters and digits, in lower case, and single marks. Each is hashed to a place, so two may share
    one; with a few hundred words, a few hundred places keep most apart. An empty text is all zeros. Read only.
    """
    words = _WORD.findall(text.lower())
    features = np.zeros(num_features, dtype=np.float32)
    for gram in (*words, *(f"{left} {right}" for left, right in itertools.pairwise(words))):
        features[_place(gram) % num_features] += 1.0
    if words:
        features /= np.sqrt(np.square(features).sum())
    features.flags.writeable = False
    return features


def _place(gram: str) -> int:
    return int.from_bytes(hashlib.blake2b(gram.encode("utf-8", "replace"), digest_size=8).digest(), "big")
