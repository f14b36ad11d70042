"""Where things lie: packages of one folder, imports in one direction, no torch where workers start."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import callbacks
import datamodules
import lit_agentrl

ROOT = Path(lit_agentrl.__file__).parents[1]
# Each part may import itself and what stands above it.
LAYERS = [
    {"types", "seeding", "processes"},
    {"protocols"},
    {"functional"},
    {"rewards", "reporting.statistics"},
    {"envs", "policies", "engines", "agents", "metrics", "testing"},
    {"rollouts"},
    {"algorithms"},
    {"datamodules"},
]
TORCH_FREE = [
    "types",
    "processes",
    "protocols",
    "seeding",
    "envs.spec",
    "envs.arithmetic",
    "envs.bfcl",
    "envs.bfcl_memory",
    "envs.mathematics",
]
TORCH_FREE += [
    "envs.humaneval",
    "envs.knowledge_base",
    "envs.dialogue_files",
    "envs.discoveryworld",
    "envs.gymnasium_env",
    "envs.miniwob",
    "envs.scienceworld",
]
TORCH_FREE += ["envs.textworld_express", "rollouts.worker_main", "policies.chat"]


def test_the_three_packages_come_from_one_folder():
    assert {Path(package.__file__).parents[1] for package in (lit_agentrl, callbacks, datamodules)} == {ROOT}


def test_configuration_folders_are_no_packages():
    assert not (ROOT / "configs" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


def imports_of(path):
    """Return the modules that a file imports when it is imported: function bodies and type checking are left out."""
    found = []

    def visit(body):
        for node in body:
            if isinstance(node, ast.Import):
                found.extend(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.append(node.module)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                visit(node.body)

    visit(ast.parse(path.read_text()).body)
    return [name for name in found if name.split(".")[0] in ("lit_agentrl", "callbacks", "datamodules")]


def layer_of(module):
    name = module.removeprefix("lit_agentrl.")
    for number, parts in enumerate(LAYERS):
        if any(name == part or name.startswith(f"{part}.") for part in parts):
            return number
    return None


def test_imports_point_one_way():
    wrong = []
    for folder in ("lit_agentrl", "datamodules", "callbacks"):
        for path in (ROOT / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            own = layer_of(module)
            for name in imports_of(path):
                other = layer_of(name)
                if own is not None and other is not None and other > own:
                    wrong.append(f"{module} imports {name}")
                if name.split(".")[0] == "callbacks" and own is not None:
                    wrong.append(f"{module} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("part", TORCH_FREE)
def test_no_torch_in(part):
    program = f"import sys, lit_agentrl.{part}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
