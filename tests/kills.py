"""How often the tests that kill processes do so: KILLS=10 says ten times, instead of two.

With it the tests also compare what plans cost, which says something only where no other test runs beside.
"""

import os

ALONE = "KILLS" in os.environ
KILLS = int(os.environ.get("KILLS", "2"))
NOISE = 1.5
"""Between costs of plans of one model, some 12 us each, minutes apart on a machine that others use."""
