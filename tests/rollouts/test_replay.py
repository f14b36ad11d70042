"""The replay buffer: what it keeps, how it draws, and that a resumed one goes on exactly."""

import io

import pytest
import torch

from lit_agentrl.rollouts.replay import ReplayBuffer


def rows(first, count):
    numbers = torch.arange(first, first + count)
    return {"number": numbers, "state": numbers.float().unsqueeze(1).expand(-1, 3)}


def numbers(buffer):
    return sorted(buffer.rows(torch.arange(len(buffer)))["number"].tolist())


def test_the_newest_rows_are_kept():
    buffer = ReplayBuffer(5)
    buffer.add(rows(0, 3))
    assert (len(buffer), numbers(buffer)) == (3, [0, 1, 2])
    buffer.add(rows(3, 4))
    assert (len(buffer), numbers(buffer)) == (5, [2, 3, 4, 5, 6])
    buffer.add(rows(7, 13))  # more than fit
    assert (len(buffer), numbers(buffer)) == (5, [15, 16, 17, 18, 19])
    assert buffer.added == 20


def test_columns_stay_together():
    buffer = ReplayBuffer(4)
    buffer.add(rows(0, 7))
    drawn = buffer.rows(buffer.draw(20, seed=1).rows)
    assert torch.equal(drawn["state"], drawn["number"].float().unsqueeze(1).expand(-1, 3))


def test_uniform_draws_depend_on_the_seed_alone():
    buffer = ReplayBuffer(100)
    buffer.add(rows(0, 10))
    draw = buffer.draw(4000, seed=7)
    assert torch.equal(draw.rows, buffer.draw(4000, seed=7).rows)
    assert not torch.equal(draw.rows, buffer.draw(4000, seed=8).rows)
    counts = torch.bincount(draw.rows, minlength=10)
    assert len(counts) == 10  # nothing that is not filled
    assert int(counts.min()) > 320  # 400 expected, standard deviation 19
    assert torch.equal(draw.weights, torch.ones(4000))


def test_priorities_draw_in_proportion_and_weights_correct_for_it():
    buffer = ReplayBuffer(4, alpha=1.0, beta=1.0)
    buffer.add(rows(0, 3))
    buffer.update(torch.tensor([0, 1, 2]), torch.tensor([0.999, -2.999, 5.999]))  # priorities 1, 3, 6
    draw = buffer.draw(20_000, seed=0)
    shares = torch.bincount(draw.rows, minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.3, 0.6]), rtol=0, atol=0.02)
    # 1 / (3 P), divided by the largest: P is 1, 3, 6 tenths, so 1, 1/3, 1/6.
    for row, weight in enumerate((1.0, 1 / 3, 1 / 6)):
        assert draw.weights[draw.rows == row].unique().tolist() == pytest.approx([weight])


def test_what_is_new_is_drawn_as_often_as_what_surprised_most():
    buffer = ReplayBuffer(4, alpha=1.0)
    buffer.add(rows(0, 2))
    buffer.update(torch.tensor([0, 1]), torch.tensor([0.999, 7.999]))
    buffer.add(rows(2, 1))
    shares = torch.bincount(buffer.draw(20_000, seed=0).rows, minlength=3) / 20_000
    torch.testing.assert_close(shares, torch.tensor([1.0, 8.0, 8.0]) / 17, rtol=0, atol=0.02)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("count", [3, 9])
def test_a_resumed_buffer_goes_on_exactly(alpha, count):
    kept, resumed = ReplayBuffer(5, alpha=alpha), ReplayBuffer(5, alpha=alpha)
    kept.add(rows(0, count))
    kept.update(torch.tensor([1, 2]), torch.tensor([3.0, 0.1]))
    file = io.BytesIO()
    torch.save(kept.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))  # plain values only
    for buffer in (kept, resumed):
        buffer.add(rows(100, 2))
    draws = [buffer.draw(50, seed=3) for buffer in (kept, resumed)]
    assert torch.equal(draws[0].rows, draws[1].rows)
    assert torch.equal(draws[0].weights, draws[1].weights)
    assert torch.equal(kept.rows(draws[0].rows)["state"], resumed.rows(draws[1].rows)["state"])


def test_a_checkpoint_holds_the_filled_rows_only():
    buffer = ReplayBuffer(100_000)
    buffer.add(rows(0, 3))
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    assert len(file.getvalue()) < 10_000


def test_bad_input():
    for options, message in (
        ({"capacity": 0}, "data.init_args.capacity is 0"),
        ({"capacity": 1, "alpha": -1.0}, "data.init_args.priority_alpha is -1.0"),
        ({"capacity": 1, "beta": 1.5}, "data.init_args.priority_beta is 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            ReplayBuffer(**options)
    buffer = ReplayBuffer(5)
    with pytest.raises(ValueError, match="nothing to replay"):
        buffer.draw(1, seed=0)
    buffer.add(rows(0, 2))
    with pytest.raises(ValueError, match="one length"):
        buffer.add({"number": torch.zeros(2), "state": torch.zeros(1, 3)})
    with pytest.raises(ValueError, match="replay rows are"):
        buffer.add({"number": torch.zeros(1), "state": torch.zeros(1, 3)})
    state = buffer.state_dict()
    with pytest.raises(ValueError, match="priority_alpha"):
        ReplayBuffer(5, alpha=1.0).load_state_dict(state)
    with pytest.raises(ValueError, match=r"data.init_args.capacity is 1"):
        ReplayBuffer(1).load_state_dict(state)
