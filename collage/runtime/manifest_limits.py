"""Limits of the numbers in a manifest."""

MAX_DIMENSIONS = 64
MAX_EXTENT = 1 << 46
