"""Every reader of a file that comes from outside, as one call: bytes in, a value or DescriptionError out.

Each target has a folder of its name in `corpus/`: small inputs to begin from, and every input that once broke
something. `test_fuzz.py` mutates them with hypothesis; `python -m tests.fuzz.coverage TARGET` lets atheris do it.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from fleet.errors import DescriptionError

CORPUS = Path(__file__).parent / "corpus"
LONGEST_SECONDS = 20
"""No input of the size of the corpus may take longer: a hang ends as an error. A hundred times what any takes."""


def _fleet(path: Path) -> object:
    from fleet.load import load_fleet

    return load_fleet(str(path))


def _topology(path: Path) -> object:
    from fleet.importing import import_fleet

    return import_fleet(str(path))


def _model(path: Path) -> object:
    from fleet.checkpoints import load_model

    return load_model(str(path))


def _tokenizer(path: Path) -> object:
    from executor.tokenizer import load_tokenizer

    return load_tokenizer(str(path), 3)


def _launch(path: Path) -> object:
    from fleet.launch.read import read_launches

    return read_launches(str(path))


def _in_use(path: Path) -> object:
    from fleet.readers.in_use import read_in_use
    from fleet.yaml_source import read_text

    return read_in_use(read_text(str(path)), path.name)


def _scenario(path: Path) -> object:
    from scenarios.scenario import load_scenario

    return load_scenario(str(path))


def _simulation(path: Path) -> object:
    from scenarios.simulation.read_spec import load_spec

    return load_spec(str(path))


def _sweep(path: Path) -> object:
    from scenarios.sweeping.read_sweep import load_sweep

    return load_sweep(str(path))


def _journal(path: Path) -> object:
    from scenarios.sweeping.journal import read_answers

    return read_answers(str(path))


def _report(path: Path) -> object:
    from scenarios.reports.making import Given, report_text
    from scenarios.reports.read import read_report_document

    kind, document = read_report_document(str(path))
    given = [Given(kind=kind, document=document, source=path.name)]
    return document, [report_text(output, given) for output in ("md", "github")]


def _trace(path: Path) -> object:
    from scenarios.simulation.traces import read_trace

    return read_trace(str(path))


def _observed(path: Path) -> object:
    from scenarios.simulation.observed import read_observed

    return read_observed(str(path), 10)


def _observation(path: Path) -> object:
    from scenarios.observations import read_observations

    return read_observations(str(path))


def _audit(path: Path) -> object:
    from scenarios.auditing import Asked, audit
    from scenarios.auditing.text import audit_text

    document = audit(str(path), Asked(link="nvlink"))
    return document, audit_text(document)


def _document(path: Path) -> object:
    from scenarios.documents import read_document
    from scenarios.schemas import SHAPES

    return read_document(str(path), tuple(SHAPES))


TARGETS: dict[str, Callable[[Path], object]] = {
    "audit": _audit,
    "document": _document,
    "fleet": _fleet,
    "in-use": _in_use,
    "journal": _journal,
    "launch": _launch,
    "model": _model,
    "observation": _observation,
    "observed": _observed,
    "report": _report,
    "scenario": _scenario,
    "simulation": _simulation,
    "sweep": _sweep,
    "tokenizer": _tokenizer,
    "topology": _topology,
    "trace": _trace,
}


def seeds(target: str) -> list[bytes]:
    """The kept inputs of a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


@contextmanager
def _ends_in_time() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {LONGEST_SECONDS} s of this process alone")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(target: str, data: bytes, folder: Path) -> Any:
    """What the reader made of `data`: its value, or the text of its DescriptionError. Anything else comes through."""
    path = folder / "input"
    path.write_bytes(data)
    with _ends_in_time():
        try:
            return TARGETS[target](path)
        except DescriptionError as error:
            told = [str(fault) for fault in error.faults]
    assert told, "an error without a fault"
    assert all(line.isprintable() for line in told), told
    return "\n".join(told)


def run_once(target: str, data: bytes) -> Any:
    """The same in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return outcome(target, data, Path(folder))
