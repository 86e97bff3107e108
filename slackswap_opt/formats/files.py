"""Reading and writing files with errors a person can act on.

Everything the package reads from or writes to a path given by the user goes through here:
compressed files open as if they were plain, and a file is either written whole or not at all.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import zlib
from pathlib import Path

from slackswap_opt.errors import InputError

MAX_FILE_BYTES = 2**30
"""Largest content accepted, after decompression (1 GiB)."""
MOST_FAULTS = 100
"""How many faults of a file a message lists."""
MOST_EXPANSION = 100
"""Times that a file may grow when it is decompressed, beyond the first 64 MiB."""
_ALWAYS_EXPANDED = 2**26

_GZIP_MAGIC = b"\x1f\x8b"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""How text in UTF-16 begins."""
_CHUNK_BYTES = 2**20


def read_bytes(path: str | Path, *, limit: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file, decompressed if it is gzip.

    Raises:
        InputError: if the file is missing, unreadable, empty, larger than `limit`, grows more when
            it is decompressed than any file of steps does, is damaged or only a Git LFS pointer;
            the message begins with the path.
    """
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            content = _at_most(file, limit)
        if content is not None and content.startswith(_GZIP_MAGIC):
            limit = min(limit, max(_ALWAYS_EXPANDED, MOST_EXPANSION * len(content)))
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = _at_most(packed, limit)
    except FileNotFoundError:
        raise InputError("there is no such file; check the path", where=where) from None
    except IsADirectoryError:
        raise InputError("this is a folder; name a file in it", where=where) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"the gzip file is cut short or damaged ({error}); copy it again", where=where
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"it cannot be read: {_reason(error)}", where=where) from None
    if content is None:
        raise InputError(f"it holds more than {limit} bytes, the most that is read", where=where)
    if not content.strip():
        raise InputError("the file is empty", where=where)
    if content.startswith(_LFS_POINTER):
        raise InputError(
            "this is a Git LFS pointer, not the file itself; run `git lfs pull`", where=where
        )
    return content


def decode(content: bytes) -> str:
    """Text from UTF-8, with or without a byte order mark.

    Raises:
        InputError: if it is in another encoding, or not text; says where.
    """
    if content.startswith(UTF16_MARKS):
        raise InputError("the text is in UTF-16; save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"line {line}: byte 0x{content[error.start]:02x} is not UTF-8 text; "
            "save the file as UTF-8"
        ) from None


def read_text(path: str | Path, *, limit: int = MAX_FILE_BYTES) -> str:
    """The text of a file: UTF-8, plain or gzip.

    Raises:
        InputError: as `read_bytes` and `decode`; the message begins with the path.
    """
    try:
        return decode(read_bytes(path, limit=limit))
    except InputError as error:
        raise error.at(str(path)) from None


def write_text(path: str | Path, text: str, *, force: bool = False) -> None:
    """Write a text file whole or not at all: to a temporary neighbour, then renamed.

    Args:
        path: where to; devices and pipes such as /dev/stdout are written directly.
        text: the content, written as UTF-8 with the line ends it has.
        force: whether an existing file may be replaced.

    Raises:
        InputError: if the file exists and `force` is not set, or it cannot be written.
    """
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{text[error.start]!r} is half of a character and cannot be written; "
            "rename what contains it",
            where=str(path),
        ) from None
    write_bytes(path, content, force=force)


def write_bytes(path: str | Path, content: bytes, *, force: bool = False) -> None:
    """Write a file whole or not at all; see `write_text`.

    Raises:
        InputError: if the file exists and `force` is not set, or it cannot be written.
    """
    where = str(path)
    try:
        target = Path(os.path.realpath(path))  # a link keeps pointing at what is written
        if target.is_dir():
            raise InputError("this is a folder; name a file in it", where=where)
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_bytes(content)
            return
        if target.exists() and not force:
            raise InputError("the file exists; overwrite it with --force", where=where)
        if not target.parent.is_dir():
            raise InputError(
                f"the folder {str(target.parent)!r} does not exist; create it", where=where
            )
        _replace(target, content)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"it cannot be written: {_reason(error)}", where=where) from None


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except FileExistsError:
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _at_most(file: io.BufferedIOBase, limit: int) -> bytes | None:
    """All of a file, or None if it holds more than `limit` bytes."""
    content = bytearray()
    while chunk := file.read(_CHUNK_BYTES):
        content += chunk
        if len(content) > limit:
            return None
    return bytes(content)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
