"""What every test of the suite shares: properties are searched the same way on each machine, however busy it is.

`pytest --hypothesis-profile=search` draws other examples each time, to find what the fixed ones miss.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Deadlines and `too_slow` fail on a busy machine and say nothing of the code; examples drawn anew at each run fail on
# a day of their own choosing, for a change that has nothing to do with them.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", settings.get_profile("search"), derandomize=True)
settings.load_profile("suite")
