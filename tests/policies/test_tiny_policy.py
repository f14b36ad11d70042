import pytest
import torch

from lit_agentrl.policies.tiny import TinyPolicy, make_tiny_tokenizer
from lit_agentrl.types import Message, ToolSpec


@pytest.mark.parametrize(
    "text",
    ["", "plain", "  two  spaces \n\n", "naïve 𝄞 日本", "\x00\x7f\r\t", "Ġ Ċ", ' the "}}\n</tool_call>', "1234567890"],
)
def test_any_text_round_trips(text):
    tokenizer = make_tiny_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_markers_are_one_token_and_so_is_each_digit():
    tokenizer = make_tiny_tokenizer()
    markers = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    for marker in markers:
        assert len(tokenizer(marker)["input_ids"]) == 1
    assert len(tokenizer("2048")["input_ids"]) == 4
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_a_calculator_call_costs_two_tokens_more_than_its_expression():
    tokenizer = make_tiny_tokenizer()
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*37"}}\n</tool_call>'
    assert len(tokenizer(call)["input_ids"]) == 5 + 2


def test_tools_are_listed_in_a_few_tokens():
    policy = TinyPolicy(hidden_size=16, num_layers=1, num_heads=2)
    policy.build()
    schema = {"type": "object", "properties": {"expression": {"type": "string"}}}
    tool = ToolSpec(name="calculator", description="Unused.", parameters=schema)
    with_tool = policy.chat.prompt([Message.of("user", "2+2")], [tool])
    assert with_tool.text == (
        "<|im_start|>system\nTools:\ncalculator(expression)<|im_end|><|im_start|>user\n2+2<|im_end|>"
        "<|im_start|>assistant\n"
    )
    # <|im_start|> "system\n" "Tools:\n" calculator ( expression ) <|im_end|>
    assert len(with_tool.ids) - len(policy.chat.prompt([Message.of("user", "2+2")]).ids) == 8


def test_weights_come_from_the_seed_alone():
    first, second, third = (TinyPolicy(hidden_size=16, num_layers=1, num_heads=2) for _ in range(3))
    torch.manual_seed(0)
    first.build(seed=5)
    state = torch.get_rng_state()
    second.build(seed=5)
    third.build(seed=6)
    assert torch.equal(torch.get_rng_state(), state)
    embeddings = [policy.model.get_input_embeddings().weight for policy in (first, second, third)]
    assert torch.equal(embeddings[0], embeddings[1])
    assert not torch.equal(embeddings[0], embeddings[2])


def test_the_default_size_trains_on_a_cpu():
    policy = TinyPolicy()
    policy.build()
    assert 0.3e6 < sum(parameter.numel() for parameter in policy.parameters()) < 5e6
    assert policy.max_context == 512


def test_a_width_that_does_not_fit_the_heads_is_refused():
    with pytest.raises(ValueError, match=r"policy\.init_args\.hidden_size"):
        TinyPolicy(hidden_size=100, num_heads=3)
