"""Gymnasium environments with discrete actions, as text for language models and as arrays for Q networks."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from lit_agentrl.envs.extras import check_requirements
from lit_agentrl.envs.gymnasium_text import game_text, read_action
from lit_agentrl.envs.splits import draw_until
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Action, EnvTraits, Message, Observation, Split, StepResult, Task, TextPart

_DEFAULT_MAX_STEPS = 100
_MAX_DRAWS = 1000
_MAX_ERROR_CHARS = 60
REQUIRES = {"gymnasium": "pip install 'lit_agentrl[games]'"}


class GymnasiumEnv:
    """Any environment of gymnasium whose actions are numbers from 0: FrozenLake, Taxi, CartPole, your own.

    A task is the seed of `reset`; no seed belongs to two splits. Where the seed changes nothing (FrozenLake without
    slipping) all tasks are the same game. An episode opens with the rules and the state; afterwards only the state is
    said. The agent answers with the name of an action; see `lit_agentrl.envs.gymnasium_text.read_action` for what is
    understood. Any other reply is answered with an error, moves nothing and costs a step like any other.

    `Observation.array` is one-hot for discrete observations, one after the other for tuples of them, and the numbers
    themselves for boxes.

    Success: FrozenLake, Taxi and Blackjack end with a reward above 0; CliffWalking arrives; CartPole's return reaches
    195. Others need `success_return`.

    Args:
        id: Name in gymnasium's registry, for example `FrozenLake-v1`.
        options: Arguments of the environment, for example `{is_slippery: false}`.
        actions: Names of the actions; default: the usual ones, or their numbers where the environment is not known.
        max_steps: Steps after which an episode is cut short; default: the environment's own limit, or 100.
        success_return: An episode whose rewards sum to this is solved; default: as above.
        invalid_reward: Reward of a reply that is no action.
        deterministic: Whether the seed of `reset` decides everything that the actions do not.
    """

    preload = ("gymnasium",)

    requires = REQUIRES

    def __init__(
        self,
        id: str,
        *,
        options: dict[str, Any] | None = None,
        actions: list[str] | None = None,
        max_steps: int | None = None,
        success_return: float | None = None,
        invalid_reward: float = 0.0,
        deterministic: bool = True,
    ) -> None:
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"env.init_args.max_steps is {max_steps}: it must be at least 1, or null")
        check_requirements(type(self))
        self._gymnasium = importlib.import_module("gymnasium")
        self.traits = EnvTraits(deterministic=deterministic, replay=deterministic)
        self.id = id
        self._env = self._make(options or {})
        self._num_actions, self._first_action = self._discrete_actions()
        self._text = game_text(id, self._num_actions, actions)
        if self._text.solved is None and success_return is None:
            raise ValueError(f"env.init_args.success_return: say from which return on an episode of {id} is solved")
        limit = self._gymnasium.spec(id).max_episode_steps
        self.max_steps = max_steps or limit or _DEFAULT_MAX_STEPS
        self.success_return = success_return
        self.invalid_reward = float(invalid_reward)
        self._to_array(self._env.observation_space, _sample_of(self._env.observation_space))  # refuses early
        self._observed: Any = None
        self._steps = 0
        self._return = 0.0
        self._running = False

    def _make(self, options: Mapping[str, Any]) -> Any:
        try:
            # Its own limit is switched off: replies that are no action count here, too.
            return self._gymnasium.make(self.id, max_episode_steps=-1, disable_env_checker=True, **options)
        except self._gymnasium.error.UnregisteredEnv as error:
            raise ValueError(f"env.init_args.id is {self.id!r}: {error}") from None
        except TypeError as error:
            raise ValueError(f"env.init_args.options is {dict(options)}: {error}") from None

    def _discrete_actions(self) -> tuple[int, int]:
        space = self._env.action_space
        if not isinstance(space, self._gymnasium.spaces.Discrete):
            raise ValueError(f"env.init_args.id is {self.id!r}: its actions are {space}, but only Discrete is accepted")
        return int(space.n), int(space.start)

    def sample_task(self, seed: int, split: Split) -> Task:
        """Return the task of a seed: a seed for `reset` that belongs to the split."""
        reset_seed = draw_until(
            lambda attempt: derive_seed(seed, f"gymnasium/{split}", attempt) % 2**31,
            lambda number: f"{self.id} {number}",
            split=split,
            max_draws=_MAX_DRAWS,
            key="env.init_args.id",
        )
        return Task(id=f"{self.id}-{reset_seed}", family=self.id, split=split, seed=seed, data={"seed": reset_seed})

    def reset(self, task: Task) -> Observation:
        """Say the rules and the first state."""
        self._observed, _ = self._env.reset(seed=int(task.data["seed"]))
        self._steps, self._return, self._running = 0, 0.0, True
        rules = self._text.rules(self._env.unwrapped)
        return self._observation(f"{rules}\nAnswer with one of: {', '.join(self._text.actions)}.")

    def step(self, action: Action) -> StepResult:
        """Carry out the action that the reply names.

        Raises:
            RuntimeError: No episode is running.
        """
        if not self._running:
            raise RuntimeError("step was called without a running episode; call reset first")
        number = read_action(action.message.text, self._text.actions)
        error, reward, terminated, truncated = "", self.invalid_reward, False, False
        if number is None:
            said = action.message.text.strip()[:_MAX_ERROR_CHARS]
            error = f"Error: {said!r} is no action. Answer with one of: {', '.join(self._text.actions)}."
        else:
            self._observed, earned, terminated, truncated, _ = self._env.step(number + self._first_action)
            reward = float(earned)
        self._steps += 1
        self._return += reward
        terminated, truncated = bool(terminated), bool(truncated) or self._steps >= self.max_steps
        truncated = truncated and not terminated
        self._running = not (terminated or truncated)
        return StepResult(
            observation=self._observation(error),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=None if self._running else self._solved(reward, terminated),
            reward_parts={"invalid_actions": float(number is None)},
        )

    def close(self) -> None:
        """End the episode and free the environment."""
        self._running = False
        self._env.close()

    def _solved(self, reward: float, terminated: bool) -> bool:
        if self.success_return is not None:
            return self._return >= self.success_return
        assert self._text.solved is not None
        return self._text.solved(reward, self._return, terminated)

    def _observation(self, said: str) -> Observation:
        state = self._text.state(self._env.unwrapped, self._observed)
        # Two parts: an agent reads both, a value function only the state.
        parts = ([TextPart(text=f"{said}\n\n")] if said else []) + [TextPart(text=state)]
        return Observation(
            messages=(Message(role="user", content=tuple(parts)),),
            state_key=state if self._is_discrete(self._env.observation_space) else None,
            actions=self._text.actions,
            array=self._to_array(self._env.observation_space, self._observed),
        )

    def _is_discrete(self, space: Any) -> bool:
        spaces = self._gymnasium.spaces
        return isinstance(space, spaces.Discrete) or (
            isinstance(space, spaces.Tuple) and all(self._is_discrete(part) for part in space.spaces)
        )

    def _to_array(self, space: Any, value: Any) -> tuple[float, ...]:
        spaces = self._gymnasium.spaces
        if isinstance(space, spaces.Discrete):
            place = int(value) - int(space.start)
            return tuple(float(number == place) for number in range(int(space.n)))
        if isinstance(space, spaces.Box):
            return tuple(float(number) for number in value.flat)
        if isinstance(space, spaces.Tuple):
            pairs = zip(space.spaces, value, strict=True)
            return tuple(number for part, entry in pairs for number in self._to_array(part, entry))
        raise ValueError(
            f"env.init_args.id is {self.id!r}: its observations are {space}, but only Discrete, Box and Tuple of them "
            "are accepted"
        )


def _sample_of(space: Any) -> Any:
    space.seed(0)
    return space.sample()
