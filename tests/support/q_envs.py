"""A corridor that value functions learn in a moment, with actions that change from cell to cell. Imports no torch."""

from __future__ import annotations

from lit_agentrl.types import Action, EnvTraits, Message, Observation, Split, StepResult, Task, TextPart


class Corridor:
    """From cell 0 to the last one, `walk east` by `walk east`; `wait` is always possible, `walk west` not in cell 0.

    Args:
        length: Cells.
        limit: Steps after which an episode is cut short.
        fails: Whether episodes of even seeds break down at their second step.
        lists: Whether observations list the valid actions.
        silent: Whether the last observation of an episode that is cut short is left out.
        exclusive: As the trait says.
    """

    def __init__(
        self,
        length: int = 4,
        limit: int = 12,
        fails: bool = False,
        lists: bool = True,
        silent: bool = False,
        exclusive: bool = False,
    ) -> None:
        self.traits = EnvTraits(deterministic=True, replay=True, exclusive=exclusive)
        self.length, self.limit, self.fails, self.lists, self.silent = length, limit, fails, lists, silent
        self.cell = self.steps = 0
        self.task: Task | None = None

    def sample_task(self, seed: int, split: Split) -> Task:
        return Task(id=f"{split}-{seed}", family="corridor", split=split, seed=seed)

    def reset(self, task: Task) -> Observation:
        self.cell, self.steps, self.task = 0, 0, task
        return self._observation("Walk to the end.\n")

    def step(self, action: Action) -> StepResult:
        if self.task is None:
            raise RuntimeError("reset first")
        self.steps += 1
        if self.fails and self.steps == 2 and self.task.seed % 2 == 0:
            raise RuntimeError("the floor gave way")
        move = {"walk east": 1, "walk west": -1}.get(action.message.text, 0)
        self.cell = max(0, self.cell + move)
        terminated = self.cell == self.length - 1
        truncated = not terminated and self.steps == self.limit
        if terminated or truncated:
            self.task = None
        return StepResult(
            observation=None if truncated and self.silent else self._observation(),
            reward=float(terminated),
            terminated=terminated,
            truncated=truncated,
            success=terminated if terminated or truncated else None,
        )

    def close(self) -> None:
        self.task = None

    def _observation(self, said: str = "") -> Observation:
        actions = ("wait", "walk east", *(("walk west",) if self.cell else ()))
        parts = (*((TextPart(text=said),) if said else ()), TextPart(text=f"cell {self.cell}"))
        return Observation(
            messages=(Message(role="user", content=parts),),
            state_key=str(self.cell),
            actions=actions if self.lists else (),
            array=tuple(float(cell == self.cell) for cell in range(self.length)),
        )
