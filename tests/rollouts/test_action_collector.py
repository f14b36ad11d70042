"""Episodes of a value function: what they record, what they depend on, and what a failure leaves."""

import pytest
from q_support import corridor_data

from lit_agentrl.agents.action_agent import ActionAgent
from lit_agentrl.envs.spec import EnvSpec
from lit_agentrl.reporting.records import trajectory_record
from lit_agentrl.reporting.view import render_trajectory
from lit_agentrl.rewards.terms import RewardTerms
from lit_agentrl.rollouts.action_collector import ActionCollector
from lit_agentrl.rollouts.workers import WorkerPool
from lit_agentrl.types import Sampling


class LastDigit:
    """Chooses by the seed alone, so that what is drawn shows who was asked."""

    def choose(self, requests):
        return [request.observation.actions[request.seed % len(request.observation.actions)] for request in requests]


class East:
    def choose(self, requests):
        return ["walk east" for _ in requests]


def collector(pool, chooser, *, agent=None, **options):
    defaults = {"run_seed": 5, "version": 3, "max_concurrent_episodes": 4}
    return ActionCollector(pool, chooser, agent or ActionAgent(), **(defaults | options))


def pool_of(workers=1, slots=4, **env):
    return WorkerPool(
        EnvSpec(class_path="q_envs.Corridor", init_args=env), num_workers=workers, envs_per_worker=slots, timeout_s=60
    )


def collect(workers=1, *, chooser=None, lanes=(0, 1, 2, 3), steps_per_lane=10, agent=None, rewards=None, **env):
    with pool_of(workers, **env) as pool:
        return collector(pool, chooser or LastDigit(), agent=agent, rewards=rewards).collect_steps(
            lanes, num_lanes=4, steps_per_lane=steps_per_lane, index=2, epsilon=0.0, temperature=0.0
        )


def summary(rollout):
    return [(t.group, t.task.id, t.status, [turn.reply.text for turn in t.turns]) for t in rollout.trajectories]


def test_turns_hold_a_reply_and_no_tokens():
    rollout, transitions = collect(chooser=East(), lanes=[0], steps_per_lane=1)
    (trajectory,) = rollout.trajectories
    assert (trajectory.status, trajectory.success, trajectory.reward) == ("completed", True, 1.0)
    assert (trajectory.env_steps, trajectory.num_tokens) == (3, 0)
    assert [turn.reply.text for turn in trajectory.turns] == ["walk east"] * 3
    assert [turn.state_key for turn in trajectory.turns] == ["0", "1", "2"]
    assert {turn.completion.policy_version for turn in trajectory.turns} == {3}
    assert trajectory.closing_messages[0].text == "cell 3"
    steps = transitions[0]
    assert [step.reward for step in steps] == [0.0, 0.0, 1.0]
    assert [step.terminated for step in steps] == [False, False, True]
    assert steps[0].next_observation == steps[1].observation


def test_logs_and_the_viewer_cope_with_turns_without_tokens():
    from rich.console import Console

    rollout, _ = collect(chooser=East(), lanes=[0], steps_per_lane=1)
    record = trajectory_record(rollout.trajectories[0], phase="train", rollout=2)
    assert record["turns"][0]["completion_ids"] == []
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_trajectory(record, decode=lambda ids: "".join(map(str, ids))))
    shown = console.export_text()
    assert "assistant: walk east" in shown
    assert "no tokens: an action that was chosen, policy version 3" in shown


def test_a_lane_plays_until_it_has_made_its_steps_and_its_episode_is_over():
    rollout, transitions = collect(steps_per_lane=10)
    by_lane = {lane: sum(t.env_steps for t in rollout.trajectories if t.group % 4 == lane) for lane in range(4)}
    assert all(10 <= steps < 10 + 12 for steps in by_lane.values())
    assert all(t.status in ("completed", "truncated") for t in rollout.trajectories)
    assert {group: len(steps) for group, steps in transitions.items()} == {
        t.group: t.env_steps for t in rollout.trajectories
    }


def test_neither_workers_nor_the_other_lanes_change_an_episode():
    whole, _ = collect(1)
    assert summary(whole) == summary(collect(2)[0])
    parts = summary(collect(1, lanes=(0, 2))[0]) + summary(collect(1, lanes=(1, 3))[0])
    assert summary(whole) == sorted(parts)


def test_exclusive_environments_play_one_lane_after_the_other():
    assert summary(collect(1, exclusive=True)[0]) == summary(collect(1)[0])


def test_episodes_are_cut_by_the_agent_too():
    rollout, transitions = collect(agent=ActionAgent(max_turns=2), lanes=[0], steps_per_lane=1)
    (trajectory,) = rollout.trajectories
    assert (trajectory.status, trajectory.cause) == ("truncated", "no end after 2 turns")
    assert [step.terminated for step in transitions[0]] == [False, False]
    assert transitions[0][-1].next_observation is not None


def test_a_failed_episode_leaves_no_transitions_and_no_reward():
    rollout, transitions = collect(fails=True)
    failed = [t for t in rollout.trajectories if t.status == "failed"]
    assert failed
    assert "the floor gave way" in failed[0].cause
    assert all(transitions[t.group] == [] and t.reward == 0 for t in failed)
    assert any(transitions.values())


def steps_taken(trajectory):
    return float(trajectory.env_steps)


def test_reward_terms_are_paid_at_the_last_step():
    terms = RewardTerms({"lit_agentrl.rewards.terms.sampled_tokens": 1.0})
    terms._terms = {"steps": (steps_taken, -0.1)}
    rollout, transitions = collect(chooser=East(), lanes=[0], steps_per_lane=1, rewards=terms)
    assert rollout.trajectories[0].reward == pytest.approx(1.0 - 0.3)
    assert [step.reward for step in transitions[0]] == pytest.approx([0.0, 0.0, 0.7])


def test_evaluations_play_the_given_tasks():
    with pool_of() as pool:
        tasks = [(n, task) for n, task in enumerate([corridor_task(n) for n in range(3)])]
        rollout = collector(pool, East()).collect(
            tasks, phase="val", index=0, group_size=2, sampling=Sampling(temperature=0.0)
        )
    assert [(t.group, t.sample, t.success) for t in rollout.trajectories] == [
        (g, s, True) for g in range(3) for s in (0, 1)
    ]


def corridor_task(number):
    from q_envs import Corridor

    return Corridor().sample_task(number, "val")


def test_another_agent_is_refused():
    from lit_agentrl.agents.tool_agent import ToolAgent

    with pytest.raises(ValueError, match=r"agent.class_path: ToolAgent speaks with a language model"):
        corridor_data(agent=ToolAgent())
    with pytest.raises(ValueError, match=r"agent.init_args.max_turns is 0"):
        ActionAgent(max_turns=0)
