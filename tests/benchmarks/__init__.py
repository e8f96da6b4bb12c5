"""Commands that measure; `python -m tests.benchmarks` runs those that have a floor or a peer.

Threads of OpenMP must not spin while others measure: that would count as work of both.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
