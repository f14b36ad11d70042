"""What an agent is: configuration, and a coroutine that fills in a trajectory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lit_agentrl.agents.context import EpisodeContext
from lit_agentrl.agents.tools.base import ToolEntry
from lit_agentrl.types import Message, Trajectory


class Agent(ABC):
    """Runs episodes. One instance serves all coroutines, so it holds configuration only."""

    tools: tuple[ToolEntry, ...] = ()
    """The agent's own tools, by import path; they run next to the environment."""

    @abstractmethod
    async def run(self, trajectory: Trajectory, context: EpisodeContext) -> None:
        """Run one episode from reset to end, writing turns, reward and status into the trajectory.

        What was sampled before a failure stays in the trajectory; `EpisodeFailedError` is left to the caller.
        """

    @abstractmethod
    def preface(self) -> Sequence[Message]:
        """Return the messages that stand before the environment's first; demonstrations begin with them too."""
