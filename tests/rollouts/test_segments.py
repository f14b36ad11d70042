"""From trajectories to the batch: exactly the sampled ids, shared prompts once."""

import pytest
from rl_support import rollout_of, trajectory, turn

from lit_agentrl.rollouts.batch import SegmentKind
from lit_agentrl.rollouts.segments import batch_from_demonstrations, batch_from_groups


def of(*groups):
    return batch_from_groups(rollout_of(*groups).groups, temperature=0.7)


def test_members_of_a_group_share_their_prompt_and_groups_do_not():
    batch = of([trajectory(0, 0, turn([1], [2])), trajectory(0, 1, turn([1], [3]))], [trajectory(1, 0, turn([1], [4]))])
    assert batch.token_ids.tolist() == [1, 2, 3, 1, 4]
    prompt, turn_kind = SegmentKind.PROMPT, SegmentKind.TURN
    assert batch.kind.tolist() == [prompt, turn_kind, turn_kind, prompt, turn_kind]


def test_members_with_different_prompts_have_roots_of_their_own():
    batch = of([trajectory(0, 0, turn([1], [2])), trajectory(0, 1, turn([5], [3]))])
    assert batch.parent_segment.tolist() == [-1, 0, -1, 2]


def test_a_turn_without_parent_starts_a_new_root():
    batch = of([trajectory(0, 0, turn([1], [2]), turn([8, 9], [3]))])
    assert batch.token_ids.tolist() == [1, 2, 8, 9, 3]
    assert batch.position_ids.tolist() == [0, 1, 0, 1, 2]
    assert batch.turn.tolist() == [-1, 0, -1, 1]


def test_log_probs_and_versions_belong_to_sampled_tokens_only():
    batch = of([trajectory(0, 0, turn([1], [2], logprobs=[-0.5]), turn([7], [3], parent=0, logprobs=[-0.25]))])
    assert batch.behavior_logprobs.tolist() == [0.0, -0.5, 0.0, -0.25]
    assert batch.policy_version.tolist() == [-1, 3, -1, 3]
    assert batch.temperature == 0.7


def test_ids_and_log_probs_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"2 sampled ids have 1 log-probs"):
        of([trajectory(0, 0, turn([1], [2, 3], logprobs=[-0.5]))])


def test_demonstrations_are_trained_where_their_mask_says_so():
    batch = batch_from_demonstrations([((1, 2, 3), (0, 1, 1)), ((4, 5), (0, 1))])
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert batch.reason.tolist() == [0, 1, 1, 0, 1]
    assert batch.trajectory.tolist() == [0, 1]


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"demonstration 0 has 2 ids and 1 mask entries"):
        batch_from_demonstrations([((1, 2), (1,))])
