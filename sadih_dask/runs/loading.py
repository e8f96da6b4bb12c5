"""From a TOML file, the environment and the command line to checked settings.

Later ones win: ``SADIH__MODEL__N_BITS=32`` over the file, ``--set model.n_bits=32`` over both.
Every error names where the value came from, its key, and what is allowed there.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from sadih_dask.cluster.settings import reason
from sadih_dask.errors import ConfigError
from sadih_dask.model.parameters import PARAMETERS
from sadih_dask.runs.settings import Model, Settings

PREFIX = "SADIH__"
_LIMIT = 1 << 20
Path_ = tuple[str, ...]


def load(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Read a configuration file; ``overrides`` are like ``model.n_bits=32``."""
    file = os.fspath(path)
    values = _read(Path(file))
    origins: dict[Path_, str] = {}
    for key, text, origin in (*_from_environment(environment), *_from_command(overrides)):
        _put(values, key, _value(text), origin)
        origins[key] = origin
    if isinstance(source := values.get("source"), dict):
        source.setdefault("kind", "files")
    problems = list(_unknown(values, Settings, ()))
    if not problems:
        try:
            return Settings.model_validate(values)
        except ValidationError as error:
            problems = [_explain(found) for found in error.errors(include_url=False)]
    lines = [f"{_origin(key, origins, file)}: {text}" for key, text in problems]
    raise ConfigError("\n".join(dict.fromkeys(lines)))


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LIMIT:
            raise ConfigError(f"{path} has more than {_LIMIT} bytes; a configuration is shorter")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; name a configuration file (.toml)") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name a configuration file (.toml)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[Path_, str, str]]:
    for name in sorted(environment):
        if name.startswith(PREFIX):
            key = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield key, environment[name], f"environment variable {name}"


def _from_command(overrides: Iterable[str]) -> Iterator[tuple[Path_, str, str]]:
    for given in overrides:
        key, equals, text = given.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {given}: write it as section.key=value")
        yield tuple(key.strip().split(".")), text.strip(), f"--set {key.strip()}"


def _value(text: str) -> Any:
    """A TOML value, or else the text itself, so that words need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _put(values: dict[str, Any], key: Path_, value: Any, origin: str) -> None:
    table = values
    for name in key[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {name} is a value, not a section")
    table[key[-1]] = value


def _unknown(values: object, model: type[BaseModel], at: Path_) -> Iterator[tuple[Path_, str]]:
    """Keys that no section has, each with what was probably meant."""
    if not isinstance(values, dict):
        return
    chosen = _chosen(model, values)
    for name, value in values.items():
        field = chosen.model_fields.get(name)
        key = (*at, name)
        if field is None:
            yield key, _not_a_setting(name, sorted(chosen.model_fields), at)
            continue
        for section in _sections(field.annotation):
            yield from _unknown(value, _chosen(section, value, field.annotation), key)
            break


def _not_a_setting(name: str, allowed: list[str], at: Path_) -> str:
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
    meant = f"; did you mean {close[0]}?" if close else "."
    where = f"[{'.'.join(at)}]" if at else "a configuration"
    return f"{name!r} is not a setting{meant} {where} may have {', '.join(allowed)}"


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for argument in get_args(annotation):
            yield from _sections(argument)


def _chosen(section: type[BaseModel], values: object, annotation: Any = None) -> type[BaseModel]:
    """Of several kinds of a section, the one that its ``kind`` names."""
    kinds = list(_sections(annotation)) if annotation is not None else [section]
    wanted = values.get("kind") if isinstance(values, dict) else None
    for kind in kinds:
        field = kind.model_fields.get("kind")
        if field is not None and wanted in get_args(field.annotation):
            return kind
    return section


def _explain(found: Any) -> tuple[Path_, str]:
    """One error of pydantic in our words."""
    key = tuple(str(part) for part in found["loc"] if part not in _TAGS)
    name = ".".join(key) or "the configuration"
    if found["type"] == "missing":
        return key, f"{name} is missing{_meaning(key)}"
    if found["type"] == "union_tag_not_found":
        return key, f"{name}.kind is missing; allowed are 'files', 'digits' and 'synthetic'"
    if found["type"] == "union_tag_invalid":
        return (
            key,
            f"{name}.kind = {found['ctx']['tag']!r}; allowed are {found['ctx']['expected_tags']}",
        )
    if found["type"] == "value_error":
        return key, f"{name}: {reason(found)}"
    return key, f"{name} = {_shown(found['input'])}: {reason(found)}{_meaning(key)}"


_TAGS = ("files", "digits", "synthetic", "literal['auto']", "constrained-int")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meaning(key: Path_) -> str:
    """What a setting is, from its description."""
    sections: list[type[BaseModel]] = [Settings]
    text = ""
    for name in key:
        fields = [s.model_fields[name] for s in sections if name in s.model_fields]
        if not fields:
            break
        text = fields[0].description or ""
        sections = list(_sections(fields[0].annotation))
    return f" ({text})" if text else ""


def key_of(name: str) -> str | None:
    """The setting of that name, with its section."""
    for section, field in Settings.model_fields.items():
        if any(name in one.model_fields for one in _sections(field.annotation)):
            return f"{section}.{name}"
    return None


def _origin(key: Path_, origins: Mapping[Path_, str], file: str) -> str:
    """Where the value of a key came from; the file, unless something overrode it."""
    for given, origin in origins.items():
        shorter = min(len(given), len(key))
        if shorter and given[:shorter] == key[:shorter]:
            return origin
    return file


def describe() -> Iterator[str]:
    """All settings as an annotated configuration: what is allowed, meant, and the default."""
    for name, field in Settings.model_fields.items():
        for section in _sections(field.annotation):
            yield from _describe_section(section, name)
            yield ""


def _describe_section(section: type[BaseModel], at: str) -> Iterator[str]:
    yield f"# {(section.__doc__ or '').splitlines()[0]}"
    yield f"[{at}]"
    for name, field in section.model_fields.items():
        if next(_sections(field.annotation), None) is None:
            words = " | ".join(_words(field.annotation))
            about = "; ".join(part for part in (field.description, words) if part)
            yield f"{name:<18}# {about}{_default(section, name, field)}"
    for name, field in section.model_fields.items():
        inner = next(_sections(field.annotation), None)
        if inner is not None:
            yield ""
            yield from _describe_section(inner, f"{at}.{name}")


def _words(annotation: Any) -> Iterator[str]:
    """The words that a setting may be, if it is one of several."""
    if get_origin(annotation) is Literal:
        yield from map(repr, get_args(annotation))
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for argument in get_args(annotation):
            yield from _words(argument)


def _default(section: type[BaseModel], name: str, field: Any) -> str:
    """What holds where nothing is said; parameters of the model are the estimator's."""
    if field.is_required():
        return ""
    value = field.default
    if section is Model and name in PARAMETERS:
        value = PARAMETERS[name].default
    if value is None or value in ((), {}):
        return ""
    return f"  [default: {str(value).lower() if isinstance(value, bool) else repr(value)}]"
