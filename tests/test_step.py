"""Training steps: what is refused, the order, aliases, the graph, lifetimes and memory."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from slackswap_opt.errors import SlackSwapError
from slackswap_opt.step import (
    Operation,
    Phase,
    Tensor,
    TrainingStep,
    ideal_step_ns,
    liveness,
    working_set_bytes,
)
from slackswap_opt.step.graph import MAX_BYTES, MAX_NS
from tests.hand import faults_in, values
from tests.strategies import training_steps


def op(name, reads="", writes="", duration_ns=1, workspace=0, phase=Phase.FORWARD):
    return Operation(name, phase, duration_ns, values(reads), values(writes), workspace)


def back(name, reads="", writes="", duration_ns=1, workspace=0):
    return op(name, reads, writes, duration_ns, workspace, Phase.BACKWARD)


def plain(*names: str, size: int = 4) -> list[Tensor]:
    return [Tensor.of(name, size) for name in names]


def faults_of(operations, tensors) -> tuple[str, ...]:
    return faults_in(TrainingStep.build, "step", operations, tensors)


def order_of(step: TrainingStep) -> list[str]:
    return [operation.name for operation in step.operations]


# --- What is refused --------------------------------------------------------------------------


W = Tensor.of("w", 9, static=True)


@pytest.mark.parametrize(
    ("operations", "tensors", "fault"),
    [
        ([], [], "the step has no operations; add at least one"),
        (
            [op("f", "", "x"), op("f", "x")],
            plain("x"),
            "operation 'f' is defined 2 times; give each a name of its own",
        ),
        (
            [op("f", "", "x")],
            plain("x", "x", "x"),
            "tensor or alias 'x' is defined 3 times; names must be unique",
        ),
        (
            [op("f", "", "x")],
            [Tensor("x", 4, 4, aliases=("y",)), *plain("y")],
            "tensor or alias 'y' is defined 2 times; names must be unique",
        ),
        (
            [op("f", "", "x")],
            [Tensor("x", 4, 4, aliases=("x",))],
            "tensor or alias 'x' is defined 2 times; names must be unique",
        ),
        ([op("")], [], "an operation or a tensor has an empty name; name it"),
        ([op("f")], plain(""), "an operation or a tensor has an empty name; name it"),
        (
            [op("f")],
            [Tensor("x", 4, 4, aliases=("",))],
            "an operation or a tensor has an empty name; name it",
        ),
        (
            [op("f", duration_ns=1.5)],
            [],
            "operation 'f': duration_ns is 1.5, expected a whole number",
        ),
        (
            [op("f", duration_ns=True)],
            [],
            "operation 'f': duration_ns is True, expected a whole number",
        ),
        (
            [op("f", duration_ns=np.int64(3))],
            [],
            "operation 'f': duration_ns is np.int64(3), expected a whole number",
        ),
        (
            [op("f", duration_ns=-1)],
            [],
            f"operation 'f': duration_ns is -1, expected 0 to {MAX_NS}",
        ),
        (
            [op("f", duration_ns=MAX_NS + 1)],
            [],
            f"operation 'f': duration_ns is {MAX_NS + 1}, expected 0 to {MAX_NS}",
        ),
        (
            [op("f", workspace=-2)],
            [],
            f"operation 'f': workspace_bytes is -2, expected 0 to {MAX_BYTES}",
        ),
        (
            [op("f", workspace=None)],
            [],
            "operation 'f': workspace_bytes is None, expected a whole number",
        ),
        (
            [op("f")],
            [Tensor("x", 4.0, 4)],
            "tensor 'x': size_bytes is 4.0, expected a whole number",
        ),
        (
            [op("f")],
            [Tensor("x", False, 4)],
            "tensor 'x': size_bytes is False, expected a whole number",
        ),
        (
            [op("f")],
            [Tensor("x", MAX_BYTES + 1, 4)],
            f"tensor 'x': size_bytes is {MAX_BYTES + 1}, expected 0 to {MAX_BYTES}",
        ),
        (
            [op("f")],
            [Tensor("x", 4, -4)],
            f"tensor 'x': transfer_bytes is -4, expected 0 to {MAX_BYTES}",
        ),
        (
            [op("f")],
            [Tensor("x", 4, "4")],
            "tensor 'x': transfer_bytes is '4', expected a whole number",
        ),
        (
            [op("f", "", "y")],
            plain("x"),
            "operation 'f' writes 'y', which is not defined; add the tensor",
        ),
        (
            [op("f", "", "w")],
            [W],
            "operation 'f' writes the static tensor 'w'; leave the write out",
        ),
        ([op("f", "", "x@-1")], plain("x"), "operation 'f' writes x@-1; versions start at 0"),
        (
            [op("f", "", "x"), op("g", "", "x")],
            plain("x"),
            "operation 'g' writes x, which 'f' writes too; "
            "an overwrite in place makes the next version, x@N",
        ),
        (
            [op("f", "", "x"), op("g", "", "x@1")],
            plain("x"),
            "operation 'g' overwrites 'x' in place; it must read x",
        ),
        (
            [op("f", "", "x"), op("g", "x", "x@2")],
            plain("x"),
            "operation 'g' overwrites 'x' in place; it must read x@1",
        ),
        (
            [op("f", "y")],
            plain("x"),
            "operation 'f' reads 'y', which is not defined; add the tensor",
        ),
        (
            [op("f", "x")],
            plain("x"),
            "operation 'f' reads x, which no operation writes; "
            "mark it static if it is a parameter or a batch input",
        ),
        (
            [op("f", "", "x"), op("g", "x@1")],
            plain("x"),
            "operation 'g' reads x@1, which no operation writes; "
            "mark it static if it is a parameter or a batch input",
        ),
        (
            [op("f", "x", "x")],
            plain("x"),
            "operation 'f' reads x and writes it; an in-place write makes version N+1",
        ),
    ],
)
def test_each_fault_is_named_with_its_remedy(operations, tensors, fault):
    assert faults_of(operations, tensors) == (fault,)


def test_all_faults_of_names_and_numbers_are_reported_together():
    faults = faults_of(
        [op("f", duration_ns=-1), op("f", workspace=2.5)],
        [Tensor("x", -1, True), Tensor.of("x", 4)],
    )
    assert len(faults) == 6
    assert faults[0].startswith("operation 'f' is defined 2 times")
    assert faults[1].startswith("tensor or alias 'x' is defined 2 times")
    assert {fault.split(" is ")[0] for fault in faults[2:]} == {
        "operation 'f': duration_ns",
        "operation 'f': workspace_bytes",
        "tensor 'x': size_bytes",
        "tensor 'x': transfer_bytes",
    }


def test_all_faults_of_values_are_reported_together():
    faults = faults_of(
        [op("f", "y", "x w"), op("g", "z", "x"), op("h", "", "x@2 v")],
        [*plain("x", "z"), W],
    )
    assert faults == (
        "operation 'f' writes the static tensor 'w'; leave the write out",
        "operation 'g' writes x, which 'f' writes too; "
        "an overwrite in place makes the next version, x@N",
        "operation 'h' overwrites 'x' in place; it must read x@1",
        "operation 'h' writes 'v', which is not defined; add the tensor",
        "operation 'f' reads 'y', which is not defined; add the tensor",
        "operation 'g' reads z, which no operation writes; "
        "mark it static if it is a parameter or a batch input",
    )


def test_an_input_error_is_a_value_error_and_prints_a_fault_a_line():
    with pytest.raises(ValueError, match="no operations") as caught:
        TrainingStep.build("step", [], [Tensor("x", -1, 4)])
    assert isinstance(caught.value, SlackSwapError)
    assert str(caught.value).splitlines() == list(caught.value.faults)
    assert len(caught.value.faults) == 2
    located = caught.value.at("net.json")
    assert all(line.startswith("net.json: ") for line in str(located).splitlines())
    assert located.faults == caught.value.faults


def test_a_cycle_is_printed():
    faults = faults_of(
        [op("a", "z", "x"), op("b", "x", "y"), op("c", "y", "z"), op("d", "x")],
        plain("x", "y", "z"),
    )
    assert len(faults) == 1
    ring = faults[0].removeprefix("the operations form a cycle: ")
    ring = ring.removesuffix("; remove one dependency").split(" -> ")
    assert ring[0] == ring[-1]
    assert sorted(ring[:-1]) == ["a", "b", "c"]
    assert set(pairwise(ring)) == {("a", "b"), ("b", "c"), ("c", "a")}


def test_a_read_of_both_versions_by_one_operation_is_a_cycle():
    faults = faults_of([op("a", "", "x"), op("b", "x", "x@1"), op("c", "x x@1")], plain("x"))
    assert "cycle" in faults[0]
    assert "b -> c" in faults[0] or "c -> b" in faults[0]


def test_limits_themselves_are_accepted():
    step = TrainingStep.build(
        "step", [op("f", "", "x", MAX_NS, MAX_BYTES)], [Tensor("x", MAX_BYTES, MAX_BYTES)]
    )
    assert ideal_step_ns(step) == MAX_NS
    assert liveness(step).ideal_peak_bytes == 2 * MAX_BYTES


def test_zeros_are_accepted():
    step = TrainingStep.build("step", [op("f", "", "x", 0, 0)], [Tensor("x", 0, 0)])
    assert ideal_step_ns(step) == 0
    assert liveness(step).ideal_peak_bytes == 0


# --- Order ------------------------------------------------------------------------------------


def test_a_valid_order_is_kept_even_if_not_the_canonical_one():
    operations = [op("late", "", "y"), op("a", "", "x"), op("b", "x"), op("c", "y")]
    step = TrainingStep.build("step", operations, plain("x", "y"))
    assert order_of(step) == ["late", "a", "b", "c"]


def test_otherwise_the_earliest_given_operation_that_is_ready_comes_next():
    operations = [op("d", "x y"), op("z", "", "y"), op("b", "x"), op("a", "", "x"), op("e")]
    step = TrainingStep.build("step", operations, plain("x", "y"))
    assert order_of(step) == ["z", "a", "d", "b", "e"]


def test_the_order_does_not_depend_on_the_order_of_tensors():
    operations = [op("d", "x y"), op("z", "", "y"), op("b", "x"), op("a", "", "x")]
    orders = {
        tuple(order_of(TrainingStep.build("step", operations, plain(*names))))
        for names in ("xy", "yx")
    }
    assert len(orders) == 1


def test_a_reader_comes_before_the_overwrite_that_ends_what_it_reads():
    operations = [op("a", "", "x"), op("w", "x", "x@1"), op("r", "x"), op("s", "x@1")]
    step = TrainingStep.build("step", operations, plain("x"))
    assert order_of(step) == ["a", "r", "w", "s"]
    assert step.graph.edges["r", "w"] == {"values": ()}


def test_tensors_are_in_order_of_first_write_and_static_and_unused_ones_last():
    step = TrainingStep.build(
        "step",
        [op("a", "w", "z"), op("b", "z", "x y"), op("c", "x y z", "x@1")],
        [W, *plain("unused", "y", "x", "z")],
    )
    assert [t.name for t in step.tensors] == ["z", "y", "x", "w", "unused"]


def test_name_and_notes_are_kept():
    step = TrainingStep.build("net", [op("a")], [], ["guessed the batch"])
    assert step.notes == ("guessed the batch",)
    assert repr(step) == "TrainingStep('net', 1 operations, 0 tensors)"


# --- Aliases ----------------------------------------------------------------------------------


def test_aliases_are_the_storage_itself():
    step = TrainingStep.build(
        "step",
        [op("a", "", "x"), op("b", "view x flat", "y"), op("c", "view y", "flat@1")],
        [Tensor("x", 8, 8, aliases=("view", "flat")), *plain("y")],
    )
    assert step.operations[1].reads == values("x")
    assert step.operations[2].reads == values("x y")
    assert step.operations[2].writes == values("x@1")
    assert liveness(step).memory_bytes.tolist() == [8, 12, 12]


def test_an_operation_keeps_everything_else_when_aliases_are_resolved():
    given_op = Operation(
        "b", Phase.OPTIMIZER, 7, values("view"), (), 3, "layer.1", recomputable=False, random=True
    )
    step = TrainingStep.build(
        "step", [op("a", "", "x"), given_op], [Tensor("x", 8, 2, aliases=("view",))]
    )
    expected = Operation(
        "b", Phase.OPTIMIZER, 7, values("x"), (), 3, "layer.1", recomputable=False, random=True
    )
    assert step.operations[1] == expected


def test_writing_one_storage_under_two_names_is_one_write():
    step = TrainingStep.build(
        "step", [op("a", "", "x view")], [Tensor("x", 8, 8, aliases=("view",))]
    )
    assert step.operations[0].writes == values("x")


# --- Graph and indices ------------------------------------------------------------------------


RESIDUAL = TrainingStep.build(
    "residual",
    [
        op("f0", "w", "x"),
        op("f1", "x", "y", workspace=5),
        op("f2", "x y", "y@1"),
        back("b2", "y@1", "gy gx"),
        back("b1", "gy x gx", "gx@1"),
        op("step", "gx@1 w", "", 3, 2, Phase.OPTIMIZER),
    ],
    [W, *plain("x", size=10), *plain("y", size=6), *plain("gy", size=3), *plain("gx", size=4)],
)


def test_the_graph_joins_writers_to_readers_with_their_values():
    graph = RESIDUAL.graph
    assert isinstance(graph, nx.DiGraph)
    assert nx.is_directed_acyclic_graph(graph)
    assert {(a, b): graph.edges[a, b]["values"] for a, b in graph.edges} == {
        ("f0", "f1"): values("x"),
        ("f0", "f2"): values("x"),
        ("f0", "b1"): values("x"),
        ("f1", "f2"): values("y"),
        ("f2", "b2"): values("y@1"),
        ("b2", "b1"): values("gy gx"),
        ("b1", "step"): values("gx@1"),
    }
    assert graph.nodes["f1"]["operation"] == RESIDUAL.operations[1]


def test_indices_speak_of_non_static_values():
    index = RESIDUAL.index
    names = [t.name for t in RESIDUAL.tensors]
    assert names == ["x", "y", "gy", "gx", "w"]
    assert (index.operations, index.tensors) == (6, 5)
    assert index.reads[0] == ()
    assert index.reads[2] == ((0, 0), (1, 0))
    assert index.writes[2] == ((1, 1),)
    assert index.writers == ((0,), (1, 2), (3,), (3, 4), ())
    assert index.readers == ((1, 2, 4), (2, 3), (4,), (4, 5), ())
    assert index.static.tolist() == [False] * 4 + [True]
    assert index.forward.tolist() == [True] * 3 + [False] * 3
    assert index.recomputable.all()
    assert RESIDUAL.index is index


def test_values_print_as_they_are_written():
    assert [str(v) for v in values("x x@2")] == ["x", "x@2"]
    assert RESIDUAL.operations[2].in_place
    assert not RESIDUAL.operations[1].in_place


# --- Lifetimes and memory ---------------------------------------------------------------------


def test_lifetimes_by_hand():
    lives = liveness(RESIDUAL)
    # x, y, gy, gx, w
    assert lives.first_write.tolist() == [0, 1, 3, 3, -1]
    assert lives.last_write.tolist() == [0, 2, 3, 4, -1]
    assert lives.last_forward.tolist() == [2, 2, -1, -1, -1]
    assert lives.first_later.tolist() == [4, 3, 4, 4, -1]
    assert lives.last_access.tolist() == [4, 3, 4, 5, -1]
    assert lives.activation.tolist() == [True, True, False, False, False]
    assert lives.saved.tolist() == [True, True, False, False, False]


def test_ideal_memory_by_hand():
    lives = liveness(RESIDUAL)
    # x | x y +5 | x y | x y gy gx | x gy gx | gx +2
    assert lives.memory_bytes.tolist() == [10, 21, 16, 23, 17, 6]
    assert lives.ideal_peak_bytes == 23
    assert lives.peak_operation == 3
    assert ideal_step_ns(RESIDUAL) == 8


def test_working_sets_by_hand():
    # f2 overwrites y, which it reads: counted once.
    assert working_set_bytes(RESIDUAL).tolist() == [10, 21, 16, 13, 17, 6]


def test_an_activation_that_only_forward_operations_read_is_not_saved():
    step = TrainingStep.build(
        "step", [op("a", "", "x"), op("b", "x", "y"), back("c", "y")], plain("x", "y")
    )
    lives = liveness(step)
    assert lives.activation.tolist() == [True, True]
    assert lives.saved.tolist() == [False, True]


def test_an_activation_that_only_the_optimizer_reads_is_saved():
    step = TrainingStep.build(
        "step", [op("a", "", "x"), op("o", "x", phase=Phase.OPTIMIZER)], plain("x")
    )
    assert liveness(step).saved.tolist() == [True]


def test_a_tensor_that_nobody_reads_lives_while_it_is_written():
    step = TrainingStep.build("step", [op("a", "", "x"), op("b", "", "y")], plain("x", "y"))
    assert liveness(step).memory_bytes.tolist() == [4, 4]
    assert liveness(step).last_access.tolist() == [0, 1]


def test_static_bytes_count_nowhere():
    step = TrainingStep.build("step", [op("a", "w", "x")], [W, *plain("x")])
    assert liveness(step).memory_bytes.tolist() == [4]
    assert working_set_bytes(step).tolist() == [4]


def test_disconnected_parts_share_one_order_and_one_memory():
    step = TrainingStep.build(
        "step",
        [op("a", "", "x"), op("p", "", "u"), op("b", "x", "y"), op("q", "u"), op("c", "y")],
        [*plain("x", size=1), *plain("y", size=2), *plain("u", size=4)],
    )
    assert nx.number_weakly_connected_components(step.graph) == 2
    assert order_of(step) == ["a", "p", "b", "q", "c"]
    assert liveness(step).memory_bytes.tolist() == [1, 5, 7, 6, 2]


# --- Laws -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(training_steps())
def test_random_steps_obey_the_laws(step: TrainingStep):
    position = {name: at for at, name in enumerate(order_of(step))}
    assert all(position[a] < position[b] for a, b in step.graph.edges)
    again = TrainingStep.build(step.name, step.operations, step.tensors)
    assert again == step, "building what was built changes nothing"
    lives, needed = liveness(step), working_set_bytes(step)
    assert (needed <= lives.memory_bytes).all()
    assert ((lives.first_write <= lives.last_write) & (lives.last_write <= lives.last_access)).all()
    assert (lives.activation | ~lives.saved).all()


@settings(deadline=None, max_examples=150)
@given(training_steps())
def test_a_reversed_step_is_put_back_into_a_valid_order(step: TrainingStep):
    turned = TrainingStep.build("turned", step.operations[::-1], step.tensors)
    position = {name: at for at, name in enumerate(order_of(turned))}
    assert all(position[a] < position[b] for a, b in step.graph.edges)
    assert set(turned.operations) == set(step.operations)


def test_an_update_of_static_memory_is_one_fault():
    faults = faults_of([op("f", "w", "x"), op("sgd", "w", "w")], [*plain("x"), W])
    assert faults == ("operation 'sgd' writes the static tensor 'w'; leave the write out",)
