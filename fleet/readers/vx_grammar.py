"""The text of a Vx machine file (`.vx`) -> VxMachine: what is written, with lines, exact figures and their origin.

Grammar, units and fields: vx-lang/Vx src/parser/decl.rs, src/units.rs and docs/adding_a_topology.md. Vx keeps the last
of a repeated field or name without a word; here both are refused. What the figures mean is in
`fleet.readers.vx_costs` and `fleet.readers.vx_verdicts`, the way to a Fleet in `fleet.readers.vx`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from fleet.errors import DescriptionError, Fault
from fleet.machine import Provenance
from fleet.readers.vx_machine import SCOPES, U32, U64, Origin, Rate, VxEdge, VxMachine, VxSpace, VxTopology
from fleet.units import UnitError, parse_bytes, parse_rate
from fleet.yaml_source import MAX_BYTES, nearest, printable

MAX_TOKENS = 200_000
MAX_BLOCKS = 500
MAX_EDGES = 5000
"""Far beyond any machine; they keep chains and routes of a hostile file short."""
MAX_FAULTS = 100

_HERTZ = {"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9}
_MAX_MANTISSA = 60


def parse_machine(text: str, source: str) -> VxMachine:
    """The machine of a `.vx` text. Raises DescriptionError with every fault: a program file, unknown or repeated fields
    and names, malformed figures. What is well written but makes no sense is told by `vx_verdicts.check`.
    """
    source = printable(source, 200)
    if len(text) > MAX_BYTES:
        raise DescriptionError.at(source, "", f"is larger than {MAX_BYTES // 2**20} MiB; a machine file is a page long")
    parser = _Parser(text, source)
    machine = parser.machine()
    if parser.faults:
        raise DescriptionError(parser.faults)
    return machine


def scaled(mantissa: str, factor: int) -> int:
    """digits x factor / 10^places, exactly. Raises UnitError: malformed, not whole, or beyond an unsigned 64-bit."""
    if len(mantissa) > _MAX_MANTISSA or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", mantissa, re.ASCII):
        raise UnitError(f"{printable(mantissa)} is no number; write digits, e.g. 3.35 (no sign, exponent or _)")
    whole, _, decimals = mantissa.partition(".")
    value, rest = divmod(int(whole + decimals) * factor, int("1" + "0" * len(decimals)))
    if rest:
        raise UnitError(f"{mantissa} of this unit is not a whole number of bytes (or hertz)")
    if value > U64:
        raise UnitError(f"{mantissa} of this unit does not fit an unsigned 64-bit number")
    return value


class _Token(NamedTuple):
    kind: str
    text: str
    place: int
    comments: tuple[str, ...]


class _Slip(Exception):  # noqa: N818 - carries one fault to the nearest field, never shown
    def __init__(self, token: _Token, message: str) -> None:
        super().__init__(message)
        self.token = token
        self.message = message


_TOKEN = re.compile(
    r"(?P<blank>\s+)|(?P<comment>//[^\n]*)|(?P<arrow>->)|(?P<joint>::)|(?P<number>[+-]?[0-9][0-9.]*)"
    r"|(?P<word>[^\W\d]\w*)|(?P<mark>[{}\[\]:,/])|(?P<other>.)",
    re.DOTALL,
)


def _tokens(text: str) -> Iterator[_Token]:
    """The tokens, each with the comment lines right above it; a blank line cuts them off, and so does the code
    that they follow on its own line.
    """
    comments: list[str] = []
    fresh = True
    for match in _TOKEN.finditer(text):
        kind, piece = str(match.lastgroup), match[0]
        if kind == "blank":
            breaks = piece.count("\n")
            fresh = fresh or breaks > 0
            if breaks > 1:
                comments.clear()
        elif kind == "comment":
            if fresh:
                comments.append(piece[2:].strip())
        else:
            yield _Token(kind, piece, match.start(), tuple(comments))
            comments.clear()
            fresh = False


def _origin(comments: tuple[str, ...], where: str) -> Origin:
    """The class and source that a comment states. Without a class word the figure is the file's own, not verified."""
    prose = " ".join(comments)
    found = re.search(r"\b(spec|measured|policy):\s*", prose)
    if found is None:
        return Origin(source=where)
    word = found[1]
    told = prose[found.end() : found.end() + 160].strip()
    doubted = "UNVERIFIED" in prose
    sure = word == "measured" or (word == "spec" and re.search(r"\bverified \d{4}-\d\d-\d\d", prose) is not None)
    provenance: Provenance = "measured" if word == "measured" else "policy" if word == "policy" else "spec"
    return Origin(provenance=provenance, source=printable(f"{where}: {told}", 200), verified=sure and not doubted)


class _Parser:
    """Reads by descent; a slip inside a field is noted and reading goes on at the next field."""

    def __init__(self, text: str, source: str) -> None:
        text = text.removeprefix("\ufeff")
        self.text, self.source = text, source
        self.faults: list[Fault] = []
        self.tokens: list[_Token] = []
        for token in _tokens(text):
            if len(self.tokens) >= MAX_TOKENS:
                raise self.error(token, f"holds more than {MAX_TOKENS:,} words; a machine file is a page long")
            self.tokens.append(token)
        self.end = _Token("end", "the end of the file", len(text), ())
        self.at = self.n_edges = 0
        self._line, self._index = 1, 0

    # places and faults

    def line(self, token: _Token) -> int:
        if token.place < self._index:
            self._line, self._index = 1, 0
        self._line += self.text.count("\n", self._index, token.place)
        self._index = token.place
        return self._line

    def error(self, token: _Token, message: str) -> DescriptionError:
        return DescriptionError([*self.faults, self._fault(token, message)])

    def _fault(self, token: _Token, message: str) -> Fault:
        column = token.place - (self.text.rfind("\n", 0, token.place) + 1) + 1
        line = self.text.count("\n", 0, token.place) + 1
        return Fault(source=self.source, field="", message=message, line=line, column=column)

    def note(self, token: _Token, message: str, vx_code: str | None = None) -> None:
        self.faults.append(replace(self._fault(token, message), vx_code=vx_code))
        if len(self.faults) >= MAX_FAULTS:
            raise DescriptionError(self.faults)

    # tokens

    def peek(self, ahead: int = 0) -> _Token:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else self.end

    def take(self) -> _Token:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        found = self.peek().text == text and self.peek().kind != "end"
        self.at += found
        return found

    def expect(self, text: str, why: str) -> None:
        if not self.accept(text):
            raise _Slip(self.peek(), f"{text} expected {why}, and {printable(self.peek().text)} found")

    def word(self, what: str) -> _Token:
        if self.peek().kind != "word":
            raise _Slip(self.peek(), f"{what} expected, and {printable(self.peek().text)} found")
        return self.take()

    # blocks

    def machine(self) -> VxMachine:
        spaces: list[VxSpace] = []
        topologies: list[VxTopology] = []
        lines: dict[str, int] = {}
        while self.peek().kind != "end":
            opening = self.take()
            if opening.text not in ("Memory", "Topology") or self.peek().kind != "word":
                raise self.error(opening, _not_a_machine(opening.text))
            name = self.take()
            if not self.accept("{"):
                raise self.error(self.peek(), f"{{ expected after {opening.text} {printable(name.text)}")
            self._once(name, f"{opening.text} {name.text}", self.line(opening), lines, "")
            if len(spaces) + len(topologies) >= MAX_BLOCKS:
                raise self.error(name, f"declares more than {MAX_BLOCKS} memories and topologies")
            if opening.text == "Memory":
                spaces.append(self._space(opening, name))
            else:
                topologies.append(self._topology(opening, name))
        if not spaces and not topologies and not self.faults:
            raise self.error(self.end, "declares neither Memory nor Topology; a machine file declares at least one")
        return VxMachine(source=self.source, spaces=tuple(spaces), topologies=tuple(topologies))

    def _once(self, token: _Token, what: str, line: int, lines: dict[str, int], block: str) -> None:
        """Notes a second `what`. Of blocks Vx would take the last without a word inside one file."""
        if what in lines:
            place = f" in {printable(block)}" if block else ""
            code = None if block else "E6012"  # two texts one after the other are two inputs to Vx
            words = f"{printable(what, 80)} is given twice{place}, first at line {lines[what]}; keep one"
            self.note(token, words, code)
        else:
            lines[what] = line

    def _space(self, opening: _Token, name: _Token) -> VxSpace:
        line = self.line(opening)
        found = self._fields(f"Memory {name.text}", _MEMORY_FIELDS)
        where = f"{os.path.basename(self.source) or self.source}:{line}"
        return VxSpace(name=name.text, line=line, origin=_origin(opening.comments, where), **found)

    def _topology(self, opening: _Token, name: _Token) -> VxTopology:
        line = self.line(opening)
        found = self._fields(f"Topology {name.text}", _TOPOLOGY_FIELDS)
        if "memory" not in found:
            self.note(name, f"Topology {printable(name.text)} names no memory; write e.g. memory: Memory::HBM")
        edges = tuple(found.pop("transfer", ()))
        return VxTopology(name=name.text, line=line, memory=found.pop("memory", ""), edges=edges, **found)

    def _fields(self, block: str, known: dict[str, Callable[[_Parser], Any]]) -> dict[str, Any]:
        """The fields up to the closing brace. Repeated and unknown ones are noted."""
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not self.accept("}"):
            token = self.peek()
            if token.kind == "end":
                raise self.error(token, f"{printable(block)} is not closed; add }}")
            if self.accept(","):
                continue
            try:
                self._field(block, known, found, lines)
            except _Slip as slip:
                self.note(slip.token, slip.message)
                self._recover(known)
        return found

    def _field(
        self, block: str, known: dict[str, Callable[[_Parser], Any]], found: dict[str, Any], lines: dict[str, int]
    ) -> None:
        name = self.word(f"a field of {printable(block)}")
        if name.text not in known:
            kind = "memory" if known is _MEMORY_FIELDS else "topology"
            told = f"Unknown {kind} field {printable(name.text)}{nearest(name.text, known)}"
            raise _Slip(name, f"{told} (fields: {', '.join(known)})")
        if name.text == "transfer":
            edge = self._edge(name)
            self.n_edges += 1
            if self.n_edges > MAX_EDGES:
                raise self.error(name, f"declares more than {MAX_EDGES:,} transfers")
            rows = found.setdefault("transfer", [])
            self._once(name, f"transfer {edge.src} -> {edge.dst}", edge.line, lines, block)
            rows.append(edge)
            return
        self._once(name, name.text, self.line(name), lines, block)
        if name.text != "overcommit":
            self.expect(":", f"after {name.text}")
        found[name.text] = known[name.text](self)

    def _recover(self, known: dict[str, Callable[[_Parser], Any]]) -> None:
        """Skips to the next field, to the end of the block, or to a block that begins because a brace was forgotten."""
        if self.peek().text not in ("}", ",") and self.peek().kind != "end":
            self.at += 1
        while self.peek().kind != "end" and self.peek().text not in ("}", ","):
            token, after = self.peek(), self.peek(1)
            if token.text in known and (after.text == ":" or token.text in ("transfer", "overcommit")):
                return
            self.at += 1

    # values

    def _edge(self, opening: _Token) -> VxEdge:
        src = self.space_name()
        self.expect("->", "between the ends of a transfer")
        dst = self.space_name()
        cost: dict[str, Any] = {}
        if self.accept(":"):
            cost = self._cost()
        flags: dict[str, Any] = {}
        while self.peek().text in ("relaxed", "sync", "copy_engine"):
            flag = self.take()
            if flag.text in flags:
                self.note(flag, f"{flag.text} is given twice on one transfer")
            flags[flag.text] = True
        line = self.line(opening)
        where = f"{os.path.basename(self.source) or self.source}:{line}"
        return VxEdge(src=src, dst=dst, line=line, origin=_origin(opening.comments, where), **cost, **flags)

    def _cost(self) -> dict[str, Any]:
        number = self.peek()
        if number.kind == "number" and not (self.peek(1).kind == "word" and self.peek(2).text == "/"):
            unit = self.peek(1)
            if unit.kind == "word" and unit.text not in _AFTER_A_WEIGHT:
                raise _Slip(unit, f"{printable(unit.text)} is no unit of a rate; write e.g. 63 GB/s, or a plain weight")
            return {"weight": self.whole(U32)}
        rate = self.rate()
        if rate.value == 0:
            raise _Slip(number, "a link of 0 bytes carries nothing; leave the transfer out")
        return {"rate": rate}

    def space_name(self) -> str:
        if self.peek().text != "Memory" or self.peek(1).text != "::":
            raise _Slip(self.peek(), f"a space expected, e.g. Memory::HBM, and {printable(self.peek().text)} found")
        self.at += 2
        return self.word("the name of a space").text

    def names(self, one: Callable[[], str]) -> tuple[str, ...]:
        self.expect("[", "before a list")
        found: list[str] = []
        while not self.accept("]"):
            found.append(one())
            if not self.accept(","):
                self.expect("]", "after a list")
                break
        return tuple(found)

    def choice(self, words: tuple[str, ...]) -> str:
        token = self.word(f"one of {', '.join(words)}")
        if token.text not in words:
            raise _Slip(token, f"{printable(token.text)} is none of {', '.join(words)}{nearest(token.text, words)}")
        return token.text

    def _number(self) -> _Token:
        if self.peek().kind != "number":
            raise _Slip(self.peek(), f"a number expected, and {printable(self.peek().text)} found")
        return self.take()

    def whole(self, bound: int) -> int:
        token = self._number()
        if not re.fullmatch(r"[0-9]{1,20}", token.text, re.ASCII) or int(token.text) > bound:
            raise _Slip(token, f"{printable(token.text)} is no whole number from 0 to {bound}")
        return int(token.text)

    def measure(self, number: _Token, factor: Callable[[str], int]) -> int:
        """`number` times the factor of the unit that follows."""
        unit = self.word("a unit")
        try:
            return scaled(number.text, factor(unit.text))
        except UnitError as error:
            raise _Slip(number, str(error)) from error

    def size(self) -> int:
        return self.measure(self._number(), lambda unit: parse_bytes(f"1 {unit}"))

    def rate(self) -> Rate:
        number = self._number()
        per_cycle = self.peek(1).text == "/" and self.peek(2).text == "cyc"
        tail = self.peek(2).text if self.peek(1).text == "/" else ""
        if tail not in ("s", "cyc"):
            raise _Slip(number, "a rate ends in /s or /cyc; write e.g. 3.35 TB/s or 128 B/cyc")
        if per_cycle:
            value = self.measure(number, lambda unit: parse_bytes(f"1 {unit}"))
        else:
            value = self.measure(number, lambda unit: parse_rate(f"1 {unit}/s"))
        self.at += 2
        return Rate(value=value, per_cycle=per_cycle)

    def clock(self) -> int:
        number = self._number()
        value = self.measure(number, _hertz)
        if value == 0:
            raise _Slip(number, "a clock of 0 Hz never ticks; leave clock out when it is not known")
        return value

    def replicas(self) -> int:
        token = self.peek()
        count = self.whole(U32)
        if count == 0:
            raise _Slip(token, "0 replicas is no memory; leave replicas out when it is not known")
        return count


def _hertz(unit: str) -> int:
    if unit not in _HERTZ:
        raise UnitError(f"unknown unit {printable(unit)}; units are case-sensitive: {', '.join(_HERTZ)}")
    return _HERTZ[unit]


def _not_a_machine(word: str) -> str:
    return (
        f"is a Vx program, not a machine: {printable(word)} stands where Memory NAME {{ or Topology NAME {{ must; "
        "move the Memory and Topology blocks into a file of their own"
    )


_MEMORY_FIELDS: dict[str, Callable[[_Parser], Any]] = {
    "capacity": _Parser.size,
    "granule": _Parser.size,
    "bandwidth": _Parser.rate,
    "clock": _Parser.clock,
    "replicas": _Parser.replicas,
    "within": _Parser.space_name,
    "scope": lambda parser: parser.choice(SCOPES),
    "managed": lambda parser: parser.choice(("explicit", "cached")),
    "crossing": lambda parser: parser.choice(("sequenced", "streamed")),
    "overcommit": lambda parser: True,
}
_TOPOLOGY_FIELDS: dict[str, Callable[[_Parser], Any]] = {
    "memory": _Parser.space_name,
    "visible": lambda parser: parser.names(parser.space_name),
    "arch": lambda parser: parser.word("an architecture, e.g. nvptx64").text,
    "dtypes": lambda parser: parser.names(lambda: parser.word("an element type").text),
    "transfer": lambda parser: (),
}
_AFTER_A_WEIGHT = frozenset({"relaxed", "sync", "copy_engine", *_TOPOLOGY_FIELDS})
