"""What a batch of costs says, for tests that look into a store."""

from collage.cost.table import CostLine, decode_lines


def cost_lines(data: bytes) -> list[CostLine]:
    """The costs of a batch, in their order."""
    return [line for line in decode_lines(data, "a test").values if isinstance(line, CostLine)]
