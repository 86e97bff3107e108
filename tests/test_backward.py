"""Forward-only steps are completed: who reads what again, where gradients live, the time."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt import Problem, greedy, load_machine, simulate
from slackswap_opt.errors import InputError
from slackswap_opt.step import (
    LayerRule,
    Operation,
    Phase,
    Tensor,
    TrainingStep,
    Value,
    ideal_step_ns,
    liveness,
)
from tests.hand import flows, values


def step(*operations: Operation, **sizes: int) -> TrainingStep:
    """Operations, and tensors of 100 bytes unless a size is given; names with `w` are static."""
    names = {v.tensor for op in operations for v in (*op.reads, *op.writes)}
    tensors = [Tensor.of(n, sizes.get(n, 100), static=n.startswith("w")) for n in sorted(names)]
    return TrainingStep.build("forward", operations, tensors)


def op(name: str, reads: str, writes: str, ns: int = 10) -> Operation:
    """`op("f", "a x@1", "b")`."""
    return Operation(name, Phase.FORWARD, ns, values(reads), values(writes))


def program(done: TrainingStep) -> list[str]:
    """The backward operations as `name ns: reads -> writes`, static tensors left out."""
    return [
        f"{op.name} {op.duration_ns}: {flow}"
        for op, flow in flows(done)
        if op.phase is not Phase.FORWARD
    ]


CHAIN = step(op("f", "w1", "a"), op("g", "a w2", "b", 30), a=7)


def test_without_rules_inputs_and_outputs_are_read_and_twice_the_time_is_taken() -> None:
    done = CHAIN.with_backward()
    assert program(done) == [
        "loss 0: b -> b.grad",
        "g.backward 60: b.grad a b -> a.grad",
        "f.backward 20: a.grad a ->",
    ]
    assert {t.name: t.size_bytes for t in done.tensors}["a.grad"] == 7
    assert done.operations[:2] == CHAIN.operations
    assert "2 times its forward time" in done.notes[0]
    assert done.notes[1].startswith("2 of 2 operations have no rule")


def test_backward_operations_read_the_parameters() -> None:
    done = CHAIN.with_backward()
    assert Value("w2") in next(o for o in done.operations if o.name == "g.backward").reads


def test_rules_by_type_by_object_and_by_function() -> None:
    linear = [
        "loss 0: b -> b.grad",
        "g.backward 60: b.grad a -> a.grad",
        "f.backward 20: a.grad ->",
    ]
    assert program(CHAIN.with_backward(rules={"f": "Linear", "g": "Conv2d"})) == linear
    rule = LayerRule(saves_input=True)
    assert program(CHAIN.with_backward(rules=lambda _: rule)) == linear
    assert program(CHAIN.with_backward(rules=lambda _: "linear")) == linear
    some = CHAIN.with_backward(rules=lambda o: None if o.name == "f" else LayerRule(ratio=0.5))
    assert program(some)[1:] == ["g.backward 15: b.grad -> a.grad", "f.backward 20: a.grad a ->"]
    assert some.notes[1].startswith("1 of 2")


def test_rules_come_from_an_attribute_of_a_graph() -> None:
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_node("conv", duration_us=3, size_bytes=8, parameter_bytes=4)
    graph.add_node("relu", duration_us=1, size_bytes=8)
    graph.add_edge("conv", "relu")
    kinds = {"conv": "Conv2d", "relu": "ReLU"}
    done = TrainingStep.from_networkx(graph).with_backward(rules=kinds)
    assert program(done) == [
        "loss 0: relu -> relu.grad",
        "relu.backward 2000: relu.grad relu -> conv.grad",
        "conv.backward 6000: conv.grad ->",
    ]


@pytest.mark.parametrize(("ratio", "ns"), [(0, 0), (1.0, 10), (2.5, 25), (0.05, 0), (0.15, 2)])
def test_durations_are_rounded_once_to_the_nearest(ratio: float, ns: int) -> None:
    done = step(op("f", "w", "a"), op("g", "a", "b")).with_backward(ratio)
    (backward,) = [o for o in done.operations if o.name == "g.backward"]
    assert backward.duration_ns == ns


def test_a_sum_passes_its_gradient_on_to_both_inputs() -> None:
    forward = step(op("f", "w", "a"), op("g", "a", "b"), op("sum", "a b", "c"))
    done = forward.with_backward(rules={"sum": "add", "g": "linear", "f": "linear"})
    assert program(done) == [
        "loss 0: c -> c.grad",
        # c.grad is the gradient of a and of b; g reads it as b's, so the sum for a is new
        "g.backward 20: c.grad a -> a.grad",
        "f.backward 20: a.grad ->",
    ]


def test_two_readers_add_to_a_gradient_in_place() -> None:
    forward = step(op("f", "w", "a"), op("g", "a", "b"), op("h", "a", "c"))
    done = forward.with_backward(rules=lambda _: "linear")
    assert program(done) == [
        "loss 0: b c -> b.grad c.grad",
        "h.backward 20: c.grad a -> a.grad",
        "g.backward 20: b.grad a a.grad -> a.grad@1",
        "f.backward 20: a.grad@1 ->",
    ]


def test_what_overwrites_its_input_reads_its_output_instead() -> None:
    forward = step(op("f", "w", "a"), op("relu", "a", "a@1"), op("g", "a@1", "b"))
    done = forward.with_backward(rules={"f": "linear", "relu": "gelu", "g": "linear"})
    assert program(done)[1:] == [
        "g.backward 20: b.grad a@1 -> a@1.grad",
        "relu.backward 20: a@1.grad a@1 -> a.grad",
        "f.backward 20: a.grad ->",
    ]
    cautious = forward.with_backward()
    assert "f.backward 20: a.grad a@1 ->" in program(cautious)


def test_a_rule_that_saves_what_is_overwritten_is_refused() -> None:
    forward = step(op("f", "w", "a"), op("relu", "a", "a@1"))
    with pytest.raises(InputError, match=r"'f' reads a, which is overwritten in place") as error:
        forward.with_backward(rules={"f": "sigmoid"})
    assert "a rule that does not save it" in str(error.value)


def test_what_is_not_differentiable_has_no_backward_and_no_gradient() -> None:
    forward = step(op("f", "w", "a"), op("size", "a", "n"), op("g", "a n", "b"))
    done = forward.with_backward(rules={"size": "size", "g": "linear"})
    assert program(done) == [
        "loss 0: b -> b.grad",
        "g.backward 20: b.grad a n -> a.grad",
        "f.backward 20: a.grad a ->",
    ]


def test_several_ends_and_parts_share_one_loss() -> None:
    forward = step(op("f", "w", "a"), op("g", "w", "b"), op("h", "a", "c"))
    assert program(forward.with_backward())[0] == "loss 0: b c -> b.grad c.grad"


def test_faults_are_reported_together() -> None:
    with pytest.raises(InputError) as error:
        CHAIN.with_backward(float("nan"), {"h": "linear", "g": LayerRule(ratio=-1)})
    assert error.value.faults == (
        "ratio is nan, expected a number of 0 or more, such as 2.0",
        "a rule is given for 'h', which is no operation; check the name",
        "the rule of operation 'g': ratio is -1, expected a number of 0 or more, such as 2.0",
    )
    with pytest.raises(InputError, match="are not in the forward phase, 'loss' for one"):
        CHAIN.with_backward().with_backward()


@st.composite
def forward_steps(draw: st.DrawFn) -> TrainingStep:
    version: dict[str, int] = {}
    operations = []
    for number in range(draw(st.integers(1, 8))):
        known = sorted(version)
        sources = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        reads = [Value(name, version[name]) for name in sources]
        if reads and draw(st.integers(0, 3)) == 0:
            target = reads[0].tensor
            writes = [Value(target, version[target] + 1)]
        else:
            writes = [Value(f"t{number}.{k}") for k in range(draw(st.integers(0, 2)))]
        version.update((value.tensor, value.version) for value in writes)
        ns = draw(st.integers(0, 50))
        operations.append(Operation(f"o{number}", Phase.FORWARD, ns, tuple(reads), tuple(writes)))
    return TrainingStep.build(
        "random", operations, [Tensor.of(name, draw(st.integers(0, 9))) for name in version]
    )


RULES = st.builds(
    LayerRule,
    saves_input=st.booleans(),
    saves_output=st.booleans(),
    known=st.just(False),
    passes_gradient=st.booleans(),
    differentiable=st.booleans(),
    ratio=st.sampled_from([None, 0, 1, 2.5]),
)


@settings(max_examples=200, deadline=None)
@given(forward=forward_steps(), data=st.data())
def test_every_forward_step_is_completed_to_a_sound_one(
    forward: TrainingStep, data: st.DataObject
) -> None:
    rules = {o.name: data.draw(RULES) for o in forward.operations}
    done = forward.with_backward(1.0, rules)
    assert done.operations[: len(forward.operations)] == forward.operations
    phases = [o.phase for o in done.operations]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD].index)
    assert (liveness(done).memory_bytes >= 0).all()
    assert ideal_step_ns(done) >= ideal_step_ns(forward)


def test_a_completed_step_is_planned() -> None:
    forward = step(*(op(f"f{i}", f"a{i - 1}" if i else "w", f"a{i}", 1000) for i in range(8)))
    done = forward.with_backward(rules=lambda _: "linear")
    machine = load_machine()
    problem = Problem(done, machine, liveness(done).ideal_peak_bytes * 6 // 10)
    schedule = greedy(problem).schedule
    assert schedule is not None
    verdict = simulate(done, machine, schedule, problem.budget_bytes)
    assert verdict.peak_bytes <= problem.budget_bytes
