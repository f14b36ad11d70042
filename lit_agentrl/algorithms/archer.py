"""Utterance-level Q learning: twin Q and V judge what the policy says, turn by turn, and are the policy's critic."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.action_values import ActionValueConfig, ActionValueTerm, PrecomputedAdvantage, turn_marks
from lit_agentrl.algorithms.credit import Episodes
from lit_agentrl.algorithms.optimizer import ParameterGroup
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy
from lit_agentrl.policies.critic import Critic
from lit_agentrl.rollouts.batch import RolloutBatch
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.seeding import derive_seed, permutation
from lit_agentrl.types import TrajectoryGroup

_DEFAULT_CRITIC = ActionValueConfig()
_DEFAULT_LOSS = PolicyLoss(function="reinforce_loss")


class ArCHer(PolicyGradient):
    """Hierarchical actor-critic: Q and V over utterances, a policy gradient over their tokens (arXiv 2402.19446).

    Q(state, utterance) is read after the last token of a turn, V(state) before the first. After the policy's steps of
    a rollout come the critic's, at a ratio of their own, on this rollout and the ones before it.

    Deviations:

    1. V learns from Q of the utterance that was said, not of a new one: no generation is needed. With
       `replay_rollouts: 1` the two are the same in expectation.
    2. The critic has learnt from all rollouts but the present one when it judges it, so that no episode judges itself.
    3. Trunk and heads are those of a causal language model, which starts as the policy; the paper's is RoBERTa.

    Args:
        policy: The policy that is trained.
        critic: What Q and V are and how they learn.
        policy_loss: Loss per token; the paper's is REINFORCE.
        whiten: Shift and scale the advantages of a rollout to mean 0 and deviation 1 over its turns.
        aggregation: How token terms become one number; see `functional.token_weights`.
        kwargs: See `PolicyGradient`.
    """

    gives_values = True
    summed_terms = PolicyGradient.summed_terms | {"q_loss", "v_loss", "cql"}

    def __init__(
        self,
        policy: Policy,
        *,
        critic: ActionValueConfig = _DEFAULT_CRITIC,
        policy_loss: PolicyLoss = _DEFAULT_LOSS,
        whiten: bool = True,
        aggregation: F.AggregationMode = "token-mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy,
            advantage=PrecomputedAdvantage(whiten=whiten),
            policy_loss=policy_loss,
            aggregation=aggregation,
            **kwargs,
        )
        self.critic_config = critic
        self.critic = Critic(critic.trunk, num_values=4)
        self.target: Critic | None = None
        """The slow copy that targets are computed with."""
        self._term = ActionValueTerm(critic)
        self._replay: list[RolloutBatch] = []
        self._critic_step = False

    @property
    def batches_per_rollout(self) -> int:
        """Optimizer steps per rollout, those of the critic included."""
        return super().batches_per_rollout + self.critic_config.updates

    @property
    def whole_trajectories(self) -> bool:  # type: ignore[override]
        """A turn's target lies in the next turn."""
        return self._critic_step or super().whole_trajectories

    def configure_model(self) -> None:
        """Make the weights of policy, critic and target."""
        super().configure_model()
        self.critic.build(self.policy, seed=derive_seed(self.run_seed, "critic"))
        if self.target is None:
            self.target = copy.deepcopy(self.critic).requires_grad_(False)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """Return the critic's group."""
        config = self.critic_config
        return {"critic": ParameterGroup(match="critic.*", lr=config.lr, max_grad_norm=config.max_grad_norm)}

    def on_fit_start(self) -> None:
        """Start the critic's trunk from the policy as it is now, after the warm start."""
        super().on_fit_start()
        self.critic.train()
        assert self.target is not None
        self.target.eval()
        if not self.resumed:
            self.critic.restart(self.policy)
            self.target.load_state_dict(self.critic.state_dict())

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the replayed rollouts of all ranks."""
        super().on_save_checkpoint(checkpoint)
        if self.critic_config.replay_rollouts > 1:
            checkpoint["replay"] = self.gather_objects([batch.state_dict() for batch in self._replay])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take them over."""
        super().on_load_checkpoint(checkpoint)
        ranks = checkpoint.get("replay", [])
        # With another number of ranks, a rank takes over what several had, or starts with nothing.
        mine = ranks[self.global_rank :: self.gradient_ranks]
        self._replay = [RolloutBatch.from_state_dict(state) for states in mine for state in states]

    # Credit ---------------------------------------------------------------------------------------------------------

    def state_values(self, rollout: Rollout, batch: RolloutBatch) -> dict[str, Tensor]:
        """Return the advantage of each token's turn, min Q - min V."""
        before, after = turn_marks(batch)
        q, v = self._judged(batch, before, after)
        # A turn is a segment, which has one such token each at most.
        q = torch.zeros(batch.num_segments, 2).index_add(0, batch.segment[after], q[after])
        v = torch.zeros(batch.num_segments, 2).index_add(0, batch.segment[before], v[before])
        gap = F.archer_advantages(q[:, 0], q[:, 1], v[:, 0], v[:, 1])
        return {"values": gap[batch.segment]}

    @torch.no_grad()
    def _judged(self, batch: RolloutBatch, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return both Q after and both V before the marked tokens, [N, 2] float32 each on the CPU; elsewhere 0."""
        q, v = torch.zeros(batch.num_tokens, 2), torch.zeros(batch.num_tokens, 2)
        with self.scoring():
            for piece in self.pieces(batch, before | after):
                on_device = piece.to(self.device)
                first, first_states, last, last_states = self.turn_states(
                    on_device,
                    before=before[piece.origin].to(self.device),
                    after=after[piece.origin].to(self.device),
                    policy=self.critic.trunk,
                )
                v[piece.origin[first.cpu()]] = self.critic(first_states)[:, 2:].float().cpu()
                q[piece.origin[last.cpu()]] = self.critic(last_states)[:, :2].float().cpu()
        return q, v

    def judge(self, groups: Sequence[TrajectoryGroup], *, temperature: float = 1.0) -> list[list[float]]:
        """Return what each utterance is worth, min Q, by trajectory and turn: a judge of actions.

        Args:
            groups: Episodes, or beginnings of episodes with one candidate reply each as their last turn.
            temperature: Not used by the critic; part of the batch.
        """
        batch = batch_from_groups(groups, temperature=temperature)
        _, after = turn_marks(batch)
        q, _ = self._judged(batch, torch.zeros_like(after), after)
        worth: list[list[float]] = [[] for group in groups for _ in group.trajectories]
        for place in after.nonzero().squeeze(-1).tolist():
            worth[int(batch.trajectory[batch.segment[place]])].append(float(q[place].amin()))
        return worth

    def batches(self, rollout: Rollout, batch: RolloutBatch) -> list[RolloutBatch]:
        """Return the policy's batches, then the critic's."""
        steps = super().batches(rollout, batch)
        self._remember(rollout, batch)
        return steps + [self._replayed(rollout.index, update) for update in range(self.critic_config.updates)]

    def _remember(self, rollout: Rollout, batch: RolloutBatch) -> None:
        """Keep what the critic learns from: whole episodes, with what each turn earned."""
        memory = batch_from_groups(rollout.groups, temperature=batch.temperature, closings=True)
        episodes = Episodes.of(
            rollout,
            memory,
            valid=self.valid_episodes(rollout),
            rewards=self.shaped_rewards(rollout),
            gather=self.gather_objects,
            paid_at_end=self.objectives is not None,
        )
        self._term.mark(memory, episodes)
        self._replay = [*self._replay, memory][-self.critic_config.replay_rollouts :]

    def _replayed(self, index: int, update: int) -> RolloutBatch:
        """Return one batch of remembered episodes, weights folded in."""
        draw = derive_seed(self.run_seed, "replay", index, update)
        memory = self._replay[draw % len(self._replay)]
        episodes = sorted(set(memory.trajectory.tolist()) - {-1})
        size = self.critic_config.batch_size
        if size is not None:
            share = -(-size // self.gradient_ranks)
            order = permutation(derive_seed(draw, "episodes", self.global_rank), len(episodes))
            episodes = sorted(episodes[place] for place in order[:share])
        batch = memory.select_trajectories(episodes)
        self._term.fold(batch, self.normalized_weights)
        self._term.join_groups(batch)
        return batch

    # Loss -----------------------------------------------------------------------------------------------------------

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """Take a step of the policy or of the critic."""
        self._critic_step = ActionValueTerm.is_in(batch)
        super().training_step(batch, batch_idx)
        self._critic_step = False

    def wanted(self, batch: RolloutBatch) -> Tensor:
        """Return the tokens that this step's network learns from."""
        return ActionValueTerm.wanted(batch) if self._critic_step else super().wanted(batch)

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy's terms, or the critic's."""
        if not self._critic_step:
            loss, terms = super().loss(batch)
            return loss + self.untouched(self.critic.parameters()), terms
        assert self.target is not None
        loss, terms = self._term(batch, self.critic, self.target, self.turn_states)
        return loss + self.untouched(self.policy.parameters()), terms

    def before_step(self) -> None:
        """Leave the other network as it is."""
        critic = {id(parameter) for parameter in self.critic.parameters()}
        for parameter in self.parameters():
            if (id(parameter) in critic) != self._critic_step:
                parameter.grad = None

    @torch.no_grad()
    def after_step(self, means: dict[str, Tensor]) -> None:  # type: ignore[override]
        """Let the target follow the critic; move adaptive coefficients after the policy's steps."""
        if not self._critic_step:
            super().after_step(means)
            return
        assert self.target is not None
        for slow, fast in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            slow.copy_(F.polyak_average(slow, fast, tau=self.critic_config.tau))
