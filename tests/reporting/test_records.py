import json
import math

import pytest

from lit_agentrl.reporting.records import (
    TurnCredit,
    read_trajectories,
    trajectories_path,
    trajectory_record,
    write_trajectories,
)
from lit_agentrl.types import ImagePart, Message, TextPart


def test_a_record_survives_the_file(tmp_path, trajectory):
    record = trajectory_record(trajectory, phase="val", rollout=12)
    path = trajectories_path(tmp_path, phase="val", rollout=12)
    write_trajectories(path, [record, record])
    assert path == tmp_path / "trajectories" / "val-000012.jsonl"
    assert list(read_trajectories(path)) == [record, record]


def test_a_record_names_trajectory_and_turns(trajectory):
    record = trajectory_record(trajectory, phase="train", rollout=0)
    assert (record["id"], record["group"], record["sample"], record["attempt"]) == ("3/1/0", 3, 1, 0)
    assert record["task"]["data"] == {"question": "2+2", "answer": "4"}
    first, second = record["turns"]
    assert first["completion_ids"] == [10, 11, 12]
    assert first["behavior_logprobs"] == [-0.1, -0.2, -0.3]
    assert first["reply"]["tool_calls"][0]["arguments"] == {"expression": "2+2"}
    assert second["messages"] == [{"role": "tool", "text": "4", "tool_call_id": "call-0"}]
    assert second["parent"] == 0


def test_credit_is_null_outside_training(trajectory):
    turn = trajectory_record(trajectory, phase="val", rollout=0)["turns"][0]
    assert (turn["weights"], turn["advantages"], turn["reasons"]) == (None, None, None)


def test_credit_lies_on_its_turn(trajectory):
    credit = [
        TurnCredit(weights=[0.5, 0.5, 0.0], advantages=[1.0, 1.0, 1.0], reasons=["trained", "trained", "filtered"]),
        TurnCredit(weights=[0.5, 0.5], advantages=[1.0, 1.0], reasons=["trained", "trained"]),
    ]
    turns = trajectory_record(trajectory, phase="train", rollout=0, credit=credit)["turns"]
    assert turns[0]["weights"] == [0.5, 0.5, 0.0]
    assert turns[0]["reasons"] == ["trained", "trained", "filtered"]
    assert turns[1]["advantages"] == [1.0, 1.0]


def test_credit_for_the_wrong_number_of_tokens_is_refused(trajectory):
    short = TurnCredit(weights=[1.0], advantages=[1.0], reasons=["trained"])
    with pytest.raises(ValueError, match="weights: 1 values for 3 sampled tokens"):
        trajectory_record(trajectory, phase="train", rollout=0, credit=[short, short])
    with pytest.raises(ValueError, match="credit for 1 turns of 2"):
        trajectory_record(trajectory, phase="train", rollout=0, credit=[short])


def test_not_a_number_is_written_as_strict_json(tmp_path, trajectory):
    trajectory.reward = float("nan")
    trajectory.reward_parts = {"high": float("inf"), "low": float("-inf")}
    path = tmp_path / "train-000000.jsonl"
    write_trajectories(path, [trajectory_record(trajectory, phase="train", rollout=0)])
    # parse_constant is called for NaN and Infinity, which strict JSON does not have
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the file"))
    (record,) = read_trajectories(path)
    assert math.isnan(float(record["reward"]))
    assert record["reward_parts"] == {"high": "Infinity", "low": "-Infinity"}


@pytest.mark.parametrize("text", ["a\u2028b", "\ud83d", "tab\tnull\x00", "日本"])
def test_any_text_of_a_model_survives(tmp_path, trajectory, text):
    trajectory.closing_messages = (Message.of("user", text),)
    path = tmp_path / "test-000000.jsonl"
    write_trajectories(path, [trajectory_record(trajectory, phase="test", rollout=0)])
    (record,) = read_trajectories(path)
    assert record["closing_messages"][0]["text"] == text


def test_images_are_recorded_by_size(trajectory):
    message = Message(role="user", content=(TextPart(text="look"), ImagePart(data=b"12345")))
    trajectory.closing_messages = (message,)
    record = trajectory_record(trajectory, phase="val", rollout=0)
    assert record["closing_messages"][0] == {
        "role": "user",
        "text": "look",
        "images": [{"media_type": "image/png", "num_bytes": 5}],
    }


def test_writing_that_fails_leaves_the_old_file(tmp_path, trajectory):
    path = tmp_path / "train-000000.jsonl"
    record = trajectory_record(trajectory, phase="train", rollout=0)
    write_trajectories(path, [record])

    def breaking():
        yield record
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_trajectories(path, breaking())
    assert list(read_trajectories(path)) == [record]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("line", "message"), [("{", "train-000000.jsonl:1 is not JSON"), ('{"schema": 99}', "record of schema 1")]
)
def test_a_foreign_line_is_named(tmp_path, line, message):
    path = tmp_path / "train-000000.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        list(read_trajectories(path))
