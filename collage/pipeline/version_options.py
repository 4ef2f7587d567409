"""Options that users set for one version of a registered model, as a tag or as a file beside it.

    {"dims": {"batch": 1}, "effort": "quick", "environments": ["gpu"], "team": "ocr"}

They stand over the options of the run, field by field. The text is JSON or YAML. Whoever may tag a version
need not be an operator, so only the fields of `VERSION_OPTIONS` are accepted, with limits: none names a
file, a store or a key, loads code, or takes more of a machine than the operator gives (`workers`,
`memory_bytes`, `timeout_s`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from collage.errors import OptionError
from collage.options import EFFORTS, Options
from collage.pipeline.request import RequestOptions

VERSION_OPTIONS = (
    "dims", "shapes", "golden", "backends", "cuda_graphs", "precision", "tolerance", "measure_budget_s",
    "refine_s", "tune_s", "seed", "end_to_end_plans", "verify_s", "keep_nan", "fallback", "exact_only", "pad",
)  # fmt: skip
"""The accepted fields of `RequestOptions`."""

EFFORT, ENVIRONMENTS, TEAM = "effort", "environments", "team"
MAX_TEXT = 16 << 10
"""Length limit of the text, in characters."""

MAX_SECONDS = 6 * 3600.0
"""Largest budget of a stage, in seconds; an operator's own options have no limit."""

MAX_PLANS = 64


@dataclass(frozen=True)
class VersionOptions:
    """Options of one version.

    Attributes:
        fields: values of fields of `RequestOptions`, by name.
        environments: names of its measuring environments; empty: those of the run.
        team: name of its team; "" without one.
    """

    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    environments: tuple[str, ...] = ()
    team: str = ""

    def over(self, options: RequestOptions | None) -> RequestOptions:
        """Return `options`, default the defaults, with the fields of the version instead of theirs.

        Raises:
            OptionError: fields of the two that do not go together.
        """
        if not self.fields:
            return options or RequestOptions()
        merged = {**dict(options or RequestOptions()), **self.fields}
        Options(**merged)
        return RequestOptions.model_validate(merged)


def parse_version_options(text: str, source: str) -> VersionOptions:
    """Parse the options of a version; a text without any gives none.

    Args:
        text: JSON or YAML.
        source: place of the text, for messages.

    Raises:
        OptionError: what is wrong with the text, and where it is.
    """
    if not text.strip():
        return VersionOptions()
    content = options_mapping(text, source)
    environments = _names(content, ENVIRONMENTS, source)
    team = content.pop(TEAM, "")
    if not isinstance(team, str) or len(team) > 100:
        raise OptionError(f"{source}: {TEAM} must be a name")
    effort = content.pop(EFFORT, None)
    if effort is not None and (not isinstance(effort, str) or effort not in EFFORTS):
        raise OptionError(f"{source}: {EFFORT} must be {' or '.join(EFFORTS)}")
    budgets = EFFORTS[effort]._asdict() if effort else {}
    fields = {**budgets, **_checked_fields(content, source)}
    return VersionOptions(fields, environments, team)


def options_mapping(text: str, source: str) -> dict[str, Any]:
    """Return the mapping of a text in JSON or YAML, with unchecked fields.

    Raises:
        OptionError: the text is too long, or is no mapping.
    """
    if len(text) > MAX_TEXT:
        raise OptionError(f"{source}: it has more than {MAX_TEXT} characters")
    try:
        content = json.loads(text)
    except RecursionError:
        raise OptionError(f"{source}: it is nested too deeply") from None
    except ValueError:
        content = _parse_yaml(text, source)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise OptionError(
            f'{source}: write a mapping of options, e.g. {{"dims": {{"batch": 1}}}}, as JSON or YAML'
        )
    return content


def _parse_yaml(text: str, source: str) -> object:
    import yaml

    try:
        tokens = list(yaml.scan(text))
        if any(isinstance(token, yaml.AliasToken | yaml.AnchorToken) for token in tokens):
            # a few nested aliases would stand for more values than a machine holds
            raise OptionError(f"{source}: anchors and aliases of YAML are not allowed")
        content: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = str(getattr(error, "problem", None) or type(error).__name__)
        raise OptionError(f"{source}: neither JSON nor YAML: {problem}") from None
    return content


def _names(content: dict[str, Any], name: str, source: str) -> tuple[str, ...]:
    """Remove a list of names from the content and return it; one name may stand without a list."""
    value = content.pop(name, ())
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(item, str) for item in names):
        raise OptionError(f"{source}: {name} must be a list of names")
    return tuple(dict.fromkeys(names))


def _checked_fields(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the validated fields. Raises OptionError for the first invalid one."""
    for name in content:
        if name not in VERSION_OPTIONS:
            allowed = ", ".join(sorted((*VERSION_OPTIONS, EFFORT, ENVIRONMENTS, TEAM)))
            raise OptionError(
                f"{source}: {name!r} cannot be set for a version; there are {allowed}"
            )
    fields = dict(content)
    if isinstance(shapes := fields.get("shapes"), dict):
        fields["shapes"] = [shapes]
    try:
        options = RequestOptions.model_validate(fields)
        Options(**dict(options))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise OptionError(f"{source}: {place}: {first['msg']}") from None
    except OptionError as error:
        raise OptionError(f"{source}: {error}") from None
    values = {name: getattr(options, name) for name in content}
    _check_limits(values, source)
    return values


def _check_limits(values: Mapping[str, Any], source: str) -> None:
    for name, value in values.items():
        limit = MAX_SECONDS if name.endswith("_s") else MAX_PLANS if "plans" in name else None
        if limit is not None and value > limit:
            raise OptionError(f"{source}: {name} must be at most {limit:g}, not {value:g}")
    for backend in values.get("backends") or ():
        if ":" in backend:
            raise OptionError(
                f"{source}: {backend!r} would load code; a version may name installed backends only"
            )
