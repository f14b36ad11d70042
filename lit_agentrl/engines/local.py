"""Generation in the trainer's own process: ragged batches, prompts read once, finished rows dropped at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lit_agentrl.engines.batching import LockstepBatcher
from lit_agentrl.policies.base import DTYPES, Policy
from lit_agentrl.seeding import uniforms
from lit_agentrl.types import Completion, EngineStats, GenerationRequest, StopReason


class LocalEngine:
    """Draws completions with the policy's own weights.

    The ids drawn for a request depend on its seed and on the weights, not on the order of arrival: one uniform number a
    position, inverse of the cumulative distribution. Log-probs are those of the distribution that was sampled, in
    float32, temperature included.

    Args:
        dtype: Precision of the weights that generate. `auto` takes the policy's own; another one keeps a copy that is
            refreshed at each `sync`.
        max_batch_size: Sequences generated at a time; bounds memory.
    """

    def __init__(self, *, dtype: Literal["auto", "fp32", "bf16"] = "auto", max_batch_size: int = 64) -> None:
        if max_batch_size < 1:
            raise ValueError(f"data.init_args.engine.max_batch_size is {max_batch_size}: it must be at least 1")
        self.dtype = dtype
        self.max_batch_size = max_batch_size
        self.stats = EngineStats()
        self._policy: Policy | None = None
        self._copy: Any = None
        self._version = 0
        self._batcher = LockstepBatcher(self.generate_batch)

    def bind(self, policy: Policy) -> None:
        """Generate with this policy from now on."""
        if self._policy is not policy:
            self._policy, self._copy = policy, None

    def sync(self, version: int) -> None:
        """Take over the policy's current weights, under this version number."""
        policy = self._bound()
        self._version = version
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
        """Forget requests that were never answered: a rollout begins, on an event loop of its own."""
        self._batcher = LockstepBatcher(self.generate_batch)
        self.stats = EngineStats()

    @torch.no_grad()
    def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Draw a completion for each request, `max_batch_size` at a time, in the given order."""
        policy = self._bound()
        model = self._copy if self._copy is not None else policy.causal_lm
        was_training, started = model.training, time.perf_counter()
        model.eval()
        try:
            completions: list[Completion] = []
            for start in range(0, len(requests), self.max_batch_size):
                completions += self._generate(model, policy, requests[start : start + self.max_batch_size])
            return completions
        finally:
            model.train(was_training)
            self.stats.seconds += time.perf_counter() - started

    def _generate(self, model: Any, policy: Policy, requests: Sequence[GenerationRequest]) -> list[Completion]:
        assert policy.chat is not None
        device = model.device
        eos_ids = torch.tensor(sorted(policy.chat.eos_ids), device=device)
        limits = []
        for request in requests:
            room = policy.max_context - len(request.prompt_ids)
            if not request.prompt_ids or room < 1:
                raise ValueError(
                    f"a prompt of {len(request.prompt_ids)} tokens leaves no room in a context of {policy.max_context}"
                )
            limits.append(min(request.sampling.max_new_tokens, room))
        unique = {prompt: index for index, prompt in enumerate(dict.fromkeys(r.prompt_ids for r in requests))}
        width = max(map(len, unique))
        prompts = torch.full((len(unique), width), policy.chat.pad_id, dtype=torch.int64)
        mask = torch.zeros((len(unique), width + max(limits)), dtype=torch.int64)
        for prompt, index in unique.items():
            prompts[index, width - len(prompt) :] = torch.tensor(prompt)
            mask[index, width - len(prompt) : width] = 1
        mask[:, width:] = 1
        prompts, mask = prompts.to(device), mask.to(device)
        self.stats.prompt_tokens += sum(len(r.prompt_ids) for r in requests)
        self.stats.prefilled_tokens += sum(map(len, unique))

        positions = (mask[:, :width].cumsum(-1) - 1).clamp_min(0)
        output = model(
            input_ids=prompts, attention_mask=mask[:, :width], position_ids=positions, use_cache=True, logits_to_keep=1
        )
        cache = output.cache
        member_of = torch.tensor([unique[r.prompt_ids] for r in requests], device=device)
        logits = output.logits[member_of, -1]
        if len(unique) != len(requests):
            cache.batch_select_indices(member_of)
        mask = mask[member_of]
        next_position = positions[member_of, -1:] + 1

        sampler = _Sampler(requests, limits, device)
        rows = torch.arange(len(requests), device=device)  # request of each row still running
        for step in range(max(limits)):
            tokens = sampler.draw(logits, rows, step)
            self.stats.decode_steps += 1
            alive = ~torch.isin(tokens, eos_ids) & (sampler.limits[rows] > step + 1)
            if not alive.any():
                break
            if not alive.all():
                kept = alive.nonzero().squeeze(-1)
                cache.batch_select_indices(kept)
                rows, tokens, mask, next_position = rows[kept], tokens[kept], mask[kept], next_position[kept]
            output = model(
                input_ids=tokens[:, None],
                attention_mask=mask[:, : width + step + 1],
                position_ids=next_position,
                cache=cache,
                use_cache=True,
            )
            logits = output.logits[:, -1]
            next_position = next_position + 1
        completions = sampler.completions(policy.chat.eos_ids, self._version)
        self.stats.generated_tokens += sum(len(c.token_ids) for c in completions)
        return completions


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
        # Scaled by the sum that was really reached, so that rounding never runs off the end.
        threshold = (self._uniforms[rows, step] * cumulative[:, -1].double()).float().unsqueeze(-1)
        tokens = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)
        tokens = torch.where(self._greedy[rows], logprobs.argmax(-1), tokens)
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        if not bool(torch.isfinite(chosen).all()):
            raise FloatingPointError("the policy's logits are not finite: its weights have diverged")
        for row, token, logprob in zip(rows.tolist(), tokens.tolist(), chosen.tolist(), strict=True):
            self._ids[row].append(token)
            self._logprobs[row].append(logprob)
        return tokens

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
