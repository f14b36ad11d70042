"""`lit-agentrl view RUN`: trajectories in the terminal, sampled tokens coloured by what training made of them."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.style import Style
from rich.text import Text

from lit_agentrl.reporting.records import read_trajectories

Decode = Callable[[Sequence[int]], str]
_PHASES = ("train", "val", "test")
_STATUSES = ("completed", "truncated", "failed")
_FILE_NAME = re.compile(r"(train|val|test)-(\d+)\.jsonl")
_STATUS_STYLES = {"completed": "green", "truncated": "yellow", "failed": "red"}
_DIM = Style(dim=True)
_MASKED = Style(color="bright_black", strike=True)
# C0, DEL, C1, zero-width and bidirectional controls, line separators, surrogates: they hide, reorder or clear text.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """Return text that a terminal shows as it is: control characters become pictures or escapes."""
    return _INVISIBLE.sub(_show_character, text)


def token_pieces(ids: Sequence[int], decode: Decode) -> list[tuple[str, int]]:
    """Split decoded ids into pieces of text, each with the number of tokens that it took.

    A character may be spread over several tokens; these stay together. The pieces join to `decode(ids)`.
    """
    pieces: list[tuple[str, int]] = []
    done, start = "", 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[:end])
        unfinished = text.endswith("\ufffd") or not text.startswith(done)
        if unfinished and end < len(ids):
            continue
        pieces.append((text[len(done) :], end - start))
        done, start = text, end
    return pieces


def advantage_style(advantage: float, *, largest: float) -> Style:
    """Return green for positive, red for negative advantages, stronger the larger; magenta for NaN and infinities."""
    if not math.isfinite(advantage):
        return Style(color="magenta")
    if not advantage or not largest:
        return Style()
    level = round(120 + 135 * min(1.0, abs(advantage) / largest))
    return Style(color=f"rgb(0,{level},0)" if advantage > 0 else f"rgb({level},0,0)")


def render_trajectory(record: dict[str, Any], *, decode: Decode | None = None) -> RenderableType:
    """Return a trajectory record as something that rich prints.

    Args:
        record: As `read_trajectories` yields it.
        decode: Turns token ids into text. Without it a reply is shown as one text in one colour.
    """
    advantages = [value for turn in record["turns"] for value in _numbers(turn["advantages"])]
    largest = max((abs(value) for value in advantages if math.isfinite(value)), default=0.0)
    parts: list[RenderableType] = [Rule(_title(record), align="left", style=_STATUS_STYLES[record["status"]])]
    parts.append(_facts(record))
    for index, turn in enumerate(record["turns"]):
        parts += [Text(f"\nturn {index}", style="bold"), *map(_message, turn["messages"])]
        parts.append(Text.assemble(("assistant: ", "bold"), _reply(turn, decode, largest)))
        parts += [_tool_call(call) for call in turn["reply"]["tool_calls"]]
        parts.append(_turn_facts(turn))
    if record["closing_messages"]:
        parts += [Text("\nclosing", style="bold"), *map(_message, record["closing_messages"])]
    return Group(*parts)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `view` to a parser."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--phase", choices=_PHASES, help="default: the first of train, val, test that there is")
    parser.add_argument("--rollout", type=int, metavar="N", help="default: the newest")
    parser.add_argument("--id", metavar="G/S/A", help="one trajectory: group/sample/attempt")
    parser.add_argument("--status", choices=_STATUSES, help="only these trajectories")
    parser.add_argument(
        "--limit", type=int, default=4, metavar="K", help="at most so many, 0: all (default: %(default)s)"
    )
    parser.add_argument("--no-color", action="store_true", help="plain text")


def main(args: argparse.Namespace) -> int:
    """Print trajectories; 0 when there were some, 1 when none matched, 2 when the run cannot be read."""
    console = Console(color_system=None if args.no_color else "auto", highlight=False, markup=False, emoji=False)
    try:
        if args.limit < 0:
            raise ValueError(f"--limit must be 0 (all) or more, not {args.limit}")
        path = find_file(args.run, phase=args.phase, rollout=args.rollout)
        decode = load_decoder(args.run)
        matching = [record for record in read_trajectories(path) if _matches(record, args)]
    except ValueError as error:
        print(f"view: {error}", file=sys.stderr)
        return 2
    if not matching:
        print(f"view: no such trajectory in {path}", file=sys.stderr)
        return 1
    for record in islice(matching, args.limit or None):
        console.print(render_trajectory(record, decode=decode))
        console.print()
    if args.limit and len(matching) > args.limit:
        console.print(f"{args.limit} of {len(matching)} trajectories; --limit 0 shows all", style=_DIM)
    return 0


def find_file(run: Path, *, phase: str | None = None, rollout: int | None = None) -> Path:
    """Return the trajectory file of a phase and rollout; by default the newest of the first phase that there is.

    Raises:
        ValueError: If there is none; names the rollouts that there are.
    """
    found: dict[str, dict[int, Path]] = {name: {} for name in _PHASES}
    for path in (run / "trajectories").glob("*.jsonl"):
        if match := _FILE_NAME.fullmatch(path.name):
            found[match[1]][int(match[2])] = path
    phase = phase or next((name for name in _PHASES if found[name]), None)
    if phase is None:
        raise ValueError(f"{run / 'trajectories'} holds no trajectories; is {run} a run folder?")
    rollouts = found[phase]
    rollout = max(rollouts, default=None) if rollout is None else rollout
    if rollout is None or rollout not in rollouts:
        there = ", ".join(f"{name}: {min(files)} to {max(files)}" for name, files in found.items() if files)
        wanted = f"{phase} trajectories" if rollout is None else f"{phase} trajectories of rollout {rollout}"
        raise ValueError(f"no {wanted} in {run}; rollouts are {there or 'none'}")
    return rollouts[rollout]


def load_decoder(run: Path) -> Decode | None:
    """Return what decodes the run's token ids, from `RUN/tokenizer/`; `None` where that cannot be had."""
    folder = run / "tokenizer"
    if not folder.is_dir():
        return None
    from transformers import AutoTokenizer  # slow to import, and not needed without the folder

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        print(f"view: replies are shown as whole texts, {folder} cannot be loaded: {error}", file=sys.stderr)
        return None

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return decode


def _matches(record: dict[str, Any], args: argparse.Namespace) -> bool:
    return args.id in (None, record["id"]) and args.status in (None, record["status"])


def _title(record: dict[str, Any]) -> Text:
    where = f"{record['phase']} rollout {record['rollout']}, {record['id']}"
    outcome = record["status"] + (", solved" if record["success"] else "")
    role = "" if record["role"] == "policy" else f", {record['role']}"
    return Text(visible(f"{where}{role}: {outcome}"), style="bold")


def _facts(record: dict[str, Any]) -> Text:
    task = record["task"]
    lines = [f"task {task['id']} ({task['family']}, {task['split']})"]
    if record["cause"]:
        lines.append(f"cause: {record['cause']}")
    lines.append(f"reward {_number(record['reward'])}{_parts(record['reward_parts'])}")
    counts = f"{len(record['turns'])} turns, {record['env_steps']} environment steps, {record['tool_calls']} tool calls"
    lines.append(f"{counts} ({record['tool_errors']} wrong), {record['wall_s']:.1f} s")
    return Text(visible("\n".join(lines)))


def _turn_facts(turn: dict[str, Any]) -> Text:
    ids, advantages = turn["completion_ids"], _numbers(turn["advantages"])
    drawn = f"{len(ids)} tokens, stopped by {turn['stop_reason']}"
    if not ids and turn["stop_reason"] == "eos":  # a language model's reply would hold the end itself
        drawn = "no tokens: an action that was chosen"
    facts = [f"{drawn}, policy version {turn['policy_version']}"]
    if turn["reward"] or turn["reward_parts"]:
        facts.append(f"reward {_number(turn['reward'])}{_parts(turn['reward_parts'])}")
    if advantages:
        trained = sum(1 for weight in _numbers(turn["weights"]) if weight)
        mean = sum(advantages) / len(advantages)
        facts.append(f"advantage {mean:+.3f} ({min(advantages):+.3f} to {max(advantages):+.3f}), {trained} trained")
    return Text(visible("  " + "; ".join(facts)), style=_DIM)


def _reply(turn: dict[str, Any], decode: Decode | None, largest: float) -> Text:
    """The sampled text: by token where it can be decoded, else as a whole."""
    ids = turn["completion_ids"]
    advantages, weights = _numbers(turn["advantages"]), _numbers(turn["weights"])
    if not advantages:
        return Text(visible(decode(ids) if decode and ids else turn["reply"]["text"]))
    pieces = token_pieces(ids, decode) if decode else [(turn["reply"]["text"], len(ids))]
    text = Text()
    for masked, run in groupby(_placed(pieces, weights, turn["reasons"]), key=lambda piece: piece[3]):
        for piece, start, end, _ in run:
            mean = sum(advantages[start:end]) / max(1, end - start)
            text.append(visible(piece), _MASKED if masked else advantage_style(mean, largest=largest))
        if masked:
            text.append(f"[{visible(masked)}]", _DIM)
    return text


def _placed(
    pieces: Sequence[tuple[str, int]], weights: Sequence[float], reasons: Sequence[str]
) -> Iterator[tuple[str, int, int, str]]:
    """Yield each piece with the range of its tokens and, if none of them was trained, the reason."""
    start = 0
    for piece, count in pieces:
        end = start + count
        masked = count > 0 and not any(weights[start:end])
        yield piece, start, end, ", ".join(dict.fromkeys(reasons[start:end])) if masked else ""
        start = end


def _message(message: dict[str, Any]) -> Text:
    images = "".join(f" [{image['media_type']}, {image['num_bytes']} bytes]" for image in message.get("images", ()))
    return Text(visible(f"{message['role']}: {message['text']}{images}"), style=_DIM)


def _tool_call(call: dict[str, Any]) -> Text:
    arguments = ", ".join(f"{name}={value!r}" for name, value in call["arguments"].items())
    if call["error"]:
        return Text(visible(f"  call {call['name']}: {call['error']}"), style="red")
    return Text(visible(f"  call {call['name']}({arguments})"), style="cyan")


def _parts(parts: dict[str, Any]) -> str:
    return f" ({', '.join(f'{name} {_number(value)}' for name, value in parts.items())})" if parts else ""


def _number(value: Any) -> str:
    return f"{float(value):+.3f}"


def _numbers(values: Sequence[Any] | None) -> list[float]:
    """Floats of a list that may be null, and may hold the strings that stand for NaN and infinities."""
    return [float(value) for value in values or ()]


def _show_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures
    return "\u2421" if code == 0x7F else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
