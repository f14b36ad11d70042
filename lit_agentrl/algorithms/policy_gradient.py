"""Policy-gradient algorithms: advantage estimator x policy loss x aggregation x KL x correction, in any combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.base import OnPolicyAlgorithm
from lit_agentrl.algorithms.combinations import check_combination
from lit_agentrl.algorithms.credit import AdvantageEstimator, Episodes
from lit_agentrl.algorithms.finite import complaint
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.algorithms.reference import Reference, ReferencedAlgorithm
from lit_agentrl.algorithms.terms import EntropyTerm, KLTerm, Objectives, OffPolicyTerm, OverlongTerm
from lit_agentrl.policies.base import Policy, TokenScores
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.rollout import Rollout

_REFERENCE = "ref_logprobs"
_SOLVED = "solved"


class PolicyGradient(ReferencedAlgorithm, OnPolicyAlgorithm):
    """Raises the probability of what went better than expected.

    The named algorithms are this class with their papers' settings.

    Args:
        policy: The policy that is trained.
        advantage: Credit assignment.
        policy_loss: Loss per token.
        aggregation: How token terms become one number; see `functional.token_weights`.
        aggregation_constant: Divisor of mode `constant`, in tokens.
        kl: KL term; default: none.
        entropy: Entropy bonus; default: none.
        correction: Correction for a sampler that is not the trainer's policy; default: none.
        overlong: Soft penalty for long episodes; default: none.
        objectives: Reward parts that an episode is judged by; default: its reward.
        mask_truncated: Whether episodes that were cut short (length, turns, context) are left out of the loss and of
            the baselines. By default they are trained with the reward that they got, usually 0: the limits are part
            of the task, and a policy that rambles has to feel it.
        imitation: Factor of the negative log-likelihood of successful episodes, a mean over their tokens (arXiv
            2504.05118); default: none.
        kwargs: See `OnPolicyAlgorithm`.
    """

    summed_terms = frozenset({"imitation"})
    gives_values: bool = False
    """Whether `state_values` gives values."""
    coefficients: Tensor
    """[2] float64: of the KL and of the entropy; they move where a target is set."""

    def __init__(
        self,
        policy: Policy,
        *,
        advantage: AdvantageEstimator,
        policy_loss: PolicyLoss,
        aggregation: F.AggregationMode = "token-mean",
        aggregation_constant: float | None = None,
        kl: KLTerm | None = None,
        entropy: EntropyTerm | None = None,
        correction: OffPolicyTerm | None = None,
        overlong: OverlongTerm | None = None,
        objectives: Objectives | None = None,
        mask_truncated: bool = False,
        imitation: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, **kwargs)
        if aggregation_constant is not None and aggregation_constant <= 0:
            raise ValueError(f"model.init_args.aggregation_constant is {aggregation_constant}: it must be above 0")
        if (aggregation == "constant") != (aggregation_constant is not None):
            raise ValueError(
                "model.init_args.aggregation_constant belongs to model.init_args.aggregation: constant; set both or "
                "neither"
            )
        if advantage.needs_values and not self.gives_values:
            raise ValueError(
                f"model.init_args.advantage: {type(advantage).__name__} reads a critic, and model.class_path "
                f"{type(self).__name__} has none; use lit_agentrl.algorithms.actor_critic.ActorCritic"
            )
        check_combination(
            advantage=advantage,
            policy_loss=policy_loss,
            aggregation=aggregation,
            correction=correction,
            kl=kl,
            num_inner_epochs=self.num_inner_epochs,
        )
        self.advantage = advantage
        self.policy_loss = policy_loss
        self.aggregation = aggregation
        self.aggregation_constant = aggregation_constant
        self.kl = kl
        self.entropy = entropy
        self.correction = correction
        self.overlong = overlong
        self.objectives = objectives
        self.mask_truncated = mask_truncated
        if imitation < 0:
            raise ValueError(f"model.init_args.imitation is {imitation}: it must be 0 (none) or more")
        self.imitation = imitation
        coefficients = (kl.coefficient if kl else 0.0, entropy.coefficient if entropy else 0.0)
        self.register_buffer("coefficients", torch.tensor(coefficients, dtype=torch.float64))

    @property
    def whole_trajectories(self) -> bool:  # type: ignore[override]
        """Whether a term is defined on whole episodes only."""
        return self.policy_loss.whole_sequences or (self.correction is not None and self.correction.whole_sequences)

    def check_sizes(self, *, num_groups: int, group_size: int) -> None:
        """Refuse groups that are too small for the advantage estimator."""
        super().check_sizes(num_groups=num_groups, group_size=group_size)
        if group_size < self.advantage.min_group_size:
            raise ValueError(
                f"data.init_args.group_size is {group_size}: {type(self).__name__} compares the members of a group "
                f"and needs at least {self.advantage.min_group_size}"
            )
        if self.objectives is not None and self.objectives.compares and group_size < 2:
            raise ValueError(
                f"data.init_args.group_size is {group_size}: model.init_args.objectives.mode: {self.objectives.mode} "
                "compares the members of a group and needs at least 2"
            )

    def make_reference(self) -> Reference | None:
        """Return a new reference, as the KL term wants it."""
        if self.kl is None:
            return None
        return Reference(self.kl.reference, self.policy, key="model.init_args.kl.reference", decay=self.kl.decay)

    # Credit ---------------------------------------------------------------------------------------------------------

    def credit(self, rollout: Rollout, batch: RolloutBatch) -> None:
        """Give every sampled token its advantage.

        Raises:
            FloatingPointError: A reward, penalty or advantage is not finite; names the episode.
        """
        trajectories = rollout.trajectories
        kept = set(self.kept_groups(rollout))
        dropped = {
            TokenReason.FILTERED: torch.tensor([t.group not in kept for t in trajectories], dtype=torch.bool),
            TokenReason.TRUNCATED: self._masked(rollout),
            TokenReason.FAILED: torch.tensor([t.status == "failed" for t in trajectories], dtype=torch.bool),
        }
        of_token = batch.trajectory[batch.segment].clamp_min(0)
        sampled = batch.reason == TokenReason.TRAINED
        for reason, those in dropped.items():
            if those.any():
                batch.reason[sampled & those[of_token]] = reason
        valid = self.valid_episodes(rollout) & ~dropped[TokenReason.FILTERED]
        episodes = Episodes.of(
            rollout,
            batch,
            valid=valid,
            rewards=self.shaped_rewards(rollout),
            gather=self.gather_objects,
            penalties=self._read_reference(batch),
            paid_at_end=self.objectives is not None,
            **self.state_values(rollout, batch),
        )
        advantages = episodes.flat(self.advantage.advantages(episodes), batch)
        trained = batch.reason == TokenReason.TRAINED
        batch.advantages = torch.where(trained, advantages, 0.0)
        self._check_credit(rollout, episodes, batch.advantages)
        self.learn_values(episodes, batch)
        if self.imitation:
            solved = torch.tensor([t.success for t in trajectories], dtype=torch.bool)
            batch.columns[_SOLVED] = (trained & solved[of_token]).float()
        if self._advantage_is_all:
            silent = batch.advantages == 0
            if self.whole_trajectories:
                # The ratio of an episode is over all its tokens, those without an advantage of their own included.
                heard = torch.zeros(len(trajectories), dtype=torch.bool)
                heard[of_token[trained & ~silent]] = True
                silent &= ~heard[of_token]
            batch.reason[trained & silent] = TokenReason.NO_SIGNAL

    def _check_credit(self, rollout: Rollout, episodes: Episodes, advantages: Tensor) -> None:
        mine = complaint(episodes, advantages, made_by=type(self.advantage).__name__)
        # All ranks stop together.
        for found in self.gather_objects(mine):
            if found is not None:
                raise FloatingPointError(f"rollout {rollout.index}: {found}; no weight was changed by this rollout")

    def _masked(self, rollout: Rollout) -> Tensor:
        return torch.tensor(
            [self.mask_truncated and t.status == "truncated" for t in rollout.trajectories], dtype=torch.bool
        )

    def valid_episodes(self, rollout: Rollout) -> Tensor:
        """Return which episodes count in baselines, bool [E]."""
        failed = torch.tensor([t.status == "failed" for t in rollout.trajectories], dtype=torch.bool)
        return ~(failed | self._masked(rollout))

    @property
    def _advantage_is_all(self) -> bool:
        """Whether a token of advantage 0 adds nothing to the gradient."""
        return not self.imitation and self.entropy is None and (self.kl is None or self.kl.place == "reward")

    def state_values(self, rollout: Rollout, batch: RolloutBatch) -> dict[str, Tensor]:
        """Return what a critic says of the rollout: `values` and `bootstrap` of `Episodes.of`; nothing without one."""
        return {}

    def learn_values(self, episodes: Episodes, batch: RolloutBatch) -> None:
        """Note in the batch what a critic is to learn from the rollout."""

    def shaped_rewards(self, rollout: Rollout) -> Tensor:
        """Return what each episode earned, the penalty for its length included, [E]."""
        if self.objectives is None:
            rewards = torch.tensor([t.reward for t in rollout.trajectories], dtype=torch.float32)
        else:
            valid = self.valid_episodes(rollout)
            rewards = self.objectives.rewards(rollout.trajectories, valid=valid, gather=self.gather_objects)
        if self.overlong is not None:
            lengths = torch.tensor([t.num_tokens for t in rollout.trajectories])
            rewards = rewards + F.overlong_penalty(
                lengths, max_length=self.overlong.max_length, buffer=self.overlong.buffer
            )
        return rewards

    def _read_reference(self, batch: RolloutBatch) -> Tensor | None:
        """Write the reference's log-probs; return what the KL takes from the reward, [N], where it does."""
        if self.kl is None:
            return None
        wanted = batch.reason == TokenReason.TRAINED
        batch.columns[_REFERENCE] = self.reference_logprobs(batch, wanted, otherwise=batch.behavior_logprobs)
        if self.kl.place == "loss":
            return None
        divergence = F.kl_divergence(
            self.old_logprobs(batch), batch.columns[_REFERENCE], estimator=self.kl.estimator, mask=wanted
        )
        return divergence * float(self.coefficients[0])

    def finish_weights(self, batch: RolloutBatch) -> None:
        """Fold the aggregation's normaliser into the weights."""
        self.fold_weights(batch, mode=self.aggregation, constant=self.aggregation_constant)
        if self.imitation:
            solved = batch.columns[_SOLVED] > 0
            batch.further_weights[_SOLVED] = self.normalized_weights(batch, solved, mode="token-mean")

    # Loss -----------------------------------------------------------------------------------------------------------

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy loss and the terms around it."""
        index, scores = self.policy_scores(batch, self.wanted(batch), entropy_grad=self.entropy is not None)
        return self.policy_term(batch, index, scores)

    def policy_term(self, batch: RolloutBatch, index: Tensor, scores: TokenScores) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of the policy's terms over the tokens at `index` [M], and figures to log."""
        logprobs, entropies = scores.logprobs, scores.entropies
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs[index].to(logprobs.dtype)
        behavior = batch.behavior_logprobs[index].to(logprobs.dtype)
        advantages = batch.advantages[index].to(logprobs.dtype)
        episodes = batch.trajectory[batch.segment[index]]
        everything = torch.ones_like(logprobs, dtype=torch.bool)
        token_loss = self.policy_loss(
            logprobs=logprobs, old_logprobs=old, advantages=advantages, mask=everything, sequence_ids=episodes
        )
        ratio = (logprobs.detach() - old).exp()
        gap = old - behavior
        terms = {
            "entropy": entropies.detach().mean(),
            "ratio": ratio.mean(),
            **self._clip_fractions(ratio, advantages),
            "behavior_gap": gap.abs().mean(),
            "behavior_kl": -gap.mean(),
        }
        if self.correction is not None:
            factors = self.correction.factors(logprobs.detach(), old, behavior, advantages, episodes)
            token_loss = token_loss * factors
            terms["correction"] = factors.mean()
        if self.kl is not None:
            # The batch that fills up ranks has no such column; every rank logs the same figures.
            reference = batch.columns.get(_REFERENCE, batch.behavior_logprobs)
            divergence = F.kl_divergence(
                logprobs,
                reference[index].to(logprobs.dtype),
                estimator=self.kl.estimator,
                corrected_gradient=self.kl.corrected_gradient,
            )
            terms["kl"] = divergence.detach().mean()
            if self.kl.place == "loss":
                token_loss = token_loss + self.coefficients[0].to(logprobs.dtype) * divergence
        if self.entropy is not None:
            token_loss = token_loss - self.coefficients[1].to(logprobs.dtype) * entropies
        loss = (batch.weight[index].to(logprobs.dtype) * token_loss).sum()
        if self.imitation:
            solved = batch.further_weights.get(_SOLVED, torch.zeros_like(batch.weight))
            likelihood = (solved[index].to(logprobs.dtype) * logprobs).sum()
            loss = loss - self.imitation * likelihood
            terms["imitation"] = -likelihood.detach()
        return loss, terms

    def _clip_fractions(self, ratio: Tensor, advantages: Tensor) -> dict[str, Tensor]:
        if self.policy_loss.function != "ppo_clip_loss":
            return {}
        low, high = (self.policy_loss.options.get(key, 0.2) for key in ("clip_low", "clip_high"))
        clipped = ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))
        return {"clip_fraction": clipped.float().mean()}

    def after_step(self, means: Mapping[str, Tensor]) -> None:
        """Move adaptive coefficients and a moving average."""
        kl, entropy = self.coefficients.tolist()
        if self.kl is not None:
            if self.kl.target is not None and "kl" in means:
                kl = F.adaptive_kl_coefficient(
                    kl, float(means["kl"]), target=self.kl.target, horizon=self.kl.horizon, num_steps=1
                )
            if self.reference is not None:
                self.reference.follow()
            self.log("train/kl_coefficient", kl)
        if self.entropy is not None:
            if self.entropy.target is not None and "entropy" in means:
                entropy = F.adaptive_entropy_coefficient(
                    entropy, float(means["entropy"]), target=self.entropy.target, step=self.entropy.step
                )
            self.log("train/entropy_coefficient", entropy)
        self.coefficients.copy_(torch.tensor((kl, entropy), dtype=torch.float64))
