"""Trajectories on disk: one JSON object a line, one file a phase and rollout, `RUN/trajectories/train-000012.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_agentrl.reporting.files import write_atomically
from lit_agentrl.types import ImagePart, Message, Phase, ToolCall, Trajectory, Turn

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnCredit:
    """What training made of one turn; each list has one entry per sampled token."""

    weights: Sequence[float]
    """Loss weights; 0 means that the token was not trained."""
    advantages: Sequence[float]
    reasons: Sequence[str]
    """Why the weight is what it is: `trained`, `filtered`, `failed`, …"""


def trajectories_path(run: Path | str, *, phase: Phase, rollout: int) -> Path:
    """Return where a run keeps the trajectories of one rollout."""
    return Path(run) / "trajectories" / f"{phase}-{rollout:06d}.jsonl"


def trajectory_record(
    trajectory: Trajectory, *, phase: Phase, rollout: int, credit: Sequence[TurnCredit] | None = None
) -> dict[str, Any]:
    """Return a trajectory as a JSON-ready mapping, token ids and log-probs included.

    Args:
        trajectory: The episode.
        phase: Phase that it belongs to.
        rollout: Index of its rollout.
        credit: One entry per turn, or `None` outside training; `weights`, `advantages` and `reasons` are then null.

    Raises:
        ValueError: If `credit` does not fit the turns and their tokens.
    """
    if credit is not None and len(credit) != len(trajectory.turns):
        raise ValueError(f"trajectory {trajectory.id}: credit for {len(credit)} turns of {len(trajectory.turns)}")
    credits: Sequence[TurnCredit | None] = [None] * len(trajectory.turns) if credit is None else credit
    task = trajectory.task
    return {
        "schema": SCHEMA,
        "phase": phase,
        "rollout": rollout,
        "id": trajectory.id,
        "group": trajectory.group,
        "sample": trajectory.sample,
        "attempt": trajectory.attempt,
        "parent_id": trajectory.parent_id,
        "role": trajectory.role,
        "task": {
            "id": task.id,
            "family": task.family,
            "split": task.split,
            "seed": task.seed,
            "data": dict(task.data),
        },
        "status": trajectory.status,
        "cause": trajectory.cause,
        "success": trajectory.success,
        "reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "env_steps": trajectory.env_steps,
        "tool_calls": trajectory.tool_calls,
        "tool_errors": trajectory.tool_errors,
        "tool_restarts": trajectory.tool_restarts,
        "outputs_cut": trajectory.outputs_cut,
        "wall_s": trajectory.wall_s,
        "turns": [_turn(turn, entry) for turn, entry in zip(trajectory.turns, credits, strict=True)],
        "closing_messages": [_message(message) for message in trajectory.closing_messages],
    }


def write_trajectories(path: Path | str, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records atomically, one JSON object a line.

    JSON knows no NaN and no infinities: they become the strings "NaN", "Infinity" and "-Infinity", which `float` reads.
    """
    lines = [json.dumps(_finite(record), allow_nan=False, default=str) for record in records]
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def read_trajectories(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the records of one file, in the order in which they were written.

    Raises:
        ValueError: If a line is not a record of a schema that this version reads; names file and line.
    """
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number} is not JSON: {error}") from error
            if not isinstance(record, dict) or record.get("schema") != SCHEMA:
                raise ValueError(f"{path}:{number} is not a trajectory record of schema {SCHEMA}")
            yield record


def _turn(turn: Turn, credit: TurnCredit | None) -> dict[str, Any]:
    completion = turn.completion
    return {
        "parent": turn.parent,
        "prompt_ids": list(turn.prompt_ids),
        "completion_ids": list(completion.token_ids),
        "behavior_logprobs": list(completion.logprobs),
        "stop_reason": completion.stop_reason,
        "policy_version": completion.policy_version,
        "messages": [_message(message) for message in turn.messages],
        "reply": {"text": turn.reply.text, "tool_calls": [_tool_call(call) for call in turn.reply.tool_calls]},
        "reward": turn.reward,
        "reward_parts": dict(turn.reward_parts),
        "weights": None if credit is None else _per_token("weights", credit.weights, turn),
        "advantages": None if credit is None else _per_token("advantages", credit.advantages, turn),
        "reasons": None if credit is None else _per_token("reasons", credit.reasons, turn),
        "state_key": turn.state_key,
    }


def _per_token(name: str, values: Sequence[Any], turn: Turn) -> list[Any]:
    count = len(turn.completion.token_ids)
    if len(values) != count:
        raise ValueError(f"{name}: {len(values)} values for {count} sampled tokens")
    return list(values)


def _message(message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "text": message.text}
    # Sizes, not pixels: a log of images would dwarf the run.
    images = [
        {"media_type": part.media_type, "num_bytes": len(part.data)}
        for part in message.content
        if isinstance(part, ImagePart)
    ]
    if images:
        record["images"] = images
    if message.tool_calls:
        record["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
    return record


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": dict(call.arguments), "error": call.error}


def _finite(value: Any) -> Any:
    """Replace non-finite floats, at any depth."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
