"""Small facts about sequences of token ids."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix_length(rows: Sequence[Sequence[int]]) -> int:
    """Return how many ids all rows begin with alike; 0 without rows."""
    ordered = [tuple(row) for row in rows]
    if not ordered:
        return 0
    # Whatever the lexicographically first and last row share, all rows between them share.
    first, last = min(ordered), max(ordered)
    shortest = min(len(first), len(last))
    return next((n for n in range(shortest) if first[n] != last[n]), shortest)
