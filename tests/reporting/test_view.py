import argparse
import io

import pytest
from rich.console import Console

from lit_agentrl.reporting import view
from lit_agentrl.reporting.records import TurnCredit, trajectories_path, trajectory_record, write_trajectories
from lit_agentrl.reporting.view import advantage_style, find_file, render_trajectory, token_pieces, visible
from lit_agentrl.types import Completion, Message, ToolCall

WORDS = {10: "let ", 11: "me ", 12: "see", 13: "It is ", 14: "4."}


def decode(ids):
    return "".join(WORDS[token] for token in ids)


def printed(record, *, decode=None, color=False):
    console = Console(
        file=io.StringIO(),
        width=200,
        force_terminal=color,
        color_system="truecolor" if color else None,
        highlight=False,
    )
    console.print(render_trajectory(record, decode=decode))
    return console.file.getvalue()


@pytest.fixture
def trained(trajectory):
    """The advantages are +1 and -0.5; the last token of the first turn was filtered."""
    credit = [
        TurnCredit(weights=[0.5, 0.5, 0.0], advantages=[1.0, 1.0, 1.0], reasons=["trained", "trained", "filtered"]),
        TurnCredit(weights=[0.5, 0.5], advantages=[-0.5, -0.5], reasons=["trained", "trained"]),
    ]
    return trajectory_record(trajectory, phase="train", rollout=2, credit=credit)


def test_a_trajectory_reads_from_top_to_bottom(trained):
    lines = printed(trained, decode=decode).splitlines()
    text = "\n".join(line.rstrip() for line in lines)
    assert lines[0].startswith("train rollout 2, 3/1/0: completed, solved")
    assert "reward +1.000 (exact +1.000)" in text
    order = ["turn 0", "user: What is 2+2?", "assistant: let me see[filtered]", "call calculator(expression='2+2')"]
    order += ["turn 1", "tool: 4", "assistant: It is 4.", "advantage -0.500", "closing", "user: Correct."]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_tokens_are_coloured_by_advantage_and_masked_ones_struck(trained):
    text = printed(trained, decode=decode, color=True)
    assert "\x1b[38;2;0;255;0mlet \x1b[0m" in text  # the largest advantage: 120 + 135 * 1
    assert "\x1b[38;2;188;0;0mIt is \x1b[0m" in text  # half of it, negative: 120 + 135 / 2 = 187.5
    assert "\x1b[9;90msee\x1b[0m" in text  # 9: strike, 90: bright black


def test_without_a_tokenizer_the_reply_has_one_colour(trained):
    text = printed(trained, color=True)
    assert "\x1b[38;2;0;255;0mlet me see\x1b[0m" in text


def test_intensity_follows_the_size():
    assert advantage_style(0.0, largest=1.0).color is None
    assert advantage_style(2.0, largest=2.0).color.name == "rgb(0,255,0)"
    assert advantage_style(-0.1, largest=1.0).color.name == "rgb(134,0,0)"  # 120 + 13.5, rounded to even


def test_markup_and_control_characters_of_a_model_are_shown_not_obeyed(trajectory):
    trajectory.turns[0].reply = Message.of("assistant", "[bold red]hi[/] \x1b[2J\r \u202eabc\ud83d :smile:")
    text = printed(trajectory_record(trajectory, phase="val", rollout=0))
    assert "[bold red]hi[/] ␛[2J␍ \\u202eabc\\ud83d :smile:" in text


def test_a_rule_title_and_a_cause_are_shown_not_obeyed(trajectory):
    trajectory.status, trajectory.success, trajectory.cause = "failed", False, "[/red] worker\x07 died"
    text = printed(trajectory_record(trajectory, phase="val", rollout=0))
    assert "failed" in text.splitlines()[0]
    assert "cause: [/red] worker␇ died" in text


def test_new_lines_and_tabs_stay():
    assert visible("a\n\tb") == "a\n\tb"


def test_a_call_that_could_not_be_parsed_is_shown_with_its_error(trajectory):
    call = ToolCall(id="x", name="calculator", error="arguments are no JSON")
    trajectory.turns[0].reply = Message.of("assistant", "", tool_calls=(call,))
    assert "call calculator: arguments are no JSON" in printed(trajectory_record(trajectory, phase="val", rollout=0))


def test_an_empty_completion_can_be_viewed(trajectory):
    trajectory.turns[0].completion = Completion(token_ids=(), logprobs=(), stop_reason="context", policy_version=0)
    assert "0 tokens, stopped by context" in printed(trajectory_record(trajectory, phase="val", rollout=0))


def test_a_not_a_number_advantage_can_be_viewed(trajectory, tmp_path):
    assert advantage_style(float("nan"), largest=1.0).color.name == "magenta"
    trajectory.turns = trajectory.turns[:1]
    credit = [TurnCredit(weights=[1, 1, 1], advantages=[float("nan")] * 3, reasons=["trained"] * 3)]
    write_trajectories(
        trajectories_path(tmp_path, phase="train", rollout=0),
        [trajectory_record(trajectory, phase="train", rollout=0, credit=credit)],
    )
    assert call(tmp_path) == 0


def test_characters_that_need_several_tokens_stay_together():
    # the euro sign is three bytes, one token each; an unfinished one decodes to the replacement character
    utf8 = {0: b"a", 1: b"\xe2", 2: b"\x82", 3: b"\xac", 4: b"b"}
    pieces = token_pieces([0, 1, 2, 3, 4], lambda ids: b"".join(utf8[token] for token in ids).decode(errors="replace"))
    assert pieces == [("a", 1), ("€", 3), ("b", 1)]


def test_a_character_cut_off_at_the_end_is_shown_as_such():
    utf8 = {0: b"a", 1: b"\xe2"}
    pieces = token_pieces([0, 1], lambda ids: b"".join(utf8[token] for token in ids).decode(errors="replace"))
    assert pieces == [("a", 1), ("\ufffd", 1)]


def call(*arguments):
    parser = argparse.ArgumentParser()
    view.add_arguments(parser)
    return view.main(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def run(tmp_path, trajectory):
    """Two training rollouts and a validation rollout; the newest training rollout has a failed trajectory."""
    for phase, rollout in (("train", 0), ("train", 1), ("val", 1)):
        record = trajectory_record(trajectory, phase=phase, rollout=rollout)
        failed = {**record, "id": "3/2/0", "status": "failed", "cause": "worker died"}
        records = [record, failed] if (phase, rollout) == ("train", 1) else [record]
        write_trajectories(trajectories_path(tmp_path, phase=phase, rollout=rollout), records)
    return tmp_path


def test_the_newest_training_rollout_is_shown(run, capsys):
    assert call(run) == 0
    output = capsys.readouterr().out
    assert "train rollout 1, 3/1/0" in output
    assert "train rollout 1, 3/2/0: failed" in output


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        (["--status", "failed"], "3/2/0", "3/1/0"),
        (["--id", "3/1/0"], "3/1/0", "3/2/0"),
        (["--limit", "1"], "1 of 2 trajectories", "3/2/0"),
        (["--phase", "val"], "val rollout 1", "train rollout"),
        (["--rollout", "0"], "train rollout 0", "rollout 1"),
    ],
)
def test_what_is_shown_can_be_chosen(run, capsys, options, shown, hidden):
    assert call(run, *options) == 0
    output = capsys.readouterr().out
    assert shown in output
    assert hidden not in output


def test_no_color_is_plain_text_on_a_terminal_too(run, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert call(run) == 0
    assert "\x1b[" in capsys.readouterr().out
    assert call(run, "--no-color") == 0
    assert "\x1b[" not in capsys.readouterr().out


def test_nothing_that_matches_is_said(run, capsys):
    assert call(run, "--id", "9/9/9") == 1
    assert "no such trajectory" in capsys.readouterr().err


def test_a_rollout_that_is_not_there_names_those_that_are(run):
    with pytest.raises(ValueError, match=r"no train trajectories of rollout 7 .*train: 0 to 1, val: 1 to 1"):
        find_file(run, rollout=7)


def test_a_folder_without_trajectories_is_named(tmp_path, capsys):
    assert call(tmp_path) == 2
    assert "holds no trajectories" in capsys.readouterr().err


def test_the_tokenizer_of_the_run_decodes(run, capsys):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "sampled": 10, "exactly": 11, "this": 12, "and": 13, "that": 14}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(run / "tokenizer")
    assert call(run) == 0
    output = capsys.readouterr().out
    assert "assistant: sampled exactly this" in output
    assert "let me see" not in output


def test_a_damaged_tokenizer_is_named_and_done_without(run, capsys):
    (run / "tokenizer").mkdir()
    assert call(run) == 0
    output = capsys.readouterr()
    assert "tokenizer cannot be loaded" in output.err
    assert "let me see" in output.out
