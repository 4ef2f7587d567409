"""Exit codes of measuring pods; the failure policy of the Job reads them."""

RETRY = 1
"""A transient failure: the store was unreachable, a worker was killed."""

BAD_INPUT = 42
"""No node can measure this shard: its index fails, without a retry."""

BAD_NODE = 43
"""This image, its settings or the node differs from the expected one: the Job fails."""

TERMINATED = 143
"""SIGTERM; finished measurements are in the store."""
