import pytest

from lit_agentrl.types import Completion, Message, Task, ToolCall, Trajectory, Turn


@pytest.fixture
def task() -> Task:
    return Task(id="sum-1", family="chain_sum", split="train", seed=7, data={"question": "2+2", "answer": "4"})


@pytest.fixture
def trajectory(task: Task) -> Trajectory:
    """Two turns: a tool call of three tokens, then an answer of two."""
    call = ToolCall(id="call-0", name="calculator", arguments={"expression": "2+2"})
    return Trajectory(
        task=task,
        group=3,
        sample=1,
        turns=[
            Turn(
                parent=None,
                prompt_ids=(1, 2),
                completion=Completion(
                    token_ids=(10, 11, 12), logprobs=(-0.1, -0.2, -0.3), stop_reason="eos", policy_version=5
                ),
                messages=(Message.of("user", "What is 2+2?"),),
                reply=Message.of("assistant", "let me see", tool_calls=(call,)),
            ),
            Turn(
                parent=0,
                prompt_ids=(20,),
                completion=Completion(token_ids=(13, 14), logprobs=(-0.4, -0.5), stop_reason="eos", policy_version=5),
                messages=(Message.of("tool", "4", tool_call_id="call-0"),),
                reply=Message.of("assistant", "It is 4."),
                reward=1.0,
                reward_parts={"exact": 1.0},
            ),
        ],
        closing_messages=(Message.of("user", "Correct."),),
        reward=1.0,
        reward_parts={"exact": 1.0},
        success=True,
        env_steps=2,
        tool_calls=1,
    )
