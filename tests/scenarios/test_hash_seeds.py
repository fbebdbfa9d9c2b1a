"""The same question gives the same bytes in every process: not by hash seed, not by address, not by what went before.

Processes that differ in PYTHONHASHSEED, and so in the order of every set of words, answer the same questions in another
order; the hash of None follows its address, which differs from process to process as well.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from itertools import combinations, permutations
from pathlib import Path

import pytest

from tests.command_line import Document, fleet, link, write_json

ROOT = Path(__file__).parents[2]
_ANSWERS = """
import contextlib, io, json, random, sys
from scenarios.cli.__main__ import main
asked, told = json.loads(sys.argv[1]), {}
random.Random(sys.argv[2]).shuffle(asked)
for words in asked:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    told[" ".join(words)] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(told, sort_keys=True))
"""
CARDS = {
    "kind": "gpu", "runtime": "1 MiB", "compute": {"fp32": "60 TFLOP/s"},
    "memories": [{"name": "hbm", "capacity": "1 GiB", "bandwidth": "3000 GB/s"}],
}  # fmt: skip


def ring() -> Document:
    """Six cards in a ring: many ways are as fast, and many pairs are alike."""
    made = fleet(["1 GiB"] * 6, peer=None)
    near = [(f"gpu:{at}", f"gpu:{(at + 1) % 6}") for at in range(6)]
    made["links"] += [link(*ends, peer_access="direct") for one in near for ends in (one, one[::-1])]
    return made


def racks() -> Document:
    """Nodes of two kinds of cards, two switches and two NICs each, all between them doubled; domains overlap."""
    devices, links, switches, nics, members = [], [], [], [], {}
    for node in ("a", "b", "c"):
        own = [f"{node}/gpu:{at}" for at in range(3)]
        devices += [{"id": name, "sku": f"card{at % 2}", "host": f"{node}/host"} for at, name in enumerate(own)]
        switches += [{"id": f"{node}/switch{at}", "kind": "nvlink", "host": f"{node}/host"} for at in range(2)]
        nics += [{"id": f"{node}/nic{at}", "host": f"{node}/host"} for at in range(2)]
        ends = [(name, f"{node}/host", "pcie") for name in own]
        ends += [(name, f"{node}/switch{at}", "nvlink") for name in own for at in range(2)]
        ends += [(f"{node}/nic{at}", f"{node}/host", "pcie") for at in range(2)]
        ends += [(f"{node}/nic{at}", f"spine{at}", "net") for at in range(2)]
        for src, dst, kind in ends:
            access = {"peer_access": "direct"} if kind == "nvlink" else {}
            links += [link(*way, kind=kind, **access) for way in ((src, dst), (dst, src))]
        members[node] = own
    shared = {f"{a}{b}": [*members[a], members[b][0]] for a, b in permutations("abc", 2)}
    return {
        "schema": "kvwaybill/fleet/1", "name": "racks", "skus": {"card0": CARDS, "card1": CARDS},
        "hosts": [{"id": f"{node}/host"} for node in "abc"], "devices": devices, "nics": nics, "links": links,
        "switches": [*switches, *({"id": f"spine{at}", "kind": "net"} for at in range(2))],
        "fabric": {"domains": {name: {"kind": "nvlink", "members": held} for name, held in shared.items()}},
    }  # fmt: skip


def broken() -> Document:
    """A fleet with many faults, some of which name what was meant."""
    ends = [*combinations(("gpu:0", "gpu:7", "hosst"), 2)]
    return fleet() | {"links": [link(*each) for each in ends], "zork": 1, "budgets": {}, "device": []}


ASKED = """
admit two-gpu-tight --explain
admit --fleet racks.json --prefill-tp 2 --decode-tp 2 --explain -o json
admit --fleet ring.json --prefill gpu:0 --decode gpu:3 -o md
admit --fleet two-gpu-tight --fleet ring.json --fleet two-gpu-unknown
admit --fleet hgx --engine zork
compare a.json b.json
explain a.json -o json
fleet check broken.json
fleet show racks.json
fleet show racks.json -o json
fleet show racks.json -o mermaid
fleet show ring.json -o svg
place --fleet racks.json --pareto
place --fleet racks.json --prefer same-domain --exclude a/* -o json
place --fleet racks.json --prefill-workers 1-2 --decode-workers 2 --max-devices 4 --objective throughput -o json
place --fleet ring.json --objective ttft --top 30 -o json
place --fleet ring.json --prefill-workers 2 --decode-workers 2 --routing nearest
report a.json b.json -o md
scenario show two-gpu -o json
"""


def answers(folder: Path, seed: str) -> dict[str, list[object]]:
    """Code, stdout and stderr of each question, in a process of its own with that hash seed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
    asked = json.dumps([line.split() for line in ASKED.split("\n") if line])
    command = [sys.executable, "-c", _ANSWERS, asked, seed]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    told: dict[str, list[object]] = json.loads(done.stdout)
    return told


def test_no_answer_depends_on_hash_seed_address_or_what_was_asked_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scenarios.cli.__main__ import main

    monkeypatch.chdir(tmp_path)
    for name, document in (("ring", ring()), ("racks", racks()), ("broken", broken())):
        write_json(tmp_path / f"{name}.json", document)
    assert main(["admit", "two-gpu", "--plan-out", "a.json", "-q"]) == 0
    assert main(["admit", "two-gpu-staged", "--plan-out", "b.json", "-q"]) == 0
    first, second = answers(tmp_path, "1"), answers(tmp_path, "2")
    assert {code for code, _, _ in first.values()} == {0, 1, 2}
    assert first.keys() == second.keys()
    assert [words for words in first if first[words] != second[words]] == []


FREE_OF_ORDER = {"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum", "update"}
ANY_ORDER = {
    "planner/counterfactual.py": "the largest of all is taken",
    "planner/counterfactual_degree.py": "numbers, which lie in one order always, are counted",
}
KEEPS_ORDER = {"dict", "enumerate", "extend", "from_iterable", "fromkeys", "join", "list", "map", "tuple", "zip"}


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _is_set(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.BitXor | ast.Sub):
        keys = isinstance(node.left, ast.Call) and _called(node.left) in ("keys", "items")
        return keys or _is_set(node.left, names) or _is_set(node.right, names)
    if isinstance(node, ast.Call):
        return _called(node) in ("set", "frozenset")
    return isinstance(node, ast.Set | ast.SetComp) or (isinstance(node, ast.Name) and node.id in names)


def _scopes(node: ast.AST) -> list[ast.AST]:
    """Functions, methods and the other statements of a module; what stands within a function is not apart."""
    found: list[ast.AST] = []
    for each in ast.iter_child_nodes(node):
        found += _scopes(each) if isinstance(each, ast.ClassDef) else [each]
    return found


def _sets_of(nodes: list[ast.AST]) -> set[str]:
    """Names that are given nothing but sets within a function."""
    given: dict[str, list[bool]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    given.setdefault(target.id, []).append(_is_set(node.value, set()))
    return {name for name, found in given.items() if all(found)}


def _ordered_sets(scope: ast.AST) -> list[int]:
    """Lines on which the order of a set goes into a loop, a list, a dict or a text."""
    nodes = list(ast.walk(scope))
    names, free, found = _sets_of(nodes), set(), []
    for node in nodes:
        over: list[ast.expr] = []
        if isinstance(node, ast.Call) and not any(word.arg == "key" for word in node.keywords):
            free |= {id(each) for each in node.args if _called(node) in FREE_OF_ORDER}
        if isinstance(node, ast.For):
            over = [node.iter]
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and id(node) not in free:
            over = [part.iter for part in node.generators]
        elif isinstance(node, ast.List | ast.Tuple):
            over = [each.value for each in node.elts if isinstance(each, ast.Starred) and id(node) not in free]
        elif isinstance(node, ast.Call) and _called(node) in KEEPS_ORDER and id(node) not in free:
            over = node.args
        found += [each.lineno for each in over if _is_set(each, names)]
    return found


def test_the_order_of_a_set_goes_nowhere() -> None:
    """Words, and all that holds None, lie in a set in another order in each process: sort it, or keep a dict."""
    told = []
    for package in ("fleet", "planner", "executor", "scenarios"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            lines = {line for scope in _scopes(tree) for line in _ordered_sets(scope)}
            name = str(path.relative_to(ROOT))
            told += [f"{name}:{line}" for line in sorted(lines) if name not in ANY_ORDER]
    assert told == []


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("kept = tuple({a, b})", [1]),
        ("def f(y):\n    x = set(y)\n    for z in x: g(z)", [3]),
        ("class A:\n    def g(self, a, b):\n        return ','.join(a.keys() & b.keys())", [3]),
        ("def f(raws):\n    return {raw: key(raw) for raw in set(raws)}", [2]),
        ("def f(a, b):\n    return [*{a}, b]", [2]),
        ("def f(a):\n    return sorted({*a}), len(set(a)), any(x for x in {1})", []),
    ],
)
def test_an_order_that_is_kept_is_seen_and_one_that_is_lost_is_let_be(code: str, told: list[int]) -> None:
    assert [line for scope in _scopes(ast.parse(code)) for line in _ordered_sets(scope)] == told
