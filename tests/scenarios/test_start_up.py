"""What a plain admission loads: nothing that answers a question which was not asked."""

from __future__ import annotations

import json
import subprocess
import sys

_CODE = """
import json, sys
from scenarios.cli.__main__ import main
code = main(["admit", "two-gpu", "-q"])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""
NOT_ASKED = {
    "planner.fixes", "planner.counterfactual", "planner.solve", "planner.in_use", "planner.place", "fleet.launch",
    "fleet.readers.in_use", "scenarios.launching", "numba", "cupy", "numpy",
}  # fmt: skip


def test_an_admitted_plan_loads_no_fixes_no_inverse_and_no_readers_of_other_texts() -> None:
    ran = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    code, modules = json.loads(ran.stderr.splitlines()[-1])
    assert code == 0
    assert not NOT_ASKED & set(modules)
    assert "planner.admit" in modules
