"""`convert` and `inspect`: any format in, four out; every planning command reads all of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from typer.testing import CliRunner, Result

from slackswap_opt import Problem, load_machine
from slackswap_opt.cli.app import app
from slackswap_opt.errors import InputError
from slackswap_opt.formats import graph_names, graph_path, read_step, write_step
from slackswap_opt.formats.writing import WRITERS, format_for
from slackswap_opt.machine import Machine
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value, liveness
from slackswap_opt.study import inspect
from tests.strategies import DEVICE

UNET = read_step(graph_path("unet"))
OUTPUTS = {"native": "u.json", "yaml": "u.yaml", "node-link": "u.any", "graphml": "u.graphml"}


def slackswap(*arguments: object, expected: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == expected, result.output[-2000:]
    return result


def needs(kind: str) -> None:
    if kind == "yaml":
        pytest.importorskip("yaml")


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_holds_the_same_step(kind: str, tmp_path: Path) -> None:
    needs(kind)
    path = tmp_path / OUTPUTS[kind]
    told = slackswap("convert", "unet", path, "--to", kind).stdout
    assert f"written to {path} ({kind})" in told
    assert read_step(path) == UNET
    back = tmp_path / "back.json"
    slackswap("convert", path, back)
    assert back.read_text() == graph_path("unet").read_text() or read_step(back) == UNET


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    "command",
    [
        ["plan", "-p", "greedy", "-b", "95%"],
        ["compare", "-p", "swap-all", "-b", "95%"],
        ["sweep", "-p", "swap-all", "-b", "95%"],
        ["bound", "-b", "95%"],
        ["inspect"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_reads_every_format(kind: str, command: list[str], tmp_path: Path) -> None:
    needs(kind)
    path = tmp_path / "no-suffix-helps.bin"
    write_step(read_step(graph_path("tiny-mlp")), path, to=kind)
    name, *rest = command
    assert "tiny-mlp" in slackswap(name, path, *rest).stdout


def test_the_suffix_chooses_and_gz_compresses(tmp_path: Path) -> None:
    for name, kind in [("a.json", "native"), ("A.YML", "yaml"), ("a.b.graphml", "graphml")]:
        assert format_for(name) == kind
        assert format_for(name + ".gz") == kind
    path = tmp_path / "a.json.gz"
    slackswap("convert", "tiny-mlp", path)
    first = path.read_bytes()
    assert gzip.decompress(first).startswith(b"{")
    slackswap("convert", "tiny-mlp", path, "--force")
    assert path.read_bytes() == first  # no time stamp


def test_standard_output() -> None:
    assert json.loads(slackswap("convert", "tiny-mlp", "-").stdout)["schema"] == "slackswap.step/1"
    document = json.loads(slackswap("convert", "tiny-mlp", "-", "--to", "node-link").stdout)
    assert (
        TrainingStep.from_networkx(nx.node_link_graph(document, edges="edges")).name == "tiny-mlp"
    )


def test_a_workload_becomes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bert.json"
    slackswap("convert", "bert-large", path, "--layers", "1", "--machine", "v100-pcie3")
    assert read_step(path).name.startswith("bert-large")


def test_a_forward_only_step_is_completed(tmp_path: Path) -> None:
    path, done = tmp_path / "forward.json", tmp_path / "done.json"
    forward = [
        Operation("a", Phase.FORWARD, 100, (), (Value("x"),)),
        Operation("b", Phase.FORWARD, 300, (Value("x"),), (Value("y"),)),
    ]
    write_step(TrainingStep.build("f", forward, [Tensor.of("x", 8), Tensor.of("y", 4)]), path)
    slackswap("convert", path, done, "--with-backward", "2")
    step = read_step(done)
    assert [op.duration_ns for op in step.operations] == [100, 300, 0, 600, 200]
    assert "derived" in step.notes[0]
    told = slackswap("convert", done, tmp_path / "x.json", "--with-backward", "2", expected=2)
    assert f"{done}: 3 operations are not in the forward phase" in told.output
    told = slackswap("convert", path, tmp_path / "x.json", "--with-backward", "nan", expected=2)
    assert "ratio is nan" in told.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["unet", "out.txt"], "the suffix does not say the format; end it with .json"),
        (["unet", "out"], "or name one of native, yaml, node-link, graphml"),
        (["unet", ".gz"], "the suffix does not say the format"),
        (["unet", "out.json", "--to", "xml"], "unknown format 'xml'; available: native"),
        (["unet", "there.json"], "the file exists; overwrite it with --force"),
        (["unet", "folder", "--to", "yaml"], "this is a folder"),
        (["unet", "none/out.json"], "does not exist; create it"),
        (["unett", "out.json"], "did you mean 'unet'"),
        (["unet", "out.json", "--batch", "3"], "--batch"),
        (["there.json", "out.json"], "the format is not recognized"),
        (["out.json", "out.json"], "no such file"),
        (["link.json", "link.json"], "the file exists"),
    ],
)
def test_bad_usage_is_one_message_and_writes_nothing(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.json").write_text("mine")
    (tmp_path / "link.json").symlink_to("there.json")
    (tmp_path / "folder").mkdir()
    told = slackswap("convert", *arguments, expected=2).output
    assert expected in told
    assert told.count("error:") == 1
    assert (tmp_path / "there.json").read_text() == "mine"
    assert {p.name for p in tmp_path.iterdir()} == {"there.json", "link.json", "folder"}


def test_names_in_a_file_never_become_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the argument says where; what is in the file, or where a link leads, changes nothing."""
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    evil = "../../evil\0"[:-1]
    step = TrainingStep.build(
        evil, [Operation(evil, Phase.FORWARD, 1, (), (Value("/evil"),))], [Tensor.of("/evil", 1)]
    )
    write_step(step, "in.json")
    for kind, name in OUTPUTS.items():
        slackswap("convert", "in.json", name, "--to", kind)
    assert {p.name for p in inner.iterdir()} == {"in.json", *OUTPUTS.values()}
    assert [p.name for p in tmp_path.iterdir()] == ["inner"]


def test_a_link_is_written_through_only_when_told(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("mine")
    link.symlink_to(target)
    slackswap("convert", "unet", link, expected=2)
    assert target.read_text() == "mine"
    slackswap("convert", "unet", link, "--force")
    assert link.is_symlink()
    assert read_step(target) == UNET


def test_a_file_may_replace_itself(tmp_path: Path) -> None:
    path = tmp_path / "u.json"
    slackswap("convert", "unet", path)
    slackswap("convert", path, path, "--to", "graphml", "--force")
    assert read_step(path) == UNET
    assert path.read_bytes().startswith(b"<?xml")


def test_a_failed_conversion_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "old.graphml"
    path.write_text("mine")
    step = TrainingStep.build("x", [Operation("a\x07", Phase.FORWARD, 1)], [])
    with pytest.raises(InputError, match=r"old\.graphml: .*XML cannot hold"):
        write_step(step, path, force=True)
    assert path.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["old.graphml"]


# inspect


def facts(step: TrainingStep, rate: int = 10) -> Any:
    """Inspected on a link of `rate` bytes per microsecond."""
    from slackswap_opt.machine import Host, Link

    machine = Machine("m", DEVICE, Link.symmetric(rate * 1e6), Host())
    return inspect(Problem(step, machine, 1))


def forward_backward(sizes: dict[str, int], ns: dict[str, int]) -> TrainingStep:
    """Independent forward operations, then their backward operations."""
    operations = [
        Operation(n, Phase.FORWARD, ns[n], (), (Value(n),), layer=n, recomputable=ns[n] > 0)
        for n in sizes
    ]
    operations += [
        Operation(f"{n}.b", Phase.BACKWARD, 0, (Value(n),), layer=n) for n in reversed(sizes)
    ]
    tensors = [Tensor.of(name, size) for name, size in sizes.items()]
    return TrainingStep.build("s", operations, tensors)


def test_what_swapping_saves_is_worked_out_by_hand() -> None:
    # 100 bytes at the peak, 50 must leave. Prices to rebuild: a 10, b 100, c 1 ns/byte.
    step = forward_backward({"a": 40, "b": 40, "c": 20}, {"a": 400, "b": 4000, "c": 20})
    value = facts(step).swapping
    assert (value.budget_bytes, value.leave_bytes) == (50, 50)
    assert value.recompute_ns == 20 + 300  # all of c, 30 bytes of a
    # the link moves 44 bytes out under 4420 ns, nothing back: there is no time after it
    assert facts(step).slack_bytes == 0
    assert value.remaining_ns == value.recompute_ns
    assert value.verdict == "nothing can be swapped"


def test_the_link_takes_the_dearest_bytes() -> None:
    step = forward_backward({"a": 40, "b": 40, "c": 20}, {"a": 400, "b": 4000, "c": 20})
    last = Operation("rest", Phase.BACKWARD, 4000)
    step = TrainingStep.build("s", [*step.operations, last], step.tensors)
    found = facts(step)
    assert found.slack_bytes == 40
    assert (
        found.swapping.remaining_ns == 10
    )  # 40 of 50 leave by the link, 10 bytes of c are rebuilt
    assert found.swapping.saved_fraction == pytest.approx((320 - 10) / 8420)
    assert found.swapping.verdict == "worth it"
    assert found.swapping.rebuild_ns_per_gib == round(4420 * 2**30 / 100)
    assert found.swapping.swap_ns_per_gib == round(2**30 * 1000 / 10)


@pytest.mark.parametrize(
    ("price", "verdict"), [(4000, "worth it"), (100, "worth a little"), (4, "not worth it")]
)
def test_the_verdict_follows_its_criterion(price: int, verdict: str) -> None:
    step = forward_backward({"a": 50, "b": 50}, {"a": price, "b": price})
    idle = [Operation(f"idle{n}", p, 10_000) for n, p in enumerate((Phase.FORWARD, Phase.BACKWARD))]
    step = TrainingStep.build("s", [*step.operations, *idle], step.tensors)
    found = facts(step, rate=3)
    assert found.swapping.verdict == verdict


def test_what_cannot_be_rebuilt_has_to_be_swapped() -> None:
    step = forward_backward({"a": 50, "b": 50}, {"a": 0, "b": 0})
    idle = [Operation(f"idle{n}", p, 10_000) for n, p in enumerate((Phase.FORWARD, Phase.BACKWARD))]
    step = TrainingStep.build("s", [*step.operations, *idle], step.tensors)
    value = facts(step).swapping
    assert (value.recompute_ns, value.rebuild_ns_per_gib) == (None, None)
    assert (value.remaining_ns, value.verdict) == (0, "worth it")


def test_critical_layers_save_faster_than_the_link_takes_away() -> None:
    step = forward_backward({"a": 40, "b": 40, "c": 20}, {"a": 400, "b": 4000, "c": 20})
    found = facts(step)
    assert [layer.layer for layer in found.critical] == ["a", "c"]
    assert [layer.late_ns for layer in found.critical] == [3600, 1980]
    assert (found.critical_layers, found.components) == (2, 3)


def test_inspect_says_what_a_file_is_and_whether_swapping_is_worth_it(tmp_path: Path) -> None:
    path = tmp_path / "u.json"
    write_step(UNET, path, to="graphml")
    text = slackswap("inspect", path).stdout
    for part in ("read as: GraphML", "operations   44 in", "ideal peak", "verdict", "worth it"):
        assert part in text
    for part in ("a budget of 53% of the peak", "Critical layers (8, the 5 worst)", "Largest"):
        assert part in text
    assert not {"warning", "separate parts"} & {line.partition("  ")[0] for line in lines(text)}
    document = json.loads(slackswap("inspect", "unet", "--json").stdout)
    assert document["source"] == "shipped graph unet.json"
    value, peak = document["swapping"], document["ideal_peak_bytes"]
    assert value["budget_bytes"] == document["smallest"]["budget_bytes"] > peak // 2
    assert document["critical"][0]["layer"]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_inspect_says_how_late_critical_layers_are(tmp_path: Path) -> None:
    text = slackswap("inspect", "tiny-mlp").stdout
    rows = [line.split() for line in lines(text.partition("Critical layers (3)")[2])]
    assert ["1", "16.00", "MiB", "0.425", "0.671", "0.246"] in rows  # 16 MiB at 25 GB/s
    assert "more than can be copied to the host while they compute" in text
    path = tmp_path / "fast.json"
    sizes = {"layer.1": 10, "layer.2": 20}
    write_step(forward_backward(sizes, dict.fromkeys(sizes, 10**7)), path)
    shown = slackswap("inspect", path).stdout
    assert "None: whatever a layer saves can be copied to the host while it computes." in shown


def test_inspect_says_little_of_a_step_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    write_step(TrainingStep.build("none", [Operation("f", Phase.FORWARD, 7)], []), path)
    shown = lines(slackswap("inspect", path).stdout)
    assert "verdict        nothing can be swapped" in shown
    assert not {"Critical layers", "Largest tensors"} & {*shown}


def test_inspect_names_rows_of_operations_without_a_layer() -> None:
    text = slackswap("inspect", "unet").stdout
    (row,) = (line.split() for line in lines(text) if line.startswith("(without a layer)"))
    assert row[3:] == ["-", "1", "0.00", "0.00"]


def with_outputs(*names: str) -> TrainingStep:
    """x is kept from a to c; b also writes these outputs, each of 70 bytes, for nobody."""
    return TrainingStep.build(
        "s",
        [
            Operation("a", Phase.FORWARD, 10, (), (Value("x"),)),
            Operation("b", Phase.FORWARD, 10, (), tuple(map(Value, names))),
            Operation("c", Phase.BACKWARD, 10, (Value("x"),), (Value("y"),)),
            Operation("d", Phase.BACKWARD, 10, (Value("y"),)),
        ],
        [Tensor.of("x", 40), Tensor.of("y", 10), *(Tensor.of(name, 70) for name in names)],
    )


def test_tensors_that_nobody_reads_raise_the_peak() -> None:
    found = facts(with_outputs("u")).unread
    assert (found.tensors, found.size_bytes) == (1, 70)
    assert (found.largest, found.writer) == ("u", "b")
    assert found.raises_peak_bytes == 40 + 70 - (40 + 10)
    assert found.raises_least_bytes == 70 - (40 + 10)
    assert facts(with_outputs("u", "v")).unread.raises_peak_bytes == 40 + 140 - 50
    assert facts(with_outputs()).unread.tensors == 0


def test_inspect_warns_of_tensors_that_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "u.json"
    write_step(with_outputs("u"), path)
    text = slackswap("inspect", path).stdout
    expected = "u, written by b, is never read; it raises the peak by 60 B and the smallest budget"
    assert expected in text
    assert "No operation names its layer" in text
    assert "Critical" not in text
    write_step(with_outputs("u", "v"), path, force=True)
    assert "2 tensors, such as u, written by b, are never read; they raise the peak by 130 B" in (
        slackswap("inspect", path).stdout
    )


@pytest.mark.parametrize("name", graph_names())
def test_inspect_holds_for_every_shipped_graph(name: str) -> None:
    problem = Problem(read_step(graph_path(name)), load_machine(), 1)
    found = inspect(problem)
    value = found.swapping
    assert value.budget_bytes + value.leave_bytes == liveness(problem.step).ideal_peak_bytes
    if value.recompute_ns is not None and value.remaining_ns is not None:
        assert 0 <= value.remaining_ns <= value.recompute_ns
