"""Value-based learning with replay: what DQN and DRRN share."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lit_agentrl import functional as F
from lit_agentrl.algorithms.exploration import Exploration, pick
from lit_agentrl.algorithms.learner import Learner
from lit_agentrl.policies.text_features import text_features
from lit_agentrl.rollouts.action_collector import ChoiceRequest
from lit_agentrl.rollouts.replay import ReplayBatch, ReplayBuffer
from lit_agentrl.seeding import derive_seed
from lit_agentrl.types import Observation, TextPart, Transition

Observe = Literal["array", "text"]
_DEFAULT_EXPLORATION = Exploration()


class QReplay(Learner):
    """Learns the value of actions from replayed transitions. Subclasses give the network and name the actions.

    Args:
        num_features: Length of a state: of `Observation.array`, or of the hashed features of a text.
        observe: What a state is read from: `array`, or `text`, the last text part of the observation's last message.
        max_actions: Most actions that are valid at a time.
        gamma: Discount per environment step.
        double_q: Whether the trained network chooses the next action that the target network values (arXiv 1509.06461).
        huber_delta: Errors above this count linearly.
        target_tau: Share of the trained network in an update of the target network; 1 copies it.
        target_every_n_steps: Optimizer steps between updates of the target network.
        exploration: How training episodes choose.
        micro_batch_rows: Transitions per forward pass; bounds memory, changes nothing else.
        kwargs: See `Learner`.
    """

    def __init__(
        self,
        *,
        num_features: int,
        observe: Observe,
        max_actions: int,
        gamma: float = 0.99,
        double_q: bool = True,
        huber_delta: float = 1.0,
        target_tau: float = 0.005,
        target_every_n_steps: int = 1,
        exploration: Exploration = _DEFAULT_EXPLORATION,
        micro_batch_rows: int = 1024,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for key, value in (
            ("num_features", num_features),
            ("max_actions", max_actions),
            ("target_every_n_steps", target_every_n_steps),
            ("micro_batch_rows", micro_batch_rows),
        ):
            if value < 1:
                raise ValueError(f"model.init_args.{key} is {value}: it must be at least 1")
        if observe not in get_args(Observe):
            raise ValueError(
                f"model.init_args.observe is {observe!r}: it must be one of {', '.join(get_args(Observe))}"
            )
        if not 0 <= gamma <= 1:
            raise ValueError(f"model.init_args.gamma is {gamma}: it must lie in [0, 1]")
        if not huber_delta > 0:
            raise ValueError(f"model.init_args.huber_delta is {huber_delta}: it must be above 0")
        if not 0 < target_tau <= 1:
            raise ValueError(f"model.init_args.target_tau is {target_tau}: it must be above 0 and at most 1")
        self.num_features = num_features
        self.observe = observe
        self.max_actions = max_actions
        self.gamma = gamma
        self.double_q = double_q
        self.huber_delta = huber_delta
        self.target_tau = target_tau
        self.target_every_n_steps = target_every_n_steps
        self.exploration = exploration
        self.micro_batch_rows = micro_batch_rows
        self.network: nn.Module | None = None
        self.target: nn.Module | None = None
        self._errors: list[tuple[Tensor, Tensor]] = []

    # What subclasses give -------------------------------------------------------------------------------------------

    @abstractmethod
    def make_network(self) -> nn.Module:
        """Return a network with fresh weights."""

    @abstractmethod
    def valid_actions(self, observation: Observation) -> tuple[str, ...]:
        """Return the actions that may be taken.

        Raises:
            ValueError: The environment and the configuration do not fit together.
        """

    @abstractmethod
    def action_numbers(self, actions: Sequence[str]) -> list[int]:
        """Return the numbers under which actions are replayed."""

    def forget_unused(self, replay: ReplayBuffer) -> None:
        """Called when transitions were added: let go of what was kept for those that are no longer in the buffer."""

    @abstractmethod
    def values_of_numbers(self, network: nn.Module, states: Tensor, numbers: Tensor) -> Tensor:
        """Return Q, [N, A], of states [N, D] and action numbers [N, A]; where a number is -1, Q may be anything."""

    @abstractmethod
    def values_of_texts(self, states: Tensor, actions: Sequence[Sequence[str]]) -> list[Tensor]:
        """Return Q by the trained network, [A_i] each, of states [N, D] and the actions of each."""

    # Model ----------------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Make the network and its target, once."""
        if self.network is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(self.run_seed, "policy"))
                self.network = self.make_network()
            self.target = copy.deepcopy(self.network).requires_grad_(False)

    @property
    def networks(self) -> tuple[nn.Module, nn.Module]:
        """The trained network and its target.

        Raises:
            RuntimeError: `configure_model` was not called.
        """
        if self.network is None or self.target is None:
            raise RuntimeError("the Q network has no weights yet: call configure_model() first")
        return self.network, self.target

    # Acting ---------------------------------------------------------------------------------------------------------

    def features(self, observation: Observation) -> np.ndarray:
        """Return the state as float32 [num_features].

        Raises:
            ValueError: The environment gives no such state.
        """
        if self.observe == "text":
            return text_features(state_text(observation), self.num_features)
        if observation.array is None:
            raise ValueError(
                "model.init_args.observe is array, but the environment's observations have none; set it to text"
            )
        if len(observation.array) != self.num_features:
            raise ValueError(
                f"model.init_args.num_features is {self.num_features}, but the environment's observations have "
                f"{len(observation.array)} numbers"
            )
        return np.asarray(observation.array, dtype=np.float32)

    @torch.no_grad()
    def choose(self, requests: Sequence[ChoiceRequest]) -> list[str]:
        """Choose an action for each request with the present weights."""
        network, _ = self.networks
        actions = [self.valid_actions(request.observation) for request in requests]
        states = torch.from_numpy(np.stack([self.features(request.observation) for request in requests]))
        values = self.values_of_texts(states.to(_like(network)), actions)
        chosen = []
        for request, texts, row in zip(requests, actions, values, strict=True):
            place = pick(
                row.double().cpu().numpy(),
                seed=request.seed,
                epsilon=request.epsilon,
                temperature=request.temperature,
            )
            chosen.append(texts[place])
        return chosen

    # Replay ---------------------------------------------------------------------------------------------------------

    def columns(self, transitions: Sequence[Transition]) -> dict[str, Tensor]:
        """Return transitions as columns of a replay buffer, [N, ...] each.

        Left out are those of episodes that were cut short and do not show a state to bootstrap from, with actions.
        """
        usable = [step for step in transitions if step.terminated or self._can_bootstrap(step.next_observation)]
        count = len(usable)
        columns = {
            "state": torch.zeros(count, self.num_features),
            "action": torch.zeros(count, dtype=torch.int64),
            "reward": torch.tensor([step.reward for step in usable], dtype=torch.float32),
            "next_state": torch.zeros(count, self.num_features),
            "next_actions": torch.full((count, self.max_actions), -1),
            "terminated": torch.tensor([step.terminated for step in usable], dtype=torch.bool),
        }
        for row, step in enumerate(usable):
            columns["state"][row] = torch.from_numpy(self.features(step.observation).copy())
            (columns["action"][row],) = self.action_numbers([step.action])
            if not step.terminated and step.next_observation is not None:
                numbers = self.action_numbers(self.valid_actions(step.next_observation))
                columns["next_state"][row] = torch.from_numpy(self.features(step.next_observation).copy())
                columns["next_actions"][row, : len(numbers)] = torch.tensor(numbers)
        return columns

    def _can_bootstrap(self, observation: Observation | None) -> bool:
        return observation is not None

    def training_step(self, batch: ReplayBatch, batch_idx: int) -> None:
        """Take one optimizer step, then tell the replay buffer how wrong the values were."""
        self._errors = []
        super().training_step(batch, batch_idx)
        if batch.feedback is not None and self._errors:
            places, errors = (torch.cat(parts) for parts in zip(*self._errors, strict=True))
            gathered = self.gather_objects((places.tolist(), errors.tolist()))
            by_place = {place: error for part in gathered for place, error in zip(*part, strict=True) if place >= 0}
            batch.feedback(torch.tensor([by_place[place] for place in sorted(by_place)], dtype=torch.float64))

    def pieces(self, batch: ReplayBatch, wanted: Tensor) -> list[ReplayBatch]:
        """Cut a batch into micro-batches of `micro_batch_rows`."""
        size = self.micro_batch_rows
        return [batch.select(slice(start, start + size)) for start in range(0, len(batch), size)]

    def filler(self) -> ReplayBatch:
        """Return one transition of no weight."""
        return ReplayBatch(
            state=torch.zeros(1, self.num_features),
            action=torch.zeros(1, dtype=torch.int64),
            reward=torch.zeros(1),
            next_state=torch.zeros(1, self.num_features),
            next_actions=torch.zeros(1, self.max_actions, dtype=torch.int64),
            terminated=torch.ones(1, dtype=torch.bool),
            weight=torch.zeros(1),
            place=torch.full((1,), -1),
        )

    def loss(self, batch: ReplayBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted Huber loss of temporal-difference errors."""
        network, target = self.networks
        states, next_states = (column.to(_like(network)) for column in (batch.state, batch.next_state))
        values = self.values_of_numbers(network, states, batch.action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            online = self.values_of_numbers(network, next_states, batch.next_actions) if self.double_q else None
            targets = F.td_targets(
                batch.reward,
                batch.terminated,
                self.values_of_numbers(target, next_states, batch.next_actions),
                gamma=self.gamma,
                online_q_next=online,
                available=batch.next_actions >= 0,
            ).to(values.dtype)
        errors = (values - targets).detach()
        self._errors.append((batch.place.cpu(), errors.double().cpu()))
        each = nn.functional.huber_loss(values, targets, reduction="none", delta=self.huber_delta)
        terms = {"td_error": errors.abs().mean(), "q": values.detach().mean(), "q_target": targets.mean()}
        return (batch.weight.to(values.dtype) * each).sum(), terms

    def after_step(self, means: dict[str, Tensor]) -> None:
        """Move the target network when it is due."""
        if self.global_step % self.target_every_n_steps == 0:
            self.update_target()

    @torch.no_grad()
    def update_target(self) -> None:
        """Move the target network towards the trained one by `target_tau`."""
        network, target = self.networks
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.copy_(F.polyak_average(slow, fast, tau=self.target_tau))


def state_text(observation: Observation) -> str:
    """Return the text that a value function reads: the last text part of the last message."""
    parts = [part.text for part in observation.messages[-1].content if isinstance(part, TextPart)]
    return parts[-1] if parts else ""


def _like(network: nn.Module) -> Tensor:
    """Return a parameter, whose type and device inputs must have."""
    return next(network.parameters())
