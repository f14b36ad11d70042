"""From per-token losses to one number: token weights, worked out once over the global batch.

Libraries reduce a loss to a mean inside each micro-batch and average those means, which makes the gradient depend on
how the batch was split. Here the weights come first, over everything that belongs to one optimizer step; the loss is
then the plain sum of weight x per-token loss, and any split of that sum has the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float, check_choice, dense_ids, masked, segment_sum

AggregationMode: TypeAlias = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregationCounts:
    """What the denominators of a batch are made of. Counts of parts add up to those of the whole."""

    tokens: int
    """Tokens inside the mask."""
    sequences: int
    """Sequences with at least one token inside the mask."""
    rows: int
    """All sequences, the empty ones included."""

    def __add__(self, other: AggregationCounts) -> AggregationCounts:
        return AggregationCounts(
            tokens=self.tokens + other.tokens,
            sequences=self.sequences + other.sequences,
            rows=self.rows + other.rows,
        )

    def to_tensor(self, device: torch.device | str | None = None) -> Tensor:
        """Return the counts as int64[3], ready for an all-reduce with sum."""
        return torch.tensor([self.tokens, self.sequences, self.rows], dtype=torch.int64, device=device)

    @classmethod
    def from_tensor(cls, counts: Tensor) -> AggregationCounts:
        """Undo `to_tensor`."""
        tokens, sequences, rows = (int(count) for count in counts.tolist())
        return cls(tokens=tokens, sequences=sequences, rows=rows)


def _dense_sequences(sequence_ids: Tensor, num_sequences: int | None) -> tuple[Tensor, int]:
    if num_sequences is None:
        return dense_ids(sequence_ids)
    if bool(((sequence_ids < 0) | (sequence_ids >= num_sequences)).any()):
        raise ValueError(f"sequence_ids must lie in [0, num_sequences) = [0, {num_sequences})")
    return sequence_ids, num_sequences


def _lengths(mask: Tensor, ids: Tensor, count: int) -> Tensor:
    return segment_sum(mask.bool().to(torch.int64), ids, count)


def aggregation_counts(mask: Tensor, sequence_ids: Tensor, *, num_sequences: int | None = None) -> AggregationCounts:
    """Count the tokens and sequences of one part of a batch, to be summed over parts or ranks.

    Args:
        mask: bool or 0/1 [N], true where a token is trained.
        sequence_ids: int[N]. A sequence must lie in one part as a whole.
        num_sequences: Number of sequences if some have no token at all; ids then lie in [0, num_sequences).
    """
    ids, count = _dense_sequences(sequence_ids, num_sequences)
    lengths = _lengths(mask, ids, count)
    tokens, sequences = torch.stack([lengths.sum(), (lengths > 0).sum()]).tolist()
    return AggregationCounts(tokens=tokens, sequences=sequences, rows=count)


def token_weights(
    mask: Tensor,
    sequence_ids: Tensor,
    *,
    mode: AggregationMode,
    constant: float | None = None,
    num_sequences: int | None = None,
    count_empty_rows: bool = False,
    denominators: AggregationCounts | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the weight of every token in a flat batch, so that the loss is `(weights * token_loss).sum()`.

    With n_s the trained tokens of sequence s, S the number of sequences and N that of tokens, over the whole batch:

    - `token-mean`: 1/N. Every token counts the same (DAPO, arXiv 2503.14476).
    - `seq-mean-token-mean`: 1/(S·n_s). Every sequence counts the same (GRPO, arXiv 2402.03300).
    - `seq-mean-token-sum`: 1/S.
    - `constant`: 1/(S·constant), S with the empty sequences, so that the divisor never depends on what was sampled
      (Dr. GRPO, arXiv 2503.20783).

    Libraries differ in whether S counts sequences without a trained token: TRL does, verl does not. A denominator of 0
    is read as 1, so a batch without trained tokens has weight 0 everywhere.

    Args:
        mask: bool or 0/1 [N], true where a token is trained.
        sequence_ids: int[N]. Sequences must be whole; split the returned weights, not the input.
        mode: One of the above.
        constant: Divisor of mode `constant` (in the paper the generation limit), in tokens.
        num_sequences: Number of sequences if some have no token at all; ids then lie in [0, num_sequences).
        count_empty_rows: Whether S counts sequences without a trained token; mode `constant` always does.
        denominators: N and S of the global batch, from `aggregation_counts` summed over parts or ranks. Pass them too
            in order to keep failed episodes out of the `rows` of mode `constant`.
        dtype: Of the weights.

    Returns:
        dtype[N], exactly 0 outside the mask.

    Raises:
        ValueError: Unknown mode, or `constant` missing, not positive, or given to another mode.
    """
    check_choice("mode", mode, get_args(AggregationMode))
    if (mode == "constant") != (constant is not None) or (constant is not None and constant <= 0):
        raise ValueError(f"constant must be a positive number for mode 'constant' and None otherwise; got {constant!r}")
    ids, count = _dense_sequences(sequence_ids, num_sequences)
    if denominators is None:
        denominators = aggregation_counts(mask, ids, num_sequences=count)
    num_tokens = max(denominators.tokens, 1)
    num_rows = max(denominators.rows if count_empty_rows else denominators.sequences, 1)
    weights = mask.to(dtype).bool().to(dtype)
    if mode == "token-mean":
        return weights / num_tokens
    if mode == "seq-mean-token-mean":
        lengths = _lengths(mask, ids, count).clamp(min=1).to(dtype)
        return weights / (lengths[ids] * num_rows)
    if constant is None:
        return weights / num_rows
    return weights / (max(denominators.rows, 1) * constant)


def aggregate(
    token_loss: Tensor,
    mask: Tensor,
    *,
    mode: AggregationMode = "token-mean",
    constant: float | None = None,
    count_empty_rows: bool = False,
    denominators: AggregationCounts | None = None,
) -> Tensor:
    """Reduce a padded per-token loss to a scalar; `token_weights` says what the modes mean.

    Args:
        token_loss: [B, T]; what it holds outside the mask changes neither value nor gradient.
        mask: bool or 0/1 [B, T]. Each row is one sequence.
        mode: See `token_weights`.
        constant: See `token_weights`.
        count_empty_rows: See `token_weights`.
        denominators: See `token_weights`.

    Returns:
        Scalar; exactly 0 with zero gradient if nothing is trained.
    """
    token_loss = as_float(token_loss)
    num_rows, num_columns = token_loss.shape
    rows = torch.arange(num_rows, device=token_loss.device).repeat_interleave(num_columns)
    weights = token_weights(
        mask.reshape(-1),
        rows,
        mode=mode,
        constant=constant,
        num_sequences=num_rows,
        count_empty_rows=count_empty_rows,
        denominators=denominators,
        dtype=token_loss.dtype,
    )
    return (weights * masked(token_loss, mask).reshape(-1)).sum()
