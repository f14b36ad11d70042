"""What tests of preference learning share: comparisons by token ids, preference files, every algorithm with a batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rl_support import EndingPolicy, trainer

from datamodules import PreferenceDataModule
from lit_agentrl.algorithms import DMPO, DPO, ETO, KTO, ORPO, OnlineDPO, SimPO, StepDPO
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.comparisons import (
    SIDE,
    Answer,
    AnswerTurn,
    Comparison,
    Side,
    batch_from_comparisons,
    with_mismatched,
)

EVERY = {
    "dpo": DPO,
    "smoothed": lambda policy, **options: DPO(policy, label_smoothing=0.1, **options),
    "ipo": lambda policy, **options: DPO(policy, variant="ipo", **options),
    "hinge": lambda policy, **options: DPO(policy, variant="hinge", **options),
    "robust": lambda policy, **options: DPO(policy, variant="robust", label_smoothing=0.1, **options),
    "simpo": SimPO,
    "kto": KTO,
    "orpo": ORPO,
    "online_dpo": OnlineDPO,
    "eto": ETO,
    "dmpo": lambda policy, **options: DMPO(policy, gamma=0.7, **options),
    "step_dpo": StepDPO,
}


def answer(*turns: tuple[Sequence[int], Sequence[int]]) -> Answer:
    """Make an answer of turns (context, reply), each continuing the one before."""
    return Answer(
        turns=tuple(
            AnswerTurn(parent=place - 1 if place else None, context=tuple(context), reply=tuple(reply))
            for place, (context, reply) in enumerate(turns)
        )
    )


def pair(prompt: Sequence[int], chosen: Sequence[int], rejected: Sequence[int]) -> Comparison:
    return Comparison(chosen=answer((prompt, chosen)), rejected=answer((prompt, rejected)))


def ragged_pairs(count: int = 16) -> list[Comparison]:
    """Pairs of one to three turns and of lengths from 1 to 9; some share their prompt with the pair before."""
    draw = torch.Generator().manual_seed(0)

    def ids(least: int, most: int) -> tuple[int, ...]:
        length = int(torch.randint(least, most + 1, (), generator=draw))
        return tuple(torch.randint(3, 500, (length,), generator=draw).tolist())

    pairs: list[Comparison] = []
    for number in range(count):
        prompt = pairs[-1].own.prompt if number % 4 == 3 else ids(2, 9)

        def episode(first: tuple[int, ...]) -> Answer:
            later = [(ids(1, 4), ids(1, 9)) for _ in range(int(torch.randint(0, 3, (), generator=draw)))]
            return answer((first, ids(1, 9)), *later)

        pairs.append(Comparison(chosen=episode(prompt), rejected=episode(prompt)))
    return pairs


def batch_for(algorithm: Any, comparisons: Sequence[Comparison]) -> Any:
    """Return the batch of one optimizer step, weights and references written."""
    if not algorithm.needs_pairs:
        comparisons = [single for comparison in comparisons for single in comparison.singles()]
    if algorithm.needs_mismatched:
        comparisons = with_mismatched(comparisons, max_context=160)
    batch = batch_from_comparisons(comparisons)
    algorithm.fold_comparisons(batch)
    return batch


def write_lines(path: Path, records: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def sums(count: int) -> list[dict[str, str]]:
    """Return plain records of different prompts."""
    return [{"prompt": f"{n} + 1", "chosen": f"{n + 1}", "rejected": "no idea"} for n in range(count)]


def said(role: str, text: str) -> dict[str, str]:
    """Return a message."""
    return {"role": role, "content": text}


def unpaired(count: int) -> list[dict[str, Any]]:
    """Return answers that are judged alone, every second one good."""
    return [{"prompt": f"{n}?", "completion": f"{n}!", "label": n % 2 == 0} for n in range(count)]


def data_of(tmp_path: Path, records: Sequence[Any], **options: Any) -> PreferenceDataModule:
    """Return a data module over a file of records."""
    file = write_lines(tmp_path / "preferences.jsonl", records)
    return PreferenceDataModule([file], **({"batch_size": 4, "held_out": 0.0, "seed": 0} | options))


def batches(
    datamodule: PreferenceDataModule, *, module: Any = None, epochs: int = 1, **options: Any
) -> tuple[Any, list[RolloutBatch]]:
    """Run epochs with a module that only keeps what it is given."""
    module = module or DPO(EndingPolicy(), seed=0)
    seen: list[RolloutBatch] = []
    module.training_step = lambda batch, batch_idx: seen.append(batch)
    trainer(max_epochs=epochs, **options).fit(module, datamodule=datamodule)
    return module, seen


def texts(module: Any, batch: RolloutBatch) -> list[tuple[str, ...]]:
    """Return prompt, chosen and rejected text of every comparison of a batch."""
    chat, found = module.policy.chat, []
    for number in sorted(set(batch.trajectory.tolist())):
        mine = batch.trajectory[batch.segment] == number
        trained = batch.reason == TokenReason.TRAINED
        sides = [mine & trained & (batch.columns[SIDE] == side) for side in (Side.CHOSEN, Side.REJECTED)]
        shared = batch.token_ids[mine & (batch.columns[SIDE] == Side.SHARED)].tolist()
        found.append((chat.decode(shared), *(chat.decode(batch.token_ids[side].tolist()) for side in sides)))
    return found
