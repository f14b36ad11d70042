import pytest
import torch
from jsonargparse import ArgumentParser
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_agentrl.policies.base import Policy
from lit_agentrl.policies.hf import HFPolicy, LoRAConfig
from lit_agentrl.policies.resolve import find_cached
from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.types import Message

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
IDS = torch.tensor([[5, 80, 300, 7, 41, 12]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tiny = TinyPolicy(hidden_size=32, num_layers=2, num_heads=2, max_context=64)
    tiny.build(seed=0)
    folder = tmp_path_factory.mktemp("model")
    tiny.export(folder)
    return folder


def built(folder, **options):
    policy = HFPolicy(str(folder), tools="native", **options)
    policy.build(seed=3)
    return policy


def disturb(policy):
    """Stand in for training: move every trained parameter, LoRA's zero half included."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def test_an_exported_folder_loads_with_equal_logits(folder):
    policy = built(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(policy.model(IDS).logits, loaded(IDS).logits)
    assert loaded.generation_config.eos_token_id == sorted(policy.chat.eos_ids)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == policy.tokenizer.chat_template
    assert tokenizer("the 12<|im_end|>")["input_ids"] == policy.tokenizer("the 12<|im_end|>")["input_ids"]


def test_lora_trains_the_adapters_only(folder):
    policy = built(folder, lora=LoRAConfig(rank=4, alpha=8))
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)


def test_lora_adapters_come_from_the_seed(folder):
    first, second = (built(folder, lora=LoRAConfig(rank=4)) for _ in range(2))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lora_is_merged_into_the_export_and_stays_unmerged_in_the_policy(folder, tmp_path):
    policy = built(folder, lora=LoRAConfig(rank=4))
    disturb(policy)
    before = {name: parameter.clone() for name, parameter in policy.named_parameters()}
    policy.export(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(IDS).logits, policy.model(IDS).logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(loaded(IDS).logits, AutoModelForCausalLM.from_pretrained(folder)(IDS).logits, atol=1e-2)
    assert all(torch.equal(before[name], parameter) for name, parameter in policy.named_parameters())


@pytest.mark.parametrize("lora", [None, LoRAConfig(rank=4)])
@pytest.mark.parametrize("weights_dtype", ["fp32", "bf16"])
def test_a_synced_copy_equals_a_fresh_one(folder, lora, weights_dtype):
    policy = built(folder, lora=lora, weights_dtype=weights_dtype)
    twin = policy.inference_copy(torch.bfloat16)
    disturb(policy)
    policy.sync_inference_copy(twin)
    fresh = policy.inference_copy(torch.bfloat16)
    assert torch.equal(twin(IDS).logits, fresh(IDS).logits)
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert not twin.training


def test_an_inference_copy_computes_the_policys_logits(folder):
    policy = built(folder, lora=LoRAConfig(rank=4), gradient_checkpointing=True)
    disturb(policy)
    twin = policy.inference_copy(torch.float32, attn_implementation="eager")
    torch.testing.assert_close(twin(IDS).logits, policy.model(IDS).logits, atol=1e-5, rtol=1e-5)
    assert twin.config._attn_implementation == "eager"
    assert policy.causal_lm.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("lora", [None, LoRAConfig(rank=4)])
def test_gradient_checkpointing_changes_no_gradient(folder, lora):
    arguments = (IDS, torch.ones_like(IDS), torch.arange(6)[None], torch.tensor([0, 0]), torch.tensor([2, 5]))
    gradients = []
    for gradient_checkpointing in (False, True):
        policy = built(folder, lora=lora, gradient_checkpointing=gradient_checkpointing)
        disturb(policy)
        policy.train()
        policy.token_logprobs(*arguments)[0].sum().backward()
        gradients.append([parameter.grad for parameter in policy.parameters() if parameter.requires_grad])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert plain.abs().sum() > 0
        torch.testing.assert_close(plain, checkpointed)


def test_a_context_beyond_the_model_is_refused(folder):
    assert built(folder, max_context=64).max_context == 64
    with pytest.raises(ValueError, match=r"policy\.init_args\.max_context is 65, .* at most 64"):
        built(folder, max_context=65)


@pytest.mark.parametrize(
    ("options", "key"),
    [({"weights_dtype": "fp16"}, "weights_dtype"), ({"max_context": 0}, "max_context")],
)
def test_wrong_options_name_their_key(options, key):
    with pytest.raises(ValueError, match=rf"policy\.init_args\.{key}"):
        HFPolicy(**options)


def test_a_config_file_builds_a_policy_with_lora():
    parser = ArgumentParser()
    parser.add_argument("--policy", type=Policy)
    init_args = {"weights_dtype": "bf16", "lora": {"rank": 8, "target_modules": ["q_proj"]}, "max_context": 512}
    config = parser.parse_object({"policy": {"class_path": "lit_agentrl.policies.hf.HFPolicy", "init_args": init_args}})
    policy = parser.instantiate(config).policy
    assert isinstance(policy, HFPolicy)
    assert policy.max_context == 512


def test_wrong_lora_options_name_their_key():
    with pytest.raises(ValueError, match=r"policy\.init_args\.lora\.rank"):
        LoRAConfig(rank=0)
    with pytest.raises(ValueError, match=r"policy\.init_args\.lora\.dropout"):
        LoRAConfig(dropout=1.0)


@pytest.fixture(scope="module")
def smollm2():
    if find_cached(SMOLLM2) is None:
        pytest.skip(f"{SMOLLM2} is not in the cache; run `python -m lit_agentrl.policies.resolve {SMOLLM2}`")
    policy = HFPolicy(SMOLLM2)
    policy.build()
    return policy


@pytest.mark.model
def test_smollm2_tokenizer_knows_its_chat_markers(smollm2):
    chat = smollm2.chat
    assert (chat.encode("<|im_start|>"), chat.encode("<|im_end|>")) == ((1,), (2,))
    assert (chat.pad_id, chat.end_of_turn_id, chat.eos_ids) == (2, 2, {2})
    assert smollm2.max_context == 8192
    for text in ("x\n\n  5 + 12 = 17", '{"a": [1, 2]}', "naïve 日本 𝄞"):
        assert chat.decode(chat.encode(text)) == text
    # Digits are split before anything else: the two line breaks stay one token.
    assert len(chat.encode("\n\n5")) == 2


@pytest.mark.model
def test_smollm2_has_sense(smollm2):
    prompt = smollm2.chat.prompt([Message.of("user", "What is the capital of France?")])
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        out = smollm2.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
    assert "Paris" in smollm2.chat.decode(out[0, ids.shape[1] :].tolist())
