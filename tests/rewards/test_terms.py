"""Reward terms of whole trajectories."""

import pytest

from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.rewards.terms import RewardTerms
from lit_agentrl.types import Task, Trajectory


def trajectory(**fields) -> Trajectory:
    return Trajectory(task=Task(id="t", family="f", split="train", seed=0), group=0, sample=0, **fields)


def broken(trajectory):
    raise KeyError("answer")


def infinite(trajectory):
    return float("inf")


def test_terms_are_weighted_into_the_reward_and_logged_as_they_are():
    episode = trajectory(reward=1.0, reward_parts={"answer": 1.0}, tool_errors=2)

    RewardTerms({"lit_agentrl.rewards.terms.tool_errors": -0.25}).add_to(episode)

    assert episode.reward == 0.5  # 1 - 0.25 * 2
    assert episode.reward_parts == {"answer": 1.0, "tool_errors": 2.0}


@pytest.mark.parametrize("term", [broken, infinite])
def test_a_term_that_fails_fails_the_episode(term, monkeypatch):
    terms = RewardTerms({})
    terms._terms[term.__name__] = (term, 1.0)
    with pytest.raises(EpisodeFailedError, match=f"reward {term.__name__}"):
        terms.add_to(trajectory())


@pytest.mark.parametrize("path", ["nowhere.at.all", "lit_agentrl.rewards.terms.nothing", "bare"])
def test_an_unknown_term_names_the_key(path):
    with pytest.raises(ValueError, match=r"data\.init_args\.rewards: there is no function"):
        RewardTerms({path: 1.0})


def test_a_weight_must_be_finite():
    with pytest.raises(ValueError, match="must be finite"):
        RewardTerms({"lit_agentrl.rewards.terms.tool_calls": float("nan")})
