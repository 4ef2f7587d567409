"""What a batch of costs says, for tests that look into a store or play a machine that writes there."""

from collage.cost import Cost, CostKey, Environment
from collage.cost.lines import encode_entry
from collage.cost.shared import costs_prefix
from collage.cost.table import CostLine, cost_entry, decode_lines
from collage.store.record_keys import RecordKeys

KEY = "a-key-of-the-tests-32-characters"
"""Of records."""

KEYS = RecordKeys((KEY.encode(),))


def cost_lines(data: bytes) -> list[CostLine]:
    """The costs of a batch, in their order."""
    return [line for line in decode_lines(data, "a test").values if isinstance(line, CostLine)]


def signed_cost(key: CostKey, cost: Cost, environment: Environment) -> bytes:
    """A line of a cost, signed with the tests' key."""
    return encode_entry(KEYS.signed(cost_entry(key, cost), costs_prefix(environment)))
