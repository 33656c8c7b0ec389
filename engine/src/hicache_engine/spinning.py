"""How long torch's threads wait by spinning. To be settled before torch is imported; imports nothing of it.

GNU OpenMP lets a thread that has nothing to do spin some 300,000 times before it sleeps. Where other processes want
the same cores, each of the thousand parallel regions of a forward pass then waits for a thread that is not running
while the other burns its share: on two cores shared with several busy processes, 1,100 tokens took 54 s with the
default and 4 to 8 s with short spins, which cost a few percent where the machine is free (1.5 s).
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPINS = "8000"


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have OpenMP spin briefly, unless the user has decided otherwise (GOMP_SPINCOUNT, OMP_WAIT_POLICY)."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPINS)
