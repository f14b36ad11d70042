"""Generation in the trainer's own process: ragged batches, prompts read once, rows that end leave the batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lit_agentrl.engines.batching import LockstepBatcher
from lit_agentrl.engines.host_memory import return_freed_memory
from lit_agentrl.engines.kv_rows import KeptRow, assemble, can_keep, new_cache, take_row
from lit_agentrl.engines.packed_linear import PackedLinears
from lit_agentrl.policies.base import DTYPES, Policy
from lit_agentrl.seeding import uniforms
from lit_agentrl.token_ids import common_prefix_length
from lit_agentrl.types import Completion, EngineStats, GenerationRequest, StopReason

_COMPACT_AT = 0.75
"""Rows that have ended leave the batch when at most this share of it still runs: leaving copies the cache."""
_MIN_SHARED_PREFIX = 8
"""Ids that prompts must have in common for one more forward pass to pay."""


class LocalEngine:
    """Draws completions with the policy's own weights.

    The ids drawn for a request depend on its seed and on the weights, not on the order of arrival: one uniform number a
    position, inverse of the cumulative distribution. Log-probs are those of the distribution that was sampled, in
    float32, temperature included.

    Args:
        dtype: Precision of the weights that generate. `auto` takes the policy's own; another one keeps a copy that is
            refreshed at each `sync`.
        max_batch_size: Sequences generated at a time; bounds memory.
        cache_mb: Memory for the keys and values of episodes between their turns, so that a turn reads only what is
            new; 0 reads every context again. Rows beyond the budget are read again.
    """

    def __init__(
        self, *, dtype: Literal["auto", "fp32", "bf16"] = "auto", max_batch_size: int = 64, cache_mb: int = 2048
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"data.init_args.engine.max_batch_size is {max_batch_size}: it must be at least 1")
        self.dtype = dtype
        if cache_mb < 0:
            raise ValueError(f"data.init_args.engine.cache_mb is {cache_mb}: it must be 0 (off) or more")
        self.max_batch_size = max_batch_size
        self.cache_mb = cache_mb
        self._kept: dict[tuple[int, ...], KeptRow] = {}
        self._packed = PackedLinears()
        self.stats = EngineStats()
        self._policy: Policy | None = None
        self._copy: Any = None
        self._version = 0
        self._batcher = LockstepBatcher(self.generate_batch)

    def bind(self, policy: Policy) -> None:
        """Generate with this policy from now on."""
        if self._policy is not policy:
            self._policy, self._copy = policy, None
            self._packed.clear()

    def sync(self, version: int) -> None:
        """Take over the policy's current weights, under this version number."""
        policy = self._bound()
        self._version = version
        self._kept.clear()  # computed with older weights
        self._packed.clear()
        model = policy.causal_lm
        dtype = model.dtype if self.dtype == "auto" else DTYPES[self.dtype]
        if dtype == model.dtype and policy.model is model:
            self._copy = None
        elif self._copy is None:
            # On CPUs, scaled_dot_product_attention in bfloat16 is slower than plain matrix products.
            eager = dtype == torch.bfloat16 and model.device.type == "cpu"
            self._copy = policy.inference_copy(dtype, attn_implementation="eager" if eager else None)
        else:
            policy.sync_inference_copy(self._copy)

    def _bound(self) -> Policy:
        if self._policy is None:
            raise RuntimeError("the engine has no policy yet: call bind() first")
        return self._policy

    def episode(self) -> AbstractAsyncContextManager[None]:
        """Count the body as a live episode; see `LockstepBatcher`."""
        return self._batcher.episode()

    def outside(self) -> AbstractAsyncContextManager[None]:
        """Count the body as waiting for an environment or a tool."""
        return self._batcher.outside()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Draw one completion; waits until all live episodes wait."""
        return await self._batcher.submit(request)

    def reset(self) -> None:
        """Forget requests that were never answered, and give memory back: a rollout begins or has ended."""
        self._batcher = LockstepBatcher(self.generate_batch)
        self._kept.clear()
        self._packed.clear()
        self.stats = EngineStats()
        return_freed_memory()

    @torch.no_grad()
    def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Draw a completion for each request, `max_batch_size` at a time, in the given order."""
        policy = self._bound()
        model = self._copy if self._copy is not None else policy.causal_lm
        was_training, started = model.training, time.perf_counter()
        model.eval()
        # Whoever lives is waiting; a row that nobody asks for belongs to an episode that is over.
        self._kept = {key: row for r in requests if (row := self._kept.get(key := r.identity[:3])) is not None}
        try:
            completions: list[Completion] = []
            with self._packed.used_by(model):
                for start in range(0, len(requests), self.max_batch_size):
                    completions += self._generate(model, policy, requests[start : start + self.max_batch_size])
            return completions
        finally:
            model.train(was_training)
            self.stats.seconds += time.perf_counter() - started

    def _generate(self, model: Any, policy: Policy, requests: Sequence[GenerationRequest]) -> list[Completion]:
        limits = []
        for request in requests:
            room = policy.max_context - len(request.prompt_ids)
            if not request.prompt_ids or room < 1:
                raise ValueError(
                    f"a prompt of {len(request.prompt_ids)} tokens leaves no room in a context of {policy.max_context}"
                )
            limits.append(min(request.sampling.max_new_tokens, room))
        self.stats.prompt_tokens += sum(len(request.prompt_ids) for request in requests)
        kept = [self._kept.pop(request.identity[:3], None) for request in requests]
        continues = [
            row is not None and row.continues_to(request.prompt_ids)
            for row, request in zip(kept, requests, strict=True)
        ]
        completions: dict[int, Completion] = {}
        for part in (False, True):
            chosen = [number for number, flag in enumerate(continues) if flag is part]
            if not chosen:
                continue
            mine = [requests[number] for number in chosen]
            rows = [row for number in chosen if (row := kept[number]) is not None] if part else []
            decoding = self._continue(model, policy, mine, rows) if part else self._prefill(model, policy, mine)
            drawn = self._decode(model, policy, mine, [limits[number] for number in chosen], decoding)
            completions.update(zip(chosen, drawn, strict=True))
        return [completions[number] for number in range(len(requests))]

    def _prefill(self, model: Any, policy: Policy, requests: Sequence[GenerationRequest]) -> _Decoding:
        """Read the prompts: equal ones once, and once the beginning that all have in common."""
        assert policy.chat is not None
        unique = {prompt: index for index, prompt in enumerate(dict.fromkeys(r.prompt_ids for r in requests))}
        shared = _common_prefix(list(unique))
        cache = new_cache(model.config)
        if shared:
            ids = torch.tensor([shared], device=model.device)
            model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            cache.batch_repeat_interleave(len(unique))
        ids, mask = _left_padded([prompt[len(shared) :] for prompt in unique], policy.chat.pad_id, model.device)
        self.stats.prefilled_tokens += len(shared) + int(mask.sum())
        whole = torch.cat([mask.new_ones((len(unique), len(shared))), mask], dim=-1)
        positions = (whole.cumsum(-1) - 1)[:, len(shared) :].clamp_min(0)
        output = model(
            input_ids=ids, attention_mask=whole, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        )
        member_of = torch.tensor([unique[r.prompt_ids] for r in requests], device=model.device)
        if len(unique) != len(requests):
            cache.batch_select_indices(member_of)
        return _Decoding(
            cache=cache,
            logits=output.logits[member_of, -1],
            mask=whole[member_of],
            position=positions[member_of, -1:] + 1,
        )

    def _continue(
        self, model: Any, policy: Policy, requests: Sequence[GenerationRequest], rows: list[KeptRow]
    ) -> _Decoding:
        """Read what is new since the episodes' last turns."""
        assert policy.chat is not None
        new = [request.prompt_ids[len(row.ids) :] for request, row in zip(requests, rows, strict=True)]
        cache, read = assemble(rows)
        rows.clear()
        ids, mask = _left_padded(new, policy.chat.pad_id, model.device)
        self.stats.prefilled_tokens += sum(map(len, new))
        whole = torch.cat([read, mask], dim=-1)
        positions = (whole.cumsum(-1) - 1)[:, read.shape[1] :].clamp_min(0)
        output = model(
            input_ids=ids, attention_mask=whole, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        )
        return _Decoding(cache=cache, logits=output.logits[:, -1], mask=whole, position=positions[:, -1:] + 1)

    def _decode(
        self,
        model: Any,
        policy: Policy,
        requests: Sequence[GenerationRequest],
        limits: Sequence[int],
        state: _Decoding,
    ) -> list[Completion]:
        """Draw token after token until every row has ended. Rows that have ended leave the batch a few at a time."""
        assert policy.chat is not None
        eos_ids = torch.tensor(sorted(policy.chat.eos_ids), device=model.device)
        sampler = _Sampler(requests, limits, model.device)
        keeps = self.cache_mb > 0 and can_keep(state.cache)
        rows = torch.arange(len(requests), device=model.device)  # request of each row in the batch
        alive = torch.ones_like(rows, dtype=torch.bool)
        tokens = torch.zeros_like(rows)
        for step in range(max(limits)):
            running = alive.nonzero().squeeze(-1)
            drawn = sampler.draw(state.logits[running], rows[running], step)
            tokens[running] = drawn
            self.stats.decode_steps += 1
            alive[running] = ~torch.isin(drawn, eos_ids) & (sampler.limits[rows[running]] > step + 1)
            if not alive.any():
                break
            # Each compaction copies the cache, so it waits until it pays.
            if int(alive.sum()) <= _COMPACT_AT * alive.numel():
                if keeps:
                    self._keep(state, rows, ~alive, requests, sampler)
                stay = alive.nonzero().squeeze(-1)
                state.select(stay)
                rows, tokens, alive = rows[stay], tokens[stay], alive[stay]
            state.mask = torch.cat([state.mask, alive[:, None].long()], dim=-1)
            output = model(
                input_ids=tokens[:, None],
                attention_mask=state.mask,
                position_ids=state.position,
                cache=state.cache,
                use_cache=True,
            )
            state.logits = output.logits[:, -1]
            # Rows that have ended stay where they are: learned position embeddings have an end.
            state.position = state.position + alive[:, None]
        if keeps:
            self._keep(state, rows, torch.ones_like(alive), requests, sampler)
        completions = sampler.completions(policy.chat.eos_ids, self._version)
        self.stats.generated_tokens += sum(len(completion.token_ids) for completion in completions)
        return completions

    def _keep(
        self,
        state: _Decoding,
        rows: Tensor,
        leaving: Tensor,
        requests: Sequence[GenerationRequest],
        sampler: _Sampler,
    ) -> None:
        """Keep the rows that leave the batch for the next turn of their episodes, as far as the budget goes."""
        held = sum(row.num_bytes for row in self._kept.values())
        filled = state.cache.get_seq_length()
        for place in leaving.nonzero().squeeze(-1).tolist():
            request = requests[int(rows[place])]
            # The token drawn last has not been read yet.
            ids = request.prompt_ids + sampler.drawn(int(rows[place]))[:-1]
            row = take_row(state.cache, place, state.mask[place, :filled].bool(), ids)
            held += row.num_bytes
            if held > self.cache_mb * 2**20:
                return
            self._kept[request.identity[:3]] = row


@dataclass(kw_only=True)
class _Decoding:
    """A batch in the middle of being decoded; R rows, C columns read so far."""

    cache: Any
    logits: Tensor
    """[R, V]: of the next token."""
    mask: Tensor
    """[R, C] int64"""
    position: Tensor
    """[R, 1] int64: of the next token."""

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.cache.batch_select_indices(rows)
        self.logits, self.mask, self.position = self.logits[rows], self.mask[rows], self.position[rows]


def _common_prefix(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the beginning that all prompts share, if reading it apart pays; each prompt keeps at least one id."""
    if len(prompts) < 2:
        return ()
    length = min(common_prefix_length(prompts), min(map(len, prompts)) - 1)
    return prompts[0][:length] if length >= _MIN_SHARED_PREFIX else ()


def _left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and mask, [rows, longest] int64 each."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, width - len(row) :] = torch.tensor(row)
        mask[number, width - len(row) :] = 1
    return ids.to(device), mask.to(device)


class _Sampler:
    """Draws one token a row and step, and keeps what was drawn."""

    def __init__(self, requests: Sequence[GenerationRequest], limits: Sequence[int], device: torch.device) -> None:
        self._requests = requests
        self.limits = torch.tensor(limits, device=device)
        drawn = np.stack([uniforms(r.seed, max(limits)) for r in requests])
        self._uniforms = torch.from_numpy(drawn).to(device)
        temperatures = torch.tensor([r.sampling.temperature for r in requests], dtype=torch.float32, device=device)
        self._greedy = temperatures == 0
        self._temperature = torch.where(self._greedy, 1.0, temperatures)
        self._ids: list[list[int]] = [[] for _ in requests]
        self._logprobs: list[list[float]] = [[] for _ in requests]

    def draw(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        """Draw a token for each running row.

        Args:
            logits: [R, V] of the running rows.
            rows: [R] request of each row.
            step: Position in the completion.

        Returns:
            [R] int64.
        """
        logprobs = torch.log_softmax(logits.float() / self._temperature[rows, None], dim=-1)
        cumulative = logprobs.exp().cumsum(-1)
        # Scaled by the sum that was really reached, and kept below it: rounding must never run off the end, where an
        # id of probability 0 may stand.
        reached = cumulative[:, -1]
        threshold = (self._uniforms[rows, step] * reached.double()).float()
        threshold = torch.minimum(threshold, reached.nextafter(torch.zeros_like(reached))).unsqueeze(-1)
        # NaN logits have no place in the order; they are reported below.
        tokens = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)
        tokens = torch.where(self._greedy[rows], logprobs.argmax(-1), tokens)
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        if not bool(torch.isfinite(chosen).all()):
            raise FloatingPointError(
                "the policy's logits are not finite: its weights have diverged; lower model.init_args.optimizer.lr, "
                "and resume from the last checkpoint"
            )
        for row, token, logprob in zip(rows.tolist(), tokens.tolist(), chosen.tolist(), strict=True):
            self._ids[row].append(token)
            self._logprobs[row].append(logprob)
        return tokens

    def drawn(self, row: int) -> tuple[int, ...]:
        """Return the ids drawn so far for a request."""
        return tuple(self._ids[row])

    def completions(self, eos_ids: frozenset[int], version: int) -> list[Completion]:
        """Return what was drawn, in the order of the requests."""
        result = []
        for request, limit, ids, logprobs in zip(
            self._requests, self.limits.tolist(), self._ids, self._logprobs, strict=True
        ):
            reason: StopReason = "length" if limit == request.sampling.max_new_tokens else "context"
            result.append(
                Completion(
                    token_ids=tuple(ids),
                    logprobs=tuple(logprobs),
                    stop_reason="eos" if ids[-1] in eos_ids else reason,
                    policy_version=version,
                )
            )
        return result
