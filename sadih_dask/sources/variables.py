"""Which variable of a file holds what: listed, chosen by shape and name, or asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sadih_dask.errors import Argument, FormatError, InputError, Remedy

Purpose = Literal["features", "labels", "ids", "thumbnails"]
Kind = Literal["numbers", "text", "lists", "other"]

# Lower case. A name only decides between variables whose shapes would all do.
_NAMES: dict[Purpose, frozenset[str]] = {
    "features": frozenset(
        {"features", "feature", "feats", "feat", "fea", "data", "x"}
        | {"embeddings", "embedding", "vectors", "vector"}
    ),
    "labels": frozenset(
        {"labels", "label", "targets", "target", "tags", "tag", "y"}
        | {"classes", "class", "category", "gnd", "genres"}
    ),
    "ids": frozenset({"ids", "id", "key", "keys", "uuid", "name", "filename", "path"}),
    "thumbnails": frozenset({"thumbnails", "thumbnail", "images", "image", "x", "data"}),
}


@dataclass(frozen=True)
class Variable:
    """A variable as a file lists it. An unknown length is -1; ``note`` is the file's own type."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    note: str

    def __str__(self) -> str:
        shape = " x ".join("?" if length < 0 else str(length) for length in self.shape)
        return f"{self.name!r} ({shape or 'scalar'} {self.note})"


def kind_of(dtype_kind: str) -> Kind:
    """Classify a NumPy dtype kind."""
    if dtype_kind in "biuf":
        return "numbers"
    return "text" if dtype_kind in "UST" else "other"


def choose(
    path: str, variables: Sequence[Variable], wanted: str | None, purpose: Purpose
) -> Variable:
    """Return the wanted variable, or the only sensible one; otherwise list them all."""
    listing = ", ".join(map(str, variables[:40])) or "none"
    if wanted is not None:
        for variable in variables:
            if variable.name == wanted:
                return variable
        raise InputError(f"{path}: has no variable {wanted!r}. It has: {listing}.")
    if len(variables) == 1:
        return variables[0]
    fitting = [v for v in variables if _fits(v, purpose)]
    if not fitting:
        raise FormatError(f"{path}: no variable can hold {purpose}. It has: {listing}.")
    for narrowed in _narrowings(fitting, purpose):
        if len(narrowed) == 1:
            return narrowed[0]
    raise InputError(
        f"{path}: several variables could be the {purpose}; it has: {listing}",
        remedy=Remedy("Name one with {}", Argument(f"{purpose}_variable")),
    )


def _fits(variable: Variable, purpose: Purpose) -> bool:
    ndim = len(variable.shape)
    if purpose == "features":
        return variable.kind == "numbers" and ndim >= 2
    if purpose == "thumbnails":
        return variable.kind == "numbers" and ndim in (3, 4)
    if purpose == "ids":
        return variable.kind in ("numbers", "text") and ndim == 1
    return variable.kind != "other" and ndim in (1, 2)


def is_named_for(variable: Variable, purpose: Purpose) -> bool:
    """Tell whether a variable can serve a purpose and has one of the usual names for it."""
    return _fits(variable, purpose) and _has_usual_name(variable, purpose)


def _has_usual_name(variable: Variable, purpose: Purpose) -> bool:
    return variable.name.rpartition("/")[2].lower() in _NAMES[purpose]


def _narrowings(fitting: list[Variable], purpose: Purpose) -> list[list[Variable]]:
    named = [v for v in fitting if _has_usual_name(v, purpose)]
    vectors = [v for v in fitting if len(v.shape) == 1 or 1 in v.shape]
    if purpose in ("labels", "ids"):
        # Ids and labels are both vectors, so a name says more than a shape
        return [named, fitting] if purpose == "ids" else [named, vectors, fitting]
    return [fitting, named]
