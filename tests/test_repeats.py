"""Repeated blocks are found in the operations, whatever they are called."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from slackswap_opt.cli.app import app
from slackswap_opt.formats import graph_path, read_step
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Action, Problem
from slackswap_opt.planners import recompute_all, selective, sqrt_n
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from slackswap_opt.step.repeats import Repeat, find_repeats, layers_of, repetitions
from slackswap_opt.study import inspect
from slackswap_opt.workloads import build_step, load_workload, with_changes
from tests.strategies import training_steps


def by_definition(letters: str) -> list[tuple[int, int, int]]:
    """Maximal repetitions, by trying every stretch and every period."""
    count, found = len(letters), []

    def has(start: int, end: int, period: int) -> bool:
        return all(letters[n] == letters[n + period] for n in range(start, end - period))

    for start in range(count):
        for end in range(start + 2, count + 1):
            periods = [p for p in range(1, (end - start) // 2 + 1) if has(start, end, p)]
            if not periods:
                continue
            period = periods[0]
            longer = (start > 0 and has(start - 1, end, period)) or (
                end < count and has(start, end + 1, period)
            )
            if not longer:
                found.append((start, end, period))
    return found


@given(st.text("ab", max_size=14) | st.text("abc", max_size=20))
def test_every_maximal_repetition_is_found(letters: str) -> None:
    found = repetitions([ord(letter) for letter in letters])
    assert sorted(found) == by_definition(letters)


def writers(step: TrainingStep) -> dict[Value, int]:
    return {value: n for n, op in enumerate(step.operations) for value in op.writes}


def is_repeat(step: TrainingStep, repeat: Repeat) -> bool:
    """The definition of a repeat of equal durations, block by block."""
    made, sizes = writers(step), {t.name: (t.size_bytes, t.transfer_bytes) for t in step.tensors}

    def alike(op: Operation) -> object:
        return (
            op.phase, op.duration_ns, op.workspace_bytes, op.recomputable, op.random,
            [sizes[v.tensor] for v in op.reads],
            [(sizes[v.tensor], v.version > 0) for v in op.writes],
        )  # fmt: skip

    for offset in range(repeat.length):
        same = [step.operations[start + offset] for start in repeat.starts()[:-1]]
        if any(alike(a) != alike(b) for a, b in pairwise(same)):
            return False
        for values in zip(*(op.reads for op in same), strict=True):
            read = [made.get(value, -1) for value in values]
            for a, b in pairwise(read):
                if a >= repeat.start and b - a != repeat.length:
                    return False
            for a, b, c in zip(read[:-3], read[1:], read[2:], strict=False):
                if max(a, b, c) < repeat.start and b - a != c - b:
                    return False
    return True


@given(training_steps())
def test_what_is_found_in_any_step_is_a_repeat_and_nothing_overlaps(step: TrainingStep) -> None:
    found = find_repeats(step)
    assert all(repeat.count >= 2 and is_repeat(step, repeat) for repeat in found)
    assert all(a.end <= b.start for a, b in pairwise(found))


@st.composite
def blocks(draw: st.DrawFn) -> list[tuple[int, int, list[int]]]:
    """Duration, size and inputs of the operations of a block.

    An input is an earlier operation of the block or, below zero, what the block before ended with.
    """
    count = draw(st.integers(1, 6))
    return [
        (
            draw(st.integers(1, 10**6)),
            draw(st.integers(1, 10**6)),
            draw(st.lists(st.integers(-1, n - 1), min_size=1, max_size=2, unique=True)),
        )
        for n in range(count)
    ]


def repeated(block: list[tuple[int, int, list[int]]], count: int) -> TrainingStep:
    """An operation, `count` blocks, their backward operations, none of them labelled."""
    ops = [Operation("in", Phase.FORWARD, 3, (), (Value("in"),))]
    tensors = [Tensor.of("in", block[-1][1])]
    last = "in"
    for number in range(count):
        before = last
        for n, (duration, size, inputs) in enumerate(block):
            last = f"t{number}.{n}"
            reads = tuple(Value(before if i < 0 else f"t{number}.{i}") for i in inputs)
            ops.append(Operation(last, Phase.FORWARD, duration, reads, (Value(last),)))
            tensors.append(Tensor.of(last, size))
    for op in ops[:0:-1]:
        name = f"{op.name}.back"
        reads = (*((Value(tensors[-1].name),) if name[0] == "t" and ops[-1].phase is
                   Phase.BACKWARD else ()), *op.reads)  # fmt: skip
        ops.append(Operation(name, Phase.BACKWARD, 2 * op.duration_ns, reads, (Value(name),)))
        tensors.append(Tensor.of(name, 7))
    return TrainingStep.build("repeated", ops, tensors)


@given(blocks(), st.integers(3, 6))
def test_blocks_that_were_put_together_are_found_in_both_phases(
    block: list[tuple[int, int, list[int]]], count: int
) -> None:
    step = repeated(block, count)
    found = find_repeats(step)
    turn = 1 + count * len(block)
    for begin, end in ((1, turn), (turn + 1, len(step.operations))):
        covered = sum(
            max(0, min(end, repeat.end) - max(begin, repeat.start)) for repeat in found
        )  # fmt: skip
        assert covered > end - begin - 2 * len(block)
    assert all(repeat.saved * 2 >= repeat.length for repeat in found)


@given(blocks(), st.integers(3, 6), st.data())
def test_one_longer_operation_divides_a_repeat_unless_it_is_tolerated(
    block: list[tuple[int, int, list[int]]], count: int, data: st.DataObject
) -> None:
    block = [(1000 * duration, size, inputs) for duration, size, inputs in block]
    step = repeated(block, count)
    whole = find_repeats(step)
    odd = data.draw(st.integers(1, count * len(block)))
    ops = list(step.operations)
    ops[odd] = replace(ops[odd], duration_ns=ops[odd].duration_ns * 101 // 100)
    measured = TrainingStep.build("measured", ops, step.tensors)
    exact = find_repeats(measured)
    assert all(is_repeat(measured, repeat) for repeat in exact)
    assert not any(
        repeat.start <= odd < repeat.end
        and any(
            ops[odd].duration_ns != ops[start + (odd - repeat.start) % repeat.length].duration_ns
            for start in repeat.starts()[:-1]
        )
        for repeat in exact
    )
    assert sum(r.saved for r in find_repeats(measured, 0.02)) >= sum(r.saved for r in whole) * 0.5


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [("gpt2-xl", 10, 10), ("llama-7b", 22, 27), ("llama3-405b", 17, 20)],
)
def test_the_layers_of_a_transformer_are_found_without_their_names(
    name: str, forward: int, backward: int
) -> None:
    step = build_step(with_changes(load_workload(name), layers=5), load_machine())
    nameless = TrainingStep.build(
        "x",
        [replace(op, name=f"op{n}", layer="") for n, op in enumerate(step.operations)],
        step.tensors,
    )
    found = find_repeats(nameless)
    assert found == find_repeats(step)
    long = [repeat for repeat in found if repeat.length > 1]
    assert [(repeat.length, repeat.count) for repeat in long] == [(forward, 5), (backward, 5)]
    first = long[0]
    assert {step.operations[n].layer for n in range(first.start, first.start + first.length)} == {
        "layer.0"
    }


@pytest.mark.parametrize("planner", [recompute_all, sqrt_n, selective])
def test_layerwise_planners_do_the_same_on_a_graph_without_labels(planner: object) -> None:
    assert callable(planner)
    machine = load_machine()
    step = build_step(with_changes(load_workload("gpt2-xl"), layers=6), machine)
    bare = replace(step, operations=tuple(replace(op, layer="") for op in step.operations))
    whole = Problem(step, machine, 1)
    budget = whole.liveness.ideal_peak_bytes
    labelled = planner(whole.with_budget(budget))
    unlabelled = planner(Problem(bare, machine, budget))
    assert labelled.plan is not None
    assert labelled.plan.actions == unlabelled.plan.actions
    assert Action.RECOMPUTE in labelled.plan.actions.values()


def test_what_lies_between_repeats_has_labels_of_its_own() -> None:
    step = repeated([(5, 6, [-1]), (7, 9, [0])], 3)
    labels = layers_of(step)
    assert len(labels) == len(step.operations)
    assert labels[:7] == ("between.0", *("repeat.0.0",) * 2, *("repeat.0.1",) * 2,
                          *("repeat.0.2",) * 2)  # fmt: skip
    assert labels == layers_of(step, find_repeats(step))


def test_cells_of_an_unrolled_network_repeat_in_time() -> None:
    found = find_repeats(read_step(graph_path("rnn")))
    assert found[0].length == 2
    assert found[0].count > 20


def test_a_step_of_one_operation_repeats_nothing() -> None:
    assert find_repeats(TrainingStep.build("x", [Operation("a", Phase.FORWARD, 1)], [])) == ()


def test_inspect_tells_of_layers_and_of_measured_ones_that_are_alike() -> None:
    machine = load_machine()
    step = repeated([(1000, 6, [-1]), (7000, 9, [0]), (300, 2, [1])], 5)
    exact = inspect(Problem(step, machine, 1)).repeats  # the first backward block has no gradient
    assert [(r.phase, r.start, r.length, r.count, r.tolerance) for r in exact] == [
        ("forward", 1, 3, 5, 0.0), ("backward", 19, 3, 4, 0.0),
    ]  # fmt: skip
    assert (exact[0].first, exact[0].last) == ("t0.0", "t4.2")
    noisy = [
        replace(op, duration_ns=op.duration_ns * (1000 + 7 * n % 40) // 1000)
        for n, op in enumerate(step.operations)
    ]
    measured = TrainingStep.build("measured", noisy, step.tensors)
    assert find_repeats(measured) == ()
    alike = inspect(Problem(measured, machine, 1)).repeats
    assert [(r.start, r.length, r.count) for r in alike] == [(1, 3, 5), (19, 3, 4)]
    assert {r.tolerance for r in alike} == {0.1}


def test_inspect_prints_repeats_counted_from_one() -> None:
    for arguments, expected in (
        (["gpt2-xl", "--layers", "3"], "3 layers of 10 operations (forward 2 to 31)"),
        (["tiny-mlp"], "no block of operations is repeated"),
    ):
        shown = CliRunner().invoke(app, ["inspect", *arguments], catch_exceptions=False)
        assert shown.exit_code == 0
        assert expected in shown.stdout
