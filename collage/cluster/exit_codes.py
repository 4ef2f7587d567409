"""Exit codes of measuring pods: what the Job's failure policy goes by."""

RETRY = 1
"""Something that may pass: the store was away, a worker was killed."""

BAD_INPUT = 42
"""This shard can never be measured: fail its index, without a retry."""

BAD_NODE = 43
"""No shard can be measured here: the image, its settings or the node is not what was expected."""

TERMINATED = 143
"""SIGTERM: what was measured is in the store."""
