"""Fuzzing of the readers of text: any damage gives a sound step or an `InputError`.

Sound files are damaged in the ways in which files are: bytes change, parts are cut, doubled or
moved, words are replaced by others of the file. A seed tells the damage; a failure names its input.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slackswap_opt.formats import graphml, native_yaml, node_link
from slackswap_opt.formats.registry import read_content
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.fuzzing import batches_of, fuzz, fuzzing, read_or_refused

SMALL = TrainingStep.build(
    "small",
    [
        Operation("a", Phase.FORWARD, 5_000, (Value("w"),), (Value("x"), Value("y")), 3, "one"),
        Operation("b", Phase.FORWARD, 70, (Value("x"),), (Value("x", 1),), random=True),
        Operation("c", Phase.BACKWARD, 9, (Value("x", 1), Value("y")), recomputable=False),
    ],
    [Tensor("x", 2**20, 7, aliases=("view",)), Tensor.of("y", 1), Tensor.of("w", 4, static=True)],
    ["a note"],
)
NATIVE = json.dumps(
    {
        "schema": "slackswap.step/1",
        "name": "n",
        "tensors": {"x": 1, "y": {"size_bytes": 4, "transfer_bytes": 2, "aliases": ["z"]}},
        "operations": [
            {"name": "a", "phase": "forward", "duration_us": 1.5, "writes": ["x", "y"]},
            {"name": "b", "phase": "backward", "duration_ns": 7, "reads": ["z", "x@0"]},
            {"name": "c", "phase": "optimizer", "duration_s": 1e-3, "reads": [{"tensor": "x"}]},
        ],
    }
)
PIPEDREAM = """\
node1 -- Input -- forward_compute_time=1.0, backward_compute_time=0.0, activation_size=64.0, parameter_size=0.0
node2 -- Conv2d(3, 8) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=[8.0; 4.0], parameter_size=4.0
\tnode1 -- node2
node3 -- __getitem__(0) -- forward_compute_time=0, backward_compute_time=0, activation_size=8.0, parameter_size=0.0
\tnode2 -- node3
node4 -- ReLU(inplace) -- forward_compute_time=0.5, backward_compute_time=0.25, activation_size=8, parameter_size=0 -- stage_id=1
\tnode3 -- node4
"""  # noqa: E501
DNN = json.dumps(
    {
        "nodes": [
            {"name": f"n{n}", "id": n, "fpgaLatency": 0.5 * n, "size": 8.0, "isBackwardNode": n > 3,
             "colorClass": (n - 1) % 3}
            for n in range(1, 7)
        ],
        "edges": [
            {"sourceId": s, "destId": s + 1, "cost": 0.1, "size": 8.0} for s in (1, 2, 4, 5)
        ],
    }
)  # fmt: skip
DOT = 'digraph {\n\tnode1 [label="Conv2d\n[forward_compute_time=1]"]\n\tnode1 -> node2\n}\n'

CORPUS: dict[str, bytes] = {
    "native": NATIVE.encode(),
    "yaml": native_yaml.dumps(SMALL).encode(),
    "node-link": node_link.dumps(SMALL).encode(),
    "graphml": graphml.dumps(SMALL).encode(),
    "pipedream": PIPEDREAM.encode(),
    "dnn-partitioning": DNN.encode(),
    "dot": DOT.encode(),
}
if importlib.util.find_spec("yaml") is None:
    del CORPUS["yaml"]

TOKENS = [
    b"0", b"-1", b"1e999", b"NaN", b"-Infinity", b"null", b"true", b"1" * 30, b"0.5", b"010", b'""',
    b"[]", b"{}", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b"<", b">", b"&", b";", b":", b",",
    b"\n", b"\t", b" ", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"@1", b"@", b" -- ",
    b"&amp;", b"&x;", b"<!DOCTYPE x>", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"*a", b"&a ",
    b"!!int ",
    b"- ", b"? ", b"---\n", b"# ", b"|", b"%", b"forward", b"backward", b"size_bytes", b"tensor",
    b'"role": "tensor"', b"in_place", b"Add", b"View", b"Size(0)", b"LSTM(", b"\\ud800",
    b"\xe2\x80\xa8",
]  # fmt: skip


WORD = re.compile(rb"[A-Za-z0-9_.+-]+")


def damaged(content: bytes, seed: int) -> bytes:
    """A sound file with one to four damages."""
    draw = random.Random(seed)
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        at = draw.randrange(len(data) + 1)
        end = min(len(data), at + draw.choice((1, 1, 2, 4, 8, 30, 200)))
        damage = draw.randrange(16)
        if damage >= 8:  # a word of the file for another, or for a token: the syntax often survives
            words = list(WORD.finditer(data))
            if words:
                word = draw.choice(words)
                other = draw.choice(words)[0] if damage >= 10 else draw.choice(TOKENS)
                data[word.start() : word.end()] = other
        elif damage == 0:
            del data[at:end]
        elif damage == 1:
            data[at:at] = data[at:end]
        elif damage == 2:
            to, part = draw.randrange(len(data) + 1), data[at:end]
            data[to:to] = part
        elif damage == 3 and at < len(data):
            data[at] = draw.randrange(256)
        elif damage == 4:
            data[at:at] = draw.randbytes(draw.randrange(1, 5))
        elif damage == 5:
            del data[at:]
        else:
            data[at : at + draw.choice((0, 0, 1, 3, 6))] = draw.choice(TOKENS)
    return bytes(data)


def beginning(seed: int) -> bytes:
    """The first bytes of a sound file, if any, and random ones."""
    draw = random.Random(seed)
    start = draw.choice([*CORPUS.values()])[: draw.choice((0, 10, 40))]
    return start + draw.randbytes(draw.randrange(200))


def read(content: bytes) -> TrainingStep:
    return read_content(content, "fuzzed")


@pytest.mark.parametrize("kind", CORPUS)
def test_what_is_damaged_was_sound(kind: str) -> None:
    assert read_or_refused(CORPUS[kind], read) == (kind != "dot")


def test_damage_is_neither_always_fatal_nor_never() -> None:
    for kind in CORPUS.keys() - {"dot"}:
        sound = sum(read_or_refused(damaged(CORPUS[kind], seed), read) for seed in range(200))
        assert 0 < sound < 150, kind


@pytest.mark.parametrize("kind", CORPUS)
@batches_of(400)
def test_damaged_files_some(kind: str, seed: int) -> None:
    fuzz(partial(damaged, CORPUS[kind]), read, seed)


@fuzzing(300)
@given(start=st.sampled_from([c[:40] for c in CORPUS.values()]), rest=st.binary(max_size=200))
@example(start=b"", rest=b"\x1f\x8b")
@example(start=b"{", rest=b'"nodes": 1, "directed": 1}')
@example(start=b"{", rest=b'"nodes": [], "fpgaLatency": []}')
@example(start=b"<graphml>", rest=b"<graph><node/></graph></graphml>")
def test_random_bytes_some(start: bytes, rest: bytes) -> None:
    read_or_refused(start + rest, read)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CORPUS)
@batches_of(10_000)
def test_damaged_files_many(kind: str, seed: int) -> None:
    fuzz(partial(damaged, CORPUS[kind]), read, seed)


@pytest.mark.slow
@batches_of(10_000)
def test_random_bytes_many(seed: int) -> None:
    fuzz(beginning, read, seed)
