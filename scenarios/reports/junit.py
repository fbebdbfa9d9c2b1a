"""Suites as JUnit XML: `testsuites` of `testsuite` of `testcase`, as Jenkins, GitLab and GitHub actions read it.

Failures are answers "no"; errors are what could not be told; `skipped` is what does not apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from scenarios.reports.gates import Gate, Suite

_TAGS = {"failed": "failure", "error": "error", "skipped": "skipped"}


def junit_text(suites: Sequence[Suite]) -> str:
    """One XML document. No times: a gate takes none that means anything."""
    gates = [gate for suite in suites for gate in suite.gates]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuites name="kvwaybill" {_counts(gates)}>']
    for suite in suites:
        lines.append(f"  <testsuite name={attribute(suite.name)} {_counts(suite.gates)}>")
        for gate in suite.gates:
            lines += _case(suite, gate)
        if suite.warnings:
            lines.append(f"    <system-out>{escaped(chr(10).join(suite.warnings))}</system-out>")
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _case(suite: Suite, gate: Gate) -> list[str]:
    where = "" if gate.file is None else f" file={attribute(gate.file)} line={attribute(str(gate.line))}"
    head = f"    <testcase classname={attribute(suite.name)} name={attribute(gate.name)}{where}"
    tag = _TAGS.get(gate.result)
    if tag is None:
        inner = f"<system-out>{escaped(gate.detail)}</system-out>" if gate.detail else ""
        return [f"{head}>{inner}</testcase>" if inner else f"{head}/>"]
    message = f"<{tag} message={attribute(gate.detail)}"
    body = f"{message}/>" if tag == "skipped" else f'{message} type="{gate.result}">{escaped(gate.detail)}</{tag}>'
    return [f"{head}>", f"      {body}", "    </testcase>"]


def _counts(gates: Sequence[Gate]) -> str:
    names = (("failures", "failed"), ("errors", "error"), ("skipped", "skipped"))
    told = [f'{name}="{sum(gate.result == result for gate in gates)}"' for name, result in names]
    return " ".join([f'tests="{len(gates)}"', *told])


def attribute(text: str) -> str:
    """Quoted for XML, on one line, without characters that XML does not allow."""
    return quoteattr(_allowed(text), {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def escaped(text: str) -> str:
    """Text for the inside of an element."""
    return _allowed(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _allowed(text: str) -> str:
    """XML 1.0 has no form at all for most control characters, lone surrogates and two more: they are spelled out."""
    return "".join(char if _is_allowed(ord(char)) else ascii(char)[1:-1] for char in text)


def _is_allowed(code: int) -> bool:
    return code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code > 0xFFFF
