"""Policy gradients with a critic: any estimator that reads values, trained beside the policy and clipped apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import AdvantageEstimator, Episodes
from lit_agentrl.algorithms.credit_values import CriticEstimator
from lit_agentrl.algorithms.optimizer import ParameterGroup
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy
from lit_agentrl.policies.critic import Critic, CriticConfig
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.types import TrajectoryGroup

_VALUE, _OLD_VALUES, _RETURNS = "value", "old_values", "returns"
_DEFAULT_CRITIC = CriticConfig()


class ActorCritic(PolicyGradient):
    """A policy gradient whose advantages come from a critic.

    Args:
        policy: The policy that is trained.
        advantage: Credit assignment that reads values, such as
            `lit_agentrl.algorithms.credit_values.GeneralizedAdvantage`.
        policy_loss: Loss per token.
        critic: What judges states, and how it is trained.
        value_aggregation: How value terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    gives_values = True
    summed_terms = PolicyGradient.summed_terms | {"value_loss"}

    def __init__(
        self,
        policy: Policy,
        *,
        advantage: AdvantageEstimator,
        policy_loss: PolicyLoss,
        critic: CriticConfig = _DEFAULT_CRITIC,
        value_aggregation: F.AggregationMode = "token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, advantage=advantage, policy_loss=policy_loss, **kwargs)
        if not isinstance(advantage, CriticEstimator):
            raise ValueError(
                f"model.init_args.advantage: {type(advantage).__name__} reads no critic, so model.init_args.critic "
                "would have no effect; use lit_agentrl.algorithms.policy_gradient.PolicyGradient, or an estimator such "
                "as lit_agentrl.algorithms.credit_values.GeneralizedAdvantage"
            )
        if value_aggregation == "constant":
            raise ValueError("model.init_args.value_aggregation: constant has no divisor here; use token-mean")
        self.critic_config = critic
        self.value_aggregation = value_aggregation
        self.critic = Critic(critic.trunk)
        self.warming_up = False
        """Whether this rollout trains the critic only."""

    def configure_model(self) -> None:
        """Make the weights of policy and critic."""
        super().configure_model()
        self.critic.build(self.policy)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """Return the critic's group: its gradient never scales the policy's down."""
        config = self.critic_config
        return {"critic": ParameterGroup(match="critic.*", lr=config.lr, max_grad_norm=config.max_grad_norm)}

    def on_fit_start(self) -> None:
        """Start the critic's trunk from the policy as it is now, after the warm start."""
        super().on_fit_start()
        self.critic.train()
        if not self.resumed:
            self.critic.restart(self.policy)

    # Credit ---------------------------------------------------------------------------------------------------------

    def state_values(self, rollout: Rollout, batch: RolloutBatch) -> dict[str, Tensor]:
        """Return the values before all trained tokens, and after the last token of truncated episodes."""
        self.warming_up = rollout.index < self.critic_config.warmup_rollouts
        values = self._values(batch, batch.reason == TokenReason.TRAINED)
        batch.columns[_OLD_VALUES] = values
        return {"values": values, "bootstrap": self._bootstrap(rollout, batch.temperature)}

    def _bootstrap(self, rollout: Rollout, temperature: float) -> Tensor:
        """Return the value of where each truncated episode stopped, [E]; 0 for those that ended."""
        number = {id(trajectory): n for n, trajectory in enumerate(rollout.trajectories)}
        bootstrap = torch.zeros(len(number))
        groups = []
        for group in rollout.groups:
            cut = [t for t in group.trajectories if t.status == "truncated" and t.num_tokens]
            if cut:
                groups.append(TrajectoryGroup(group=group.group, task=group.task, trajectories=cut))
        batch = batch_from_groups(groups, temperature=temperature, closings=True)
        ends = batch.last_tokens()
        values = self._values(batch, ends, after=True)
        for place in ends.nonzero().squeeze(-1).tolist():
            owner = int(batch.trajectory[batch.segment[place]])
            trajectory = [t for group in groups for t in group.trajectories][owner]
            bootstrap[number[id(trajectory)]] = values[place]
        return bootstrap

    @torch.no_grad()
    def _values(self, batch: RolloutBatch, wanted: Tensor, *, after: bool = False) -> Tensor:
        """Return the critic's values before (or after) the wanted tokens, [N] float32 on the CPU; elsewhere 0."""
        result = torch.zeros(batch.num_tokens)
        with self.scoring():
            for piece in self.pieces(batch, wanted):
                on_device = piece.to(self.device)
                asked = wanted[piece.origin].to(self.device)
                index, states = self.policy_states(on_device, asked, policy=self.critic.trunk, after=after)
                result[piece.origin[index.cpu()]] = self.critic(states).float().cpu()
        return result

    def learn_values(self, episodes: Episodes, batch: RolloutBatch) -> None:
        """Note the returns, and how well the critic foresaw them."""
        assert isinstance(self.advantage, CriticEstimator)
        returns, mask = self.advantage.value_targets(episodes)
        batch.columns[_RETURNS] = episodes.flat(returns, batch)
        counted = episodes.flat(mask, batch) > 0
        batch.columns["value_mask"] = counted.float()
        real, missed = batch.columns[_RETURNS], batch.columns[_RETURNS] - batch.columns[_OLD_VALUES]
        spread, left = (episodes.moments(values, counted) for values in (real, missed))
        if spread.count > 1 and spread.highest > spread.lowest:
            batch.metrics["rollout/explained_variance"] = 1.0 - left.variance(0) / spread.variance(0)

    @property
    def _advantage_is_all(self) -> bool:
        # A token of advantage 0 still has a value to be learnt, and is computed for it.
        return False

    def finish_weights(self, batch: RolloutBatch) -> None:
        """Fold the normalisers of policy and values into their weights."""
        super().finish_weights(batch)
        counted = batch.columns["value_mask"] > 0
        batch.further_weights[_VALUE] = self.normalized_weights(batch, counted, mode=self.value_aggregation)

    # Loss -----------------------------------------------------------------------------------------------------------

    def wanted(self, batch: RolloutBatch) -> Tensor:
        """Return the tokens that policy or critic learn from."""
        values = self._value_weights(batch) != 0
        return values if self.warming_up else values | super().wanted(batch)

    def _value_weights(self, batch: RolloutBatch) -> Tensor:
        # A filler for ranks that have fewer micro-batches has no such weights.
        return batch.further_weights.get(_VALUE, torch.zeros_like(batch.weight))

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy's terms and the critic's."""
        wanted, config = self.wanted(batch), self.critic_config
        terms: dict[str, Tensor] = {}
        shared = self.critic.trunk is None
        if self.warming_up:
            loss = self.untouched(self.policy.parameters())
            with torch.set_grad_enabled(not shared):
                index, states = self.policy_states(batch, wanted, policy=self.critic.trunk)
        else:
            index, scores = self.policy_scores(batch, wanted, entropy_grad=self.entropy is not None)
            loss, terms = self.policy_term(batch, index, scores)
            states = scores.states if config.shared_gradient else scores.states.detach()
            if not shared:
                index, states = self.policy_states(batch, wanted, policy=self.critic.trunk)
        value_loss, value_terms = self._value_term(batch, index, self.critic(states))
        return loss + config.coefficient * value_loss, terms | value_terms

    def _value_term(self, batch: RolloutBatch, index: Tensor, values: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        weights = self._value_weights(batch)[index].to(values.dtype)
        old, returns = (
            batch.columns.get(name, torch.zeros_like(batch.weight))[index].to(values.dtype)
            for name in (_OLD_VALUES, _RETURNS)
        )
        mask = weights != 0
        token_loss = F.value_token_loss(values, old, returns, mask, clip=self.critic_config.clip)
        loss = (weights * token_loss).sum()
        terms = {"value_loss": loss.detach(), "value": values.detach().mean(), "return": returns.mean()}
        if self.critic_config.clip is not None:
            cut = F.clipped_values(values.detach(), old, returns, mask, clip=self.critic_config.clip)
            terms["value_clip_fraction"] = cut.float().mean()
        return loss, terms

    def before_step(self) -> None:
        """Leave the policy as it is while the critic warms up."""
        if self.warming_up:
            for parameter in self._actor_parameters():
                parameter.grad = None

    def _actor_parameters(self) -> Iterator[nn.Parameter]:
        critic = {id(parameter) for parameter in self.critic.parameters()}
        return (parameter for parameter in self.parameters() if id(parameter) not in critic)
