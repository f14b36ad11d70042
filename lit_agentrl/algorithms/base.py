"""What all algorithms share: one optimizer, one step a batch, a loss that is a plain weighted sum over tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric

from lit_agentrl.algorithms.optimizer import ClipGroup, OptimizerConfig, ParameterGroup
from lit_agentrl.functional import AggregationCounts, AggregationMode, aggregation_counts, token_weights
from lit_agentrl.metrics import AvgAtK, EpisodeLength, PassAtK, RewardParts, SuccessRate
from lit_agentrl.policies.base import Policy, TokenScores
from lit_agentrl.rollouts.batch import PaddedView, RolloutBatch, TokenReason
from lit_agentrl.rollouts.packing import PackedView, pack, packed_pieces
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.rollouts.segments import batch_from_demonstrations
from lit_agentrl.seeding import derive_seed, permutation, resolve_run_seed
from lit_agentrl.types import Trajectory

_Value = TypeVar("_Value")
_DEFAULT_OPTIMIZER = OptimizerConfig()


class Algorithm(L.LightningModule, ABC):
    """A policy and how it learns. Subclasses give the loss.

    Manual optimization: each batch is one optimizer step. The batch is cut into micro-batches by token budget, and
    because normalisers are folded into the weights beforehand, the cut cannot change the gradient.

    Args:
        policy: The policy that is trained.
        optimizer: AdamW and schedule.
        micro_batch_tokens: Padded tokens per forward pass; bounds memory, changes nothing else.
        share_prefixes: Whether a prompt that several episodes share is computed once, behind an attention mask. Switch
            it off for models that read no such mask (sliding windows, recurrent layers).
        seed: Run seed; default: what `seed_everything` was set to.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        optimizer: OptimizerConfig = _DEFAULT_OPTIMIZER,
        micro_batch_tokens: int = 4096,
        share_prefixes: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if micro_batch_tokens < 1:
            raise ValueError(f"model.init_args.micro_batch_tokens is {micro_batch_tokens}: it must be at least 1")
        self.automatic_optimization = False
        self.policy = policy
        self.optimizer_config = optimizer
        self.micro_batch_tokens = micro_batch_tokens
        self.share_prefixes = share_prefixes
        self.run_seed = resolve_run_seed(seed)
        self.episode_metrics = nn.ModuleDict()
        self._clip_groups: list[ClipGroup] = []
        self._episodes_seen: set[str] = set()
        self._held_out: dict[str, dict[str, float]] = {}

    @abstractmethod
    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch and figures to log.

        Returns:
            The sum over tokens of weight x term, and named means over what `count` counts.
        """

    def prepare(self, batch: RolloutBatch) -> None:
        """Write into `batch.columns` what the loss has to know of the whole batch, before it is cut.

        All ranks call it together, each with its part of the global batch.
        """

    def count(self, piece: RolloutBatch) -> int:
        """Return over how many items of a micro-batch the figures of `loss` are means: its trained tokens."""
        return int(self.wanted(piece).sum())

    def finish_means(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what is logged, from the means over the global batch."""
        return means

    def configure_model(self) -> None:
        """Make the weights."""
        self.policy.build(seed=derive_seed(self.run_seed, "policy"))

    def configure_optimizers(self) -> Any:
        """Return AdamW with its schedule, stepped after each optimizer step."""
        named, further = list(self.named_parameters()), self.parameter_groups()
        optimizer = self.optimizer_config.make_optimizer(named, further=further)
        self._clip_groups = self.optimizer_config.clip_groups(named, further=further)
        total = 0.0
        if self.optimizer_config.schedule != "constant":
            total = self.trainer.estimated_stepping_batches
            if not math.isfinite(total):
                raise ValueError(
                    f"model.init_args.optimizer.schedule is {self.optimizer_config.schedule}, which has to know the "
                    "end of the run: set trainer.max_epochs or trainer.max_steps, or choose constant"
                )
        return [optimizer], [self.optimizer_config.make_scheduler(optimizer, total_steps=int(total))]

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """Return the groups of parameters that the algorithm itself trains with settings of their own."""
        return {}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leave batches where they are: only micro-batches go to the device."""
        return batch

    def on_fit_start(self) -> None:
        """Switch dropout and gradient checkpointing on where the policy has them."""
        self.policy.train()

    # Training -------------------------------------------------------------------------------------------------------

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """Take one optimizer step; none if no token of any rank has a weight.

        Raises:
            FloatingPointError: The loss or the gradient is not finite. The weights are those of the step before.
        """
        for name, value in batch.metrics.items():
            self.log(name, value, rank_zero_only=True)
        wanted = self.wanted(batch)
        if not int(self.sum_over_ranks(wanted.sum())):
            self.log("train/skipped_steps", 1.0)
            return
        torch.manual_seed(derive_seed(self.run_seed, "dropout", self.global_step, self.global_rank))
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        assert isinstance(optimizer, LightningOptimizer)
        assert isinstance(scheduler, LRScheduler)
        self.prepare(batch)
        totals: dict[str, Tensor] = {}
        pieces = self._padded_to_all_ranks(self.pieces(batch, wanted))
        for number, piece in enumerate(pieces):
            with nullcontext() if number == len(pieces) - 1 else self._no_gradient_sync():
                loss, terms = self.loss(piece.to(self.device))
                self.manual_backward(loss)
            sums = self._sums(piece, loss, terms)
            totals = {name: totals.get(name, 0) + value for name, value in sums.items()}
        means = self.finish_means(self._means_over_ranks(totals))
        self._check_finite("loss", means["loss"])
        self.before_step()
        norms = self._clip()
        rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        self.after_step(means)
        self.log_dict(
            {f"train/{name}": value for name, value in means.items()}
            | {_with_suffix("train/grad_norm", name): norm for name, norm in norms.items()}
            | {_with_suffix("train/lr", name): rate for name, rate in rates.items()}
        )

    def wanted(self, batch: RolloutBatch) -> Tensor:
        """Return which tokens of a batch have a part in the loss, bool [N]."""
        return batch.weight != 0

    def before_step(self) -> None:
        """Called when all gradients of a step are there, before they are clipped."""

    def after_step(self, means: dict[str, Tensor]) -> None:
        """Called after an optimizer step with the loss terms' means over all ranks."""

    def _sums(self, piece: RolloutBatch, loss: Tensor, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the figures of a micro-batch as sums, with the `count` that they are divided by in the end."""
        count = self.count(piece)
        # A mean over nothing is NaN.
        sums = {
            name: term.detach() * (1 if name in self.summed_terms else count) if count else torch.zeros_like(term)
            for name, term in terms.items()
        }
        counted = torch.tensor(float(count), dtype=torch.float32, device=self.device)
        return sums | {"loss": loss.detach(), "count": counted}

    def _means_over_ranks(self, totals: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss of the global batch, and means of the other terms over all that it counts."""
        names = sorted(totals)
        summed = self.sum_over_ranks(torch.stack([totals[name].float() for name in names]))
        sums = dict(zip(names, summed, strict=True))
        count = sums.pop("count")
        added = {"loss", *self.summed_terms}
        return {name: value / (self.gradient_ranks if name in added else count) for name, value in sums.items()}

    summed_terms: frozenset[str] = frozenset()
    """Terms of `loss` that are weighted sums, as the loss is, and no means over tokens."""

    def _clip(self) -> dict[str, Tensor]:
        """Scale the gradients down to the configured norms; return the norms before, by clip group."""
        norms = {}
        for group in self._clip_groups:
            moved = [p for p in group.parameters if p.grad is not None]
            if moved:
                norm = torch.nn.utils.clip_grad_norm_(moved, group.limit if group.limit > 0 else float("inf"))
                self._check_finite(_with_suffix("gradient norm", group.name), norm)
                norms[group.name] = norm
        return norms

    def _check_finite(self, what: str, value: Tensor) -> None:
        # On sums over all ranks only, so that all ranks stop together.
        if not bool(torch.isfinite(value)):
            raise FloatingPointError(
                f"the {what} of optimizer step {self.global_step} is {float(value)}; lower "
                "model.init_args.optimizer.lr, and resume from the last checkpoint"
            )

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
        was_training = self.training
        self.eval()
        context = nullcontext() if self._trainer is None else self.trainer.precision_plugin.forward_context()
        with context:
            yield
        self.train(was_training)

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

    def _padded_to_all_ranks(self, pieces: list[RolloutBatch]) -> list[RolloutBatch]:
        """Give every rank the same number of micro-batches: collectives in forward or backward must pair up."""
        most = max(self.gather_objects(len(pieces)))
        # Two tokens of no weight are enough for a forward and a backward pass.
        return [batch_from_demonstrations([((0, 0), (0, 0))]) for _ in range(most - len(pieces))] + pieces

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

    # Evaluation -----------------------------------------------------------------------------------------------------

    def validation_step(self, batch: Rollout | RolloutBatch, batch_idx: int) -> None:
        """Count the episodes of one validation batch, or measure the loss on held-out data."""
        self._evaluate("val", batch)

    def on_validation_epoch_end(self) -> None:
        """Log `val/…`."""
        self._report("val")

    def test_step(self, batch: Rollout | RolloutBatch, batch_idx: int) -> None:
        """Count the episodes of one test batch, or measure the loss on held-out data."""
        self._evaluate("test", batch)

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

    def _evaluate(self, phase: str, batch: Rollout | RolloutBatch) -> None:
        if isinstance(batch, Rollout):
            self._episodes_seen.add(phase)
            self._count(phase, batch.trajectories)
        else:
            self._measure(phase, batch)

    @torch.no_grad()
    def _measure(self, phase: str, batch: RolloutBatch) -> None:
        """Add the loss and its figures on held-out data, every counted item weighing the same."""
        batch.weight = (batch.reason == TokenReason.TRAINED).to(batch.weight.dtype)
        self.prepare(batch)
        totals = self._held_out.setdefault(phase, {})
        for piece in self._padded_to_all_ranks(self.pieces(batch, batch.weight != 0)):
            for name, value in self._sums(piece, *self.loss(piece.to(self.device))).items():
                totals[name] = totals.get(name, 0.0) + float(value)

    def _held_out_means(self, phase: str) -> dict[str, Tensor]:
        """Return the means over the held-out data of all ranks, nothing if there was none."""
        sums: dict[str, float] = {}
        for rank in self.gather_objects(self._held_out.pop(phase, {})):
            sums = {name: sums.get(name, 0.0) + rank.get(name, 0.0) for name in sums.keys() | rank.keys()}
        count = sums.pop("count", 0.0)
        return self.finish_means({name: torch.tensor(total / count) for name, total in sums.items()}) if count else {}

    def _count(self, phase: str, trajectories: Sequence[Trajectory]) -> None:
        for name, metric in self._metrics(phase):
            if name == "reward":
                for trajectory in trajectories:
                    if trajectory.status != "failed":
                        metric.update(trajectory.reward)
            else:
                metric.update(trajectories)

    def _report(self, phase: str) -> None:
        for name, value in sorted(self._held_out_means(phase).items()):
            self.log(f"{phase}/{name}", value.float())
        if not any(self.gather_objects(phase in self._episodes_seen)):
            return
        self._episodes_seen.discard(phase)
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


def _with_suffix(name: str, suffix: str) -> str:
    return f"{name}_{suffix}" if suffix else name


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
