"""Trees of segments laid out so that what several episodes share is computed once, forward and backward.

All segments of one root become one row; a mask lets each token see its own ancestors only, and position ids are those
of the token's own episode. Log-probs and gradients equal those of the padded rows of `RolloutBatch.padded`, the
reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.rollouts.batch import RolloutBatch

_ROW_TOKENS = 512
"""Length that rows are filled up to. Attention over a row costs its square, so longer rows pay only while the prompt
that they share is long itself: a row may always be twice as long as one episode in it."""


@dataclass(frozen=True, kw_only=True)
class PackedView:
    """Rows that each hold a tree of segments."""

    input_ids: Tensor
    """[B, T] int64"""
    visible: Tensor
    """[B, T, T] bool: whether the token of the second axis sees that of the third."""
    position_ids: Tensor
    """[B, T] int64"""
    rows: Tensor
    """[M] int64: row of each wanted token."""
    columns: Tensor
    """[M] int64: column of each wanted token."""
    sources: Tensor
    """[M] int64: column of the token before it, whose hidden state predicts it."""
    token_index: Tensor
    """[M] int64: the wanted tokens' places in the flat batch."""


def packed_pieces(
    batch: RolloutBatch, max_tokens: int, *, wanted: Tensor, whole_trajectories: bool = False
) -> Iterator[RolloutBatch]:
    """Cut a batch into pieces of at most `max_tokens` tokens when packed and padded, or of one episode.

    Episodes without a wanted token are left out. Each token keeps its weight in the first piece that it is part of.

    Args:
        batch: What to cut.
        max_tokens: Rows times longest row of a piece.
        wanted: [N] bool.
        whole_trajectories: Keep all tokens of a trajectory in one piece, which may then be larger.
    """
    wanted_segments = set(batch.segment[wanted].tolist())
    taken: set[int] = set()
    packs: list[tuple[int, int, int, list[int]]] = []  # size, number, root, owned segments
    open_packs: dict[int, tuple[set[int], list[int]]] = {}  # by root: segments present, owned segments

    def close(root: int) -> None:
        present, owned = open_packs.pop(root)
        packs.append((sum(_size(batch, segment) for segment in present), len(packs), root, owned))

    for leaves in _leaves(batch, together=whole_trajectories):
        path, owned = [], []
        for leaf in leaves:
            new = [segment for segment in batch.path(leaf) if segment not in taken]
            if wanted_segments.intersection(new):
                path += [segment for segment in batch.path(leaf) if segment not in path]
                owned += new
                taken.update(new)
        if not owned:
            continue
        root = path[0]
        if root in open_packs:
            present = open_packs[root][0]
            limit = min(max_tokens, max(_ROW_TOKENS, 2 * sum(_size(batch, segment) for segment in path)))
            if sum(_size(batch, segment) for segment in present.union(path)) > limit:
                close(root)
        present, mine = open_packs.setdefault(root, (set(), []))
        present.update(path)
        mine.extend(owned)
    for root in list(open_packs):
        close(root)

    packs.sort(key=lambda pack: (-pack[0], pack[1]))
    piece: list[int] = []
    roots: set[int] = set()  # one row each
    longest = 0
    for unit in _joined(batch, packs) if whole_trajectories else [[pack] for pack in packs]:
        sizes: dict[int, int] = {}
        for size, _, root, _ in unit:
            sizes[root] = sizes.get(root, 0) + size
        size = max(sizes.values())
        longest = max(longest, size)
        if roots and (roots.intersection(sizes) or longest * (len(roots) + len(sizes)) > max_tokens):
            yield batch.select(piece)
            piece, roots, longest = [], set(), size
        piece.extend(segment for *_, owned in unit for segment in owned)
        roots.update(sizes)
    if piece:
        yield batch.select(piece)


def _leaves(batch: RolloutBatch, *, together: bool) -> list[list[int]]:
    """Return the leaves, those of one trajectory and root together if they must not be cut apart."""
    if not together:
        return [[leaf] for leaf in batch.leaves()]
    owners = batch.trajectory.tolist()
    units: dict[tuple[int, int], list[int]] = {}
    for leaf in batch.leaves():
        units.setdefault((batch.path(leaf)[0], owners[leaf]), []).append(leaf)
    return list(units.values())


def _joined(
    batch: RolloutBatch, packs: list[tuple[int, int, int, list[int]]]
) -> list[list[tuple[int, int, int, list[int]]]]:
    """Put packs together that hold parts of one trajectory, in the order of the largest of them."""
    owners = batch.trajectory.tolist()
    unit_of: dict[int, list[tuple[int, int, int, list[int]]]] = {}  # by trajectory
    units: list[list[tuple[int, int, int, list[int]]]] = []
    for pack in packs:
        trajectories = {owners[segment] for segment in pack[3]} - {-1}
        met = [unit for unit in units if any(unit_of.get(trajectory) is unit for trajectory in trajectories)]
        joined = [pack] if not met else [p for unit in met for p in unit] + [pack]
        place = min((units.index(unit) for unit in met), default=len(units))
        units = [unit for unit in units if unit not in met]
        units.insert(place, joined)
        for *_, owned in joined:
            unit_of |= {owners[segment]: joined for segment in owned if owners[segment] >= 0}
    return units


def pack(batch: RolloutBatch, wanted: Tensor, *, pad_id: int = 0) -> PackedView:
    """Lay each root's tree out as one row.

    Args:
        batch: A piece of `packed_pieces`.
        wanted: [N] bool, tokens whose log-probs are needed.
        pad_id: Id that fills the gaps; any, it is masked.
    """
    device = batch.token_ids.device
    parents = batch.parent_segment.tolist()
    root_of: list[int] = []
    for segment, parent in enumerate(parents):
        root_of.append(segment if parent < 0 else root_of[parent])
    trees: dict[int, list[int]] = {}
    for segment, root in enumerate(root_of):
        trees.setdefault(root, []).append(segment)

    width = max((sum(_size(batch, s) for s in tree) for tree in trees.values()), default=0)
    index = torch.full((len(trees), width), -1, dtype=torch.int64)
    visible = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)  # gaps see themselves: no empty softmax
    source = torch.zeros((len(trees), width), dtype=torch.int64)
    causal = torch.ones((width, width), dtype=torch.bool).tril()
    for row, tree in enumerate(trees.values()):
        place = {segment: number for number, segment in enumerate(tree)}
        ancestor = torch.zeros((len(tree), len(tree)), dtype=torch.bool)
        owner: list[int] = []
        last_column: dict[int, int] = {-1: -1}
        column = 0
        for segment in tree:
            number, parent = place[segment], parents[segment]
            if parent >= 0:
                ancestor[number] = ancestor[place[parent]]
            ancestor[number, number] = True
            span = batch.span(segment)
            size = span.stop - span.start
            index[row, column : column + size] = torch.arange(span.start, span.stop)
            source[row, column : column + size] = torch.arange(column - 1, column - 1 + size)
            if size:
                source[row, column] = last_column[parent]
            owner += [number] * size
            column += size
            last_column[segment] = column - 1 if size else last_column[parent]
        of = torch.tensor(owner, dtype=torch.int64)
        visible[row, :column, :column] = ancestor[of][:, of] & causal[:column, :column]

    index = index.to(device)
    real = index >= 0
    at = index.clamp_min(0)
    hits = real & wanted[at] & (batch.position_ids[at] > 0)
    rows, columns = hits.nonzero(as_tuple=True)
    return PackedView(
        input_ids=torch.where(real, batch.token_ids[at], pad_id),
        visible=visible.to(device),
        position_ids=torch.where(real, batch.position_ids[at], 0),
        rows=rows,
        columns=columns,
        sources=source.to(device)[rows, columns],
        token_index=index[rows, columns],
    )


def _size(batch: RolloutBatch, segment: int) -> int:
    span = batch.span(segment)
    return span.stop - span.start
