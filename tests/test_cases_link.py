"""What users and vendors have reported about links and offloading, and what must come out here.

Each test names the report. Links move one byte per microsecond unless a test says otherwise.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formulation.bound import bound
from slackswap_opt.machine import Link, Machine, load_machine
from slackswap_opt.plan import Action, Copy, Problem, Schedule, actions_of
from slackswap_opt.plan.files import loads
from slackswap_opt.planners import HEURISTICS
from slackswap_opt.simulator import simulate
from slackswap_opt.simulator.shared import Device, simulate_shared
from slackswap_opt.step import Phase
from slackswap_opt.study import Row, Settings, compare
from slackswap_opt.study.account import account
from slackswap_opt.study.steady_state import steady_state
from slackswap_opt.workloads import build_step, load_workload
from tests.hand import machine_of, step_of
from tests.oracle import plain
from tests.strategies import DEVICE, keep_all
from tests.test_simulator import AMPLE, duplex_machine, op

ONE_SWAP = step_of(
    op("a", 100, "", "x"), op("b", 5000, "", "y"), op("c", 200, "x y"), x=4, y=1
)  # fmt: skip
SWAPPED = Schedule((0, 1, 2), ((0,), (), (0, 1)), (Copy(0, 0),), (Copy(0, 0),))


def with_link(machine: Machine, **changes: object) -> Machine:
    return replace(machine, link=replace(machine.link, **changes))


def test_both_directions_at_once_are_slower_than_each_alone():
    """NVIDIA/nvbandwidth#53, #11: 25 GB/s each way alone; together 24 out, 11 to 13 in."""
    rates = load_machine("a100-80gb-pcie4").link.rates()
    assert (rates.d2h, rates.h2d, rates.d2h_duplex) == (25_000, 25_000, 24_000)
    assert 11_000 <= rates.h2d_duplex <= 13_000
    step = step_of(
        op("a", 0, "", "x"), op("b", 2000, "", "y"), op("c", 9000, "", ""), op("d", 10, "x y"),
        x=8, y=24,
    )  # fmt: skip
    schedule = Schedule(
        (0, 1, 2, 3), ((0,), (1,), (), ()), (Copy(0, 0), Copy(1, 1)), (Copy(0, 1), Copy(1, 1))
    )
    played = plain(simulate(step, duplex_machine(25, 24, 12), schedule, AMPLE))
    (_, (begun, ended)), (back, _) = played.copies_out, played.copies_in
    assert back[0] == begun == 2000
    assert ended - begun == -(-(24_000 - 24 * (back[1] - back[0])) // 25) + back[1] - back[0]
    assert back[1] - back[0] == -(-8000 // 12), "half of what it takes alone"


def test_devices_behind_one_switch_get_a_part_of_its_rate():
    """NVIDIA/nvbandwidth#11: all devices at once get 5 to 6 GB/s each."""
    whole = load_machine().link
    assert replace(whole, shared_by=4).rates().d2h == 6250
    machine = machine_of(rate=2)
    devices = [Device(ONE_SWAP, SWAPPED, AMPLE)] * 2
    together = simulate_shared(machine, devices)
    halved = simulate(ONE_SWAP, with_link(machine, shared_by=2), SWAPPED, AMPLE)
    assert [plain(verdict) for verdict in together] == [plain(halved)] * 2
    page = Path(__file__).parent.parent / "docs/simulator.md"
    assert "while all ranks" in page.read_text(encoding="utf-8"), "says how to measure the rate"


def test_rates_are_inputs_of_each_direction(tmp_path: Path):
    """NVIDIA/nvbandwidth#42, #24: 16.5 to 25.1 GB/s by size; 35 or 52.8 by direction."""
    shipped = Path(__file__).parent.parent / "models/machines/h100-pcie5.toml"
    lines = [
        line.split("=")[0] + f"= {rate[line.split('_')[0]]}"
        if (rate := {"d2h": 35e9, "h2d": 52.8e9}) and line.startswith(("d2h_", "h2d_"))
        else line
        for line in shipped.read_text(encoding="utf-8").splitlines()
    ]
    mine = tmp_path / "mine.toml"
    mine.write_text("\n".join(lines), encoding="utf-8")
    rates = load_machine(str(mine)).link.rates()
    assert (rates.d2h, rates.h2d, rates.d2h_duplex, rates.h2d_duplex) == (
        35_000, 52_800, 35_000, 52_800,
    )  # fmt: skip


def test_a_thousand_small_copies_take_longer_than_a_large_one():
    """Own traces of an A100: 0.5 GB/s at 4 KB, 8.8 GB/s at 5.4 MB: a latency of each copy."""
    link = Link.symmetric(12e9, latency_ns=8000)
    machine = Machine("pinned", DEVICE, link)

    def out_ns(count: int, size: int) -> int:
        operations = [op(f"f{k}", 0, "", f"a{k}") for k in range(count)]
        step = step_of(*operations, op("end", 10**9, ""), **{f"a{k}": size for k in range(count)})
        schedule = Schedule(
            tuple(range(count + 1)), ((),) * (count + 1), tuple(Copy(k, k) for k in range(count))
        )
        return plain(simulate(step, machine, schedule, 10**9)).copies_out[-1][1]

    many, one = out_ns(1000, 4096), out_ns(1, 4096 * 1000)
    assert many == 1000 * (8000 + 342)
    assert one == 8000 + -(-4_096_000_000 // 12_000)
    assert 4096 / (many / 1000) == pytest.approx(0.49, abs=0.01), "GB/s, as measured"


@pytest.fixture(scope="module")
def few_layers() -> Problem:
    machine = load_machine()
    step = build_step(load_workload("gpt2-xl", layers=8), machine)
    problem = Problem(step, machine, 1)
    return problem.with_budget(problem.liveness.ideal_peak_bytes * 7 // 10)


def test_what_is_too_small_is_never_swapped(few_layers: Problem):
    """The same, and NVIDIA Megatron's minimum of a million elements."""
    moved = few_layers.step.index.transfer_bytes
    least = 2 * 2**20
    coarse = replace(few_layers, machine=with_link(few_layers.machine, min_swap_bytes=least))
    found = {}
    for name in ("swap-all", "greedy"):
        for problem in (few_layers, coarse):
            schedule = HEURISTICS[name](problem).schedule
            copied = {copy.tensor for copy in schedule.copies_out} if schedule else set()
            found[name, problem is coarse] = min((int(moved[t]) for t in copied), default=least)
    assert found["swap-all", False] < least <= min(found[name, True] for name, _ in found)
    assert bound(coarse).step_ns == bound(few_layers).step_ns, "the bound does not rely on it"


def test_a_model_of_one_layer_gets_valid_plans():
    """NVIDIA/Megatron-LM#6783: an offload handler that was finished too early with one layer."""
    machine = load_machine()
    step = build_step(load_workload("gpt2-xl", layers=1), machine)
    problem = Problem(step, machine, 1)
    problem = problem.with_budget(problem.liveness.ideal_peak_bytes * 95 // 100)
    rows = compare([problem], HEURISTICS, Settings())
    fitting = [row for row in rows if row.step_s is not None]
    assert fitting
    assert all(row.bound_step_s <= row.step_s and row.ideal_step_s <= row.step_s for row in fitting)


def test_a_swap_without_anything_to_hide_behind_is_fully_exposed():
    """The same: no overlap may be assumed where there is none."""
    step = step_of(op("a", 100, "", "x"), op("b", 200, "x"), x=4)
    schedule = Schedule((0, 1), ((0,), (0,)), (Copy(0, 0),), (Copy(0, 0),))
    assert simulate(step, machine_of(), schedule, AMPLE).step_ns == 100 + 4000 + 4000 + 200


def test_what_is_swapped_is_said_in_bytes(few_layers: Problem):
    """Megatron's documentation: a fraction that counts groups, not bytes."""
    schedule = HEURISTICS["greedy"](few_layers).schedule
    sums = account(few_layers.step, schedule)
    size = few_layers.step.index.size_bytes
    swapped = {t for t, action in sums.actions.items() if action is Action.SWAP}
    assert sums.total.swapped_bytes == sum(int(size[t]) for t in swapped) > len(swapped)
    amounts = [f.name for f in fields(Row) if "swapped" in f.name or "kept" in f.name]
    assert amounts == ["kept_bytes", "swapped_bytes"]


@pytest.mark.parametrize("overlap", [0, 0.25, 0.5, 1])
def test_overlap_efficiency_goes_from_fully_exposed_to_hidden(overlap: float):
    """meta-pytorch/torchtune#2076, #1905; pytorch/torchtitan#467: no prefetch, no overlap."""
    machine = with_link(machine_of(), overlap=overlap)
    played = plain(simulate(ONE_SWAP, machine, SWAPPED, AMPLE))
    work, copies = 100 + 5000 + 200, 4000 + 4000
    if overlap == 0:
        assert played.step_ns == work + copies
    else:
        done = overlap * copies  # of b, while both copies are under way
        assert played.step_ns == 100 + copies + max(0, 5000 - done) + 200
    assert simulate(ONE_SWAP, machine, keep_all(ONE_SWAP), AMPLE).step_ns == work


@pytest.mark.parametrize("changes", [{"overlap": 0.0}, {"contention": 0.5}], ids=str)
def test_the_bound_holds_on_links_that_slow_kernels_down(few_layers: Problem, changes: dict):
    """It takes the link and the kernels at their best, so slower ones cannot break it."""
    slow = replace(few_layers, machine=with_link(few_layers.machine, **changes))
    assert bound(slow).step_ns == bound(few_layers).step_ns
    schedule = HEURISTICS["swap-all"](few_layers).schedule
    assert schedule is not None
    fast_ns, slow_ns = (
        simulate(p.step, p.machine, schedule, p.budget_bytes).step_ns for p in (few_layers, slow)
    )
    assert slow_ns is not None
    assert bound(slow).step_ns <= fast_ns < slow_ns


def test_a_host_buffer_is_not_written_again_before_it_was_read():
    """pytorch/torchtitan#2581: a buffer reused across steps before it was read."""
    found = steady_state(ONE_SWAP, machine_of(pinned_bytes=4), SWAPPED, AMPLE, steps=2)
    played = plain(found.verdicts[0])
    (first_out, second_out), (first_in, second_in) = played.copies_out, played.copies_in
    assert first_out[1] <= first_in[0] < first_in[1] <= second_out[0] < second_in[0]
    assert played.host_bytes == 4
    # Two tensors of a step share the only buffer: the second goes out when the first has been read.
    step = step_of(
        op("a", 100, "", "x"), op("b", 100, "", "y"), op("c", 9000, "", "z"), op("d", 100, "x"),
        op("e", 9000, "", "w"), op("f", 100, "y"), x=4, y=4, z=1, w=1,
    )  # fmt: skip
    schedule = Schedule(
        tuple(range(6)), ((0,), (), (), (), (), ()),
        (Copy(0, 0), Copy(1, 1)), (Copy(0, 1),),
    )  # fmt: skip
    one = plain(simulate(step, machine_of(pinned_bytes=4), schedule, AMPLE))
    assert one.copies_in[0][1] == one.copies_out[1][0]
    two = plain(simulate(step, machine_of(pinned_bytes=8), schedule, AMPLE))
    assert two.copies_out[1][0] == two.copies_out[0][1] < two.copies_in[0][1]


def test_a_tensor_has_exactly_one_action(few_layers: Problem):
    """pytorch/pytorch#84907: a tensor marked both to offload and to checkpoint."""
    schedule = HEURISTICS["greedy"](few_layers).schedule
    assert schedule is not None
    saved = {t for t, keep in enumerate(few_layers.liveness.saved) if keep}
    assert saved <= set(actions_of(few_layers.step, schedule))
    step = step_of(
        op("a", 100, "", "x"), op("b", 5000, "", "y"),
        replace(op("c", 200, "x y"), phase=Phase.BACKWARD), x=4, y=1,
    )  # fmt: skip
    both = Schedule((0, 1, 0, 2), ((0,), (), (), (0, 1)), (Copy(0, 0),))
    assert simulate(step, machine_of(), both, AMPLE).fits
    assert actions_of(step, both)[0] is Action.RECOMPUTE, "what brings it back is its action"
    twice = '{"schema": "slackswap.plan/1", "actions": {"x": "swap", "x": "recompute"}}'
    with pytest.raises(InputError, match='"x" appears more than once'):
        loads(twice)


@pytest.mark.parametrize("contention", [0, 0.05, 0.5])
def test_copies_slow_kernels_by_the_contention_factor(contention: float):
    """NVIDIA/TransformerEngine#2520: copies use the device's bandwidth and slow kernels down."""
    assert load_machine().link.contention == 0, "measured nowhere well enough for a number"
    machine = with_link(machine_of(), contention=contention)
    step = step_of(op("a", 100, "", "x"), op("b", 21000, "", ""), x=4)
    played = plain(simulate(step, machine, Schedule((0, 1), ((), ()), (Copy(0, 0),)), AMPLE))
    assert played.copies_out == [(100, 4100)]
    beside = round(10**6 / (1 + contention)) * 4000
    assert played.step_ns == 4100 + -(-(21000 * 10**6 - beside) // 10**6)


def test_offloading_layers_frees_their_activations_to_the_byte():
    """huggingface/transformers#48444: layers x sequence x hidden x 2 bytes, exactly."""
    layers, each = 8, 8192 * 1024 * 2
    names = [f"a{k}" for k in range(layers)]
    operations = [op(f"f{k}", 1000, f"a{k - 1}" if k else "", f"a{k}") for k in range(layers)]
    operations += [op("pool", 10, names[-1], "p"), op("head", 10**7, "p", "loss")]
    operations += [op(f"b{k}", 1000, f"a{k} loss") for k in reversed(range(layers))]
    step = step_of(*operations, **dict.fromkeys(names, each), p=4, loss=4)
    head, events = layers + 1, 2 * layers + 2
    frees: list[list[int]] = [[] for _ in range(events)]
    for k in range(layers):
        frees[k + 1].append(k)
        frees[events - 1 - k].append(k)
    swapped = Schedule(
        tuple(range(events)),
        tuple(map(tuple, frees)),
        tuple(Copy(k, k) for k in range(layers)),
        tuple(Copy(k, head) for k in reversed(range(layers))),
    )
    machine = Machine("fast", DEVICE, Link.symmetric(25e9))

    def used_when_head_ends(schedule: Schedule) -> int:
        played = plain(simulate(step, machine, schedule, 10**12))
        return [level for ns, level in played.memory if ns < played.compute[head][1]][-1]

    freed = used_when_head_ends(keep_all(step)) - used_when_head_ends(swapped)
    assert freed == layers * each == 128 * 2**20


def test_a_link_says_what_is_wrong_with_its_efficiency(tmp_path: Path):
    with pytest.raises(InputError) as caught:
        replace(load_machine().link, overlap=1.5, contention=-1, min_swap_bytes=-1)
    assert len(caught.value.faults) == 3
    shipped = Path(__file__).parent.parent / "models/machines/plain-a100.toml"
    text = shipped.read_text(encoding="utf-8").replace(
        "[link]", "[link]\noverlap = 0.9\ncontention = 0.05"
    )
    mine = tmp_path / "mine.toml"
    mine.write_text(text, encoding="utf-8")
    link = load_machine(str(mine)).link
    assert link.compute_speeds() == (1_000_000, 857_143, 818_182)
