"""What all algorithms over language models share: log-probs by token budget, weights folded in, steps per rollout."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lit_agentrl.algorithms.learner import Learner
from lit_agentrl.algorithms.optimizer import OptimizerConfig
from lit_agentrl.functional import AggregationCounts, AggregationMode, aggregation_counts, token_weights
from lit_agentrl.policies.base import Policy, TokenScores
from lit_agentrl.rollouts.batch import PaddedView, RolloutBatch, TokenReason
from lit_agentrl.rollouts.packing import PackedView, pack, packed_pieces
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.segments import batch_from_demonstrations
from lit_agentrl.seeding import derive_seed, permutation

_Value = TypeVar("_Value")
_DEFAULT_OPTIMIZER = OptimizerConfig()


class Algorithm(Learner):
    """A language-model policy and how it learns. Subclasses give the loss; micro-batches are cut by token budget.

    Args:
        policy: The policy that is trained.
        micro_batch_tokens: Padded tokens per forward pass; bounds memory, changes nothing else.
        share_prefixes: Whether a prompt that several episodes share is computed once, behind an attention mask. Switch
            it off for models that read no such mask (sliding windows, recurrent layers).
        kwargs: See `Learner`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        micro_batch_tokens: int = 4096,
        share_prefixes: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if policy is None:
            raise ValueError(f"policy: {type(self).__name__} needs one; add it to the experiment file")
        if micro_batch_tokens < 1:
            raise ValueError(f"model.init_args.micro_batch_tokens is {micro_batch_tokens}: it must be at least 1")
        self.policy = policy
        self.micro_batch_tokens = micro_batch_tokens
        self.share_prefixes = share_prefixes

    def configure_model(self) -> None:
        """Make the weights."""
        self.policy.build(seed=derive_seed(self.run_seed, "policy"))

    def on_fit_start(self) -> None:
        """Switch dropout and gradient checkpointing on where the policy has them."""
        self.policy.train()

    def pieces(self, batch: RolloutBatch, wanted: Tensor) -> list[RolloutBatch]:
        """Cut a batch into micro-batches; `wanted` [N] says which tokens' log-probs are needed."""
        cut = packed_pieces if self.share_prefixes else RolloutBatch.micro_batches
        return list(cut(batch, self.micro_batch_tokens, wanted=wanted, whole_trajectories=self.whole_trajectories))

    whole_trajectories: bool = False
    """Whether the loss is only defined on all tokens of a trajectory together; micro-batches then do not cut them."""

    def policy_logprobs(
        self, batch: RolloutBatch, wanted: Tensor, *, policy: Policy | None = None, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (index [M], log-probs [M], entropies [M]) of the wanted tokens; see `policy_scores`."""
        index, scores = self.policy_scores(batch, wanted, policy=policy, entropy_grad=entropy_grad)
        return index, scores.logprobs, scores.entropies

    def policy_scores(
        self, batch: RolloutBatch, wanted: Tensor, *, policy: Policy | None = None, entropy_grad: bool = False
    ) -> tuple[Tensor, TokenScores]:
        """Return (index [M], scores) of the wanted tokens; index points into the flat batch.

        Args:
            batch: A micro-batch.
            wanted: [N] bool.
            policy: Whose scores; default: the trained policy's.
            entropy_grad: Whether gradients flow through the entropies.
        """
        view = self._laid_out(batch, wanted)
        scores = (policy or self.policy).token_scores(
            view.input_ids,
            view.visible if isinstance(view, PackedView) else view.attention_mask,
            view.position_ids,
            view.rows,
            view.columns,
            temperature=batch.temperature,
            entropy_grad=entropy_grad,
            sources=view.sources,
        )
        return view.token_index, scores

    def policy_states(
        self, batch: RolloutBatch, wanted: Tensor, *, policy: Policy | None = None, after: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return (index [M], hidden states [M, H]) before the wanted tokens, or `after` them; see `policy_scores`."""
        view = self._laid_out(batch, wanted)
        states = (policy or self.policy).token_states(
            view.input_ids,
            view.visible if isinstance(view, PackedView) else view.attention_mask,
            view.position_ids,
            view.rows,
            view.columns if after else view.sources,
        )
        return view.token_index, states

    def turn_states(
        self, batch: RolloutBatch, *, before: Tensor, after: Tensor, policy: Policy | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return hidden states before some tokens and after others, from one forward pass.

        Args:
            batch: A micro-batch.
            before: [N] bool.
            after: [N] bool.
            policy: Whose states; default: the trained policy's.

        Returns:
            Index [B] and states [B, H] before, index [A] and states [A, H] after; indices point into the flat batch.
        """
        view = self._laid_out(batch, before | after)
        first, last = before[view.token_index], after[view.token_index]
        states = (policy or self.policy).token_states(
            view.input_ids,
            view.visible if isinstance(view, PackedView) else view.attention_mask,
            view.position_ids,
            torch.cat([view.rows[first], view.rows[last]]),
            torch.cat([view.sources[first], view.columns[last]]),
        )
        count = int(first.sum())
        return view.token_index[first], states[:count], view.token_index[last], states[count:]

    def untouched(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """Return a 0 that depends on parameters without moving them.

        Ranks wait for the gradient of every parameter, so that a step that leaves some out would wait for ever.
        """
        zero = torch.zeros((), device=self.device)
        return sum((p.sum() * 0.0 for p in parameters if p.requires_grad), zero)

    def _laid_out(self, batch: RolloutBatch, wanted: Tensor) -> PackedView | PaddedView:
        assert self.policy.chat is not None
        pad_id = self.policy.chat.pad_id
        return pack(batch, wanted, pad_id=pad_id) if self.share_prefixes else batch.padded(wanted, pad_id=pad_id)

    @torch.no_grad()
    def logprobs_of(
        self, batch: RolloutBatch, wanted: Tensor, *, otherwise: Tensor, policy: Policy | None = None
    ) -> Tensor:
        """Return log-probs of the wanted tokens, without gradient, [N] float32 on the CPU.

        Args:
            batch: A whole batch, not a selection of one.
            wanted: [N] bool.
            otherwise: [N]: what stands where nothing is wanted.
            policy: Whose log-probs; default: the trained policy's.
        """
        result = otherwise.clone()
        with self.scoring():
            for piece in self.pieces(batch, wanted):
                on_device = piece.to(self.device)
                asked = wanted[piece.origin].to(self.device)
                index, logprobs, _ = self.policy_logprobs(on_device, asked, policy=policy)
                result[piece.origin[index.cpu()]] = logprobs.float().cpu()
        return result

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Inside the block: no dropout, the trainer's precision."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        context = nullcontext() if self._trainer is None else self.trainer.precision_plugin.forward_context()
        try:
            with context:
                yield
        finally:
            for module in training:  # one by one: parts that are frozen stay in evaluation mode
                module.training = True

    def filler(self) -> RolloutBatch:
        """Return two tokens of no weight."""
        return batch_from_demonstrations([((0, 0), (0, 0))])

    def fold_weights(self, batch: RolloutBatch, *, mode: AggregationMode, constant: float | None = None) -> None:
        """Write the weights of one optimizer step's batch: normalisers over all ranks, masked tokens 0.

        Tokens without signal count in the normaliser; they get weight 0 because their term is exactly 0.
        """
        counted = (batch.reason == TokenReason.TRAINED) | (batch.reason == TokenReason.NO_SIGNAL)
        weights = self.normalized_weights(batch, counted, mode=mode, constant=constant)
        batch.weight = torch.where(batch.reason == TokenReason.TRAINED, weights, 0.0)

    def normalized_weights(
        self, batch: RolloutBatch, counted: Tensor, *, mode: AggregationMode, constant: float | None = None
    ) -> Tensor:
        """Return the weight of each counted token of one optimizer step, [N]; normalisers are over all ranks.

        Args:
            batch: This rank's share of the step.
            counted: [N] bool.
            mode: See `functional.token_weights`.
            constant: Divisor of mode `constant`.
        """
        sequence = batch.trajectory[batch.segment].clamp_min(0)
        local = aggregation_counts(counted[counted], sequence[counted])
        totals = self.sum_over_ranks(local.to_tensor(batch.token_ids.device))
        weights = token_weights(
            counted, sequence, mode=mode, constant=constant, denominators=AggregationCounts.from_tensor(totals)
        )
        return weights * self.gradient_ranks


class OnPolicyAlgorithm(Algorithm):
    """An algorithm that learns from rollouts of its own policy.

    Args:
        policy: The policy that is trained.
        num_minibatches: Optimizer steps into which one rollout is cut, by task groups.
        num_inner_epochs: How often a rollout is gone through.
        kwargs: See `Algorithm`.
    """

    def __init__(self, policy: Policy, *, num_minibatches: int = 1, num_inner_epochs: int = 1, **kwargs: Any) -> None:
        super().__init__(policy, **kwargs)
        for key, value in (("num_minibatches", num_minibatches), ("num_inner_epochs", num_inner_epochs)):
            if value < 1:
                raise ValueError(f"model.init_args.{key} is {value}: it must be at least 1")
        self.num_minibatches = num_minibatches
        self.num_inner_epochs = num_inner_epochs

    @property
    def batches_per_rollout(self) -> int:
        """Optimizer steps per rollout, known beforehand."""
        return self.num_minibatches * self.num_inner_epochs

    needs_demonstrations: bool = False
    """Whether rollouts are to hold the environment's own solution for each group."""
    max_refills: int = 0
    """Rounds of further tasks with which groups that are not kept may be replaced."""

    def kept_groups(self, rollout: Rollout) -> list[int]:
        """Return the groups of this rank's rollout that are learnt from."""
        return sorted(group.group for group in rollout.groups)

    @abstractmethod
    def credit(self, rollout: Rollout, batch: RolloutBatch) -> None:
        """Write `batch.advantages`, and a reason other than `TRAINED` for tokens that are not to be trained."""

    @abstractmethod
    def finish_weights(self, batch: RolloutBatch) -> None:
        """Write the weights of one optimizer step's batch, usually through `fold_weights`."""

    def check_sizes(self, *, num_groups: int, group_size: int) -> None:
        """Refuse rollout sizes from which the algorithm cannot learn.

        Raises:
            ValueError: Names the key.
        """
        if num_groups < self.num_minibatches:
            raise ValueError(
                f"model.init_args.num_minibatches is {self.num_minibatches}, but data.init_args.num_groups is only "
                f"{num_groups}: each minibatch needs at least one group"
            )

    def batches(self, rollout: Rollout, batch: RolloutBatch) -> list[RolloutBatch]:
        """Give credit and cut the rollout into exactly `batches_per_rollout` batches, weights folded in.

        Minibatches are drawn from the groups of all ranks, of which a rank may then have none. The rollout keeps the
        whole batch, with the weights that its tokens had in the first inner epoch.
        """
        self.credit(rollout, batch)
        rollout.batch = batch
        rollout.metrics |= batch.metrics
        batch.metrics = {}
        if self.num_minibatches * self.num_inner_epochs > 1:
            self.old_logprobs(batch)
        groups = sorted(group for ids in self.gather_objects(self.kept_groups(rollout)) for group in ids)
        group_of = [group.group for group in rollout.groups for _ in group.trajectories]
        parts = []
        for epoch in range(self.num_inner_epochs):
            order = permutation(derive_seed(self.run_seed, "minibatches", rollout.index, epoch), len(groups))
            for part in range(self.num_minibatches):
                chosen = {groups[place] for place in order[part :: self.num_minibatches]}
                minibatch = batch.select_trajectories([t for t, group in enumerate(group_of) if group in chosen])
                self.finish_weights(minibatch)
                parts.append(minibatch)
        for minibatch in parts[: self.num_minibatches]:
            batch.weight[minibatch.origin] = minibatch.weight
        return parts

    def old_logprobs(self, batch: RolloutBatch) -> Tensor:
        """Return `batch.old_logprobs`, computed now if they are missing, [N] float32.

        They are the trainer's own log-probs of all tokens that may be trained; elsewhere they are the sampler's. The
        batch must be that of a whole rollout, before its first step.
        """
        if batch.old_logprobs is None:
            trained = batch.reason == TokenReason.TRAINED
            batch.old_logprobs = self.logprobs_of(batch, trained, otherwise=batch.behavior_logprobs)
        return batch.old_logprobs
