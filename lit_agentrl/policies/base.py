"""The policy: a causal language model, its tokenizer and its chat format."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lit_agentrl.policies.chat import ChatFormat

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Precision = Literal["fp32", "bf16"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class TokenScores(NamedTuple):
    """What a policy says of M tokens."""

    logprobs: Tensor
    """[M] float32, nats."""
    entropies: Tensor
    """[M] float32, nats: of the distribution that each token is drawn from."""
    states: Tensor
    """[M, H]: last hidden state before each token; the log-probs come from it, and values may."""


class Policy(nn.Module, ABC):
    """A trainable causal language model. Construction is cheap; `build` makes the weights.

    Subclasses implement `_load`. After `build`, `model` (a transformers causal LM, or a peft wrapper of one),
    `tokenizer` and `chat` are set. The trained parameters are those that require gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model: PreTrainedModel | None = None
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.chat: ChatFormat | None = None
        self._plain_head: bool | None = None

    @abstractmethod
    def _load(self, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, ChatFormat]:
        """Make model, tokenizer and chat format; `seed` is for fresh weights."""

    def build(self, *, seed: int = 0) -> None:
        """Make the weights, once; later calls do nothing."""
        if self.model is None:
            self.model, self.tokenizer, self.chat = self._load(seed)
            generation_config = self.causal_lm.generation_config
            generation_config.eos_token_id = sorted(self.chat.eos_ids)
            generation_config.pad_token_id = self.chat.pad_id

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The transformers model itself, LoRA layers in place, without the peft wrapper around it.

        Raises:
            RuntimeError: `build` was not called.
        """
        if self.model is None:
            raise RuntimeError("the policy has no weights yet: call build() first")
        return self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model

    @property
    def max_context(self) -> int:
        """Tokens that the model can read at once, prompt and completion together."""
        return int(self.causal_lm.config.get_text_config().max_position_embeddings)

    def token_logprobs(
        self,
        input_ids: Tensor,  # [B, T] int64
        attention_mask: Tensor,  # [B, T] int64, 1 = real token; or [B, T, T] bool, what each token sees
        position_ids: Tensor,  # [B, T] int64
        rows: Tensor,  # [M] int64: row of each wanted token
        columns: Tensor,  # [M] int64: column of each wanted token, at least 1
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (nats) of the wanted tokens, float32 [M] each; see `token_scores`."""
        scores = self.token_scores(input_ids, attention_mask, position_ids, rows, columns, **options)
        return scores.logprobs, scores.entropies

    def token_scores(
        self,
        input_ids: Tensor,  # [B, T] int64
        attention_mask: Tensor,  # [B, T] int64, 1 = real token; or [B, T, T] bool, what each token sees
        position_ids: Tensor,  # [B, T] int64
        rows: Tensor,  # [M] int64: row of each wanted token
        columns: Tensor,  # [M] int64: column of each wanted token, at least 1
        *,
        temperature: float = 1.0,
        chunk_size: int = 512,
        entropy_grad: bool = False,
        sources: Tensor | None = None,  # [M] int64: column that predicts each wanted token
    ) -> TokenScores:
        """Return log-probs, entropies and the hidden states that they come from.

        Logits exist for wanted tokens only, `chunk_size` at a time, in the backward pass as well.

        Args:
            input_ids: Padded on either side; ids under the mask do not matter.
            attention_mask: 1 on real tokens of [B, T]; as bool [B, T, T], which tokens each token sees.
            position_ids: Of each token in its own sequence.
            rows: Row of each wanted token.
            columns: Column of each wanted token.
            temperature: Divides the logits. 0 (greedy sampling) counts as 1, as in `Sampling`.
            chunk_size: Tokens whose logits exist at the same time.
            entropy_grad: Whether gradients flow through the entropies (for an entropy bonus).
            sources: Column whose hidden state predicts each wanted token; default: the one before it.

        Raises:
            ValueError: A column is below 1, or the temperature is negative.
        """
        if temperature < 0:
            raise ValueError(f"temperature must be 0 or more, not {temperature}")
        sources = columns - 1 if sources is None else sources
        if sources.numel() and int(sources.min()) < 0:
            raise ValueError("columns must be 1 or more: the first token of a row has no distribution")
        targets = input_ids[rows, columns]
        temperature = temperature or 1.0
        causal_lm = self.causal_lm
        if not self._has_plain_head():
            inputs = self._inputs(input_ids, attention_mask, position_ids)
            wanted, positions = torch.unique(sources, return_inverse=True)
            output = causal_lm(**inputs, logits_to_keep=wanted, output_hidden_states=True)
            scored = _logprobs_and_entropy(output.logits[rows, positions], targets, temperature, entropy_grad)
            return TokenScores(*scored, states=output.hidden_states[-1][rows, sources])
        hidden = self.token_states(input_ids, attention_mask, position_ids, rows, sources)
        head = causal_lm.get_output_embeddings()

        def score(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return _logprobs_and_entropy(head(hidden), targets, temperature, entropy_grad)

        chunks = list(zip(hidden.split(chunk_size), targets.split(chunk_size), strict=True))
        # A single chunk is alive at its peak anyway; recomputing it would cost time and save nothing.
        if len(chunks) == 1 or not torch.is_grad_enabled():
            parts = [score(*chunk) for chunk in chunks]
        else:
            parts = [checkpoint(score, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        return TokenScores(
            torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts]), hidden
        )

    def token_states(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, rows: Tensor, columns: Tensor
    ) -> Tensor:
        """Return the last hidden states at some places, [M, hidden size]; arguments as in `token_scores`."""
        inputs = self._inputs(input_ids, attention_mask, position_ids)
        if self._has_plain_head():
            states = self.causal_lm.get_decoder()(**inputs).last_hidden_state
        else:
            first = torch.zeros(1, dtype=torch.int64, device=input_ids.device)
            states = self.causal_lm(**inputs, logits_to_keep=first, output_hidden_states=True).hidden_states[-1]
        found: Tensor = states[rows, columns]
        return found

    def _inputs(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> dict[str, Any]:
        if attention_mask.ndim == 3:
            seen = torch.zeros((), dtype=self.causal_lm.dtype, device=input_ids.device)
            attention_mask = torch.where(attention_mask, seen, torch.finfo(seen.dtype).min)[:, None]
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "use_cache": False,
        }

    @property
    def hidden_size(self) -> int:
        """Width of the last hidden states."""
        return int(self.causal_lm.config.get_text_config().hidden_size)

    def _has_plain_head(self) -> bool:
        """Say whether logits are just head(hidden); some models cap or scale them. Checked once, on three tokens."""
        if self._plain_head is None:
            training = self.causal_lm.training
            self.causal_lm.eval()
            self._plain_head = _is_head_of_hidden(self.causal_lm)
            self.causal_lm.train(training)
        return self._plain_head

    def inference_copy(
        self, dtype: torch.dtype, *, attn_implementation: Literal["sdpa", "eager"] | None = None
    ) -> PreTrainedModel:
        """Return a separate causal LM with today's weights for generation: LoRA merged, eval mode, no gradients.

        Args:
            dtype: Of the copy's weights.
            attn_implementation: `None` keeps the policy's.
        """
        twin: Any = copy.deepcopy(self.model)
        plain = twin.unload() if hasattr(twin, "peft_config") else twin
        if attn_implementation is not None:
            plain.set_attn_implementation(attn_implementation)
        plain = plain.to(dtype).eval().requires_grad_(False)
        self.sync_inference_copy(plain)
        return plain

    def frozen_copy(self) -> Policy:
        """Return a policy with a copy of today's weights, LoRA merged, that is never trained."""
        twin = copy.copy(self)
        twin._modules = dict(self._modules)
        twin._has_plain_head()
        twin.model = self.inference_copy(self.causal_lm.dtype)
        return twin

    def trainable_copy(self) -> Policy:
        """Return a policy with a copy of today's weights, LoRA merged, all of which are trained."""
        twin = self.frozen_copy()
        twin.causal_lm.requires_grad_(True)
        return twin

    @torch.no_grad()
    def sync_inference_copy(self, twin: PreTrainedModel) -> None:
        """Give a model made by `inference_copy` today's weights, in place. The policy's own weights are only read."""
        targets = dict(twin.named_parameters())
        for name, weight in self.merged_weights():
            targets[name].copy_(weight)

    def merged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a plain causal LM by name, LoRA added where there is one."""
        causal_lm = self.causal_lm
        adapted = {name: module for name, module in causal_lm.named_modules() if hasattr(module, "get_delta_weight")}
        for name, weight in causal_lm.named_parameters():
            if "lora_" in name:
                continue
            owner, is_adapted, leaf = name.rpartition(".base_layer.")
            if is_adapted and leaf == "weight":
                module = adapted[owner]
                for adapter in module.active_adapters:
                    # In float32, so that bfloat16 weights are rounded once, when they are copied.
                    weight = weight.float() + module.get_delta_weight(adapter).float()
            yield name.replace(".base_layer.", "."), weight

    def export(self, folder: Path) -> None:
        """Write a plain transformers folder: safetensors, LoRA merged, tokenizer with template, generation config.

        `AutoModelForCausalLM.from_pretrained(folder)` computes the policy's logits.
        """
        plain = self.causal_lm
        if plain is not self.model:
            plain = self.inference_copy(plain.dtype)
        plain.save_pretrained(folder)
        assert self.tokenizer is not None
        self.tokenizer.save_pretrained(folder)


@torch.no_grad()
def _is_head_of_hidden(causal_lm: PreTrainedModel) -> bool:
    decoder = causal_lm.get_decoder()
    if decoder is causal_lm:  # transformers did not find it
        return False
    ids = torch.arange(3, device=causal_lm.device)[None]
    with torch.autocast(ids.device.type, enabled=False):
        plain = causal_lm.get_output_embeddings()(decoder(input_ids=ids, use_cache=False).last_hidden_state)
        logits = causal_lm(input_ids=ids, use_cache=False).logits
    # The same operations on the same numbers: anything but exact equality is another head.
    return torch.equal(plain.float(), logits.float())


def _logprobs_and_entropy(
    logits: Tensor,  # [M, V]
    targets: Tensor,  # [M] int64
    temperature: float,
    entropy_grad: bool,
) -> tuple[Tensor, Tensor]:
    logprobs = (logits.float() / temperature).log_softmax(dim=-1)
    spread = logprobs if entropy_grad else logprobs.detach()
    entropy = -(spread.exp() * spread).sum(dim=-1)
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy
