"""Every golden case is either tested beside this file or listed here, with the reason."""

import ast
import json
from pathlib import Path

HERE = Path(__file__).parent

NOT_FUNCTIONAL = {
    **{f"mcts_{rule}_{sims}": "tree search, no tensor maths" for rule in ("uct", "puct") for sims in (2, 6, 20, 100)},
    "mcts_progressive_widening": "tree search",
    "rest_mcts_value": "values of search nodes",
    "mem_generative_agents": "memory retrieval score",
    "mem_memorybank": "memory forgetting",
    "mem_qa_metrics": "text metric of a reward",
    "mem_alpha_reward": "reward of a memory agent",
    "lstm_scalar": "recurrent memory module",
    "titans_linear_memory": "recurrent memory module",
    "memorizing_transformer_gate": "recurrent memory module",
    "score_shaping": "reward of reflection",
    "reflect_retry_reward_mask": "which tokens reflection trains",
    "l1_lcpo": "reward of a thinking budget",
    "adaptthink_adv": "reward of a thinking budget; its loss is tested as adaptthink_loss",
    "metrics": "evaluation report",
    "stats": "evaluation report",
}


def _literals(path: Path) -> set[str]:
    """String constants of a file, keys of subscripts left out: those name fields of a case."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    keys = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in keys]
    return {node.value for node in constants if isinstance(node.value, str)}


def test_every_golden_case_is_tested_or_listed():
    cases = set(json.loads((HERE / "golden.json").read_text(encoding="utf-8"))["cases"])
    files = [path for path in HERE.glob("test_golden_*.py") if path.name != Path(__file__).name]
    tested = cases & {"B8"}.union(*map(_literals, files))  # B8 is the batch itself, read by `conftest.py`
    assert tested | set(NOT_FUNCTIONAL) == cases
    assert not tested & set(NOT_FUNCTIONAL)
