"""A language model of a few hundred thousand weights, made from nothing: for tests, teaching and CPU experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from lit_agentrl.policies.base import Policy
from lit_agentrl.policies.chat import ChatFormat

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PAD, _START, _END = "<|pad|>", "<|im_start|>", "<|im_end|>"
_SPECIAL_TOKENS = (_PAD, _START, _END)
_BLOCK_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# Whole pieces of the text that agents write all the time, so that a tool-call episode is a few dozen tokens.
_BOILERPLATE = (
    *("system\n", "user\n", "assistant\n", "tool\n"),
    *('<tool_call>\n{"name": "', '", "arguments": {"', '": "', '", "', '"}}\n</tool_call>', "}}\n</tool_call>"),
    *('<tool_call>\n{"name": "calculator", "arguments": {"expression": "', "calculator", "expression"),
    *("<answer>", "</answer>", "Answer: ", "answer", "error", "Error: ", "Tools:\n", "final answer"),
)
_WORDS = """
the of and to in is you that it for on are as with be at this have from or by what can which there an your how if will
up other about out many then them these so some would make into has look two more write go see number no way could than
first been call who now find long down day did get come made may part following problem state solve calculate result
value list sum equal tool step move left right not use one all was we when each do please given give only word letters
letter count true false yes me its color text question integer digits
"""
_CHAT_TEMPLATE = (
    "{%- if tools %}"
    "{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n' }}{%- endif %}"
    "{{- 'Tools:\n' }}"
    "{%- for tool in tools %}"
    "{{- tool.function.name + '(' + (tool.function.parameters.properties | default({}) | join(', ')) + ')' }}"
    "{%- if not loop.last %}{{- '\n' }}{%- endif %}"
    "{%- endfor %}"
    "{{- '<|im_end|>' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (tools and loop.first and message.role == 'system') %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


class TinyPolicy(Policy):
    """A llama of random weights with a byte-level tokenizer; needs no files and no network.

    Any text round-trips exactly. Digits are one token each; the boilerplate of tool calls is one token a piece. The
    chat template is ChatML without line breaks between messages and without a default system prompt; tools are
    listed by name and argument names only, because the model is trained from nothing anyway.

    Args:
        hidden_size: Width; a multiple of `2 * num_heads`.
        num_layers: Decoder layers.
        num_heads: Attention heads.
        intermediate_size: Width of the feed-forward layers; default 3 x hidden_size.
        max_context: Longest context in tokens.
        attn_implementation: `sdpa` or `eager`.

    Raises:
        ValueError: `hidden_size` does not fit `num_heads`.
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        *,
        intermediate_size: int | None = None,
        max_context: int = 512,
        attn_implementation: Literal["sdpa", "eager"] = "sdpa",
    ) -> None:
        super().__init__()
        if hidden_size % (2 * num_heads):
            raise ValueError(
                f"policy.init_args.hidden_size must be a multiple of 2 x num_heads = {2 * num_heads}, not {hidden_size}"
            )
        self._shape: dict[str, Any] = {
            "hidden_size": hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_heads,
            "intermediate_size": intermediate_size or 3 * hidden_size,
            "max_position_embeddings": max_context,
        }
        self._attn_implementation = attn_implementation

    def _load(self, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, ChatFormat]:
        from transformers import LlamaConfig, LlamaForCausalLM

        tokenizer = make_tiny_tokenizer()
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            attn_implementation=self._attn_implementation,
            # The default, 0.02, is for wide models; here it would leave attention flat, and copying is not learned.
            initializer_range=self._shape["hidden_size"] ** -0.5,
            **self._shape,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config)
        return model, tokenizer, ChatFormat(tokenizer, tools="native")


def make_tiny_tokenizer() -> PreTrainedTokenizerBase:
    """Return the byte-level tokenizer of `TinyPolicy`: 256 bytes, chat and tool markers, and frequent words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL_TOKENS, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, normalized=False) for token in _SPECIAL_TOKENS])
    words = [form for word in _WORDS.split() for form in (f" {word}", word.capitalize())]
    core.add_tokens([AddedToken(piece, normalized=False) for piece in [*_BLOCK_TOKENS, *_BOILERPLATE, *words]])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=_END,
        pad_token=_PAD,
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        name_or_path="TinyPolicy",
    )
