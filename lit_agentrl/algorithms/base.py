"""What all algorithms share: one optimizer, one step a batch, a loss that is a plain weighted sum over tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric

from lit_agentrl.algorithms.optimizer import OptimizerConfig
from lit_agentrl.functional import AggregationCounts, AggregationMode, aggregation_counts, token_weights
from lit_agentrl.metrics import AvgAtK, EpisodeLength, PassAtK, RewardParts, SuccessRate
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.packing import pack, packed_pieces
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.segments import batch_from_demonstrations
from lit_agentrl.seeding import derive_seed, permutation, resolve_run_seed
from lit_agentrl.types import Trajectory

_Value = TypeVar("_Value")
_DEFAULT_OPTIMIZER = OptimizerConfig()


class Learner(L.LightningModule, ABC):
    """A module that learns by optimizer steps on batches, and is judged by episodes. Subclasses give loss and pieces.

    Manual optimization: each batch is one optimizer step. A batch has `weight` [N] and `metrics`; it is cut into
    micro-batches of the same kind, and because normalisers are folded into the weights beforehand, the cut cannot
    change the gradient.

    Args:
        optimizer: AdamW and schedule.
        seed: Run seed; default: what `seed_everything` was set to.
    """

    def __init__(self, *, optimizer: OptimizerConfig = _DEFAULT_OPTIMIZER, seed: int | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.optimizer_config = optimizer
        self.run_seed = resolve_run_seed(seed)
        self.episode_metrics = nn.ModuleDict()

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch and figures to log.

        Returns:
            The sum over tokens (or rows) of weight x term, and named means over the micro-batch's trained tokens.
        """

    @abstractmethod
    def pieces(self, batch: Any, wanted: Tensor) -> list[Any]:
        """Cut a batch into micro-batches; `wanted` [N] says which tokens are needed."""

    @abstractmethod
    def filler(self) -> Any:
        """Return a micro-batch without weight that is enough for a forward and a backward pass."""

    def configure_optimizers(self) -> Any:
        """Return AdamW with its schedule, stepped after each optimizer step."""
        optimizer = self.optimizer_config.make_optimizer(self.parameters())
        total = 0.0
        if self.optimizer_config.schedule != "constant":
            total = self.trainer.estimated_stepping_batches
            if not math.isfinite(total):
                raise ValueError(
                    f"model.init_args.optimizer.schedule is {self.optimizer_config.schedule}, which has to know the "
                    "end of the run: set trainer.max_epochs or trainer.max_steps, or choose constant"
                )
        return [optimizer], [self.optimizer_config.make_scheduler(optimizer, total_steps=int(total))]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leave batches where they are: only micro-batches go to the device."""
        return batch

    # Training -------------------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Take one optimizer step; none if no token of any rank has a weight.

        Raises:
            FloatingPointError: The loss or the gradient is not finite. The weights are those of the step before.
        """
        for name, value in batch.metrics.items():
            self.log(name, value, rank_zero_only=True)
        if float(self.sum_over_ranks(batch.weight.abs().sum())) == 0:
            self.log("train/skipped_steps", 1.0)
            return
        torch.manual_seed(derive_seed(self.run_seed, "dropout", self.global_step, self.global_rank))
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        assert isinstance(optimizer, LightningOptimizer)
        assert isinstance(scheduler, LRScheduler)
        totals: dict[str, Tensor] = {}
        pieces = self._padded_to_all_ranks(self.pieces(batch, batch.weight != 0))
        for number, piece in enumerate(pieces):
            with nullcontext() if number == len(pieces) - 1 else self._no_gradient_sync():
                loss, terms = self.loss(piece.to(self.device))
                self.manual_backward(loss)
            trained = int((piece.weight != 0).sum())
            # A mean over no token is NaN.
            sums = {
                name: term.detach() * trained if trained else torch.zeros_like(term) for name, term in terms.items()
            }
            sums |= {
                "loss": loss.detach(),
                "tokens": torch.tensor(float(trained), dtype=torch.float32, device=self.device),
            }
            totals = {name: totals.get(name, 0) + value for name, value in sums.items()}
        means = self._means_over_ranks(totals)
        self._check_finite("loss", means["loss"])
        norm = self._clip()
        lr = optimizer.param_groups[0]["lr"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        self.after_step(means)
        self.log_dict(
            {f"train/{name}": value for name, value in means.items()} | {"train/grad_norm": norm, "train/lr": lr}
        )

    def after_step(self, means: dict[str, Tensor]) -> None:
        """Called after an optimizer step with the loss terms' means over all ranks."""

    def _means_over_ranks(self, totals: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss of the global batch, and means of the other terms over all its trained tokens."""
        names = sorted(totals)
        summed = self.sum_over_ranks(torch.stack([totals[name].float() for name in names]))
        sums = dict(zip(names, summed, strict=True))
        tokens, loss = sums.pop("tokens"), sums.pop("loss")
        return {name: value / tokens for name, value in sums.items()} | {"loss": loss / self.gradient_ranks}

    def _clip(self) -> Tensor:
        """Scale the gradient down to the configured norm; return the norm before."""
        limit = self.optimizer_config.max_grad_norm
        trained = [p for p in self.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(trained, limit if limit > 0 else float("inf"))
        self._check_finite("gradient norm", norm)
        return norm

    def _check_finite(self, what: str, value: Tensor) -> None:
        # On sums over all ranks only, so that all ranks stop together.
        if not bool(torch.isfinite(value)):
            raise FloatingPointError(
                f"the {what} of optimizer step {self.global_step} is {float(value)}; lower "
                "model.init_args.optimizer.lr, and resume from the last checkpoint"
            )

    # Ranks ----------------------------------------------------------------------------------------------------------

    def sum_over_ranks(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks."""
        if self._trainer is None or self.trainer.world_size == 1:
            return value
        return self.trainer.strategy.reduce(value.clone().to(self.device), reduce_op="sum")

    @property
    def gradient_ranks(self) -> int:
        """Ranks over which the strategy averages gradients; weights are multiplied back by it."""
        return 1 if self._trainer is None else int(self.trainer.world_size)

    def gather_objects(self, value: _Value) -> list[_Value]:
        """Return what all ranks handed in, in order of the ranks: small plain values, not tensors."""
        if self._trainer is None or self.trainer.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(gathered, value)
        return gathered

    def _no_gradient_sync(self) -> AbstractContextManager[None]:
        model: Any = self.trainer.strategy.model
        return model.no_sync() if hasattr(model, "no_sync") else nullcontext()

    def _padded_to_all_ranks(self, pieces: list[Any]) -> list[Any]:
        """Give every rank the same number of micro-batches: collectives in forward or backward must pair up."""
        most = max(self.gather_objects(len(pieces)))
        return [self.filler() for _ in range(most - len(pieces))] + pieces

    # Evaluation -----------------------------------------------------------------------------------------------------

    def validation_step(self, batch: Rollout, batch_idx: int) -> None:
        """Count the episodes of one validation batch."""
        self._count("val", batch.trajectories)

    def on_validation_epoch_end(self) -> None:
        """Log `val/…`."""
        self._report("val")

    def test_step(self, batch: Rollout, batch_idx: int) -> None:
        """Count the episodes of one test batch."""
        self._count("test", batch.trajectories)

    def on_test_epoch_end(self) -> None:
        """Log `test/…`."""
        self._report("test")

    def predict_step(self, batch: Rollout, batch_idx: int) -> Rollout:
        """Return the episodes."""
        return batch

    def setup(self, stage: str) -> None:
        """Make the metrics; pass@k needs to know how many samples a task has."""
        if self._trainer is not None:
            # The `…-true` precisions round all of a batch: log-probs and advantages would lose their last digits.
            self.trainer.precision_plugin.convert_input = _as_it_is  # type: ignore[method-assign]
        samples = int(getattr(self._datamodule, "val_samples_per_task", 1))
        for phase in ("val", "test"):
            metrics: dict[str, nn.Module] = {
                "success": SuccessRate(),
                "length": EpisodeLength(),
                "reward": MeanMetric(nan_strategy="error"),
                "reward_parts": RewardParts(),
            }
            if samples > 1:
                metrics |= {"avg_at_k": AvgAtK(), "pass_at_k": PassAtK(samples)}
            self.episode_metrics[f"{phase}_episodes"] = nn.ModuleDict(metrics)

    @property
    def _datamodule(self) -> Any:
        return None if self._trainer is None else getattr(self.trainer, "datamodule", None)

    def _count(self, phase: str, trajectories: Sequence[Trajectory]) -> None:
        for name, metric in self._metrics(phase):
            if name == "reward":
                for trajectory in trajectories:
                    if trajectory.status != "failed":
                        metric.update(trajectory.reward)
            else:
                metric.update(trajectories)

    def _report(self, phase: str) -> None:
        values: dict[str, Any] = {}
        for name, metric in self._metrics(phase):
            computed = metric.compute()
            if name == "reward":
                values["reward"] = computed
            elif name == "reward_parts":
                values |= {f"reward_{part}": value for part, value in computed.items()}
            else:
                values |= computed
            metric.reset()
        for name, value in values.items():
            self.log(f"{phase}/{name}", torch.as_tensor(value).float(), prog_bar=name == "success")

    def _metrics(self, phase: str) -> list[tuple[str, Any]]:
        metrics = self.episode_metrics[f"{phase}_episodes"]
        assert isinstance(metrics, nn.ModuleDict)
        return list(metrics.items())


def _as_it_is(data: Any) -> Any:
    return data


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
        """Return (index [M], log-probs [M], entropies [M]) of the wanted tokens; index points into the flat batch.

        Args:
            batch: A micro-batch.
            wanted: [N] bool.
            policy: Whose log-probs; default: the trained policy's.
            entropy_grad: Whether gradients flow through the entropies.
        """
        assert self.policy.chat is not None
        pad_id, temperature = self.policy.chat.pad_id, batch.temperature
        token_logprobs = (policy or self.policy).token_logprobs
        if self.share_prefixes:
            tree = pack(batch, wanted, pad_id=pad_id)
            logprobs, entropies = token_logprobs(
                tree.input_ids,
                tree.visible,
                tree.position_ids,
                tree.rows,
                tree.columns,
                temperature=temperature,
                entropy_grad=entropy_grad,
                sources=tree.sources,
            )
            return tree.token_index, logprobs, entropies
        view = batch.padded(wanted, pad_id=pad_id)
        logprobs, entropies = token_logprobs(
            view.input_ids,
            view.attention_mask,
            view.position_ids,
            view.rows,
            view.columns,
            temperature=temperature,
            entropy_grad=entropy_grad,
        )
        return view.token_index, logprobs, entropies

    def filler(self) -> RolloutBatch:
        """Return two tokens of no weight."""
        return batch_from_demonstrations([((0, 0), (0, 0))])

    def fold_weights(self, batch: RolloutBatch, *, mode: AggregationMode, constant: float | None = None) -> None:
        """Write the weights of one optimizer step's batch: normalisers over all ranks, masked tokens 0.

        Tokens without signal count in the normaliser; they get weight 0 because their term is exactly 0.
        """
        counted = (batch.reason == TokenReason.TRAINED) | (batch.reason == TokenReason.NO_SIGNAL)
        sequence = batch.trajectory[batch.segment].clamp_min(0)
        local = aggregation_counts(counted[counted], sequence[counted])
        totals = self.sum_over_ranks(local.to_tensor(batch.token_ids.device))
        weights = token_weights(
            counted, sequence, mode=mode, constant=constant, denominators=AggregationCounts.from_tensor(totals)
        )
        batch.weight = torch.where(batch.reason == TokenReason.TRAINED, weights * self.gradient_ranks, 0.0)


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
        if batch.old_logprobs is None and self.batches_per_rollout > 1:
            batch.old_logprobs = self._trainer_logprobs(batch)
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

    @torch.no_grad()
    def _trainer_logprobs(self, batch: RolloutBatch) -> Tensor:
        """Return the trainer's own log-probs of all tokens that may be trained, [N] float32; elsewhere the sampler's.

        The batch must be that of a whole rollout.
        """
        return self.logprobs_of(batch, batch.reason == TokenReason.TRAINED, otherwise=batch.behavior_logprobs)

    @torch.no_grad()
    def logprobs_of(
        self, batch: RolloutBatch, wanted: Tensor, *, otherwise: Tensor, policy: Policy | None = None
    ) -> Tensor:
        """Return log-probs of the wanted tokens, without gradient, [N] float32 on the CPU.

        Args:
            batch: That of a whole rollout.
            wanted: [N] bool.
            otherwise: [N]: what stands where nothing is wanted.
            policy: Whose log-probs; default: the trained policy's.
        """
        was_training = self.policy.training
        self.policy.eval()
        result = otherwise.clone()
        with self.trainer.precision_plugin.forward_context():
            for piece in self.pieces(batch, wanted):
                on_device = piece.to(self.device)
                asked = wanted[piece.origin].to(self.device)
                index, logprobs, _ = self.policy_logprobs(on_device, asked, policy=policy)
                result[piece.origin[index.cpu()]] = logprobs.float().cpu()
        self.policy.train(was_training)
        return result
