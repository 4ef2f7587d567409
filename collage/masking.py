"""Masking of numbers in messages that a run of a model may have filled with values of its inputs.

Libraries print the values that they refuse ("idx=131072 must be within [-100,99]"). Reasons of rejected
candidates go to shared stores, reports and logs, and a user's samples must not.
"""

import re

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:0x[0-9a-fA-F]+|\d[\d.]*(?:[eE][-+]?\d+)?|nan\b|inf\b)")


def mask_numbers(text: str) -> str:
    """Replace every number in a message by "#"; digits in names stay.

    >>> mask_numbers("Conv_12: idx=131072 must be within [-100,99], not -1.5e+3")
    'Conv_12: idx=# must be within [#,#], not #'
    """
    return _NUMBER.sub("#", text)
