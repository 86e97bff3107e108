"""Cases from public bug reports about graphs (G) and about what a tensor is (M), one test each.

The reports are named by repository and number. Planners are held against the same cases on other
steps in `test_planners.py`, formats in the files named after them.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from slackswap_opt import HEURISTICS, Problem, Status, greedy, ilp, load_machine, simulate, sweep
from slackswap_opt.errors import InputError
from slackswap_opt.formats import graph_path, read_step
from slackswap_opt.formats.registry import read_content
from slackswap_opt.formulation.bound import bound
from slackswap_opt.machine import Host, Link, Machine
from slackswap_opt.plan import Action, Plan, Schedule, lower
from slackswap_opt.plan.blocks import find_blocks
from slackswap_opt.planners import PLANNERS, IlpOptions
from slackswap_opt.step import (
    Operation,
    Phase,
    Tensor,
    TrainingStep,
    Value,
    ideal_step_ns,
    liveness,
    working_set_bytes,
)
from slackswap_opt.study import Settings, account
from tests.hand import values
from tests.strategies import DEVICE

GRAPHS = Path(os.environ.get("SLACKSWAP_DATA", "")) / "graphs"
needs_data = pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)
SLOW_LINK = Machine("slow link", DEVICE, Link.symmetric(1e6), Host())
"""A byte per microsecond: nothing is worth a swap."""


def op(
    name: str, phase: Phase, ns: int, reads: str = "", writes: str = "", **more: Any
) -> Operation:
    return Operation(name, phase, ns, values(reads), values(writes), **more)


def step(*operations: Operation, static: str = "", **sizes: int) -> TrainingStep:
    tensors = [Tensor.of(n, s, static=n in static.split()) for n, s in sizes.items()]
    return TrainingStep.build("case", operations, tensors)


F, B = Phase.FORWARD, Phase.BACKWARD


def lowered(problem: Problem, action: Action, *tensors: str) -> Schedule:
    """The schedule in which these tensors have the action, and all others are kept."""
    at = {t.name: index for index, t in enumerate(problem.step.tensors)}
    return lower(problem, Plan({at[name]: action for name in tensors}))


def three(size: int = 1) -> TrainingStep:
    """Three activations of one size and price, each read once in the backward phase."""
    return step(
        *(op(f"f{n}", F, 10, writes=f"t{n}") for n in range(3)),
        *(op(f"b{n}", B, 10, reads=f"t{n}") for n in (2, 1, 0)),
        t0=size, t1=size, t2=size,
    )  # fmt: skip


# G. Graphs and profiles


@pytest.mark.parametrize("key", ["links", "edges"])
def test_g1_node_link_in_both_spellings(key: str) -> None:
    """networkx#8611, #7565, #7652: a file with `links` was a KeyError in newer versions."""
    graph = nx.path_graph(3, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, 5, "duration_us")
    nx.set_node_attributes(graph, 8, "size_bytes")
    document = nx.node_link_data(graph, edges=key)
    assert key in document
    assert len(read_content(json.dumps(document).encode(), "x").operations) == 3


def test_g3_a_cycle_is_listed() -> None:
    """mlcommons/chakra#134, #189: converted traces contained cycles."""
    graph = nx.DiGraph([("A", "B"), ("B", "C"), ("C", "A")])
    nx.set_node_attributes(graph, 5, "duration_us")
    nx.set_node_attributes(graph, 8, "size_bytes")
    with pytest.raises(
        InputError, match=r"cycle: (A -> B -> C -> A|B -> C -> A -> B|C -> A -> B -> C)"
    ):
        TrainingStep.from_networkx(graph)


def test_g5_leaves_run_in_their_place_and_not_at_the_start() -> None:
    """chakra#215: kernels without edges between them were started at time 0, all at once.

    Operations run one after another on the compute stream, in the order given, edges or not.
    """
    graph: nx.DiGraph[Any] = nx.DiGraph()
    for name in ("launch1", "kernel1", "launch2", "kernel2"):
        graph.add_node(name, duration_us=10, size_bytes=1)
    graph.add_edges_from([("launch1", "kernel1"), ("launch2", "kernel2")])
    read = TrainingStep.from_networkx(graph)
    assert [o.name for o in read.operations] == [*graph.nodes]
    assert ideal_step_ns(read) == 40_000


@needs_data
@pytest.mark.parametrize("name", ["bert24", "resnet50"])
def test_g9_disconnected_graphs_are_planned(name: str) -> None:
    """dnn-partitioning's training graphs: two weakly connected parts, layers without latency."""
    document = json.loads((GRAPHS / f"dnnpart_{name}_training.json").read_text())
    graph = nx.DiGraph((e["sourceId"], e["destId"]) for e in document["edges"])
    assert nx.number_weakly_connected_components(graph) == 2
    assert any(n["fpgaLatency"] == 0 for n in document["nodes"])
    read = read_step(GRAPHS / f"dnnpart_{name}_training.json")
    budget = max(liveness(read).ideal_peak_bytes // 2, int(working_set_bytes(read).max()))
    problem = Problem(read, load_machine(), budget)
    schedule = greedy(problem).schedule
    assert schedule is not None
    assert simulate(read, problem.machine, schedule, budget).step_ns >= bound(problem).step_ns


def test_g9_disconnected_graphs_of_ones_own() -> None:
    two = step(
        op("f0", F, 10, writes="x"), op("f1", F, 0, writes="y"),
        op("b1", B, 0, reads="y"), op("b0", B, 10, reads="x"), x=8, y=8,
    )  # fmt: skip
    assert two.graph.number_of_edges() == 2
    assert greedy(Problem(two, SLOW_LINK, 8)).schedule is not None


@needs_data
def test_g10_input_time_is_left_out_and_lists_are_summed() -> None:
    """PipeDream's ResNet-50 counts 18.96 ms of data loading; GNMT's sizes are lists."""
    resnet = read_step(GRAPHS / "pipedream_resnet50.txt")
    assert any("18.962 ms of the input" in note and "left out" in note for note in resnet.notes)
    assert not any(o.name.startswith("node1.") for o in resnet.operations)
    gnmt = read_step(GRAPHS / "pipedream_gnmt.txt")
    sizes = {t.name: t.size_bytes for t in gnmt.tensors}
    assert sum(s for n, s in sizes.items() if n.startswith("node7[") and "grad" not in n) == 6553600
    assert (
        sum(o.duration_ns == 0 for o in gnmt.operations) == 11
    )  # Add, Concat, the loss; views are no operations


def test_g11_dot_needs_attributes_and_parallel_edges_are_one_tensor() -> None:
    """PipeDream's DOT: numbers hidden in label text; two edges between the same nodes."""
    with pytest.raises(InputError, match="holds figures only inside of label text"):
        read_content(b'digraph { a [label="x\n[forward_compute_time=1]"]; a -> b; a -> b }', "x")
    graph = nx.MultiDiGraph([("a", "b"), ("a", "b")])
    nx.set_node_attributes(graph, 5, "duration_us")
    nx.set_node_attributes(graph, 8, "size_bytes")
    read = TrainingStep.from_networkx(graph)
    assert read.operations[1].reads == (Value("a"),)
    assert len(read.tensors) == 2


def test_g13_pickles_with_globals_are_refused(tmp_path: Path) -> None:
    """A pickle may run anything when it is loaded by the usual means."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "owned",))

    for protocol in (0, 2, 5):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps({"segments": [Evil()]}, protocol))
        with pytest.raises(InputError):
            read_step(path)
        assert not (tmp_path / "owned").exists()


# M. What a tensor is, and what recomputing means


def test_m1_views_are_one_tensor_and_parameters_none() -> None:
    """trl#4247, llama-cookbook#115: views were offloaded several times, parameters at all."""
    read = TrainingStep.build(
        "views",
        [
            op("f", F, 10, "w", "x"),
            op("g", F, 10, "x.t", "y"),
            op("b", B, 10, "x.view y w"),
            op("c", B, 10, "x x.t"),
        ],
        [
            Tensor("x", 100, 100, aliases=("x.view", "x.t")),
            Tensor.of("y", 10),
            Tensor.of("w", 1000, static=True),
        ],
    )
    assert liveness(read).ideal_peak_bytes == 110
    problem = Problem(read, SLOW_LINK, 110)
    assert [read.tensors[t].name for t in problem.blocks.evictable] == ["x", "y"]
    swapped = lowered(problem, Action.SWAP, "x", "y", "w")
    assert sorted(copy.tensor for copy in swapped.copies_out) == [0, 1]


def test_m2_names_of_one_storage_count_once() -> None:
    """Summing tensors of an execution trace, not storages, counted GPT-2 3.1 times."""
    names = TrainingStep.build(
        "names",
        [op("f", F, 1, "", "a"), op("b", B, 1, "a.1 a.2 a.3")],
        [Tensor("a", 100, 100, aliases=("a.1", "a.2", "a.3"))],
    )
    assert liveness(names).ideal_peak_bytes == 100
    assert names.operations[1].reads == (Value("a"),)


def test_m4_what_is_in_place_runs_again_with_its_producer() -> None:
    """functorch#565, pytorch#113737: an in-place operation run again alone gave wrong gradients."""
    chain = step(
        op("conv", F, 50, "w", "x"), op("relu", F, 5, "x", "x@1"), op("f", F, 50, "x@1", "y"),
        op("b", B, 10, "y x@1"), static="w", w=1, x=100, y=1,
    )  # fmt: skip
    (block, *_) = find_blocks(chain, liveness(chain)).blocks
    assert [chain.operations[o].name for o in block.operations] == ["conv", "relu"]
    assert block.duration_ns == 55
    assert liveness(chain).ideal_peak_bytes == 101  # one buffer


@needs_data
def test_m4_in_place_nodes_of_pipedreams_resnet_share_their_inputs_memory() -> None:
    resnet = read_step(GRAPHS / "pipedream_resnet50.txt")
    assert sum(o.in_place for o in resnet.operations if o.phase is F) == 65


@pytest.mark.parametrize("planner", [*HEURISTICS, "ilp"])
@pytest.mark.parametrize("name", ["dropout", "all_gather"])
def test_m5_m7_what_may_not_run_again_never_does(planner: str, name: str) -> None:
    """pytorch#190759: fresh dropout masks; Automodel#2389, FastVideo#1410: collectives run twice.

    The cheapest and largest tensor to rebuild is one whose operation may not run again.
    """
    tempting = step(
        op("f0", F, 100_000, writes="a"),
        op(name, F, 1, "a", "mask", recomputable=False, random=name == "dropout"),
        op("f2", F, 100_000, "mask", "c"),
        op("f3", F, 100_000, "c", "d"),
        op("b3", B, 100_000, "d c"), op("b2", B, 100_000, "c mask"), op("b0", B, 100_000, "mask a"),
        a=10, mask=100, c=10, d=10,
    )  # fmt: skip
    for budget in (130, 125, 121):
        result = PLANNERS[planner](Problem(tempting, SLOW_LINK, budget))
        if result.schedule is not None:
            runs = [tempting.operations[o].name for o in result.schedule.compute]
            assert runs.count(name) == 1


def test_m7_every_recomputation_is_reported() -> None:
    """FastVideo#1410: attention ran 1200 times in place of 600, and nobody was told."""
    chain = three()
    schedule = lowered(Problem(chain, SLOW_LINK, 10), Action.RECOMPUTE, "t0", "t1")
    assert len(schedule.compute) == 6 + 2
    sums = account(chain, schedule)
    assert (sums.total.recomputed_bytes, sums.recompute_ns) == (2, 20)


@pytest.mark.parametrize("planner", [*HEURISTICS, "ilp"])
def test_m8_no_planner_keeps_more_than_the_budget(planner: str) -> None:
    """pytorch#197871: a knapsack kept two units under a budget of one."""
    chain = three()
    result = PLANNERS[planner](Problem(chain, SLOW_LINK, 1))
    if result.schedule is None:
        assert result.status is Status.INFEASIBLE
        return
    assert simulate(chain, SLOW_LINK, result.schedule, 1).peak_bytes == 1
    assert account(chain, result.schedule).total.kept_bytes <= 1


def test_m8_the_best_value_of_one_unit() -> None:
    chain = three()
    result = ilp(Problem(chain, SLOW_LINK, 1))
    assert result.step_ns == ideal_step_ns(chain) + 20  # one is kept, two are rebuilt


@pytest.mark.parametrize("planner", ["greedy", "ilp"])
def test_m10_full_budgets_cost_nothing_and_a_little_less_at_most_the_cheapest(planner: str) -> None:
    """pytorch#149258: a budget of 0.99 was slower than no checkpointing at all."""
    chain = step(
        *(op(f"f{n}", F, 10 * (n + 1), writes=f"t{n}") for n in range(4)),
        *(op(f"b{n}", B, 10, reads=f"t{n}") for n in (3, 2, 1, 0)),
        t0=25, t1=25, t2=25, t3=25,
    )  # fmt: skip
    peak, ideal = liveness(chain).ideal_peak_bytes, ideal_step_ns(chain)
    for percent in (100, 101):
        result = PLANNERS[planner](Problem(chain, SLOW_LINK, peak * percent // 100))
        assert result.step_ns == ideal
    result = PLANNERS[planner](Problem(chain, SLOW_LINK, peak * 99 // 100))
    assert result.step_ns is not None
    assert result.step_ns <= ideal + 10


def test_m12_a_recomputed_segment_counts_with_its_gradients() -> None:
    """pytorch#6750, Megatron-LM#1300, #1368: one segment of the whole net saves nothing."""
    net = step(
        *(op(f"f{n}", F, 10, f"a{n - 1}" if n else "w", f"a{n}") for n in range(4)),
        *(op(f"b{n}", B, 20, f"a{n}" + (f" g{n + 1}" if n < 3 else ""), f"g{n}")
          for n in (3, 2, 1, 0)),
        static="w", w=1, **{f"a{n}": 100 for n in range(4)}, **{f"g{n}": 100 for n in range(4)},
    )  # fmt: skip
    whole = lowered(Problem(net, SLOW_LINK, 10**6), Action.RECOMPUTE, "a0", "a1", "a2", "a3")
    verdict = simulate(net, SLOW_LINK, whole, 10**6)
    # the last layer's rebuilt input chain is on the device when the gradients begin
    assert verdict.peak_bytes >= 300
    for budget in (verdict.peak_bytes, verdict.peak_bytes - 1):
        fits = simulate(net, SLOW_LINK, whole, budget)
        assert (fits.out_of_memory is None) == (budget == verdict.peak_bytes)


def test_m13_logits_that_do_not_fit_are_named() -> None:
    """Automodel#3907, slime#2253: 11.6 k tokens of 248,320 words in 32 bits are 11.5 GB."""
    logits = 11_600 * 248_320 * 4
    head = step(
        op("lm_head", F, 1000, "w", "logits"), op("loss", B, 1000, "logits", "logits.grad"),
        op("lm_head.backward", B, 1000, "logits.grad"),
        static="w", w=1, **{"logits": logits, "logits.grad": logits},
    )  # fmt: skip
    problem = Problem(head, load_machine(), 2 * logits - 1)
    (cell,) = sweep(problem, [problem.budget_bytes], {"greedy": greedy}, Settings())
    assert cell.proven_infeasible
    assert cell.judged["greedy"].result.schedule is None
    from slackswap_opt.study import lower_limit

    limit = lower_limit(head)
    assert (limit.operation, limit.budget_bytes) == ("loss", 2 * logits)
    assert greedy(problem.with_budget(2 * logits)).schedule is not None


def test_m15_the_budget_is_not_the_device() -> None:
    """A 38.5 GiB card ran out with 34 GiB in use: the rest was reserved, and fragmented."""
    from typer.testing import CliRunner

    from slackswap_opt.cli.app import app

    told = CliRunner().invoke(app, ["plan", "--help"]).output
    assert "--reserve" in told
    assert "fragmentation" in told


def test_m16_durations_are_those_given_and_launches_count() -> None:
    """Qwen-Image#69: recomputing cost 3.75 times a step, not the 1.3 that FLOPs promised.

    A step of ten thousand short operations costs what they take, launch gaps included where the
    durations have them; nothing is priced by its arithmetic.
    """
    short = step(
        op("big", F, 1000, writes="x"), *(op(f"s{n}", F, 300, "x", f"y{n}") for n in range(20)),
        op("b", B, 10, " ".join(f"y{n}" for n in range(20))),
        x=10, **{f"y{n}": 1 for n in range(20)},
    )  # fmt: skip
    names = [f"y{n}" for n in range(20)]
    schedule = lowered(Problem(short, SLOW_LINK, 100), Action.RECOMPUTE, *names)
    assert account(short, schedule).recompute_ns == 20 * 300
    verdict = simulate(short, SLOW_LINK, schedule, 100)
    assert verdict.step_ns == ideal_step_ns(short) + 20 * 300


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
def test_m17_the_peak_is_over_the_whole_step(where: str) -> None:
    """In snapshots of one model it was in the optimizer, the forward or the backward phase."""
    extra = {phase: 100 * (phase == where) for phase in ("forward", "backward", "optimizer")}
    whole = step(
        op("f", F, 1, writes="x", workspace_bytes=extra["forward"]),
        op("b", B, 1, "x", workspace_bytes=extra["backward"]),
        op("o", Phase.OPTIMIZER, 1, workspace_bytes=extra["optimizer"]),
        x=10,
    )
    live = liveness(whole)
    assert whole.operations[live.peak_operation].phase == where
    assert live.ideal_peak_bytes == 100 + 10 * (where != "optimizer")


def test_the_ilp_takes_options() -> None:
    """What the cases above use by name is there for a script, too."""
    result = ilp(Problem(three(), SLOW_LINK, 2), IlpOptions(gap=0.0))
    assert result.step_ns == ideal_step_ns(three()) + 10
    assert graph_path("unet").is_file()
