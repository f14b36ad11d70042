"""What one episode is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.protocols import Engine, EnvHandle
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Completion, GenerationRequest, Phase, Sampling, ToolSpec, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeContext:
    """Everything that an agent's coroutine may touch."""

    env: EnvHandle
    engine: Engine
    chat: ChatFormat
    tools: Sequence[ToolSpec]
    """The agent's own tools; the environment may offer more in its observations."""
    sampling: Sampling
    max_context: int
    """Tokens, prompt and completion together."""
    phase: Phase
    run_seed: int
    rollout: int
    """Index of the rollout; part of every seed, so that no two rollouts draw the same numbers."""

    def generation_seed(self, trajectory: Trajectory, turn: int) -> int:
        """Return the seed of one completion: unique to phase, rollout, group, sample, attempt and turn."""
        return derive_seed(
            self.run_seed,
            f"generate/{self.phase}",
            self.rollout,
            trajectory.group,
            trajectory.sample,
            trajectory.attempt,
            turn,
        )

    async def generate(self, trajectory: Trajectory, prompt_ids: tuple[int, ...], *, turn: int) -> Completion | None:
        """Draw one completion of the trajectory's turn, no longer than the context has room for.

        Returns:
            The completion; its stop reason is `context` if the room ended it. `None` if there is no room at all.
        """
        room = self.max_context - len(prompt_ids)
        if room < 1:
            return None
        sampling = dataclasses.replace(self.sampling, max_new_tokens=min(self.sampling.max_new_tokens, room))
        completion = await self.engine.generate(
            GenerationRequest(
                identity=(trajectory.group, trajectory.sample, trajectory.attempt, turn),
                prompt_ids=prompt_ids,
                seed=self.generation_seed(trajectory, turn),
                sampling=sampling,
            )
        )
        if completion.stop_reason == "length" and room < self.sampling.max_new_tokens:
            return dataclasses.replace(completion, stop_reason="context")
        return completion
