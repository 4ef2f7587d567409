"""Settings from the environment, `COLLAGE_...`; unknown variables are refused.

A misspelt variable must not leave a setting silently at its default. pydantic-settings reads only known
names, so it ignores a misspelt top-level name; `unknown_variables` checks every `COLLAGE_` variable of the
environment. Kubernetes adds variables for each Service of a namespace (`COLLAGE_RECEIVER_SERVICE_HOST`);
these are no settings and are ignored.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from collage.errors import OptionError
from collage.import_limits import VARIABLES
from collage.runtime.child_environment import PASSED, child_environment

PREFIX = "COLLAGE_"
_ANYWHERE = VARIABLES | {PASSED}
"""Variables of all programs, read outside of settings classes."""
_PROGRAMS = (f"{PREFIX}RECEIVER__", f"{PREFIX}METRICS__")
"""Prefixes of the receiver's and the exporter's variables: a shared environment has them too."""
NESTED = "__"
_SERVICE_LINK = re.compile(
    r"COLLAGE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)


class CollageSettings(BaseSettings):
    """Base of settings: frozen, and constructed by `load` where a program begins, never at import."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=NESTED, frozen=True, extra="forbid"
    )

    record_key: SecretStr = Field(
        default=SecretStr(""), description="keys of records: read by `collage.store.record_keys`"
    )
    record_key_file: str = Field(default="", description="file with such keys")

    @classmethod
    def load(cls, *other_settings: type[BaseSettings]) -> Self:
        """Read the settings from the environment.

        Args:
            other_settings: settings classes of other parts in the same environment.

        Raises:
            OptionError: names what is missing, wrong or unknown, never a value.
        """
        if unknown := unknown_variables((cls, *other_settings)):
            raise OptionError(f"unknown settings: {'; '.join(unknown)}")
        try:
            return cls()
        except ValidationError as error:
            prefix = cls.model_config.get("env_prefix", "")
            wrong = "; ".join(
                f"{_variable(prefix, problem['loc'])}: {problem['msg']}"
                for problem in error.errors(include_input=False, include_context=False)
            )
            raise OptionError(f"the settings are not right: {wrong}") from None


def unknown_variables(
    settings_types: Iterable[type[BaseSettings]], environ: Mapping[str, str] | None = None
) -> list[str]:
    """Return every `COLLAGE_` variable without a setting, with the most similar known name."""
    names = sorted({name for settings in settings_types for name in variables(settings)})
    unknown = []
    for variable in sorted(os.environ if environ is None else environ):
        upper = variable.upper()
        if not upper.startswith(PREFIX) or _SERVICE_LINK.fullmatch(upper):
            continue
        if _is_read_elsewhere(upper, names):
            continue
        if not any(upper == name or upper.startswith(f"{name}{NESTED}") for name in names):
            near = difflib.get_close_matches(upper, names, 1)
            unknown.append(f"{variable} (did you mean {near[0]}?)" if near else variable)
    return unknown


def _is_read_elsewhere(name: str, own: Iterable[str]) -> bool:
    """Tell whether another part of Collage reads the variable: toolchains, the receiver or the exporter."""
    for program in _PROGRAMS:
        if name.startswith(program):
            return not any(setting.startswith(program) for setting in own)
    toolchains = child_environment({name: ""}) if not name.startswith("COLLAGE_IMPORT_") else {}
    return name in _ANYWHERE or name in toolchains


def variables(settings: type[BaseSettings]) -> list[str]:
    """Return the names of the variables of the top-level fields, in capitals."""
    prefix = settings.model_config.get("env_prefix", "")
    names = []
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or f"{prefix}{name}"]
        names += [str(choice).upper() for choice in choices]
    return names


def _variable(prefix: str, location: tuple[int | str, ...]) -> str:
    name = NESTED.join(map(str, location)).upper()
    return name if name.startswith((PREFIX, "PREFECT_")) else f"{prefix.upper()}{name}"
