"""What all that learns shares: one optimizer, one step a batch, a loss that is a weighted sum, episodes to judge by."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric

from lit_agentrl.algorithms.optimizer import ClipGroup, OptimizerConfig, ParameterGroup
from lit_agentrl.metrics import AvgAtK, EpisodeLength, PassAtK, RewardParts, SuccessRate
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.seeding import derive_seed, resolve_run_seed
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
        self._clip_groups: list[ClipGroup] = []
        self._episodes_seen: set[str] = set()
        self._held_out: dict[str, dict[str, float]] = {}
        self.resumed = False
        """Whether this fit goes on from a checkpoint."""

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch and figures to log.

        Returns:
            The sum over tokens (or rows) of weight x term, and named means over what `count` counts.
        """

    def prepare(self, batch: Any) -> None:
        """Write into `batch.columns` what the loss has to know of the whole batch, before it is cut.

        All ranks call it together, each with its part of the global batch.
        """

    def count(self, piece: Any) -> int:
        """Return over how many items of a micro-batch the figures of `loss` are means: its trained tokens."""
        return int(self.wanted(piece).sum())

    def finish_means(self, means: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what is logged, from the means over the global batch."""
        return means

    @abstractmethod
    def pieces(self, batch: Any, wanted: Tensor) -> list[Any]:
        """Cut a batch into micro-batches; `wanted` [N] says which tokens are needed."""

    @abstractmethod
    def filler(self) -> Any:
        """Return a micro-batch without weight that is enough for a forward and a backward pass."""

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

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Note that the run goes on from a checkpoint; `setup` comes before."""
        self.resumed = True

    # Training -------------------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> None:
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
        self._check_finite("loss", means["loss"], terms=means)
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

    def _check_finite(self, what: str, value: Tensor, *, terms: Mapping[str, Tensor] | None = None) -> None:
        # On sums over all ranks only, so that all ranks stop together.
        if not bool(torch.isfinite(value)):
            others = [name for name, term in (terms or {}).items() if name != what and not bool(torch.isfinite(term))]
            also = f" (not finite either: {', '.join(sorted(others))})" if others else ""
            raise FloatingPointError(
                f"the {what} of optimizer step {self.global_step} is {float(value)}{also}; lower "
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
        """Return what all ranks handed in, by rank: picklable, on the CPU, and small except in checkpoints."""
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
        self.resumed = False
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
