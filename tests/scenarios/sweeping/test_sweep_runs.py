"""Sweeps run: the same bytes however they were run, and nothing lost by whatever stops them."""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import BackendError, DescriptionError
from scenarios.sweeping import engines, journal, run, work
from scenarios.sweeping.cases import read_cases
from scenarios.sweeping.journal import open_journal, read_answers
from scenarios.sweeping.read_sweep import load_sweep
from tests.command_line import Ask, asker
from tests.scenarios.sweeping.sweep_cases import ADMIT, ROOT, SIMULATE, write

RUN = ("--jobs", "1", "-o", "json")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command is given; sweep.yaml asks for admissions, which are quick."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, ADMIT)
    return tmp_path


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What this process answers from now on."""
    seen: list[bytes] = []

    def answer(body: bytes, trace: bytes | None) -> bytes:
        seen.append(body)
        return work.answer(body, trace)

    monkeypatch.setattr(engines, "answer", answer)
    return seen


def test_the_result_has_the_same_bytes_for_any_number_of_workers(ask: Ask, folder: Path) -> None:
    write(folder, SIMULATE)
    for jobs in ("1", "2"):
        assert ask("sweep", "sweep.yaml", "--jobs", jobs, "--result-out", f"{jobs}.json").code == 0
    one = (folder / "1.json").read_bytes()
    assert one == (folder / "2.json").read_bytes()
    rows = json.loads(one)["rows"]
    assert [row["case"] for row in rows] == [1, 2, 3, 4]
    assert [row["fields"]["arrivals.rate"] for row in rows] == ["5", "60", "5", "60"]
    write(folder, ADMIT)
    assert len({ask("sweep", "sweep.yaml", "--fresh", "--jobs", jobs, "-o", "json").out for jobs in "13"}) == 1


def test_a_row_holds_the_figures_of_simulate_and_admit(ask: Ask, folder: Path) -> None:
    """Against the two commands themselves, on files written out by hand."""
    write(folder, SIMULATE)
    row = ask("sweep", "sweep.yaml", *RUN).document["rows"][3]
    base = Path(load_sweep("sweep.yaml").base.document.source).read_text()
    for old, new in (("gpu:0-3", "gpu:0-1"), ("gpu:4-7", "gpu:4-5"), ("requests: 4000", "requests: 60")):
        assert old in base
        base = base.replace(old, new)
    model = Path(load_sweep("sweep.yaml").base.folder) / "dense-8b.json"
    (folder / "case.yaml").write_text(base.replace("dense-8b.json", str(model)))
    simulated = ask("simulate", "case.yaml", "-o", "json").document
    assert row["figures"]["ttft_p99_s"] == simulated["latency"]["ttft"]["p99_s"]
    assert row["figures"]["itl_mean_s"] == simulated["latency"]["itl"]["mean_s"]
    assert row["figures"]["handoff_bytes"] == simulated["handoffs"]["bytes"]
    assert row["figures"]["goodput"] == simulated["goodput"]["of_all"]
    write(folder, ADMIT)
    rows = ask("sweep", "sweep.yaml", "--fresh", *RUN).document["rows"]
    for one in rows[::2]:
        plan = ask("admit", "two-gpu", "--fleet", one["fields"]["fleet"], "-o", "json").document
        assert one["verdict"] == plan["verdict"]
        assert [r["code"] for r in one["reasons"]] == [r["code"] for r in plan["reasons"] if r["severity"] != "warning"]
        assert one["figures"]["handoff_bytes"] == (plan["handoff"] or {}).get("bytes")


def test_an_interrupted_sweep_goes_on_where_it_stopped(
    ask: Ask, folder: Path, answered: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ask("sweep", "sweep.yaml", *RUN, "--journal", "other.jsonl").out
    count = len(answered)
    real = engines.answer

    def interrupted(body: bytes, trace: bytes | None) -> bytes:
        if len(answered) == count + 3:
            raise KeyboardInterrupt
        return real(body, trace)

    monkeypatch.setattr(engines, "answer", interrupted)
    stopped = ask("sweep", "sweep.yaml", *RUN)
    assert (stopped.code, stopped.out) == (130, "")
    assert "3 finished cases are in sweep.journal.jsonl; go on with --resume" in stopped.err
    monkeypatch.setattr(engines, "answer", real)
    refused = ask("sweep", "sweep.yaml", *RUN)
    assert refused.code == 2
    assert "holds 3 finished cases of this sweep; go on with --resume" in refused.err
    listed = ask("sweep", "sweep.yaml", "--dry-run", "-o", "json").document["cases"]
    assert [row["finished"] for row in listed] == [True] * 3 + [False] * 5
    answered.clear()
    assert ask("sweep", "sweep.yaml", *RUN, "--resume").out == whole
    assert len(answered) == 5
    assert ask("sweep", "sweep.yaml", *RUN, "--resume").out == whole
    assert len(answered) == 5
    assert ask("sweep", "sweep.yaml", *RUN).out == whole
    assert len(answered) == 13


def test_a_grid_may_grow_and_slos_may_change_between_runs(ask: Ask, folder: Path, answered: list[bytes]) -> None:
    assert ask("sweep", "sweep.yaml", *RUN).code == 0
    grown = ADMIT | {"grid": ADMIT["grid"] | {"kv_extent": ["blocks:16", "filled", "allocated"]}, "slo": {"devices": 4}}
    write(folder, grown)
    answered.clear()
    found = ask("sweep", "sweep.yaml", *RUN, "--resume")
    assert (len(answered), found.document["cases"]) == (4, 12)
    assert found.out == ask("sweep", "sweep.yaml", *RUN, "--fresh").out


def test_journals_of_others_are_refused_and_kept(ask: Ask, folder: Path) -> None:
    assert ask("sweep", "sweep.yaml", *RUN).code == 0
    before = (folder / "sweep.journal.jsonl").read_bytes()
    write(folder, SIMULATE)
    refused = ask("sweep", "sweep.yaml", *RUN, "--resume")
    assert refused.code == 2
    assert "none of this sweep" in refused.err
    held = open_journal("sweep.journal.jsonl")
    try:
        locked = ask("sweep", "sweep.yaml", *RUN)
        assert locked.code == 2
        assert "another sweep is writing this journal" in locked.err
    finally:
        held.close()
    assert (folder / "sweep.journal.jsonl").read_bytes() == before


def test_answers_of_other_code_run_again(
    ask: Ask, folder: Path, answered: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ask("sweep", "sweep.yaml", *RUN).out
    monkeypatch.setattr(journal, "program", lambda: "0" * 64)
    answered.clear()
    again = ask("sweep", "sweep.yaml", *RUN, "--resume")
    assert (again.out, len(answered)) == (whole, 8)
    assert "were answered by other code" in again.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, dict[str, Any]]:
    """(folder, bytes of the journal of a sweep, its answers)."""
    from scenarios.sweeping.run import How, run_sweep

    folder = tmp_path_factory.mktemp("finished")
    path = folder / "journal.jsonl"
    sweep = load_sweep(str(write(folder, ADMIT)))
    run_sweep(sweep, How(journal=str(path)), lambda words: None, lambda done, of: None)
    return folder, path.read_bytes(), read_answers(str(path))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_journal_cut_or_damaged_anywhere_never_gives_another_answer(data: st.DataObject, finished: Any) -> None:
    """A crash cuts it, a disk flips a bit: what is left is true, and what it says can be added to."""
    folder, whole, answers = finished
    cut = data.draw(st.integers(0, len(whole)))
    damaged = bytearray(whole[:cut])
    if cut and data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, cut - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = folder / "cut.jsonl"
    path.write_bytes(damaged)
    head = whole[: whole.index(b"\n") + 1]
    if not head.startswith(damaged[: len(head)]):
        with pytest.raises(DescriptionError, match="is no kvwaybill/sweep-journal/1"):
            open_journal(str(path))
        assert path.read_bytes() == damaged
        return
    with closing(open_journal(str(path))) as opened:
        assert opened.answers.items() <= answers.items()
        if damaged == whole[:cut]:
            assert len(opened.answers) == min(8, max(0, whole[:cut].count(b"\n") - 1))
        key, answer = next(iter(answers.items()))
        opened.add(key, answer)
        held = dict(opened.answers)
    assert read_answers(str(path)) == held


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize(("jobs", "most"), [("1", 0), ("2", 3000)])
def test_a_full_disk_is_told_once_and_what_was_written_goes_on(jobs: str, most: int, ask: Ask, folder: Path) -> None:
    whole = ask("sweep", "sweep.yaml", *RUN, "--journal", "whole.jsonl").out
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, -1))\n"
        f"from scenarios.cli.__main__ import main; raise SystemExit(main(['sweep', 'sweep.yaml', '--jobs', '{jobs}']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: sweep.journal.jsonl: the journal cannot be written: File too large; mend it and go on with --resume"
    ]
    lines = (folder / "sweep.journal.jsonl").read_bytes().count(b"\n")
    assert (1 < lines < 9) if most else lines == 0
    assert ask("sweep", "sweep.yaml", *RUN, "--resume").out == whole


def _task(key: str, body: bytes) -> engines.Task:
    return engines.Task(key, f"case {key}", lambda: (body, None))


class Deadly:
    """Kills whoever unpickles it, as long as there is no `mark`; then it is a question."""

    def __init__(self, mark: Path, question: bytes) -> None:
        script = f"""
import os
seen = {str(mark)!r} + ".seen"
if not os.path.exists({str(mark)!r}):
    open(seen, "a").write("x")
    if {mark.name == "once"}:
        os.link(seen, {str(mark)!r})
    os.kill(os.getpid(), 9)
"""
        self.code = f"exec({script!r}) or __import__('pickle').loads({question!r})"

    def __reduce__(self) -> Any:
        return eval, (self.code,)


def test_a_killed_worker_loses_nothing_and_doubles_nothing(folder: Path) -> None:
    cases, _ = read_cases(load_sweep("sweep.yaml"))
    bodies = [pickle.dumps(("admit", case.body)) for case in cases[:3]]
    tasks = [_task(str(n), body) for n, body in enumerate(bodies)]
    deadly = pickle.dumps(Deadly(folder / "once", bodies[0]))
    found = list(engines.local([*tasks[:1], _task("killed", deadly), *tasks[1:]], 2))
    assert sorted(key for key, _ in found) == ["0", "1", "2", "killed"]
    same = (dict(found)["killed"], dict(found)["0"], work.answer(bodies[0], None))
    assert len({json.dumps(json.loads(one)["answer"]) for one in same}) == 1


def test_a_case_that_always_kills_its_worker_is_named_and_the_others_are_answered(folder: Path) -> None:
    cases, _ = read_cases(load_sweep("sweep.yaml"))
    body = pickle.dumps(("admit", cases[0].body))
    deadly = pickle.dumps(Deadly(folder / "always", body))
    found: list[str] = []
    answers = engines.local([_task("killed", deadly), _task("0", body), _task("1", body)], 2)
    with pytest.raises(BackendError, match=r"1 of the cases broke .* case killed"):
        found.extend(key for key, _ in answers)
    assert sorted(found) == ["0", "1"]
    assert 2 <= len((folder / "always.seen").read_text()) <= 8


class Broken:
    """A body that cannot be read: something breaks inside, and the worker lives on."""

    def __reduce__(self) -> Any:
        return eval, ("{}['lost']",)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_case_that_breaks_inside_is_named_with_its_parameters_and_the_others_are_kept(
    jobs: str, ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, files = read_cases(load_sweep("sweep.yaml"))
    broken = [*cases[:3], replace(cases[3], body=Broken()), *cases[4:]]
    whole = run.read_cases
    monkeypatch.setattr(run, "read_cases", lambda _sweep: (broken, files))
    found = ask("sweep", "sweep.yaml", "--jobs", jobs, "--result-out", "r.json")
    assert (found.code, found.out) == (4, "")
    assert (
        "1 of the cases broke inside: case 4 (fleet: two-gpu-tight, kv_extent: allocated): KeyError: 'lost'"
        in found.err
    )
    assert "Traceback" not in found.err
    assert not (folder / "r.json").exists()
    assert len(read_answers("sweep.journal.jsonl")) == len(cases) - 1
    with pytest.raises(BackendError) as caught:
        run.run_sweep(load_sweep("sweep.yaml"), run.How(jobs=int(jobs)), lambda _words: None, lambda _n, _of: None)
    assert "in _found" in caught.value.__notes__[0], "what --debug shows is where it broke, in whatever process"
    monkeypatch.setattr(run, "read_cases", whole)
    assert ask("sweep", "sweep.yaml", "--jobs", jobs, "--resume", "--result-out", "r.json").code == 0


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for a process of others")
def test_workers_end_with_a_sweep_that_was_killed(folder: Path) -> None:
    """Each worker tells its pid and waits; its asker is killed, which nobody can catch."""
    code = (
        "import pickle\nfrom scenarios.sweeping import engines\n"
        "class Waits:\n def __reduce__(self): return exec, ('import os, time; print(os.getpid(), flush=True);"
        " time.sleep(900)',)\n"
        "body = pickle.dumps(Waits())\n"
        "list(engines.local([engines.Task(name, name, lambda: (body, None)) for name in 'ab'], 2))"
    )
    asker = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with asker:
        assert asker.stdout is not None
        workers = [os.pidfd_open(int(asker.stdout.readline())) for _ in "ab"]
        asker.kill()
        for worker in workers:
            assert select.select([worker], [], [], 300)[0], "a worker outlived its sweep"
            os.close(worker)


def test_a_sweep_of_admissions_compiles_nothing(folder: Path) -> None:
    code = (
        "import sys; from scenarios.cli.__main__ import main\n"
        "assert main(['-q', 'sweep', 'sweep.yaml', '--jobs', '1']) == 0\n"
        "sys.exit(str([name for name in ('numba', 'numpy', 'joblib', 'distributed') if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("fleets", "slo", "code", "words"),
    [
        (["two-gpu-nvlink", "two-gpu-tight"], {"handoff": "1 ms"}, 0, "case 1, 2 devices"),
        (["two-gpu-nvlink", "two-gpu-tight"], {"handoff": "1 ns"}, 1, "none"),
        (["two-gpu-unknown", "two-gpu-tight"], {"handoff": "1 ms"}, 3, "cannot be told"),
        (["two-gpu-nvlink", "two-gpu-unknown"], {"handoff": "1 ns"}, 3, "cannot be told"),
    ],
)
def test_best_ends_with_the_code_of_its_answer(
    fleets: list[str], slo: dict[str, str], code: int, words: str, ask: Ask, folder: Path
) -> None:
    write(folder, ADMIT | {"grid": {"fleet": fleets}, "slo": slo})
    found = ask("sweep", "sweep.yaml", "--jobs", "1", "--best")
    assert found.code == code
    assert words in found.out
    assert ask("sweep", "sweep.yaml", "--jobs", "1").code == 0


def test_prices_are_those_of_the_devices_used(ask: Ask, folder: Path) -> None:
    priced = {"grid": {"fleet": ["two-gpu-nvlink", "two-gpu-staged"]}, "prices": {"h100-sxm-80": "1.25", "none": "3"}}
    document = (write(folder, ADMIT | priced), ask("sweep", "sweep.yaml", *RUN).document)[1]
    assert [row["cost_per_hour"] for row in document["rows"]] == [2.5, None]
    assert [row["skus"] for row in document["rows"]] == [{"h100-sxm-80": 2}, {"h100-pcie-80": 2}]
    assert document["warnings"][:2] == [
        "prices: no case uses none",
        "prices: none for h100-pcie-80; such cases cost null",
    ]
    assert document["warnings"][2].startswith("ttft, tpot: of some cases only a lower bound (>=) is known")


def test_a_wrong_case_that_only_the_plant_finds_is_told_in_the_sweep_and_the_others_are_kept(
    ask: Ask, folder: Path
) -> None:
    base = {
        "schema": "kvwaybill/simulation-scenario/1", "fleet": "two-gpu-staged", "prefill": {"devices": "gpu:0"},
        "decode": {"devices": "gpu:1"}, "prompts": {"kind": "fixed", "value": "8"},
        "answers": {"kind": "fixed", "value": "3"}, "arrivals": {"kind": "constant", "rate": "1", "requests": "3"},
    }  # fmt: skip
    write(
        folder,
        SIMULATE | {"base": base, "list": [{"handoff.by": "layer"}, {"handoff.by": "whole"}], "grid": {"seed": ["1"]}},
    )
    found = ask("sweep", "sweep.yaml", *RUN)
    assert (found.code, found.out) == (2, "")
    assert "sweep.yaml:" in found.err
    assert "by: layer needs ways of one copy" in found.err
    assert len(read_answers("sweep.journal.jsonl")) == 1


def test_progress_with_the_time_left_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from scenarios.cli.console import Console
    from scenarios.sweeping.progress import progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, quiet, shown in ((Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress(Console(quiet=quiet)) as tick:
            tick(1, 4)
            tick(2, 4)
        assert ("2/4 cases" in stream.getvalue()) is shown
