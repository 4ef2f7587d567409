"""Text of pods and servers without what looks like a secret, before anybody reads it."""

import os
import re

HIDDEN = "[hidden]"
_SHORTEST = 6

_NAMED = re.compile(
    r"(?i)([\w.-]*(?:secret|token|password|passwd|api_?key|access_?key|credential|authorization"
    r"|signature)[\w.-]*[\"']?\s*[=:]\s*[\"']?)((?:bearer|basic)\s+)?[^\s\"',;&]+"
)
_PATTERNS = (
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # credentials in an address
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # JSON web tokens
)
_SECRET_NAME = re.compile(r"(?i)secret|token|password|passwd|api_?key|access_?key|credential")


def redact(text: str) -> str:
    """Hide secrets: values of this process's secret variables, and what looks like one.

    >>> redact("AWS_SECRET_ACCESS_KEY=abcdef and s3://me:pw@host")
    'AWS_SECRET_ACCESS_KEY=[hidden] and s3://[hidden]@host'
    """
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST and "/" not in value[:1]:
            text = text.replace(value, HIDDEN)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    for pattern in _PATTERNS:
        text = pattern.sub(HIDDEN, text)
    return text
