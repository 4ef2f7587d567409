"""Costs, their lines in batches, and a record key, for tests that read or write a store."""

from collage.cost import Cost, CostKey, Environment
from collage.cost.cost_records import CostLine, cost_entry, decode_lines
from collage.cost.lines import encode_entry
from collage.cost.shared import costs_prefix
from collage.store.record_keys import RecordKeys

KEY = "a-key-of-the-tests-32-characters"
"""Record key of the tests."""

KEYS = RecordKeys((KEY.encode(),))

ENVIRONMENT = Environment("a cpu", "features", 2, 1, driver="", protocol="cold-1")
MEASURED = Cost(2e-3, 1e-3, 3e-3, (2e-3, 2.5e-3), build_s=0.25)


def cost_lines(data: bytes) -> list[CostLine]:
    """Return the costs of a batch, in their order."""
    return [line for line in decode_lines(data, "a test").values if isinstance(line, CostLine)]


def signed_cost(key: CostKey, cost: Cost, environment: Environment) -> bytes:
    """Return the line of a cost, signed with the tests' key."""
    return encode_entry(KEYS.signed(cost_entry(key, cost), costs_prefix(environment)))
