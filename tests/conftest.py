"""What every test of the suite shares: one terminal, and properties that are searched alike on each machine.

`pytest --hypothesis-profile=search` draws other examples each time, to find what the fixed ones miss.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# What a shell or a service says of its terminal breaks lines elsewhere, or colours what tests read.
for _name in ("COLUMNS", "LINES", "TERMINAL_WIDTH", "FORCE_COLOR", "PY_COLORS", "NO_COLOR", "GITHUB_ACTIONS"):
    os.environ.pop(_name, None)

# Deadlines and `too_slow` fail on a busy machine and say nothing of the code; examples drawn anew at each run fail on
# a day of their own choosing, for a change that has nothing to do with them.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", settings.get_profile("search"), derandomize=True)
settings.load_profile("suite")
