"""Streams over which Lightning's loops run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from torch.utils.data import DataLoader, IterableDataset

_Item = TypeVar("_Item")


class SizedStream(IterableDataset[_Item], Generic[_Item]):
    """Makes its items when it is iterated.

    Sized on purpose: Lightning prefetches an unsized iterable by one item, and a rollout would then be collected before
    the last update was done. The length has to be exact, or validation is skipped without a word.
    """

    def __init__(self, make: Callable[[], Iterator[_Item]], length: int) -> None:
        self._make = make
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Item]:
        count = 0
        for item in self._make():
            count += 1
            yield item
        assert count == self._length, f"a stream of {self._length} items gave {count}"

    def loader(self) -> DataLoader[_Item]:
        """Return a loader that hands the items on as they are."""
        return DataLoader(self, batch_size=None, num_workers=0)
