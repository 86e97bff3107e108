"""PipeDream profiles: derived backward phases, shared memory, gradients, faults."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt import Problem, Settings, load_machine, sweep
from slackswap_opt.errors import InputError
from slackswap_opt.formats import native, pipedream, read_step
from slackswap_opt.planners import PLANNERS
from slackswap_opt.step import Phase, TrainingStep, ideal_step_ns, liveness, working_set_bytes
from tests.hand import faults_in, flows

GRAPHS = Path(os.environ.get("SLACKSWAP_DATA", "")) / "graphs"
needs_data = pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)


def node(
    number: int, description: str, forward: float = 1, backward: float = 2,
    size: object = 100, parameters: int = 0,
) -> str:  # fmt: skip
    return (
        f"node{number} -- {description} -- forward_compute_time={forward:.3f}, "
        f"backward_compute_time={backward:.3f}, activation_size={size}, "
        f"parameter_size={parameters:.3f}"
    )


def edges(*pairs: tuple[int, int]) -> list[str]:
    return [f"\tnode{a} -- node{b}" for a, b in pairs]


def chain(*nodes: str) -> TrainingStep:
    return read(*nodes, *edges(*((i, i + 1) for i in range(1, len(nodes)))))


def read(*lines: str) -> TrainingStep:
    return pipedream.read("\n".join(lines).encode(), "profile")


def program(step: TrainingStep) -> list[str]:
    """Each operation as `name: reads -> writes`, static tensors left out."""
    return [f"{op.name}: {flow}" for op, flow in flows(step)]


def faults(*lines: str) -> tuple[str, ...]:
    return faults_in(read, *lines)


INPUT = node(1, "Input", 5, 0, 64)
CONV = "Conv2d(3, 8, kernel_size=(3, 3))"


def test_a_chain_with_in_place_relu() -> None:
    step = chain(
        INPUT,
        node(2, CONV, 1.5, 3, parameters=40),
        node(3, "BatchNorm2d(8, eps=1e-05)", 0.5, 0.25, parameters=16),
        node(4, "ReLU(inplace)"),
        node(5, "MaxPool2d(kernel_size=2)", size=25),
        node(6, "Linear(in_features=25)", size=10, parameters=8),
    )
    assert program(step) == [
        "node2.Conv2d: -> node2",
        "node3.BatchNorm2d: node2 -> node3",
        "node4.ReLU: node3 -> node3@1",
        "node5.MaxPool2d: node3@1 -> node5",
        "node6.Linear: node5 -> node6",
        "loss: node6 -> node6.grad",
        "node6.Linear.backward: node6.grad node5 -> node5.grad",
        "node5.MaxPool2d.backward: node5.grad node3@1 node5 -> node4.grad",
        "node4.ReLU.backward: node4.grad node3@1 -> node3.grad",
        "node3.BatchNorm2d.backward: node3.grad node2 -> node2.grad",
        "node2.Conv2d.backward: node2.grad ->",
    ]
    sizes = {t.name: (t.size_bytes, t.static) for t in step.tensors}
    assert sizes["node1"] == (64, True)
    assert sizes["node2.weight"] == (40, True)
    assert sizes["node5.grad"] == (25, False)
    assert next(t for t in step.tensors if t.name == "node3").aliases == ("node4",)
    assert step.operations[0].duration_ns == 1_500_000
    assert step.operations[-1].duration_ns == 3_000_000
    assert ideal_step_ns(step) == 14_250_000
    assert step.notes[0] == (
        "The 5 ms of the input are the loading of data, not compute; they are left out."
    )


def test_a_residual_block_overwrites_the_branch_that_may_be_and_accumulates_gradients() -> None:
    step = read(
        INPUT,
        node(2, CONV, parameters=4),
        node(3, "ReLU(inplace)"),
        node(4, CONV, parameters=4),
        node(5, "BatchNorm2d(8)", parameters=4),
        node(6, "Add(inplace)", 0, 0),
        node(7, "ReLU(inplace)"),
        *edges((1, 2), (2, 3), (3, 6), (3, 4), (4, 5), (5, 6), (6, 7)),
    )
    assert program(step)[4:] == [
        "node6.Add: node2@1 node5 -> node5@1",
        "node7.ReLU: node5@1 -> node5@2",
        "loss: node5@2 -> node7.grad",
        "node7.ReLU.backward: node7.grad node5@2 -> node6.grad",
        # the gradient of the sum is that of both branches; no operation is needed
        "node5.BatchNorm2d.backward: node6.grad node4 -> node4.grad",
        "node4.Conv2d.backward: node4.grad node2@1 node6.grad -> node6.grad@1",
        "node3.ReLU.backward: node6.grad@1 node2@1 -> node2.grad",
        "node2.Conv2d.backward: node2.grad ->",
    ]
    assert {op.name.split(".")[0]: op.layer for op in step.operations if op.layer} == {
        "node2": "layer.0", "node3": "layer.0",
        "node4": "layer.1", "node5": "layer.1", "node6": "layer.1", "node7": "layer.1",
        "loss": "layer.1",
    }  # fmt: skip


def test_an_add_with_measured_time_or_other_size_makes_gradients_of_its_own() -> None:
    lines = [
        node(1, "Linear(1)", parameters=1), node(2, "Linear(1)", size=50, parameters=1),
        *edges((1, 3), (2, 3)),
    ]  # fmt: skip
    step = read(node(3, "Add", 0, 0), *lines)
    assert program(step)[3:5] == [
        "loss: node3 -> node3.grad",
        "node3.Add.backward: node3.grad -> node2.grad",
    ]
    assert "node1.Linear.backward: node3.grad ->" in [
        line.replace("node3.grad node1.weight", "node3.grad") for line in program(step)
    ]
    step = read(node(3, "Add", 0, 0.5), *lines)
    assert program(step)[4] == "node3.Add.backward: node3.grad -> node1.grad node2.grad"


def test_a_gradient_that_two_layers_hold_is_not_overwritten() -> None:
    # 4 = 2 + 3 shares one gradient among 2 and 3; 3's user adds to it while 2 still needs it.
    step = read(
        node(1, "Linear(1)", parameters=1),
        node(2, "Linear(1)", parameters=1),
        node(3, "Linear(1)", parameters=1),
        node(4, "Add", 0, 0),
        node(5, "Add", 0, 0),
        *edges((1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (3, 5)),
    )
    assert program(step)[5:] == [
        "loss: node5 -> node5.grad",
        "node4.Add.backward: node5.grad -> node3.grad",
        "node3.Linear.backward: node3.grad node1 -> node1.grad",
        "node2.Linear.backward: node5.grad node1 node1.grad -> node1.grad@1",
        "node1.Linear.backward: node1.grad@1 ->",
    ]


@pytest.mark.parametrize(
    ("reader", "why"),
    [
        ("Conv2d(8, 8)", "its backward operation needs the old version"),
        ("Tanh()", "it reads what depends on the overwriting"),
    ],
)
def test_an_illegal_in_place_layer_gets_memory_of_its_own(reader: str, why: str) -> None:
    extra = [(3, 4)] if "Tanh" in reader else []
    step = read(
        INPUT,
        node(2, "BatchNorm2d(1)", parameters=1),
        node(3, "ReLU(inplace=True)"),
        node(4, reader),
        *edges((1, 2), (2, 3), (2, 4), *extra),
    )
    assert "node3.ReLU: node2 -> node3" in program(step), why
    assert any("memory of their own: node3" in note for note in step.notes)


def test_a_harmless_reader_runs_before_the_overwriting() -> None:
    step = read(
        INPUT,
        node(2, "BatchNorm2d(1)", parameters=1),
        node(3, "ReLU(inplace)"),
        node(4, "Tanh()"),
        *edges((1, 2), (2, 3), (2, 4)),
    )
    assert program(step)[:3] == [
        "node2.BatchNorm2d: -> node2",
        "node4.Tanh: node2 -> node4",
        "node3.ReLU: node2 -> node2@1",
    ]
    assert program(step)[3] == "loss: node4 node2@1 -> node4.grad node3.grad"


def test_in_place_false_and_nested_in_place_do_not_count() -> None:
    for description in ("ReLU(inplace=False)", "Block(  (0): ReLU(inplace))", "ReLU()"):
        step = chain(INPUT, node(2, "BatchNorm2d(1)", parameters=1), node(3, description))
        assert any(line.endswith(": node2 -> node3") for line in program(step))


def test_what_is_overwritten_must_not_be_saved_by_its_producer() -> None:
    step = chain(INPUT, node(2, "Tanh()"), node(3, "ReLU(inplace)"))
    assert "node3.ReLU: node2 -> node3" in program(step)


def test_views_lists_and_their_elements() -> None:
    step = read(
        node(1, "Input0", 0, 0, 0),
        node(2, "LSTM(8, 8)", size="[60.0; 20.0; 20.0]", parameters=4),
        node(3, "__getitem__(0)", 0, 0, 60),
        node(4, "__getitem__(-1)", 0, 0, 20),
        node(5, "Size(0)", 0, 0, 4),
        node(6, "View(-1)", 0, 0, 60),
        node(7, "Linear(1)", size=10, parameters=4),
        node(8, "hidden", 0, 0, 0),
        node(9, "Block(4)", size=10),
        *edges((1, 2), (2, 3), (2, 4), (3, 5), (5, 6), (3, 6), (6, 7), (7, 9), (4, 9), (8, 9)),
    )
    assert program(step) == [
        "node2.LSTM: -> node2[0] node2[1] node2[2]",
        "node5.Size: node2[0] -> node5",
        "node7.Linear: node2[0] -> node7",
        "node9.Block: node7 node2[2] -> node9",
        "loss: node9 -> node9.grad",
        "node9.Block.backward: node9.grad node7 node2[2] node9 -> node7.grad node2[2].grad",
        "node7.Linear.backward: node7.grad node2[0] -> node2[0].grad",
        "node2.LSTM.backward: node2[0].grad node2[2].grad ->",
    ]
    aliases = {t.name: t.aliases for t in step.tensors if t.aliases}
    assert aliases == {"node2[0]": ("node3", "node6"), "node2[2]": ("node4",)}
    sizes = {t.name: t.size_bytes for t in step.tensors if t.name.startswith("node2[")}
    assert sizes == {
        "node2[0]": 60,
        "node2[1]": 20,
        "node2[2]": 20,
        "node2[0].grad": 60,
        "node2[2].grad": 20,
    }
    assert any("Types without a rule" in n and "node9 Block" in n for n in step.notes)


def test_dropout_is_random_and_reads_its_output() -> None:
    step = chain(INPUT, node(2, "Linear(1)", parameters=1), node(3, "Dropout(p=0.2)"))
    dropout = step.operations[1]
    assert (dropout.random, dropout.recomputable) == (True, True)
    assert "node3.Dropout.backward: node3.grad node3 -> node2.grad" in program(step)
    assert any("masks" in note for note in step.notes)
    for description, random in [
        ("Dropout(p=0)", False), ("Dropout(p=0.0)", False), ("Dropout()", True),
        ("Attention( (d): Dropout(p=0.1))", True), ("LSTM(1, dropout=0.3)", True),
        ("LSTM(1, dropout=0)", False),
    ]:  # fmt: skip
        assert chain(INPUT, node(2, description, parameters=1)).operations[0].random is random


def test_layers_that_need_no_gradient_have_no_backward() -> None:
    step = chain(INPUT, node(2, "Tanh()", backward=0), node(3, "Linear(1)", parameters=1))
    assert program(step) == [
        "node2.Tanh: -> node2",
        "node3.Linear: node2 -> node3",
        "loss: node3 -> node3.grad",
        "node3.Linear.backward: node3.grad node2 ->",
    ]


def test_order_follows_numbers_and_dependencies_not_lines() -> None:
    step = read(
        node(10, "ReLU()"), node(9, "ReLU()"), node(2, "Linear(1)", parameters=1),
        *edges((2, 9), (9, 10), (9, 10)), "",
    )  # fmt: skip
    assert [op.name for op in step.operations[:3]] == ["node2.Linear", "node9.ReLU", "node10.ReLU"]


def test_stage_ids_and_windows_line_ends_are_accepted() -> None:
    lines = [node(1, "Linear(1)", parameters=1) + " -- stage_id=3", node(2, "ReLU()")]
    step = read("\r\n".join([*lines, *edges((1, 2))]))
    assert len(step.operations) == 5


def test_all_faults_are_reported_by_line() -> None:
    found = faults(
        node(1, "Linear(1)"),
        node(1, "Linear(1)"),
        "node2 -- ReLU() -- forward_compute_time=1.0, activation_size=1.5, parameter_size=x",
        "node3",
        "\tnode1 -- node9",
        node(4, "X", size="[1.0; -2.0]").replace("time=1.000", "time=nan"),
        node(5, "X", size="9" * 18),
        "\tnode8 -- node8",
    )
    assert found == (
        'line 2: "node1" is defined in line 1 too; names must be unique',
        "line 3: backward_compute_time is missing; expected backward_compute_time=number",
        'line 3: activation_size is "1.5", expected a whole number of bytes, 0 or more',
        'line 3: parameter_size is "x", expected a whole number of bytes, 0 or more',
        'line 4 is "node3", expected a layer, '
        "`name -- type -- forward_compute_time=..., ...`, or an edge, `name -- name`",
        'line 6: forward_compute_time is "nan", expected a number of ms, 0 or more',
        'line 6: activation_size is "-2.0", expected a whole number of bytes, 0 or more',
        f'line 7: activation_size is "{"9" * 18}", expected at most 1.1259e+15 bytes',
        'line 5: the edge names "node9", which no line defines',
        'line 8: the edge names "node8", which no line defines',
    )


def test_cycles_are_printed_and_nothing_is_no_profile() -> None:
    (fault,) = faults(node(1, "A()"), node(2, "B()"), *edges((1, 2), (2, 1)))
    assert "node1 -> node2 -> node1" in fault
    (fault,) = faults(node(1, "A()"), *edges((1, 1)))
    assert "node1 -> node1" in fault
    assert faults("") == ("the profile has no layers",)
    assert faults(node(1, "Input", 1, 0)) == ("the step has no operations; add at least one",)


KINDS = [
    "Conv2d(1)", "BatchNorm2d(1)", "ReLU(inplace)", "ReLU()", "Add(inplace)", "Add", "Concat(1)",
    "MaxPool2d(2)", "AvgPool2d(2)", "View(-1)", "Size(0)", "__getitem__(0)", "__getitem__(1)",
    "Dropout(p=0.2)", "Odd(inplace)", "Input", "Size(inplace)", "Dropout(inplace)",
]  # fmt: skip


@st.composite
def profiles(draw: st.DrawFn) -> list[str]:
    count = draw(st.integers(1, 12))
    lines = []
    for number in range(1, count + 1):
        lines.append(
            node(
                number,
                draw(st.sampled_from(KINDS)),
                draw(st.sampled_from([0, 0, 1])),
                draw(st.sampled_from([0, 0, 1])),
                draw(st.sampled_from([0, 8, 8, 8, 4, "[8.0; 4.0]"])),
                draw(st.sampled_from([0, 0, 4])),
            )
        )
        sources = draw(st.sets(st.integers(1, max(1, number - 1)), max_size=3))
        lines += edges(*((source, number) for source in sorted(sources) if source < number))
    return lines


@settings(max_examples=400, deadline=None)
@given(lines=profiles())
def test_every_sound_profile_becomes_a_sound_step(lines: list[str]) -> None:
    try:
        step = read(*lines)
    except InputError as error:
        if error.faults != ("the step has no operations; add at least one",):
            raise
        return
    phases = [op.phase for op in step.operations]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD].index)
    assert native.loads(native.dumps(step)) == step
    held = liveness(step).memory_bytes
    assert (held >= 0).all()
    values = {value for op in step.operations for value in op.writes}
    assert all(v in values for op in step.operations for v in op.reads if v.version)


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists(
        st.text(max_size=40)
        | st.sampled_from(["node1 -- node2", "node2 -- node1", " -- ", "a -- b -- c", "\t-- --"])
        | st.builds(
            "node{} -- {} -- forward_compute_time={}, backward_compute_time={}, "
            "activation_size={}, parameter_size={}".format,
            st.integers(1, 3),
            st.text(max_size=10) | st.sampled_from(KINDS),
            *[st.text("0123456789.eE+-naif[]; ", max_size=8)] * 4,
        ),
        max_size=6,
    )
)
def test_no_text_raises_anything_but_input_errors(lines: list[str]) -> None:
    with contextlib.suppress(InputError):
        read(*(line.replace("\ud800", "") for line in lines))


def test_hostile_lines_are_refused_quickly() -> None:
    long = "n" * 10_000_000
    assert len(faults(f"{long} -- x -- forward_compute_time=1")[0]) < 300
    assert len(faults(node(1, "X", size="9" * 1_000_000))[0]) < 300
    assert len(faults(node(1, "X", size="1e99"))[0]) < 300
    read(node(1, "X" + "(" * 1_000_000, parameters=1))


def test_a_long_network_is_read_in_reasonable_time() -> None:
    count = 3000
    step = chain(
        *(node(i, "ReLU(inplace)" if i % 2 else CONV, parameters=1) for i in range(1, count))
    )
    assert len(step.operations) == 2 * (count - 1) + 1


@needs_data
def test_resnet50() -> None:
    step = read_step(GRAPHS / "pipedream_resnet50.txt")
    forward = [op for op in step.operations if op.phase is Phase.FORWARD]
    assert len(forward) == 175  # 177 nodes, less the input and a view
    assert len(step.operations) == 334
    assert sum(op.in_place for op in forward) == 65
    assert len({op.layer for op in step.operations}) == 18  # stem, 16 blocks, classifier
    assert not any("memory of their own" in note for note in step.notes)
    assert any("18.962 ms" in note for note in step.notes)
    assert ideal_step_ns(step) == 443_419_000
    assert liveness(step).ideal_peak_bytes == 10_815_537_152


@needs_data
def test_gnmt() -> None:
    step = read_step(GRAPHS / "pipedream_gnmt.txt")
    assert len(step.operations) == 45
    assert ideal_step_ns(step) == 89_416_000
    sizes = {t.name: t.size_bytes for t in step.tensors}
    assert [sizes[f"node23[{k}]"] for k in range(5)] == [6160384, 131072, 131072, 6160384, 288768]
    assert liveness(step).ideal_peak_bytes == 507_652_096


@needs_data
def test_the_dot_twin_is_refused() -> None:
    with pytest.raises(InputError, match="DOT graph"):
        read_step(GRAPHS / "pipedream_resnet50.dot")


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share", "gap"), [("resnet50", 0.5, 0.01), ("gnmt", 401_195_008 / 507_652_096, 0.005)]
)
def test_profiles_are_planned_with_a_certified_gap(name: str, share: float, gap: float) -> None:
    """At half of the peak, or at the least that any schedule needs, if that is more.

    GNMT's classifier reads and writes 79.0 % of the peak at once.
    """
    step = read_step(GRAPHS / f"pipedream_{name}.txt")
    peak, least = liveness(step).ideal_peak_bytes, int(working_set_bytes(step).max())
    budget = max(peak // 2, least)
    assert budget / peak == pytest.approx(share)
    problem = Problem(step, load_machine(), budget)
    (cell,) = sweep(problem, [budget], {"ilp": PLANNERS["ilp"]}, Settings(gap=gap, seconds=120))
    judged = cell.judged["ilp"]
    assert judged.verdict is not None
    assert judged.verdict.peak_bytes <= budget
    assert cell.bound.step_ns <= judged.verdict.step_ns <= cell.bound.step_ns / (1 - gap)
