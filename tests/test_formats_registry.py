"""Formats are told apart by content, whatever a file is called."""

from __future__ import annotations

import contextlib
import gc
import gzip
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slackswap_opt.errors import InputError
from slackswap_opt.formats.registry import FORMATS, format_of, read_content, read_step

NATIVE = (
    b'{"schema": "slackswap.step/1", "name": "s", "tensors": {"x": 1},'
    b' "operations": [{"name": "a", "phase": "forward", "duration_ns": 1, "writes": ["x"]}]}'
)
PIPEDREAM = (
    b"node1 -- Linear(1, 1) -- forward_compute_time=1.0, backward_compute_time=2.0,"
    b" activation_size=8.0, parameter_size=4.0\n"
)


@pytest.mark.parametrize("name", ["a.json", "a.txt", "a", "a.dot", ".json", "a.json.gz"])
@pytest.mark.parametrize(
    "content", [NATIVE, PIPEDREAM, b"\xef\xbb\xbf" + NATIVE, b"\n" + PIPEDREAM]
)
def test_the_suffix_does_not_matter(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    for stored in (content, gzip.compress(content)):
        path.write_bytes(stored)
        step = read_step(path)
        assert len(step.operations) in (1, 3)
        assert step.name in ("s", "a", ".json")


@pytest.mark.parametrize(
    "content",
    [
        b"digraph {\n a -> b }",
        b"strict digraph G { }",
        b"// made by hand\n# line\ngraph g { a -- b }",
        b'Digraph {\n\tnode1 [label="x\n[forward_compute_time=1]"] }',
    ],
)
def test_dot_is_refused_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "g.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="DOT graph") as error:
        read_step(path)
    assert "docs/formats.md" in str(error.value)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"hello", b"{}", b"[1]", b"\x80", b"a,b\n1,2\n", b"<x/>"])
def test_unknown_content_lists_the_known_formats(content: bytes) -> None:
    with pytest.raises(InputError, match="not recognized") as error:
        read_content(content, "x")
    assert all(known.NAME in str(error.value) for known in FORMATS)


def test_a_pickle_is_named_as_what_it_is() -> None:
    with pytest.raises(
        InputError, match=r"memory snapshots .* nothing to plan; `slackswap inspect"
    ):
        read_content(b"\x80\x04\x95", "x")


def test_a_native_file_without_schema_is_still_recognized() -> None:
    with pytest.raises(InputError, match=r'add "schema": "slackswap\.step/1"'):
        read_content(b'{"tensors": {}, "operations": []}', "x")


def test_every_line_of_a_message_begins_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(NATIVE.replace(b'"x": 1', b'"x": -1').replace(b"forward", b"foreword"))
    with pytest.raises(InputError) as error:
        read_step(path)
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{path}: ") for line in lines)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_named_or_not_recognized(encoding: str) -> None:
    with pytest.raises(InputError) as error:
        read_content(NATIVE.decode().encode(encoding), "x")
    named = "the text is in UTF-16; save it as UTF-8"
    assert (named in str(error.value)) == (encoding != "utf-16-le")


def test_a_message_lists_the_first_hundred_faults() -> None:
    content = NATIVE.replace(b'"operations": [', b'"operations": [' + b'{"name": 5},' * 300)
    with pytest.raises(InputError) as error:
        read_content(content, "x")
    assert len(error.value.faults) == 101
    assert error.value.faults[-1].startswith("and at least ")


def test_the_collector_of_cycles_is_as_before_after_reading() -> None:
    for content in (NATIVE, b'{"schema": "slackswap.step/1"'):
        for enabled in (True, False):
            (gc.enable if enabled else gc.disable)()
            with contextlib.suppress(InputError):
                read_content(content, "x")
            assert gc.isenabled() == enabled
    gc.enable()


def test_reading_neither_freezes_objects_nor_thaws_those_of_others() -> None:
    read_content(NATIVE, "x")
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        read_content(NATIVE, "x")
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_formats_have_names_and_unknown_files_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content, name in [(NATIVE, "native JSON"), (PIPEDREAM, "PipeDream"), (b"hello", "")]:
        path.write_bytes(content)
        assert format_of(path).startswith(name)
        assert bool(format_of(path)) == bool(name)


@given(content=st.binary(max_size=60))
@example(content=b"graph {" + b"\xff" * 9)
@example(content=b'{"schema": "slackswap.step/1"\xff}')
@example(content=b"a -- b\n\xff")
def test_no_content_raises_anything_but_input_errors(content: bytes) -> None:
    with pytest.raises(InputError):
        read_content(content, "x")
