"""The journal of a sweep: a line for each finished case, on disk before the next is taken up.

A file of JSON lines. The first says what it is; the others hold a case's key, its answer, the digest of the program
that answered, and a digest of all three. A last line that was cut short, as a crash leaves it, is dropped; one that is
damaged, or of another program, is left out, and its case runs again.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass, field
from io import FileIO
from typing import Any

from fleet.errors import DescriptionError
from fleet.yaml_source import shown_path
from scenarios.documents import canonical, digest_of
from scenarios.schemas import sha256
from scenarios.shapes import Sink, choice, integer, listing, number, record, table, text
from scenarios.sweeping.cases import program
from scenarios.sweeping.spec import Json

SCHEMA = "kvwaybill/sweep-journal/1"
MAX_BYTES = 2**30
MAX_LINE = 1 << 20
_HEAD = canonical({"schema": SCHEMA}) + b"\n"
_END = {"ended": True}
_whole, _number = integer(-(2**63)), number(null=True)


def _figure(value: Any, path: str, sink: Sink) -> None:
    """A number or null; whole ones may be negative (a slack that is none)."""
    (_whole if type(value) is int else _number)(value, path, sink)


_ANSWER = record(
    {
        "verdict": choice("admitted", "refused", "unverified"),
        "reasons": listing(record({"code": text(64), "severity": text(16), "message": text(100_000)}), most=64),
        "figures": table(_figure, most=64, null=True),
        "lower_bounds": listing(text(64), most=64),
    }
)
_ENTRY = record({"key": sha256, "answer": _ANSWER, "program": sha256, "sha256": sha256})


@dataclass(slots=True)
class Journal:
    """An open journal, held against other sweeps. `answers` by key; `damaged` lines, and `stale` ones of
    another program, were left out; `ended`: its sweep was answered whole."""

    path: str
    file: FileIO
    answers: dict[str, Json] = field(default_factory=dict)
    damaged: int = 0
    stale: int = 0
    ended: bool = False

    def add(self, key: str, answer: Json) -> None:
        """Writes a finished case down; when this returns it survives a crash."""
        entry = {"key": key, "answer": answer, "program": program()}
        self._write(entry | {"sha256": _digest(entry)})
        self.answers[key] = answer

    def end(self) -> None:
        """Writes down that the sweep is answered whole."""
        self._write(_END)

    def _write(self, entry: Json) -> None:
        _append(self.file, canonical(entry) + b"\n", self.path)

    def begin_anew(self) -> None:
        """Empties it, but for its first line."""
        self.file.truncate(0)
        _append(self.file, _HEAD, self.path)
        self.answers, self.damaged, self.stale, self.ended = {}, 0, 0, False

    def close(self) -> None:
        self.file.close()


def _append(file: FileIO, line: bytes, path: str) -> None:
    """Writes a line through to the disk. The file has no buffer: what a full disk did not take is not tried again."""
    try:
        left = memoryview(line)
        while left:
            left = left[file.write(left) or 0 :]
        os.fsync(file.fileno())
    except OSError as error:
        words = f"the journal cannot be written: {error.strerror}; mend it and go on with --resume"
        raise DescriptionError.at(shown_path(path), "", words) from error


def open_journal(path: str) -> Journal:
    """The journal at `path`, made where there is none. DescriptionError: no journal, not writable, in use."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else "is no file name"
        raise DescriptionError.at(shown_path(path), "", f"the journal cannot be opened: {told}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DescriptionError.at(shown_path(path), "", "is no regular file; name another --journal")
    file = FileIO(handle, "r+")
    try:
        _hold(file, path)
        return _read(file, path)
    except BaseException:
        file.close()
        raise


def read_answers(path: str) -> dict[str, Json]:
    """What a journal holds, without touching it; nothing where there is none. DescriptionError where it is none."""
    from fleet.checkpoints.source import open_regular

    if not os.path.lexists(path):
        return {}
    file, size = open_regular(path)
    with file:
        _check_size(size, path)
        return _parsed(file.read(size), path).answers


def _hold(file: FileIO, path: str) -> None:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such lock on this system
        return
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            words = "another sweep is writing this journal; wait for it, or name another --journal"
            raise DescriptionError.at(shown_path(path), "", words) from error


def _check_size(size: int, path: str) -> None:
    if size > MAX_BYTES:
        raise DescriptionError.at(shown_path(path), "", "is larger than 1 GiB; not a journal of a sweep")


def _read(file: FileIO, path: str) -> Journal:
    _check_size(os.fstat(file.fileno()).st_size, path)
    found = _parsed(file.readall(), path)
    file.truncate(found.good)
    if found.good == 0:
        _append(file, _HEAD, path)
    return Journal(
        path=path, file=file, answers=found.answers, damaged=found.damaged, stale=found.stale, ended=found.ended
    )  # fmt: skip


@dataclass(slots=True)
class _Content:
    """What a journal's bytes hold. `good`: how many of them, to the end of the last whole line."""

    good: int = 0
    answers: dict[str, Json] = field(default_factory=dict)
    damaged: int = 0
    stale: int = 0
    ended: bool = False


def _parsed(data: bytes, path: str) -> _Content:
    good = data.rfind(b"\n") + 1
    lines = data[:good].split(b"\n")[:-1]
    if not lines and _HEAD.startswith(data):
        return _Content()
    if not lines or _object(lines[0]).get("schema") != SCHEMA:
        words = f"is no {SCHEMA}; it is left as it is, name another --journal"
        raise DescriptionError.at(shown_path(path), "", words, 1, 1)
    found = _Content(good=good)
    for line in lines[1:]:
        entry = _object(line)
        found.ended = entry == _END
        if _is_whole(entry) and entry["program"] == program():
            found.answers[entry["key"]] = entry["answer"]
        elif _is_whole(entry):
            found.stale += 1
        elif not found.ended:
            found.damaged += 1
    return found


def _object(line: bytes) -> Json:
    """The JSON object of a line; {} for anything else."""
    if len(line) > MAX_LINE:
        return {}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_whole(entry: Json) -> bool:
    sink = Sink("")
    _ENTRY(entry, "", sink)
    try:
        return not sink.faults and entry["sha256"] == _digest(entry)
    except ValueError:  # NaN and the like have no canonical form
        return False


def _digest(entry: Json) -> str:
    return digest_of({name: entry[name] for name in ("key", "answer", "program")})
