"""Makes `tests/support` importable, for tests and for the worker processes that they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
