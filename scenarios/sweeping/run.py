"""A sweep from its file to its result: cases, journal, engine, answers."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import BackendError, DescriptionError, Fault
from fleet.yaml_source import printable
from scenarios.sweeping import engines
from scenarios.sweeping.cases import Case, Files, program, read_cases, words_of
from scenarios.sweeping.journal import Journal, open_journal, read_answers
from scenarios.sweeping.merge import told
from scenarios.sweeping.result import result_document
from scenarios.sweeping.spec import Json, Sweep

MOST_BROKEN = 5
"""Cases that are named in one message."""
Note = Callable[[str], None]
Tick = Callable[[int, int], None]
"""(answered of those to answer, those to answer)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How a sweep is run: nothing here changes its result. `journal` None: none is kept."""

    jobs: int = 1
    scheduler: str | None = None
    journal: str | None = None
    resume: bool = False
    fresh: bool = False


def default_journal(source: str) -> str:
    """`NAME.journal.jsonl` in the current folder."""
    stem = os.path.basename(source).removesuffix(".yaml").removesuffix(".yml").removesuffix(".json")
    return f"{'sweep' if source.startswith('<') else stem}.journal.jsonl"


def listed(sweep: Sweep, how: How) -> Json:
    """`kvwaybill/sweep-cases/1`: the cases, and which of them the journal has. Nothing is run or written."""
    cases, _ = read_cases(sweep)
    known = read_answers(how.journal) if how.journal is not None else {}
    rows = [{"case": c.index + 1, "key": c.key, "fields": c.fields, "finished": c.key in known} for c in cases]
    return {"schema": "kvwaybill/sweep-cases/1", "name": sweep.name, "question": sweep.question, "cases": rows}


def run_sweep(sweep: Sweep, how: How, note: Note, tick: Tick) -> Json:
    """Answers every case and gives the result document.

    Raises DescriptionError (a case or the journal is wrong), InconclusiveError (the engine is not there), BackendError
    (cases that break, or break their worker). What was answered until then is in the journal.
    """
    cases, files = read_cases(sweep)
    journal = _journal(cases, how, note)
    try:
        known = {} if journal is None else journal.answers
        answers = {case.key: known[case.key] for case in cases if case.key in known}
        todo = list({case.key: case for case in cases if case.key not in answers}.values())
        if answers:
            note(f"{len(answers):,} cases are in the journal; {len(todo):,} to run")
        wrong: list[Fault] = []
        broken: list[tuple[Case, Json]] = []
        tick(0, len(todo))
        for count, (key, found) in enumerate(_answered(sweep, todo, files, how), 1):
            case = next(case for case in todo if case.key == key)
            if "faults" in found:
                wrong += told(sweep, case.choice, tuple(Fault(**fault) for fault in found["faults"]))
            elif "broke" in found:
                broken.append((case, found))
            else:
                answers[key] = found
                if journal is not None:
                    journal.add(key, found)
            tick(count, len(todo))
        _raise_broken(broken)
        if journal is not None and not wrong:
            journal.end()
    except KeyboardInterrupt:
        if journal is not None:
            note(f"{len(journal.answers):,} finished cases are in {journal.path}; go on with --resume")
        raise
    finally:
        if journal is not None:
            journal.close()
    if wrong:
        raise DescriptionError(dict.fromkeys(wrong))
    return result_document(sweep, cases, answers)


def _raise_broken(broken: list[tuple[Case, Json]]) -> None:
    """Raises BackendError with the first cases in which something broke, in their order; --debug shows where."""
    if not broken:
        return
    broken.sort(key=lambda one: one[0].index)
    named = [f"{words_of(case.index + 1, case.choice)}: {found['broke']}" for case, found in broken[:MOST_BROKEN]]
    more = f"; and {len(broken) - MOST_BROKEN:,} more" if len(broken) > MOST_BROKEN else ""
    error = BackendError(
        f"{len(broken):,} of the cases broke inside: {'; '.join(named)}{more}; the others are answered, and in the"
        " journal where one is kept; run again with --debug for details"
    )
    error.add_note(broken[0][1]["traceback"])
    raise error


def _journal(cases: Sequence[Case], how: How, note: Note) -> Journal | None:
    """The journal, ready to be written to. A default one that cannot be written is done without, and that is told."""
    if how.journal is None:
        return None
    journal = open_journal(how.journal)
    ours = len({case.key for case in cases} & journal.answers.keys())
    words = None
    if how.resume and journal.answers and not ours:
        words = (
            f"holds {len(journal.answers):,} finished cases and none of this sweep: it is another sweep's, or its files"
            " changed since; leave --resume out, or name another --journal"
        )
    elif not how.resume and not how.fresh and journal.answers and not journal.ended:
        whose = f"{ours:,} finished cases of this sweep" if ours else "finished cases of another sweep"
        words = f"holds {whose}; go on with --resume, begin anew with --fresh, or name another --journal"
    if words is not None:
        journal.close()
        raise DescriptionError.at(printable(how.journal, 200), "", words)
    for count, what in ((journal.damaged, "are damaged"), (journal.stale, "were answered by other code")):
        if how.resume and count:
            note(f"{count:,} lines of the journal {what}: left out, and their cases run again")
    if not how.resume:
        journal.begin_anew()
    return journal


def _answered(sweep: Sweep, todo: Sequence[Case], files: Files, how: How) -> Iterator[tuple[str, Json]]:
    def task(case: Case) -> engines.Task:
        def make() -> tuple[bytes, bytes | None]:
            trace = None if case.trace is None else files.trace(case.trace)
            return pickle.dumps((sweep.question, case.body), protocol=5), trace

        return engines.Task(case.key, words_of(case.index + 1, case.choice), make)

    tasks = [task(case) for case in todo]
    if not tasks:
        return
    found: Iterator[engines.Answered]
    if how.scheduler is not None:
        found = engines.dask(tasks, how.scheduler, program())
    else:
        found = engines.local(tasks, how.jobs)
    for key, data in found:
        document: dict[str, Any] = json.loads(data)
        yield key, document["answer"]
