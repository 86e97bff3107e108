"""What can leave the device, and what must run to rebuild it.

Operations that write one storage (a producer and the in-place operations after it) can only be
re-executed together: they form a *block*. A block of one operation may have several outputs, a
block of several operations has one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import networkx as nx

from slackswap_opt.step import IndexedStep, Liveness, TrainingStep


@dataclass(frozen=True, slots=True)
class Block:
    """Forward operations that are re-executed together.

    Attributes:
        operations: in execution order.
        inputs: tensors that must be on the device, at their last version.
        outputs: tensors it rebuilds.
        duration_ns: time to run it once.
        workspace_bytes: largest workspace of its operations.
    """

    operations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    duration_ns: int
    workspace_bytes: int


@dataclass(frozen=True)
class Blocks:
    """The evictable tensors of a step and the blocks that rebuild them.

    Attributes:
        blocks: every block that may be re-executed, in execution order.
        block_of: per tensor, the index of the block that rebuilds it; -1 if none can.
        evictable: tensors that may leave the device between the forward phase and their first
            later reader, in order of production: activations of which no later operation writes
            or reads an overwritten version.
    """

    blocks: tuple[Block, ...]
    block_of: tuple[int, ...]
    evictable: tuple[int, ...]


def find_blocks(step: TrainingStep, live: Liveness) -> Blocks:
    """Group the forward operations into blocks, and keep those that may run again."""
    index = step.index
    final = {t for t in range(index.tensors) if _ends_in_forward(index, live, t)}
    block_of = [-1] * index.tensors
    blocks: list[Block] = []
    for operations in _groups(index):
        block = _block(index, operations)
        if _may_rerun(index, block, final):
            for tensor in block.outputs:
                block_of[tensor] = len(blocks)
            blocks.append(block)
    evictable = sorted(final, key=lambda t: (int(live.first_write[t]), t))
    return Blocks(tuple(blocks), tuple(block_of), tuple(evictable))


def _ends_in_forward(index: IndexedStep, live: Liveness, tensor: int) -> bool:
    """Whether later operations only read the tensor, and only its last version."""
    if not live.activation[tensor]:
        return False
    if not all(index.forward[op] for op in index.writers[tensor]):
        return False
    first_later, last_forward = live.first_later[tensor], live.last_forward[tensor]
    return bool(first_later < 0 or last_forward < first_later)


def _groups(index: IndexedStep) -> list[tuple[int, ...]]:
    together: nx.Graph[int] = nx.Graph()
    together.add_nodes_from(op for op in range(index.operations) if index.forward[op])
    for tensor, writers in enumerate(index.writers):
        if not index.static[tensor]:
            together.add_edges_from(
                (a, b)
                for a, b in itertools.pairwise(writers)
                if index.forward[a] and index.forward[b]
            )
    groups = (tuple(sorted(group)) for group in nx.connected_components(together))
    return sorted(groups)


def _block(index: IndexedStep, operations: tuple[int, ...]) -> Block:
    outputs = dict.fromkeys(t for op in operations for t, _ in index.writes[op])
    inputs = dict.fromkeys(t for op in operations for t, _ in index.reads[op] if t not in outputs)
    return Block(
        operations,
        tuple(inputs),
        tuple(outputs),
        duration_ns=sum(int(index.duration_ns[op]) for op in operations),
        workspace_bytes=max(int(index.workspace_bytes[op]) for op in operations),
    )


def _may_rerun(index: IndexedStep, block: Block, final: set[int]) -> bool:
    if not all(index.recomputable[op] for op in block.operations):
        return False
    if not block.outputs or not all(t in final for t in (*block.inputs, *block.outputs)):
        return False
    if len(block.operations) > 1 and len(block.outputs) > 1:
        return (
            False  # one output could still be there at a version its in-place writer must not see
        )
    last_version = {t: len(index.writers[t]) - 1 for t in block.inputs}
    return all(
        version == last_version[tensor]
        for op in block.operations
        for tensor, version in index.reads[op]
        if tensor in last_version
    )
