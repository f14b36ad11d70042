import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("lit_agentrl.policies.chat", ["torch", "transformers"]),
        ("lit_agentrl.policies.resolve", ["torch", "transformers", "huggingface_hub"]),
        ("lit_agentrl.policies.hf", ["transformers", "peft"]),
        ("lit_agentrl.policies.tiny", ["transformers", "tokenizers"]),
    ],
)
def test_importing_a_policy_module_stays_cheap(module, absent):
    script = f"import sys, {module}; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
