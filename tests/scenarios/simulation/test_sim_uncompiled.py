"""The kernels as plain Python (NUMBA_DISABLE_JIT): same results, no index below 0 or beyond, no number beyond 64 bits.

Compiled they are handed addresses, and nobody checks an index; here numpy does, and warns where a sum wraps around.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CHECKED = '''
import sys, warnings
warnings.simplefilter("error", RuntimeWarning)
import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from scenarios.simulation import engine, loop
from tests.scenarios.simulation import sim_cases, test_sim_oracle

class Checked(np.ndarray):
    """No index counts from the end."""
    def __getitem__(self, at):
        inside(at)
        return super().__getitem__(at)
    def __setitem__(self, at, value):
        inside(at)
        super().__setitem__(at, value)

def inside(at):
    if any(isinstance(one, (int, np.integer)) and one < 0 for one in (at if isinstance(at, tuple) else (at,))):
        raise IndexError(at)

def checked(values):
    return type(values)(*[v.view(Checked) if isinstance(v, np.ndarray) else v for v in values])

plain, engine.LEAST_BIN = loop.advance, 1
assert not hasattr(plain, "signatures"), "compiled"
loop.advance = lambda config, state, most: plain(checked(config), checked(state), most)

@settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@seed(11)
@given(config=sim_cases.configs())
def every_case(config):
    test_sim_oracle.agree(config)

every_case()
'''


def test_uncompiled_kernels_stay_inside_their_arrays_and_agree_with_the_oracle() -> None:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CHECKED], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
