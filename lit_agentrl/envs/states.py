"""State keys: digests of what an episode has been, or of what is seen now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from lit_agentrl.types import ToolCall


class History:
    """A digest of all that was done and seen, as state key: equal ones mean equal episodes so far."""

    def __init__(self, *texts: str) -> None:
        self._digest = hashlib.blake2b(digest_size=8)
        self.add(*texts)

    def add(self, *texts: str) -> str:
        """Take in what happened and return the key."""
        for text in texts:
            encoded = text.encode("utf-8", "surrogatepass")
            self._digest.update(b"%d:" % len(encoded) + encoded)
        return self._digest.hexdigest()

    def add_calls(self, calls: Iterable[tuple[ToolCall, str]]) -> str:
        """Take in calls and what was answered, and return the key."""
        for call, output in calls:
            self.add(call.name, json.dumps(dict(call.arguments), sort_keys=True), output)
        return self.key

    @property
    def key(self) -> str:
        """The key as of now."""
        return self._digest.hexdigest()


def digest(*texts: str) -> str:
    """Return the key of what is seen now."""
    return History(*texts).key
