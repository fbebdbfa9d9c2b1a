"""An XML text as plain nodes that know their line, read with expat so that nothing is fetched or expanded.

A document type with declarations inside, and every entity declaration, is refused where it begins, before anything
could be expanded. A document type that only names a file (hwloc writes one) is accepted where the reader says so; the
file is never opened. Size, depth and number of nodes are bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from fleet.errors import DescriptionError
from fleet.yaml_source import MAX_BYTES, printable

MAX_DEPTH = 64
MAX_NODES = 500_000

_TAG = re.compile(r"<([A-Za-z_][\w.:-]{0,80})")


@dataclass(slots=True)
class Element:
    """One element: its attributes, its elements in order, the text directly inside it, where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    column: int
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str:
        """An attribute without blanks around it, empty when it is not there."""
        return self.attributes.get(name, "").strip()

    def all(self, tag: str) -> list[Element]:
        """The elements of this tag directly inside."""
        return [child for child in self.children if child.tag == tag]


def root_tag(text: str) -> str | None:
    """The tag of the root element of what looks like XML, without reading on; None for anything else."""
    at = 0
    while True:
        while at < len(text) and (text[at].isspace() or text[at] == "\ufeff"):
            at += 1
        ends = [end for start, end in (("<?", "?>"), ("<!--", "-->"), ("<!DOCTYPE", ">")) if text.startswith(start, at)]
        if not ends:
            match = _TAG.match(text, at)
            return None if match is None else match[1]
        if ends[0] == ">" and -1 < text.find("[", at) < text.find(">", at):
            at = text.find("]", at)
        close = text.find(ends[0], at) if at >= 0 else -1
        if close < 0:
            return None
        at = close + len(ends[0])


def parse_xml(text: str, source: str, root: str, *, doctype: str | None = None) -> Element:
    """The root element, which must be `root`. `doctype` is the name that a bare document type may have.

    Raises DescriptionError: no XML, another root, a document type or entities, beyond the limits.
    """
    if len(text) > MAX_BYTES:
        raise DescriptionError.at(source, "", f"is larger than {MAX_BYTES // 2**20} MiB; split or shorten it")
    built = _Builder(source, doctype).parse(text)
    if built.tag != root:
        message = f"the root is <{printable(built.tag)}>, where <{root}> was looked for"
        raise DescriptionError.at(source, "", message, built.line, built.column)
    return built


class _Builder:
    def __init__(self, source: str, doctype: str | None) -> None:
        self.source = source
        self.doctype = doctype
        self.open: list[Element] = []
        self.root: Element | None = None
        self.n_nodes = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._stop
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._document_type
        self.parser.EntityDeclHandler = self._entity
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def parse(self, text: str) -> Element:
        try:
            self.parser.Parse(text.removeprefix("\ufeff").encode("utf-8", "surrogatepass"), True)
        except expat.ExpatError as error:
            message = f"is no well-formed XML: {printable(expat.ErrorString(error.code), 80)}"
            raise DescriptionError.at(self.source, "", message, error.lineno, error.offset + 1) from error
        assert self.root is not None, "expat tells a text without an element"
        return self.root

    def _tell(self, message: str) -> None:
        line, column = self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1
        raise DescriptionError.at(self.source, "", message, line, column)

    def _document_type(self, name: str, _system: Any, _public: Any, has_inside: int) -> None:
        if has_inside or name != self.doctype:
            self._tell("has a document type (<!DOCTYPE ...>), which is not read: remove it")

    def _entity(self, name: str, *_rest: Any) -> None:
        self._tell(f"declares the entity {printable(name)}: entities are not allowed; write the text out")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            self._tell(f"holds more than {MAX_NODES:,} elements")
        if len(self.open) >= MAX_DEPTH:
            self._tell(f"is nested deeper than {MAX_DEPTH} levels")
        element = Element(tag, attributes, self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def _stop(self, _tag: str) -> None:
        self.open.pop()

    def _characters(self, text: str) -> None:
        if self.open:
            self.open[-1].text += text
