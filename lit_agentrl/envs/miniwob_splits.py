"""Which seeds of a MiniWoB++ page belong to which split: what the page shows decides, not the seed."""

from __future__ import annotations

from collections.abc import Callable

from lit_agentrl.envs.miniwob_page import Reading, TaskPage
from lit_agentrl.envs.splits import split_of
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Split

_MAX_DRAWS = 480
_BATCH = 8

LAYOUT_PAGES = frozenset(
    {
        *("button-delay", "click-button-sequence", "click-test", "click-test-2", "click-test-transfer", "drag-box"),
        *("focus-text", "focus-text-2", "resize-textarea"),
    }
)
"""These say nearly the same for every seed; where things are makes the difference."""

SEED_PAGES = frozenset(
    {
        *("count-sides", "drag-cube", "find-greatest", "generate-number", "guess-number", "hot-cold", "terminal"),
        "use-colorwheel-2",
    }
)
"""These show a handful of different things, too few for three splits, or hide what differs: the seed itself decides."""

_LEFTOVERS = frozenset({"click-pie", "email-inbox", "order-food", "social-media"})
"""Begun again without being loaded, these do not show what a new page shows, or get slower every time."""


def content(name: str, seed: int, reading: Reading) -> str:
    """Return what makes the task of a seed another one than that of another seed."""
    if name in SEED_PAGES:
        return f"{name} {seed}"
    # The airlines' pages are the same for every question.
    items = () if name.startswith("flight.") else reading.items
    with_layout = name in LAYOUT_PAGES
    shown = [(item.kind, item.name, item.state, *((item.x, item.y) if with_layout else ())) for item in items]
    return f"{name} {reading.query} {shown}"


def draw_seed(seed: int, split: Split, name: str, url: str, page: Callable[[], TaskPage]) -> int:
    """Return the page seed of a task: the first of its draws that shows something of the split.

    Args:
        seed: Of the task.
        split: Of the task.
        name: Of the page.
        url: Of the page.
        page: Gives a tab to look at pages in.

    Raises:
        ValueError: No draw does.
    """
    seen = set()
    for first in range(0, _MAX_DRAWS, _BATCH):
        seeds = [derive_seed(seed, f"miniwob/{split}/{name}", draw) % 2**31 for draw in range(first, first + _BATCH)]
        if split != "train" and name not in SEED_PAGES | _LEFTOVERS:
            # Nine of ten draws are of another split: one look at all of them is cheaper than a look at each.
            readings = page().scan(url, seeds)
            seeds = [
                draw
                for draw, reading in zip(seeds, readings, strict=True)
                if split_of(content(name, draw, reading)) == split
            ]
        for draw in seeds:
            # What counts is the page as an episode meets it, loaded anew.
            reading = Reading() if name in SEED_PAGES else page().open(url, draw)
            shown = content(name, draw, reading)
            if split_of(shown) == split:
                return draw
            seen.add(shown)
    raise ValueError(
        f"env.init_args.tasks: {name!r} shows nothing of split {split!r} in {_MAX_DRAWS} draws ({len(seen)} different "
        "pages were looked at); leave it out"
    )
