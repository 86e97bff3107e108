"""Memory snapshots: pickles that run nothing, and what a snapshot says."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import pickletools
import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from slackswap_opt.cli.app import app
from slackswap_opt.errors import InputError
from slackswap_opt.formats import memory_snapshot, plain_pickle
from slackswap_opt.formats.files import read_bytes
from slackswap_opt.formats.memory_snapshot import (
    Action,
    Allocation,
    State,
    read_snapshot,
    recognizes,
    summary,
)
from slackswap_opt.formats.plain_pickle import loads
from tests.test_simulator_properties import RELAXED

MIB = 2**20

# Plain pickles

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.booleans(), st.none()
)
DATA = st.recursive(
    st.one_of(NUMBERS, st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(), inner, max_size=5),
        st.tuples(inner, inner),
        st.tuples(inner, inner, inner, inner),
        st.lists(inner, max_size=4).map(tuple),
    ),
    max_leaves=20,
)


@settings(RELAXED, max_examples=50)
@given(DATA, st.integers(2, 5))
def test_plain_data_comes_back_as_it_was(data, protocol):
    assert loads(pickle.dumps(data, protocol)) == data


def test_long_texts_numbers_and_lists_come_back():
    data = {"text": "x" * 70_000, "number": 2**1000, "list": list(range(5000)), "same": ["a"] * 300}
    for protocol in range(2, 6):
        assert loads(pickle.dumps(data, protocol)) == data


def test_shared_objects_stay_shared_and_circles_are_harmless():
    shared: list[object] = [1]
    first, second = loads(pickle.dumps([shared, shared]))
    assert first is second
    shared.append(shared)
    circle = loads(pickle.dumps(shared))
    assert circle[1] is circle


class Harmful:
    def __reduce__(self):
        return os.system, ("echo harmed > harmed",)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize(
    "thing", [Harmful(), {"segments": [Harmful()]}, os.system, Path("x"), {1, 2}, b"raw", 1j]
)
def test_objects_functions_and_imports_are_refused(thing, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"byte \d+: the pickle holds an instruction [A-Z_0-9]+"):
        loads(pickle.dumps(thing, protocol))
    assert not list(tmp_path.iterdir())


ALLOWED = {
    "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS",
    "SETITEM", "SETITEMS", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
}  # fmt: skip


@pytest.mark.parametrize("op", pickletools.opcodes, ids=lambda op: op.name)
def test_every_other_instruction_is_refused_by_name(op):
    content = b"\x80\x04" + op.code.encode("latin-1") + b"\x01\x00os\nsystem\n" + b"\x00" * 20
    said = ""
    try:
        loads(content)
    except InputError as error:
        said = str(error)
    assert (f"instruction {op.name}, which is refused" in said) == (op.name not in ALLOWED)


GOOD = pickle.dumps({"a": [1, 2**40, "text", (None, True, 1.5)], "b": {"c": "c" * 300}}, 4)


def test_a_pickle_that_is_cut_short_is_damaged_wherever_it_is_cut():
    for length in range(2, len(GOOD)):
        with pytest.raises(InputError, match=r"byte \d+"):
            loads(GOOD[:length])


@RELAXED
@given(st.binary(max_size=60))
@example(b"(")
@example(b"}K\x01K\x02s.")
@example(b"](K\x01e]")
@example(b"]q\xff.")
@example(b"h\x07.")
@example(b"K\x01(e.")
@example(b"\x8d" + b"\xff" * 8)
@example(b"X\xff\xff\xff\xffab")
@example(b"\x8c\x01\xff.")
def test_no_content_does_more_than_be_refused(content):
    with contextlib.suppress(InputError):
        loads(b"\x80\x04" + content)


def test_a_place_in_the_memo_costs_no_memory_however_high():
    content = b"\x80\x02]" + b"r" + struct.pack("<I", 2**32 - 1) + b"."
    assert loads(content) == []


def test_size_instructions_and_objects_are_limited(monkeypatch):
    content = pickle.dumps(list(range(100)), 4)
    for name, limit in (("MAX_BYTES", 50), ("MAX_INSTRUCTIONS", 50), ("MAX_OBJECTS", 50)):
        with monkeypatch.context() as change:
            change.setattr(plain_pickle, name, limit)
            with pytest.raises(InputError, match=r"\b50\b.*record a shorter history"):
                loads(content)


def test_text_is_not_a_pickle():
    with pytest.raises(InputError, match="not a pickle"):
        loads(b"hello")


# Snapshots


def frame(file, line=1, name="f"):
    return {"filename": file, "line": line, "name": name}


def block(size, state="inactive", requested=None, **more):
    entry = {"size": size, "state": state, "frames": [], **more}
    return entry if requested is None else {**entry, "requested_size": requested}


def segment(address, blocks, **more):
    at = address
    for entry in blocks:
        entry["address"] = at
        at += entry["size"]
    return {
        "device": 0, "address": address, "total_size": at - address, "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "blocks": blocks, **more,
    }  # fmt: skip


def event(action, addr, size, time_us=None, **more):
    entry = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **more}
    return entry if time_us is None else {**entry, "time_us": time_us}


FRAMES = [
    frame("CUDACachingAllocator.cpp"),
    frame("/site/torch/nn/functional.py", 3, "linear"),
    frame("/home/me/model.py", 12, "forward"),
    frame("/home/me/train.py", 4, "main"),
]


def document():
    return {
        "segments": [
            segment(
                40 * MIB,
                [
                    block(5 * MIB, "active_allocated", 5 * MIB - 100, frames=FRAMES),
                    block(3 * MIB, "active_pending_free", 3 * MIB, frames=FRAMES),
                    block(12 * MIB),
                ],
            ),
            segment(
                2 * MIB, [block(512, "active_allocated", 4), block(2 * MIB - 512)],
                segment_type="small",
            ),
        ],
        "device_traces": [
            [
                event("snapshot", 0, 0, 50),
                event("alloc", 45 * MIB, 3 * MIB, 100),
                event("alloc", 48 * MIB, 9 * MIB, 110),
                event("free_requested", 48 * MIB, 9 * MIB, 160),
                event("free_completed", 48 * MIB, 9 * MIB, 170),
                event("free_requested", 45 * MIB, 3 * MIB, 180),
                {"action": "oom", "device_free": 5, "size": 7, "stream": 0},
            ]
        ],
        "allocator_settings": {"expandable_segments": False},
    }  # fmt: skip


def read(content):
    return read_snapshot(pickle.dumps(content, 4), "mine")


def test_a_snapshot_is_read():
    snapshot = read(document())
    small, large = snapshot.segments
    assert (small.address, small.small, small.size_bytes) == (2 * MIB, True, 2 * MIB)
    assert [b.state for b in large.blocks] == [State.ACTIVE, State.PENDING, State.FREE]
    assert [b.requested_bytes for b in large.blocks] == [5 * MIB - 100, 3 * MIB, 0]
    assert large.blocks[0].where == "model.py:12 forward"
    (history,) = snapshot.history
    assert [e.action for e in history] == [
        Action.ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED,
        Action.FREE_REQUESTED,
    ]  # fmt: skip
    assert history[0].time_us == 100


def test_a_summary_adds_it_up():
    facts = summary(read(document()))
    assert (facts.devices, facts.segments, facts.small_segments) == (1, 2, 1)
    assert facts.reserved_bytes == 22 * MIB
    assert facts.allocated_bytes == 8 * MIB + 512
    assert facts.requested_bytes == 8 * MIB - 100 + 4
    assert (facts.free_bytes, facts.largest_free_bytes) == (14 * MIB - 512, 12 * MIB)
    assert (facts.live_blocks, facts.history_events, facts.history_us) == (3, 5, 80)
    assert facts.start_bytes == 5 * MIB - 100 + 4
    assert facts.peak_bytes == 17 * MIB - 100 + 4
    assert facts.largest[0] == Allocation(1, 5 * MIB - 100, "model.py:12 forward")
    assert facts.largest[-1] == Allocation(1, 4, "")


def test_addresses_and_requested_sizes_may_be_missing_as_in_older_versions():
    older = document()
    for entry in older["segments"]:
        for part in entry["blocks"]:
            del part["address"]
            part.pop("requested_size", None)
    newer, found = read(document()), read(older)
    assert [[b.address for b in s.blocks] for s in found.segments] == [
        [b.address for b in s.blocks] for s in newer.segments
    ]
    assert found.segments[1].blocks[0].requested_bytes == 5 * MIB


def break_at(*path, value):
    content = document()
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("segments",), 5, r"segments: expected a list, got 5"),
        (("segments", 0), [], r"segments\[0\]: expected a dictionary, got list"),
        (("segments", 0, "total_size"), 5, r"segments\[0\]: its blocks add up to 20971520 bytes"),
        (("segments", 0, "total_size"), -5, r"segments\[0\].total_size: expected an integer"),
        (("segments", 0, "total_size"), True, r"segments\[0\].total_size: expected an integer"),
        (("segments", 0, "segment_type"), "big", r"expected 'small' or 'large', got 'big'"),
        (("segments", 0, "segment_pool_id"), 1, r"segment_pool_id: expected a pair of integers"),
        (("segments", 0, "blocks", 1, "state"), "odd", r"blocks\[1\].state: expected one of"),
        (("segments", 0, "blocks", 1, "address"), 7, r"blocks\[1\].address: expected 47185920"),
        (("segments", 0, "blocks", 0, "requested_size"), 6 * MIB, r"6291456 bytes asked for in"),
        (("segments", 1, "address"), 39 * MIB, r"segments: the one at|address: expected"),
        (("device_traces", 0), {}, r"device_traces\[0\]: expected a list"),
        (("device_traces", 0, 1), "alloc", r"device_traces\[0\]\[1\]: expected an entry"),
        (("device_traces", 0, 1, "addr"), None, r"\[1\].addr: expected .* got nothing"),
        (("device_traces", 0, 1, "size"), 2**63, r"\[1\].size: expected an integer from 0"),
        (("allocator_settings",), [], r"allocator_settings: expected a dictionary"),
    ],
)
def test_faults_name_their_place(path, value, message):
    with pytest.raises(InputError, match=message):
        read(break_at(*path, value=value))


def test_segments_that_overlap_are_refused():
    content = document()
    content["segments"].append(segment(41 * MIB, [block(20 * MIB)]))
    with pytest.raises(InputError, match="overlaps the one at"):
        read(content)


def test_all_faults_are_told_up_to_twenty():
    content = break_at("segments", 0, "blocks", 0, "state", value="odd")
    content["device_traces"][0][1]["addr"] = "x"
    with pytest.raises(InputError) as caught:
        read(content)
    assert len(caught.value.faults) == 2
    content["device_traces"] = [["bad"] * 100]
    with pytest.raises(InputError) as caught:
        read(content)
    assert len(caught.value.faults) == 21
    assert caught.value.faults[-1] == "and more faults"


def test_a_small_file_that_unfolds_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(memory_snapshot, "MAX_ENTRIES", 1000)
    content = document()
    content["device_traces"] = [[event("alloc", 1, 1)] * 100] * 100
    with pytest.raises(InputError, match="more than 1000 blocks and events"):
        read(content)


@pytest.mark.parametrize("content", [[], {}, {"segments": []}, 5, "text"])
def test_other_pickles_are_not_snapshots(content):
    with pytest.raises(InputError, match="not a memory snapshot"):
        read(content)


def test_snapshots_are_recognized_by_their_content():
    assert recognizes(pickle.dumps(document(), 4))
    assert not recognizes(b"{}")
    assert not recognizes(gzip.compress(b"{}"))


# The command


def inspect(path: Path, *options: str, expected: int = 0) -> Result:
    result = CliRunner().invoke(app, ["inspect", str(path), *options], catch_exceptions=False)
    assert result.exit_code == expected, result.output
    return result


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_inspect_describes_a_snapshot(pack, tmp_path):
    path = tmp_path / "snapshot.bin"
    path.write_bytes(pack(pickle.dumps(document(), 4)))
    text = inspect(path).stdout
    assert "22.00 MiB in 2 segments, 1 of them small" in text
    assert "puts 2 of 2 allocations at the recorded addresses" in text
    assert "model.py:12 forward" in text
    facts = json.loads(inspect(path, "--json").stdout)
    assert facts["schema"] == "slackswap.snapshot/1"
    assert facts["reserved_bytes"] == 22 * MIB
    (model,) = facts["model"]
    assert model == {
        "device": 0, "allocations": 2, "same_address": 2, "allocated_exact": True,
        "segments_agree": True, "end_agrees": True,
    }  # fmt: skip


def test_inspect_says_why_a_history_is_not_replayed(tmp_path):
    path = tmp_path / "snapshot.pickle"
    content = break_at("segments", 0, "is_expandable", value=True)
    path.write_bytes(pickle.dumps(content, 4))
    assert "not applied: its segments are expandable" in inspect(path).stdout
    assert "expandable" in json.loads(inspect(path, "--json").stdout)["model_not_applied"]


def test_inspect_refuses_pickles_that_would_run_something(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(Harmful(), 4))
    done = inspect(path, expected=2)
    assert f"{path}: byte" in done.stderr
    assert "STACK_GLOBAL, which is refused" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)
def test_a_recorded_snapshot_says_what_was_measured():
    (path,) = (Path(os.environ["SLACKSWAP_DATA"]) / "traces").glob("10_*")
    facts = summary(read_snapshot(read_bytes(path), "gpt2-medium"))
    assert (facts.segments, facts.small_segments) == (400, 9)
    assert facts.reserved_bytes == 12_660_506_624
    assert facts.allocated_bytes == 6_838_108_672
    assert facts.history_events == 22_332
    assert round((facts.peak_bytes - facts.start_bytes) / MIB) == 6991
    assert facts.largest[0].count * facts.largest[0].size_bytes == 144 * 16 * MIB
