"""Large tensors in parts along the batch: what is cut, exact sums, orders, files, commands."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.parts import faults, measure, overheads_table, sizes_table
from slackswap_opt.cli.app import app
from slackswap_opt.errors import InputError, ScheduleError
from slackswap_opt.formats import graphml, native, native_yaml, node_link, write_step
from slackswap_opt.machine import load_machine
from slackswap_opt.machine.model import Host, Machine
from slackswap_opt.plan import Copy, Problem, Schedule
from slackswap_opt.planners import HEURISTICS
from slackswap_opt.resources import models_dir
from slackswap_opt.simulator import simulate
from slackswap_opt.step import (
    Operation,
    Phase,
    Tensor,
    TrainingStep,
    Value,
    ideal_step_ns,
    in_parts,
    liveness,
    working_set_bytes,
)
from slackswap_opt.study import chains_of, lower_limit, spec_of
from slackswap_opt.study.chain import open_chain
from slackswap_opt.workloads import build_step, load_workload
from tests.strategies import OFTEN, Lowering, machines, training_steps

A100 = load_machine("a100-80gb-pcie4")
ALL = 10**9
"""Memory enough for every random step."""


@st.composite
def sampled_steps(draw: st.DrawFn) -> TrainingStep:
    """A random step that knows samples of most tensors, and operations that work per sample."""
    step = draw(training_steps(max_activations=7))
    count = draw(st.integers(2, 5))
    samples = {t.name: count * draw(OFTEN) for t in step.tensors if not t.static}
    return TrainingStep.build(
        step.name,
        [
            replace(op, per_sample=all(samples[v.tensor] for v in op.writes) and draw(OFTEN))
            for op in step.operations
        ],
        [replace(t, samples=samples.get(t.name, 0)) for t in step.tensors],
    )


def cut(step: TrainingStep, *arguments: int, interleave: bool = True) -> TrainingStep:
    """`in_parts`, of steps of which something may be."""
    assume(any(t.samples > 1 and t.size_bytes >= max(1, arguments[1]) for t in step.tensors))
    return in_parts(step, *arguments, interleave=interleave)


def whole_name(name: str) -> str:
    return name.partition("#")[0]


def totals(step: TrainingStep) -> dict[str, tuple[int, ...]]:
    """By whole operation and tensor, the sums over its parts."""
    found: dict[str, tuple[int, ...]] = defaultdict(lambda: (0, 0))
    for op in step.operations:
        before, name = found[whole_name(op.name)], whole_name(op.name)
        found[name] = (before[0] + op.duration_ns, before[1] + op.workspace_bytes)
    for tensor in step.tensors:
        name = "tensor " + whole_name(tensor.name)
        before = found[name]
        found[name] = (before[0] + tensor.size_bytes, before[1] + tensor.transfer_bytes)
    return dict(found)


SIZES = st.sampled_from((0, 1, 5, 9))
PARTS = st.integers(2, 6)


# --- Laws on random steps ---------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(sampled_steps(), PARTS, SIZES, st.booleans())
def test_parts_sum_up_to_the_whole(step, parts, least, interleave):
    made = cut(step, parts, least, interleave=interleave)
    assert totals(made) == totals(step)
    assert ideal_step_ns(made) == ideal_step_ns(step)


@settings(deadline=None, max_examples=40)
@given(sampled_steps(), PARTS, SIZES, st.booleans())
def test_the_ideal_peak_and_working_sets_never_grow(step, parts, least, interleave):
    made = cut(step, parts, least, interleave=interleave)
    assert liveness(made).ideal_peak_bytes <= liveness(step).ideal_peak_bytes
    assert working_set_bytes(made).max() <= working_set_bytes(step).max()


@settings(deadline=None, max_examples=40)
@given(sampled_steps(), PARTS, SIZES, st.integers(1, 9))
def test_each_further_part_costs_one_launch(step, parts, least, launch_ns):
    made = cut(step, parts, least, launch_ns)
    timed = {op.name for op in step.operations if op.duration_ns}
    further = sum(
        whole_name(op.name) in timed and "#" in op.name and "#1/" not in op.name
        for op in made.operations
    )
    assert ideal_step_ns(made) == ideal_step_ns(step) + further * launch_ns


@settings(deadline=None, max_examples=40)
@given(sampled_steps(), PARTS, SIZES, st.booleans())
def test_only_what_the_step_says_is_cut(step, parts, least, interleave):
    made = cut(step, parts, least, interleave=interleave)
    operations = {op.name: op for op in step.operations}
    tensors = {t.name: t for t in step.tensors}
    for op in made.operations:
        if "#" in op.name:
            assert operations[whole_name(op.name)].per_sample
            own = op.name.partition("#")[2]
            assert {v.tensor.partition("#")[2] for v in op.writes} <= {own}
            assert {v.tensor.partition("#")[2] for v in op.reads} <= {own, ""}
        else:
            assert len({whole_name(v.tensor) for v in op.reads}) == len(
                {v.tensor for v in operations[op.name].reads}
            )
    for tensor in made.tensors:
        if "#" in tensor.name:
            before = tensors[whole_name(tensor.name)]
            assert before.samples > 1
            assert not before.static
        else:
            assert tensor == tensors[tensor.name]


@settings(deadline=None, max_examples=40)
@given(sampled_steps(), PARTS, SIZES)
def test_flows_are_those_of_the_step(step, parts, least):
    """Put together again, the parts read and write what the operations did, in their order."""
    made = cut(step, parts, least, interleave=False)
    together: dict[str, tuple[list[Value], list[Value]]] = {}
    for op in made.operations:
        reads, writes = together.setdefault(whole_name(op.name), ([], []))
        reads += [Value(whole_name(v.tensor), v.version) for v in op.reads]
        writes += [Value(whole_name(v.tensor), v.version) for v in op.writes]
    assert list(together) == [op.name for op in step.operations]
    for op in step.operations:
        reads, writes = together[op.name]
        assert tuple(dict.fromkeys(reads)) == op.reads
        assert tuple(dict.fromkeys(writes)) == op.writes


def schedule_in_parts(step: TrainingStep, made: TrainingStep, schedule: Schedule) -> Schedule:
    """Each event, free and copy in its parts, in a row."""
    operations, tensors = defaultdict(list), defaultdict(list)
    for position, op in enumerate(made.operations):
        operations[whole_name(op.name)].append(position)
    for position, tensor in enumerate(made.tensors):
        tensors[whole_name(tensor.name)].append(position)
    of_op = [operations[op.name] for op in step.operations]
    of_tensor = [tensors[t.name] for t in step.tensors]
    compute: list[int] = []
    frees: list[tuple[int, ...]] = []
    last = {-1: -1}
    for event, op in enumerate(schedule.compute):
        compute += of_op[op]
        frees += [()] * (len(of_op[op]) - 1)
        frees.append(tuple(part for t in schedule.frees[event] for part in of_tensor[t]))
        last[event] = len(compute) - 1

    def copies(queue: Sequence[Copy]) -> tuple[Copy, ...]:
        return tuple(Copy(part, last[c.after]) for c in queue for part in of_tensor[c.tensor])

    return Schedule(
        tuple(compute), tuple(frees), copies(schedule.copies_out), copies(schedule.copies_in)
    )


def without_limits(machine: Machine) -> Machine:
    """No latency, which parts would pay one by one, and no limit of the host."""
    return replace(machine, link=replace(machine.link, latency_ns=0), host=Host(None, False))


@settings(deadline=None, max_examples=60)
@given(sampled_steps(), PARTS, SIZES, machines(), st.data())
def test_any_schedule_of_the_step_is_one_of_the_step_in_parts(step, parts, least, machine, data):
    made = cut(step, parts, least, interleave=False)
    schedule = Lowering(data.draw, step).program()
    machine = without_limits(machine)
    try:
        before = simulate(step, machine, schedule, ALL)
    except ScheduleError:
        assume(False)
    after = simulate(made, machine, schedule_in_parts(step, made, schedule), ALL)
    assert after.fits
    if not schedule.copies_out:
        assert after.step_ns == before.step_ns
        assert after.peak_bytes <= before.peak_bytes


# --- What is cut ------------------------------------------------------------------------------


def values(*names: str) -> tuple[Value, ...]:
    return tuple(Value(name.partition("@")[0], int(name.partition("@")[2] or 0)) for name in names)


def operation(name: str, reads: str, writes: str, *, alone: bool = True, ns: int = 10) -> Operation:
    phase = Phase.BACKWARD if name.startswith("b") else Phase.FORWARD
    return Operation(
        name, phase, ns, values(*reads.split()), values(*writes.split()), per_sample=alone
    )


def sampled(**sizes: int) -> list[Tensor]:
    return [Tensor.of(name, size, samples=4) for name, size in sizes.items()]


def order(step: TrainingStep) -> list[str]:
    return [op.name for op in step.operations]


def loss_step() -> TrainingStep:
    """Features, logits and a loss over them, as a language model ends."""
    return TrainingStep.build(
        "loss",
        [
            operation("features", "batch", "x"),
            operation("logits", "x w", "y"),
            operation("loss", "y", "l", alone=False),
            operation("b.loss", "y l", "dy"),
            operation("b.softmax", "dy y", "dz"),
            operation("b.logits", "dz x w", "dx", alone=False),
        ],
        [
            *sampled(x=8, y=100, dy=100, dz=100, dx=8),
            Tensor.of("l", 4),
            Tensor.of("w", 50, static=True),
            Tensor.of("batch", 8, static=True, samples=4),
        ],
    )


def test_per_sample_operations_run_in_parts_and_others_read_all_of_them():
    made = in_parts(loss_step(), 2, 50, interleave=False)
    by_name = {op.name: op for op in made.operations}
    assert by_name["logits#2/2"].reads == values("x", "w")
    assert by_name["logits#2/2"].writes == values("y#2/2")
    assert by_name["loss"].reads == values("y#1/2", "y#2/2")
    assert by_name["b.loss#1/2"].reads == values("y#1/2", "l")
    assert by_name["b.logits"].reads == values("dz#1/2", "dz#2/2", "x", "w")
    assert "features" in by_name
    assert {t.name: t.size_bytes for t in made.tensors if t.name.startswith("dy")} == {
        "dy#1/2": 50,
        "dy#2/2": 50,
    }


def test_neighbours_run_part_by_part_where_that_needs_less_memory():
    made = in_parts(loss_step(), 2, 50)
    assert order(made) == [
        "features", "logits#1/2", "logits#2/2", "loss",
        "b.loss#1/2", "b.softmax#1/2", "b.loss#2/2", "b.softmax#2/2", "b.logits",
    ]  # fmt: skip
    whole, row = loss_step(), in_parts(loss_step(), 2, 50, interleave=False)
    peaks = [liveness(step).ideal_peak_bytes for step in (whole, row, made)]
    assert peaks == [308, 258, 212]


def test_forward_and_backward_never_mix():
    flow = [("f", "", "x"), ("g", "x", "y"), ("b.g", "y", "dy"), ("b.f", "dy", "dx")]
    step = TrainingStep.build(
        "ends", [operation(*names) for names in flow], sampled(x=100, y=8, dy=100, dx=8)
    )
    assert order(in_parts(step, 2, 50)) == [
        "f#1/2", "g#1/2", "f#2/2", "g#2/2", "b.g#1/2", "b.f#1/2", "b.g#2/2", "b.f#2/2",
    ]  # fmt: skip


def test_static_tensors_do_not_decide_the_order():
    flow = [("f", "w", "x"), ("g", "x", "y"), ("h", "y", "z")]
    step = TrainingStep.build(
        "static",
        [operation(*names) for names in flow],
        [*sampled(x=8, y=100, z=8), Tensor.of("w", 10**6, static=True)],
    )
    assert order(in_parts(step, 2, 8)) == ["f#1/2", "g#1/2", "h#1/2", "f#2/2", "g#2/2", "h#2/2"]


def test_small_outputs_of_cut_operations_are_cut_with_them():
    step = TrainingStep.build(
        "norm",
        [operation("norm", "", "x mean"), operation("b", "mean", "m"), operation("c", "x", "s")],
        sampled(x=100, mean=4, m=4, s=4),
    )
    made = in_parts(step, 4, 50, interleave=False)
    assert [op.writes for op in made.operations[:2]] == [
        values("x#1/4", "mean#1/4"),
        values("x#2/4", "mean#2/4"),
    ]
    (small,) = [op for op in made.operations if op.name == "b"]
    assert small.reads == values(*(f"mean#{n}/4" for n in range(1, 5)))
    # What reads a large tensor is cut even if it writes little, so that parts can go.
    assert [name for name in order(made) if name.startswith("c")] == [
        f"c#{n}/4" for n in (1, 2, 3, 4)
    ]


def test_in_place_writes_make_versions_of_parts():
    step = TrainingStep.build(
        "chain",
        [
            operation("f", "", "x"),
            operation("relu", "x", "x@1"),
            operation("clip", "x@1", "x@2", alone=False),
            operation("end", "x@2", "y"),
        ],
        sampled(x=100, y=8),
    )
    made = {op.name: op for op in in_parts(step, 2, interleave=False).operations}
    assert made["relu#1/2"].writes == values("x#1/2@1")
    assert made["clip"].reads == values("x#1/2@1", "x#2/2@1")
    assert made["clip"].writes == values("x#1/2@2", "x#2/2@2")
    assert made["end#2/2"].reads == values("x#2/2@2")


def test_parts_have_aliases_of_their_own():
    step = TrainingStep.build(
        "views",
        [operation("f", "", "x"), operation("g", "view", "y", alone=False)],
        [Tensor("x", 100, 60, aliases=("view",), samples=2), Tensor.of("y", 1)],
    )
    made = in_parts(step, 2)
    assert made.tensors[:2] == (
        Tensor("x#1/2", 50, 30, aliases=("view#1/2",)),
        Tensor("x#2/2", 50, 30, aliases=("view#2/2",)),
    )
    assert made.operations[-1].reads == values("x#1/2", "x#2/2")


@pytest.mark.parametrize(
    ("samples", "parts", "sizes"),
    [(4, 2, [6, 6]), (4, 3, [3, 3, 6]), (3, 8, [4, 4, 4]), (5, 2, [4, 8]), (12, 12, [1] * 12)],
)
def test_parts_are_whole_samples(samples, parts, sizes):
    step = TrainingStep.build(
        "one", [operation("f", "", "x", ns=120)], [Tensor.of("x", 12, samples=samples)]
    )
    made = in_parts(step, parts, launch_ns=1)
    assert [t.size_bytes for t in made.tensors] == sizes
    assert [op.duration_ns - (n > 0) for n, op in enumerate(made.operations)] == [
        pytest.approx(10 * size, abs=10 * 12 / samples) for size in sizes
    ]


def test_names_that_look_like_parts_stay_unique():
    step = TrainingStep.build(
        "names",
        [operation("f", "", "x"), operation("f#1/2", "x", "x#1/2")],
        sampled(**{"x": 8, "x#1/2": 8}),
    )
    made = in_parts(step, 2, interleave=False)
    assert order(made) == ["f##1/2", "f##2/2", "f#1/2##1/2", "f#1/2##2/2"]


def test_parts_are_not_divided_again():
    made = in_parts(loss_step(), 2, 50)
    assert not any(t.samples for t in made.tensors if "#" in t.name)
    with pytest.raises(InputError, match="at least 50 bytes"):
        in_parts(made, 2, 50)
    again = in_parts(made, 2, 8)  # what was whole still may
    assert "x##1/2" in {t.name for t in again.tensors}


def test_the_step_says_in_a_note_what_was_done():
    note = in_parts(loss_step(), 2, 50, 3).notes[-1]
    assert note == (
        "In parts along the batch, at most 2: 3 tensors, and 3 operations run part by part; each "
        "further part adds 3 ns."
    )


# --- Errors -----------------------------------------------------------------------------------


def test_nothing_to_cut_is_refused_with_the_reason():
    step = loss_step()
    with pytest.raises(InputError, match="largest that may is 'y' with 100 bytes"):
        in_parts(step, 2, 101)
    single = TrainingStep.build(
        "one", step.operations, [replace(t, samples=min(t.samples, 1)) for t in step.tensors]
    )
    with pytest.raises(InputError, match="the batch has one sample"):
        in_parts(single, 2)
    unknown = TrainingStep.build(
        "one",
        [replace(op, per_sample=False) for op in step.operations],
        [replace(t, samples=0) for t in step.tensors],
    )
    with pytest.raises(InputError, match="does not say which have samples"):
        in_parts(unknown, 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1,), "parts is 1"),
        ((True,), "parts is True"),
        ((2, -1), "min_bytes"),
        ((2, 0, -1), "launch_ns"),
    ],
)
def test_numbers_out_of_range(arguments, expected):
    with pytest.raises(InputError, match=expected):
        in_parts(loss_step(), *arguments)


def test_a_per_sample_operation_writes_tensors_with_samples():
    with pytest.raises(InputError, match="'f' works per sample, but 'x', which it writes, has no"):
        TrainingStep.build("s", [operation("f", "", "x")], [Tensor.of("x", 1)])


def test_a_per_sample_operation_knows_one_number_of_samples():
    tensors = [Tensor.of("x", 8, samples=8), Tensor.of("y", 8, samples=4)]
    steps = [operation("f", "", "x", alone=False), operation("g", "x", "y")]
    with pytest.raises(InputError, match="8 in 'x', 4 in 'y'"):
        TrainingStep.build("s", steps, tensors)


# --- Files ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(sampled_steps())
def test_every_format_that_holds_steps_holds_samples(step):
    assert native.loads(native.dumps(step)) == step
    assert native_yaml.read(native_yaml.dumps(step).encode(), "") == step
    assert graphml.read(graphml.dumps(step).encode(), "") == step
    assert node_link.read(node_link.dumps(step).encode(), "") == step
    assert TrainingStep.from_networkx(step.to_networkx()) == step


def test_files_by_hand():
    document = {
        "schema": "slackswap.step/1", "name": "hand",
        "tensors": {"x": {"size_bytes": 8, "samples": 4}},
        "operations": [
            {"name": "f", "phase": "forward", "duration_ns": 1, "writes": ["x"], "per_sample": True}
        ],
    }  # fmt: skip
    step = native.loads(json.dumps(document))
    assert step.tensors[0].samples == 4
    assert step.operations[0].per_sample
    document["tensors"]["x"]["samples"] = "four"  # type: ignore[index]
    with pytest.raises(InputError, match='tensor "x": samples is "four", expected a whole number'):
        native.loads(json.dumps(document))


# --- Workloads --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "bert-large", "bert-large-eager"])
def test_workloads_say_what_has_samples(name):
    workload = load_workload(name, layers=1, batch=6)
    step = build_step(workload, A100)
    without = {t.name for t in step.tensors if not t.samples}
    assert {t.name for t in step.tensors if t.static} <= without
    assert {name for name in without if not name.startswith(("batch.", "head.loss"))} == {
        t.name for t in step.tensors if t.static and not t.name.startswith("batch.")
    }
    assert {t.samples for t in step.tensors} == {0, 6}
    whole = {op.name for op in step.operations if not op.per_sample}
    assert {"layer.0.fc2.backward", "layer.0.norm2.weight.backward"} & whole
    assert "layer.0.fc2" not in whole
    assert "layer.0.attn.backward" not in whole
    assert {op.name for op in step.operations if op.phase is Phase.OPTIMIZER} <= whole
    assert any(name.startswith("head.loss.") and "backward" not in name for name in whole)


def test_collectives_and_their_gradients_stay_whole():
    step = build_step(load_workload("llama3-70b", layers=1), A100)
    collectives = [op for op in step.operations if "all_reduce" in op.name]
    assert collectives
    assert not any(op.per_sample for op in collectives)


def test_logits_in_parts_need_much_less_memory():
    step = build_step(load_workload("gpt2-xl", layers=2), A100)
    made = in_parts(step, 4, 2**28)
    assert {whole_name(t.name) for t in made.tensors if "#" in t.name} == {
        "head.logits.out", "head.logits.float", "head.log_probabilities",
        "head.log_probabilities.grad.nll", "head.logits.float.grad.log_softmax",
        "head.logits.out.grad.cast",
    }  # fmt: skip
    assert lower_limit(step).operation == "head.log_softmax.backward"
    assert 3 * lower_limit(made).budget_bytes < lower_limit(step).budget_bytes + 2**20
    assert liveness(made).ideal_peak_bytes < 0.7 * liveness(step).ideal_peak_bytes
    budget = lower_limit(step).budget_bytes // 2
    problem = Problem(made, A100, budget)
    found = [HEURISTICS[name](problem).schedule for name in ("greedy", "swap-all")]
    plays = [simulate(made, A100, schedule, budget) for schedule in found if schedule]
    assert plays
    assert all(verdict.fits for verdict in plays)


# --- Commands ---------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path) -> str:
    at = tmp_path / "loss.json"
    write_step(loss_step(), at)
    return str(at)


def slackswap(*arguments: str, expected: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == expected, result.output
    return result.output


def test_percent_is_of_the_step_as_given(path):
    asked = ("bound", path, "-b", "100%", "--json")
    whole = json.loads(slackswap(*asked))
    parts = json.loads(slackswap(*asked, "--parts", "2", "--parts-above", "50"))
    assert whole["budget_bytes"] == parts["budget_bytes"] == 308
    assert (whole["ideal_peak_bytes"], parts["ideal_peak_bytes"]) == (308, 212)


def test_compare_and_sweep_take_parts(path):
    asked = (path, "-b", "80%", "-p", "greedy", "--json")
    cut_here = ("--parts", "2", "--parts-above", "50")
    for command, code in (("compare", 3), ("sweep", 0)):
        (whole,) = json.loads(slackswap(command, *asked, expected=code))["rows"]
        (parts,) = json.loads(slackswap(command, *asked, *cut_here))["rows"]
        assert whole["status"] == "infeasible"  # 300 bytes at once
        assert parts["step_s"] == parts["ideal_step_s"]


def test_a_plan_file_holds_the_step_in_parts(path, tmp_path):
    plan = tmp_path / "plan.json"
    slackswap(
        "plan", path, "-p", "greedy", "-b", "80%", "--parts", "2", "--parts-above", "50", "-o",
        str(plan),
    )  # fmt: skip
    assert "valid, fits" in slackswap("simulate", str(plan))
    assert "dy#2/2" in plan.read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--parts", "1"), "--parts is 1; give 2 or more"),
        (("--parts-above", "50"), "--parts-above needs --parts"),
        (("--parts", "2", "--parts-above", "5%"), "--parts-above '5%' is not understood"),
        (("--parts", "2", "--parts-above", "many"), "--parts-above 'many' is not understood"),
        (("--parts", "2"), "the largest that may is 'y' with 100 bytes"),
    ],
)
@pytest.mark.parametrize("command", ["bound", "plan", "compare", "sweep"])
def test_wrong_options_are_one_message(command, options, expected, path):
    output = slackswap(command, path, *options, expected=2)
    assert expected in output
    assert "Traceback" not in output


def test_steps_that_do_not_know_samples_are_refused():
    output = slackswap("bound", "tiny-mlp", "--parts", "2", expected=2)
    assert "the step does not say which have samples" in output


def test_a_sweep_keeps_parts_in_its_specification(path, tmp_path):
    out = tmp_path / "rows.json"
    slackswap(
        "sweep", path, "-b", "80%", "-p", "greedy", "--parts", "2", "--parts-above", "50", "-o",
        str(out),
    )  # fmt: skip
    (row,) = json.loads(out.read_text())["rows"]
    assert row["budget_bytes"] == int(0.8 * 308)
    assert row["ideal_peak_bytes"] == 212


def test_parts_are_a_part_of_what_a_chain_is(path):
    fields = {"workloads": [path], "budgets": ["80%"], "planners": ["greedy"]}
    (whole,) = chains_of(spec_of(fields))
    (parts,) = chains_of(spec_of(fields | {"parts": 2, "parts_above": "50"}))
    assert whole.key != parts.key
    assert open_chain(whole).budget_bytes == open_chain(parts).budget_bytes
    for wrong, expected in (
        ({"parts": 1}, "parts"),
        ({"parts_above": "1GiB"}, "parts_above: needs parts"),
        ({"parts": 2, "parts_above": "9%"}, "not understood"),
    ):
        with pytest.raises(InputError, match=expected):
            spec_of(fields | wrong)


def test_the_benchmark_compares_equal_budgets(tmp_path):
    text = (models_dir() / "gpt2-xl.toml").read_text()
    small = tmp_path / "small.toml"
    small.write_text(text.replace("layers = 48", "layers = 1"))
    cases = measure(str(small), [4], 2**28, [80.0, 40.0], ["greedy"], 1.0, A100)
    assert not list(faults(cases))
    whole, parts = cases
    assert [a.budget_bytes for a in whole.answers] == [a.budget_bytes for a in parts.answers]
    assert parts.found_bytes is not None
    assert whole.found_bytes is not None
    assert parts.found_bytes < whole.found_bytes / 2
    assert "| 40 % |" in overheads_table(cases)
    assert "| whole |" in sizes_table(cases)
    worse = replace(parts, ideal_peak_bytes=2**50, ideal_step_ns=0)
    assert len(list(faults([whole, worse]))) == 2


def test_the_page_has_room_for_the_tables():
    page = (Path(__file__).parents[1] / "docs" / "parts.md").read_text()
    assert page.count("<!-- sizes -->") == page.count("<!-- /overheads -->") == 1
