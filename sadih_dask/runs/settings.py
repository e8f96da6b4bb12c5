"""What a configuration may say, section by section; every description is shown to users.

Settings are checked before anything is read or written. Paths are relative to the folder in which
the command is called, as everywhere on the command line. Parameters of the model have no defaults
here: those that are not given are the estimator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, create_model, model_validator

from sadih_dask.cluster.settings import ClusterSettings, Count, Section
from sadih_dask.model.methods import METHODS, method_named
from sadih_dask.model.parameters import (
    ALL_PARAMETERS,
    CLASS_FOLDS,
    MAX_BITS,
    MAX_QUERIES,
    PARAMETERS,
    Parameter,
)
from sadih_dask.types import BitOrder

_Section = TypeVar("_Section", bound=Section)


def _as_list(value: Any) -> Any:
    """One value is a list of one."""
    return [value] if isinstance(value, str | int | float) else value


def _none_if_said(value: Any) -> Any:
    """TOML has no null."""
    return None if value == "none" else value


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Lengths: TypeAlias = Annotated[
    tuple[Annotated[Count, Field(le=MAX_BITS)], ...], BeforeValidator(_as_list)
]


class Run(Section):
    """Where runs go and how many are kept."""

    directory: Annotated[
        str, Field(min_length=1, description="folder (or s3:// URL) of the runs and what they make")
    ]
    keep: Annotated[
        Count, Field(description="complete runs that are kept, the latest among them")
    ] = 5


class Files(Section):
    """Files of one data set; names, patterns, or lists of them."""

    features: Annotated[Names, Field(min_length=1, description="files with the feature vectors")]
    labels: Annotated[
        Names | None,
        Field(description="files with the labels, if they are not beside the features"),
    ] = None
    ids: Annotated[Names | None, Field(description="files with one id a row")] = None
    thumbnails: Annotated[Names | None, Field(description="files with one picture a row")] = None


class FileSource(Files):
    """Rows from files: .npy, .npz, .mat, HDF5, IDX, .fbin, Parquet, Arrow, CSV, Zarr."""

    kind: Literal["files"] = "files"
    features_variable: Annotated[
        str | None,
        Field(description="variable of the features, or a pattern of one column each"),
    ] = None
    labels_variable: Annotated[str | None, Field(description="variable of the labels")] = None
    ids_variable: Annotated[str | None, Field(description="variable of the ids; '': none")] = None
    transpose: Annotated[bool, Field(description="whether rows are the last axis")] = False
    scale: Annotated[
        float | str | None, Field(description="number or variable that multiplies the features")
    ] = None
    class_names: Annotated[
        str | None, Field(description="file with the names of the classes, one a line")
    ] = None
    separator: Annotated[str | None, Field(description="splits text into several labels")] = None
    unlabelled: Annotated[
        Literal["error", "drop"], Field(description="what to do about rows without a label")
    ] = "error"
    hold_out: Annotated[
        float | None,
        Field(gt=0, le=0.5, description="share of the rows that become queries, at random"),
    ] = None
    seed: Annotated[int, Field(ge=0, description="seed of the rows that are held out")] = 0
    queries: Annotated[
        Files | None, Field(description="files of the queries that the model is judged by")
    ] = None
    on_change: Annotated[
        Literal["refuse", "rebuild"],
        Field(description="what to do when a file that was read has changed since"),
    ] = "refuse"
    on_removal: Annotated[
        Literal["keep", "refuse", "rebuild"],
        Field(description="what to do when a file that was read is gone; keep its rows, or not"),
    ] = "keep"
    on_error: Annotated[
        Literal["stop", "skip"],
        Field(description="what to do about a file that cannot be read; take the others, or stop"),
    ] = "stop"
    min_age: Annotated[
        float, Field(ge=0, description="seconds that a file must have been left alone to be read")
    ] = 0.0

    @model_validator(mode="after")
    def _one_kind_of_queries(self) -> FileSource:
        if self.hold_out is not None and self.queries is not None:
            raise ValueError("hold_out and [source.queries] exclude each other; leave one out")
        return self


class DigitsSource(Section):
    """The handwritten digits that ship inside scikit-learn; a fifth of them are queries."""

    kind: Literal["digits"]


class SyntheticSource(Section):
    """Gaussian clouds, one a class, of any size."""

    kind: Literal["synthetic"]
    rows: Annotated[Count, Field(description="rows of the database")]
    features: Annotated[Count, Field(description="features of a row")] = 512
    classes: Annotated[Count, Field(ge=2, description="classes")] = 100
    queries: Annotated[Count, Field(description="rows that the model is judged by")] = 1000
    spread: Annotated[float, Field(gt=0, description="distance of the classes")] = 0.3
    seed: Annotated[int, Field(ge=0, description="seed of the random numbers")] = 0


Source: TypeAlias = Annotated[
    FileSource | DigitsSource | SyntheticSource, Field(discriminator="kind")
]


class Store(Section):
    """How rows are stored. Without a url they lie in the run directory."""

    url: Annotated[str | None, Field(description="path or URL of the feature store")] = None
    queries_url: Annotated[str | None, Field(description="path or URL of the query store")] = None
    dtype: Annotated[
        Literal["float16", "float32", "float64"] | None, Field(description="type of the features")
    ] = None
    chunk_rows: Annotated[Count | None, Field(description="rows of a chunk")] = None
    compression: Annotated[
        Literal["none", "zstd"] | None, Field(description="compression of the chunks")
    ] = None
    bitorder: Annotated[
        BitOrder, Field(description="how bits of codes are packed, in the index too")
    ] = "little"

    @model_validator(mode="after")
    def _two_stores(self) -> Store:
        if self.url is not None and self.url == self.queries_url:
            raise ValueError("url and queries_url are the same; queries need a store of their own")
        return self


def _kind(parameter: Parameter) -> Any:
    """What a setting of the model may be."""
    if parameter.kind is str:
        return Literal[parameter.choices]
    if parameter.kind is int:
        bounds = Field(strict=True, ge=parameter.least, le=parameter.most)
    else:
        least = {"gt": 0} if parameter.positive else {"ge": 0}
        bounds = Field(**least, le=parameter.most, allow_inf_nan=False)  # type: ignore[call-overload]
    kind: Any = Annotated[parameter.kind, bounds]
    for word in parameter.also:
        kind = kind | (None if word is None else Literal[word])
    return Annotated[kind, BeforeValidator(_none_if_said)] if None in parameter.also else kind


def _field(parameter: Parameter) -> Any:
    described = parameter.help + (', or "none"' if None in parameter.also else "")
    return Annotated[_kind(parameter) | None, Field(description=described)], None


def _list_of(parameter: Parameter) -> Any:
    values: Any = tuple[_kind(parameter), ...]  # type: ignore[misc]
    listed = Annotated[values, BeforeValidator(_as_list)]
    return Annotated[listed | None, Field(description=f"{parameter.help}: values to try")], None


def _with_fields(fields: Mapping[str, Any]) -> Callable[[type[_Section]], type[_Section]]:
    """The section with further fields."""

    def add(section: type[_Section]) -> type[_Section]:
        return create_model(
            section.__name__, __base__=section, __doc__=section.__doc__, **dict(fields)
        )

    return add


@_with_fields({name: _list_of(p) for name, p in PARAMETERS.items() if p.decides != "scan"})
class Search(Section):
    """Parameters to choose by cross-validation, each a list, in one scan of the data."""

    folds: Annotated[int, Field(ge=2, description="parts that are left out in turn")] = 5
    queries: Annotated[Count, Field(description="rows of each part that are looked up")] = 1000
    n_bits: Any

    @model_validator(mode="after")
    def _has_values(self) -> Self:
        if not self.grid or any(values == () for _, values in self):
            raise ValueError(
                "there is nothing to choose from; give alpha, beta or another as a list"
            )
        return self

    @property
    def grid(self) -> dict[str, list[Any]]:
        """The values to try, by parameter; code lengths are apart."""
        given = self.model_dump(exclude={"folds", "queries", "n_bits"}, exclude_none=True)
        return {name: list(values) for name, values in given.items()}


@_with_fields({name: _field(parameter) for name, parameter in ALL_PARAMETERS.items()})
class Model(Section):
    """How hash functions are learned; parameters that are not given are the method's defaults."""

    method: Annotated[
        Literal[tuple(METHODS)],  # type: ignore[valid-type]
        Field(description="what learns it"),
    ] = "sadih"
    search: Annotated[Search | None, Field(description="parameters to choose")] = None
    refresh: Annotated[
        Literal["always", "when-better", "never"],
        Field(description="when a model of more rows takes the place of the latest one"),
    ] = "always"
    min_gain: Annotated[
        Share, Field(description="mean average precision that when-better asks for")
    ] = 0.01

    @model_validator(mode="after")
    def _fits_method(self) -> Self:
        method_named(self.method, self.parameters)  # or ValueError
        if self.search is not None and self.method != "sadih":
            raise ValueError(f"parameters of {self.method} cannot be searched, only those of sadih")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that were given."""
        return {
            name: getattr(self, name)
            for name in sorted(self.model_fields_set.intersection(ALL_PARAMETERS))
        }


class Evaluation(Section):
    """How the queries are looked up."""

    bits: Annotated[
        Lengths, Field(description="further code lengths, solved from the statistics")
    ] = ()
    max_queries: Annotated[
        int,
        Field(ge=0, strict=True, description="of more queries so many are looked up; 0: all"),
    ] = MAX_QUERIES
    class_folds: Annotated[
        int,
        Field(ge=0, strict=True, description="parts of the classes left out in turn; 0: none"),
    ] = CLASS_FOLDS


class Compare(Section):
    """Other methods on the same rows; they have the parameters of [model], where they have them."""

    methods: Annotated[
        tuple[Literal[tuple(METHODS)], ...],  # type: ignore[valid-type]
        Field(description="methods to compare; all if none is named"),
    ] = ()
    bits: Annotated[Lengths, Field(description="code lengths", min_length=1)] = (16, 32, 64)


class Export(Section):
    """An index file of the codes for FAISS."""

    index: Annotated[
        Literal["none", "flat", "ivf", "multihash"], Field(description="kind of index")
    ] = "none"
    lists: Annotated[Count | None, Field(description="inverted lists")] = None
    probe: Annotated[Count, Field(description="lists that a search looks into")] = 8
    hashes: Annotated[Count, Field(description="hash tables")] = 4
    hash_bits: Annotated[Count | None, Field(description="bits of a key")] = None


class Report(Section):
    """The page with figures."""

    enabled: Annotated[bool, Field(description="whether it is written")] = True
    title: Annotated[str | None, Field(description="its title")] = None


class Gate(Section):
    """What a model must reach to become the latest."""

    protocol: Annotated[
        Literal["learned", "encoded", "fresh", "unseen"],
        Field(description="which mean average precision counts"),
    ] = "fresh"
    map_min: Annotated[Share | None, Field(description="least mean average precision")] = None
    map_drop_max: Annotated[
        Share | None, Field(description="how much less than the latest it may have")
    ] = None

    @property
    def is_set(self) -> bool:
        """Whether anything is asked for."""
        return self.map_min is not None or self.map_drop_max is not None


class Settings(Section):
    """A whole configuration."""

    run: Run
    source: Source
    store: Store = Store()
    model: Model = Model()
    evaluation: Evaluation = Evaluation()
    export: Export = Export()
    compare: Compare | None = None
    report: Report = Report()
    gate: Gate = Gate()
    cluster: ClusterSettings = ClusterSettings()

    @model_validator(mode="after")
    def _needs_queries(self) -> Settings:
        if self.gate.is_set and not self.has_queries:
            raise ValueError(
                "[gate] needs queries to judge a model by; add [source.queries] or source.hold_out"
            )
        if self.model.refresh == "when-better" and not self.has_queries:
            raise ValueError(
                'refresh = "when-better" in [model] needs queries to judge models by; add '
                "[source.queries] or source.hold_out"
            )
        if self.compare is not None and not self.has_queries:
            raise ValueError(
                "[compare] needs queries to look up; add [source.queries] or source.hold_out"
            )
        return self

    @property
    def has_queries(self) -> bool:
        """Whether there are queries to judge a model by."""
        source = self.source
        return not isinstance(source, FileSource) or bool(source.queries or source.hold_out)
