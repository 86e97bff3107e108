"""The shipped example graphs: as their script makes them, of the size they claim, and plannable."""

from __future__ import annotations

import pytest

from benchmarks.example_graphs import ELEMENT, GRAPHS
from slackswap_opt import HEURISTICS, Problem, Settings, greedy, load_machine, simulate, sweep
from slackswap_opt.formats import graph_names, graph_path, read_step
from slackswap_opt.formulation.bound import bound
from slackswap_opt.planners import PLANNERS
from slackswap_opt.step import Phase, TrainingStep, liveness

MACHINE = load_machine()


def half(step: TrainingStep) -> Problem:
    """At half of its peak; the U-Net, whose first level needs more at once, at 75 %."""
    share = 75 if step.name == "unet" else 50
    return Problem(step, MACHINE, liveness(step).ideal_peak_bytes * share // 100)


def test_the_architectures_that_people_bring_are_there() -> None:
    assert set(graph_names()) == {*GRAPHS, "tiny-mlp", "unet"}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_files_are_what_the_script_makes(name: str) -> None:
    assert read_step(graph_path(name)) == GRAPHS[name](), (
        "run python -m benchmarks.example_graphs --write"
    )


@pytest.mark.parametrize("name", [*GRAPHS, "unet"])
def test_each_is_planned_at_half_of_its_peak_under_its_bound(name: str) -> None:
    problem = half(read_step(graph_path(name)))
    assert problem.step.notes
    # in the unrolled RNN each cell reads the one before, so that rebuilding one tensor rebuilds all
    # before it: the greedy finds no plan, segments do
    result = HEURISTICS["sqrt-n"](problem) if name == "rnn" else greedy(problem)
    assert result.schedule is not None
    verdict = simulate(problem.step, MACHINE, result.schedule, problem.budget_bytes)
    assert verdict.peak_bytes <= problem.budget_bytes
    limit = bound(problem)
    assert problem.ideal_step_ns <= limit.step_ns <= verdict.step_ns


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_ilp_certifies_a_small_gap(name: str) -> None:
    problem = half(read_step(graph_path(name)))
    target = 0.15 if name == "rnn" else 0.05  # in the RNN bound and plans are further apart
    settings = Settings(gap=target, seconds=120)
    (cell,) = sweep(problem, [problem.budget_bytes], {"ilp": PLANNERS["ilp"]}, settings)
    judged = cell.judged["ilp"]
    assert judged.verdict is not None
    gap = (judged.verdict.step_ns - cell.bound.step_ns) / judged.verdict.step_ns
    assert 0 <= gap <= target


def parameters(step: TrainingStep) -> int:
    """Number of weights; batch inputs and starting states are not among them."""
    return sum(t.size_bytes for t in step.tensors if t.name.endswith(".weight")) // ELEMENT


@pytest.mark.parametrize(
    ("name", "published", "tolerance"),
    [
        ("resnet", 25.6e6, 0.01),  # He et al. 2015
        ("diffusion-transformer", 130e6, 0.02),  # Peebles and Xie 2022, table 1
    ],
)
def test_weights_add_up_to_what_is_published(name: str, published: float, tolerance: float) -> None:
    assert parameters(read_step(graph_path(name))) == pytest.approx(published, rel=tolerance)


def test_resnet_does_the_published_work() -> None:
    """4.1 G multiply-additions an image take their time at 160 TFLOP/s, and bytes add to it."""
    step = read_step(graph_path("resnet"))
    forward = sum(op.duration_ns for op in step.operations if op.phase is Phase.FORWARD)
    assert forward * 160e3 >= 64 * 4.1e9 * 2 * 0.99


def test_the_encoders_output_waits_for_every_decoder_layer() -> None:
    step = read_step(graph_path("encoder-decoder"))
    readers = [
        op.layer
        for op in step.operations
        if op.phase is Phase.FORWARD and any(v.tensor == "memory" for v in op.reads)
    ]
    assert sorted(set(readers)) == [f"decoder.{n}" for n in range(4)]


def test_what_depends_on_routing_may_not_run_again() -> None:
    step = read_step(graph_path("moe"))
    fixed = {op.name.rsplit(".", 1)[1] for op in step.operations if not op.recomputable}
    assert fixed == {"top2", "take"}
    loads = {t.size_bytes for t in step.tensors if t.name.endswith(".take")}
    assert len(loads) == 8  # unequal


def test_cells_pass_states_and_keep_gates_for_the_backward_phase() -> None:
    step = read_step(graph_path("rnn"))
    cell = next(op for op in step.operations if op.name == "cell0.3")
    assert [v.tensor for v in cell.writes] == ["cell0.3:h", "cell0.3:c", "cell0.3"]
    readers = [op.name for op in step.operations if any(v.tensor == "cell0.3" for v in op.reads)]
    assert readers == ["cell0.3.backward"]


def test_skips_of_the_unet_span_the_network() -> None:
    step = read_step(graph_path("unet"))
    position = {op.name: index for index, op in enumerate(step.operations)}
    forward = sum(op.phase is Phase.FORWARD for op in step.operations)
    spans = [
        max(position[op.name] for op in step.operations
            if op.phase is Phase.FORWARD and any(v.tensor == skip for v in op.reads))
        - next(position[op.name] for op in step.operations
               if any(v.tensor == skip for v in op.writes))
        for skip in ("skip1", "skip2", "skip3")
    ]  # fmt: skip
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > forward // 2
