"""Pickles that hold nothing but data: dictionaries, lists, tuples, text, numbers.

Python's unpickler is a machine that may call any function that a file names. This one knows only
the instructions that build plain data. It imports nothing, calls nothing and refuses the rest; what
a hostile file can make it use of memory and time is bounded.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any

from slackswap_opt.errors import InputError

MAX_BYTES = 2**28
"""Largest pickle read (256 MiB)."""
MAX_INSTRUCTIONS = 2**26
"""Most instructions followed."""
MAX_OBJECTS = 2**23
"""Most objects built."""
_PROTOCOLS = range(2, 6)

_MARK = object()
_FLOAT = struct.Struct(">d")
_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}
_FIXED_INTEGERS = {ord("K"): (1, False), ord("M"): (2, False), ord("J"): (4, True)}
_TEXTS = {0x8C: 1, ord("X"): 4, 0x8D: 8}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PUTS = {ord("q"): 1, ord("r"): 4}


def looks_like_pickle(head: bytes) -> bool:
    """Whether a file that begins like this is a pickle of protocol 2 or later."""
    return len(head) > 1 and head[0] == 0x80 and head[1] in _PROTOCOLS


def loads(content: bytes) -> Any:
    """The data that a pickle holds.

    The result is made of `dict` (its keys are text), `list`, `tuple`, `str`, `int`, `float`, `bool`
    and `None`. The same object may occur in many places, and in itself: follow only the fields
    that you know.

    Raises:
        InputError: if the pickle holds anything else, is damaged or too large; names the byte.
    """
    if not looks_like_pickle(content[:2]):
        raise InputError("this is not a pickle of protocol 2 to 5")
    if len(content) > MAX_BYTES:
        raise InputError(
            f"the pickle has {len(content)} bytes; at most {MAX_BYTES} are read: "
            "record a shorter history"
        )
    machine = _Machine(content)
    try:
        return machine.run()
    except (IndexError, struct.error):
        raise machine.damaged("the pickle is cut short or damaged") from None
    except KeyError as error:
        raise machine.damaged(f"refers to object {error}, which was never built") from None
    except UnicodeDecodeError:
        raise machine.damaged("text that is not UTF-8") from None


class _Machine:
    """A stack, a memo, and the instructions that build data."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.objects = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def damaged(self, what: str) -> InputError:
        return InputError(f"byte {self.at}: {what}; copy the file again")

    def run(self) -> Any:
        """Follow instructions until the one that stops."""
        content, stack, memo = self.content, self.stack, self.memo
        for _ in range(MAX_INSTRUCTIONS):
            at = self.at
            code = content[at]
            if code == 0x6A:  # LONG_BINGET, the most frequent ones first
                self.at = at + 5
                stack.append(memo[int.from_bytes(content[at + 1 : at + 5], "little")])
            elif code == 0x68:  # BINGET
                self.at = at + 2
                stack.append(memo[content[at + 1]])
            elif code == 0x94:  # MEMOIZE
                self.at = at + 1
                memo[len(memo)] = top = stack[-1]
                if top is _MARK:
                    raise IndexError
            elif code == 0x8A:  # LONG1
                length = content[at + 1]
                self.at = at + 2 + length
                self._push(int.from_bytes(self._slice(at + 2, length), "little", signed=True))
            elif code == 0x28:  # MARK
                self.at = at + 1
                self.marks.append(len(stack))
                stack.append(_MARK)
            elif code == 0x2E:  # STOP
                return self._result()
            else:
                self._less_frequent(code)
        raise InputError(
            f"the pickle has more than {MAX_INSTRUCTIONS} instructions; record a shorter history"
        )

    def _less_frequent(self, code: int) -> None:
        if code in _FIXED_INTEGERS:
            length, signed = _FIXED_INTEGERS[code]
            self._push(int.from_bytes(self._argument(length), "little", signed=signed))
        elif code in _TEXTS:
            length = int.from_bytes(self._argument(_TEXTS[code]), "little")
            raw = self._slice(self.at, length)
            self.at += length
            self._push(raw.decode(errors="surrogatepass"))
        elif code == 0x7D:  # EMPTY_DICT
            self._argument(0)
            self._push({})
        elif code == 0x5D:  # EMPTY_LIST
            self._argument(0)
            self._push([])
        elif code in b"ue":  # SETITEMS, APPENDS
            self._argument(0)
            self._collect(self._since_mark(), pairs=code == 0x75)
        elif code in b"sa":  # SETITEM, APPEND
            self._argument(0)
            self._collect(self._pop(2 if code == 0x73 else 1), pairs=code == 0x73)
        elif code in _CONSTANTS:
            self._argument(0)
            self._push(_CONSTANTS[code])
        elif code in _TUPLES:
            self._argument(0)
            self._push(tuple(self._pop(_TUPLES[code])))
        elif code == 0x74:  # TUPLE
            self._argument(0)
            self._push(tuple(self._since_mark()))
        elif code == 0x29:  # EMPTY_TUPLE
            self._argument(0)
            self._push(())
        elif code == 0x47:  # BINFLOAT
            self._push(_FLOAT.unpack(self._argument(8))[0])
        elif code in _PUTS:
            number = int.from_bytes(self._argument(_PUTS[code]), "little")
            self.memo[number] = self._top()
        elif code == 0x80:  # PROTO
            self._argument(1)
        elif code == 0x95:  # FRAME: a hint for readers of streams
            self._argument(8)
        else:
            raise self._refused(code)

    def _argument(self, length: int) -> bytes:
        """The bytes after the instruction at hand, which are then passed."""
        argument = self._slice(self.at + 1, length)
        self.at += 1 + length
        return argument

    def _slice(self, start: int, length: int) -> bytes:
        piece = self.content[start : start + length]
        if len(piece) < length:
            raise IndexError
        return piece

    def _push(self, value: object) -> None:
        self.objects += 1
        if self.objects > MAX_OBJECTS:
            raise InputError(
                f"the pickle builds more than {MAX_OBJECTS} objects; record a shorter history"
            )
        self.stack.append(value)

    def _top(self) -> object:
        top = self.stack[-1]
        if top is _MARK:
            raise IndexError
        return top

    def _pop(self, count: int) -> list[Any]:
        floor = self.marks[-1] + 1 if self.marks else 0
        if len(self.stack) - count < floor:
            raise IndexError
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        values = self.stack[mark + 1 :]
        del self.stack[mark:]
        return values

    def _collect(self, values: list[Any], *, pairs: bool) -> None:
        """Put values into the list, or pairs into the dictionary, that the stack ends with."""
        into = self._top()
        if not pairs:
            if not isinstance(into, list):
                raise self.damaged("items for something that is not a list")
            into.extend(values)
            return
        if not isinstance(into, dict) or len(values) % 2:
            raise self.damaged("pairs for something that is not a dictionary")
        keys = values[::2]
        if not all(type(key) is str for key in keys):
            raise InputError(
                f"byte {self.at}: a dictionary with keys that are not text; "
                "this is not a snapshot of memory"
            )
        into.update(zip(keys, values[1::2], strict=True))

    def _result(self) -> object:
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise self.damaged("the pickle ends with parts left over")
        return self.stack[0]

    def _refused(self, code: int) -> InputError:
        name = {op.code: op.name for op in pickletools.opcodes}.get(chr(code))
        if name is None:
            return self.damaged(f"0x{code:02x} is no instruction of a pickle")
        return InputError(
            f"byte {self.at}: the pickle holds an instruction {name}, which is refused: "
            "only dictionaries, lists, tuples, text and numbers are read, no objects or functions"
        )
