"""P09 (agent): tool results keep the order and the ids of their calls; wrong calls come back to the model as text."""

from scripted import ECHO, ScriptedEngine, ScriptedEnv, call, done, episode

from lit_agentrl.agents.tool_agent import ToolAgent


def after(reply):
    trajectory = episode(ToolAgent(), ScriptedEnv(done()), ScriptedEngine(reply, "done"), tools=[ECHO])
    assert trajectory.status == "completed"
    return trajectory


def test_results_keep_call_order_and_call_id():
    trajectory = after("".join(call("echo", text=str(number)) for number in (3, 1, 2)))
    read = trajectory.turns[1].messages
    assert [(m.role, m.tool_call_id, m.text) for m in read] == [
        ("tool", "call_0", "3"),
        ("tool", "call_1", "1"),
        ("tool", "call_2", "2"),
    ]


def test_a_wrong_name_comes_back_as_text():
    trajectory = after(call("ecko", text="1"))
    assert trajectory.turns[1].messages[0].text == "Error: there is no tool 'ecko'; there are: echo"
    assert (trajectory.tool_calls, trajectory.tool_errors, trajectory.env_steps) == (1, 1, 1)


def test_wrong_arguments_come_back_as_text():
    trajectory = after(call("echo", words="1"))
    assert trajectory.turns[1].messages[0].text == "Error: echo: argument 'text' is missing"


def test_an_unreadable_call_keeps_its_place_among_the_others():
    trajectory = after(call("echo", text="1") + "<tool_call>{oops</tool_call>" + call("echo", text="2"))
    read = trajectory.turns[1].messages
    assert [m.tool_call_id for m in read] == ["call_0", "call_1", "call_2"]
    assert read[1].text.startswith("Error: the call is not valid JSON")
    assert (read[0].text, read[2].text) == ("1", "2")
