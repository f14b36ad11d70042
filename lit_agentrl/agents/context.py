"""What one episode is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lit_agentrl.policies.chat import ChatFormat
from lit_agentrl.protocols import Engine, EnvHandle, EpisodeFailedError
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Completion, GenerationRequest, Phase, Sampling, StepResult, ToolSpec, Trajectory, Turn


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


def record_step(result: StepResult, turn: Turn, trajectory: Trajectory) -> None:
    """Take a step's reward and end into the trajectory.

    Raises:
        EpisodeFailedError: The environment goes on without an observation.
    """
    ended = result.terminated or result.truncated
    if result.observation is None and not ended:
        raise EpisodeFailedError("step: the environment gave no observation, though the episode is not over")
    turn.reward = result.reward
    turn.reward_parts = dict(result.reward_parts)
    trajectory.reward += result.reward
    for name, part in result.reward_parts.items():
        trajectory.reward_parts[name] = trajectory.reward_parts.get(name, 0.0) + part
    if ended:
        trajectory.success = bool(result.success)
        trajectory.status = "completed" if result.terminated else "truncated"
        trajectory.cause = "" if result.terminated else "ended by the environment's limit"
