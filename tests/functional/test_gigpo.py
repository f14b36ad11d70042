import torch

from lit_agentrl.functional import gigpo_advantages


def test_equal_states_of_different_tasks_are_not_compared():
    # two tasks, two trajectories of one step each; all four started from a state called "a"
    advantages = gigpo_advantages(
        torch.tensor([1.0, 0.0, 3.0, 1.0]),
        torch.tensor([0, 0, 1, 1]),
        torch.tensor([0, 1, 2, 3]),
        torch.zeros(4, dtype=torch.long),
        ["a"] * 4,
    )
    # within each task: against the group, and once more against the state
    assert advantages.tolist() == [1.0, -1.0, 2.0, -2.0]


def test_a_state_met_twice_by_one_trajectory_is_compared_over_time():
    # returns 0.5 and 1.0 from the same state; one trajectory alone has no episode advantage
    advantages = gigpo_advantages(
        torch.tensor([0.0, 1.0]),
        torch.tensor([0, 0]),
        torch.tensor([0, 0]),
        torch.tensor([0, 1]),
        ["a", "a"],
        gamma=0.5,
    )
    assert advantages.tolist() == [-0.25, 0.25]


def test_omega_weighs_the_step_advantages():
    arguments = (torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([0, 0]), ["a", "a"])
    assert gigpo_advantages(*arguments, omega=0.5).tolist() == [0.75, -0.75]
