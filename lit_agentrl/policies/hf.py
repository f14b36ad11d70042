"""A pretrained causal language model of the transformers library, trained in full or through LoRA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from lit_agentrl.policies.base import DTYPES, Policy, Precision
from lit_agentrl.policies.chat import ChatFormat, ToolMode
from lit_agentrl.policies.resolve import resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class LoRAConfig:
    """Low-rank adapters (arXiv 2106.09685), made by peft. Only the adapters are trained.

    Args:
        rank: Rank of the adapters.
        alpha: The adapters' product is scaled by alpha / rank.
        dropout: On the adapters' input. Above 0, trained log-probs differ from the sampler's even on policy.
        target_modules: Names of the linear layers to adapt; `all-linear` means all but the output head.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: list[str] | str = "all-linear"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"policy.init_args.lora.rank must be 1 or more, not {self.rank}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"policy.init_args.lora.dropout must be in [0, 1), not {self.dropout}")


class HFPolicy(Policy):
    """A causal language model from a folder or the Hugging Face hub.

    Args:
        model: A local transformers folder, or a hub name; see `lit_agentrl.policies.resolve`.
        weights_dtype: In which the weights are kept and trained. With `bf16` small updates are rounded away unless the
            optimizer compensates; adapters stay float32 either way.
        lora: Train low-rank adapters instead of the weights.
        attn_implementation: `sdpa` or `eager`.
        gradient_checkpointing: Recompute activations in the backward pass: less memory, more time.
        max_context: Longest context in tokens; the model's own limit by default.
        tools: How tools are shown to the model; see `ChatFormat`.

    Raises:
        ValueError: On `build`: the model cannot be had, or `max_context` is more than it can read.
    """

    def __init__(
        self,
        model: str = "HuggingFaceTB/SmolLM2-135M-Instruct",
        *,
        weights_dtype: Precision = "fp32",
        lora: LoRAConfig | None = None,
        attn_implementation: Literal["sdpa", "eager"] = "sdpa",
        gradient_checkpointing: bool = False,
        max_context: int | None = None,
        tools: ToolMode = "auto",
    ) -> None:
        super().__init__()
        if weights_dtype not in DTYPES:
            raise ValueError(
                f"policy.init_args.weights_dtype must be one of {', '.join(DTYPES)}, not {weights_dtype!r}"
            )
        if max_context is not None and max_context < 1:
            raise ValueError(f"policy.init_args.max_context must be 1 or more, not {max_context}")
        self._model_name = model
        self._weights_dtype = weights_dtype
        self._lora = lora
        self._attn_implementation = attn_implementation
        self._gradient_checkpointing = gradient_checkpointing
        self._max_context = max_context
        self._tools: ToolMode = tools

    @property
    def max_context(self) -> int:
        """Tokens that the model may read at once, prompt and completion together."""
        return super().max_context if self._max_context is None else self._max_context

    def _load(self, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, ChatFormat]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = resolve_model(self._model_name)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[self._weights_dtype], attn_implementation=self._attn_implementation
        )
        limit = int(model.config.get_text_config().max_position_embeddings)
        if self._max_context is not None and self._max_context > limit:
            raise ValueError(
                f"policy.init_args.max_context is {self._max_context}, but {self._model_name} reads at most {limit} "
                "tokens"
            )
        tokenizer = AutoTokenizer.from_pretrained(folder)
        chat = ChatFormat(tokenizer, tools=self._tools)
        if self._gradient_checkpointing:
            # Reentrant checkpoints lose the gradient where the input needs none, which is the case under LoRA.
            model.activation_checkpointing_enable({"use_reentrant": False})
        if self._lora is not None:
            model = _add_lora(model, self._lora, seed=seed)
        return model, tokenizer, chat


def _add_lora(model: PreTrainedModel, lora: LoRAConfig, *, seed: int) -> PreTrainedModel:
    """Return the model with adapters whose random half comes from the seed, whatever was drawn before."""
    import peft

    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)
