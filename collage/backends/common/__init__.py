"""Common parts of several backends; no backend package imports another one."""
