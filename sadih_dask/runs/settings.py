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
from sadih_dask.types import BitOrder, Compression, FloatType, IndexKind, Unlabelled

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

    directory: str = Field(
        min_length=1, description="folder (or s3:// URL) of the runs and what they make"
    )
    keep: Count = Field(5, description="complete runs that are kept, the latest among them")


class Files(Section):
    """Files of one data set; names, patterns, or lists of them."""

    features: Names = Field(min_length=1, description="files with the feature vectors")
    labels: Names | None = Field(
        None, description="files with the labels, if they are not beside the features"
    )
    ids: Names | None = Field(None, description="files with one id a row")
    thumbnails: Names | None = Field(None, description="files with one picture a row")


class FileSource(Files):
    """Rows from files: .npy, .npz, .mat, HDF5, IDX, .fbin, Parquet, Arrow, CSV, Zarr."""

    kind: Literal["files"] = "files"
    features_variable: str | None = Field(
        None, description="variable of the features, or a pattern of one column each"
    )
    labels_variable: str | None = Field(None, description="variable of the labels")
    ids_variable: str | None = Field(None, description="variable of the ids; '': none")
    transpose: bool = Field(False, description="whether rows are the last axis")
    scale: float | str | None = Field(
        None, description="number or variable that multiplies the features"
    )
    class_names: str | None = Field(
        None, description="file with the names of the classes, one a line"
    )
    separator: str | None = Field(None, description="splits text into several labels")
    unlabelled: Unlabelled = Field("error", description="what to do about rows without a label")
    hold_out: float | None = Field(
        None, gt=0, le=0.5, description="share of the rows that become queries, at random"
    )
    seed: int = Field(0, ge=0, description="seed of the rows that are held out")
    queries: Files | None = Field(
        None, description="files of the queries that the model is judged by"
    )
    on_change: Literal["refuse", "rebuild"] = Field(
        "refuse", description="what to do when a file that was read has changed since"
    )
    on_removal: Literal["keep", "refuse", "rebuild"] = Field(
        "keep", description="what to do when a file that was read is gone; keep its rows, or not"
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="what to do about a file that cannot be read; take the others, or stop"
    )
    min_age: float = Field(
        0.0, ge=0, description="seconds that a file must have been left alone to be read"
    )

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
    rows: Count = Field(description="rows of the database")
    features: Count = Field(512, description="features of a row")
    classes: Count = Field(100, ge=2, description="classes")
    queries: Count = Field(1000, description="rows that the model is judged by")
    spread: float = Field(0.3, gt=0, description="distance of the classes")
    seed: int = Field(0, ge=0, description="seed of the random numbers")


Source: TypeAlias = Annotated[
    FileSource | DigitsSource | SyntheticSource, Field(discriminator="kind")
]


class Store(Section):
    """How rows are stored. Without a url they lie in the run directory."""

    url: str | None = Field(None, description="path or URL of the feature store")
    queries_url: str | None = Field(None, description="path or URL of the query store")
    dtype: FloatType | None = Field(None, description="type of the features")
    chunk_rows: Count | None = Field(None, description="rows of a chunk")
    compression: Compression | None = Field(None, description="compression of the chunks")
    bitorder: BitOrder = Field(
        "little", description="how bits of codes are packed, in the index too"
    )

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

    folds: int = Field(5, ge=2, description="parts that are left out in turn")
    queries: Count = Field(1000, description="rows of each part that are looked up")
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
    search: Search | None = Field(None, description="parameters to choose")
    refresh: Literal["always", "when-better", "never"] = Field(
        "always", description="when a model of more rows takes the place of the latest one"
    )
    min_gain: Share = Field(0.01, description="mean average precision that when-better asks for")

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

    bits: Lengths = Field((), description="further code lengths, solved from the statistics")
    max_queries: int = Field(
        MAX_QUERIES, ge=0, strict=True, description="of more queries so many are looked up; 0: all"
    )
    class_folds: int = Field(
        CLASS_FOLDS, ge=0, strict=True, description="parts of the classes left out in turn; 0: none"
    )


class Compare(Section):
    """Other methods on the same rows; they have the parameters of [model], where they have them."""

    methods: Annotated[
        tuple[Literal[tuple(METHODS)], ...],  # type: ignore[valid-type]
        Field(description="methods to compare; all if none is named"),
    ] = ()
    bits: Lengths = Field((16, 32, 64), description="code lengths", min_length=1)


class Export(Section):
    """An index file of the codes for FAISS."""

    index: Literal["none"] | IndexKind = Field("none", description="kind of index")
    lists: Count | None = Field(None, description="inverted lists")
    probe: Count = Field(8, description="lists that a search looks into")
    hashes: Count = Field(4, description="hash tables")
    hash_bits: Count | None = Field(None, description="bits of a key")


class Report(Section):
    """The page with figures."""

    enabled: bool = Field(True, description="whether it is written")
    title: str | None = Field(None, description="its title")


class Gate(Section):
    """What a model must reach to become the latest."""

    protocol: Literal["learned", "encoded", "fresh", "unseen"] = Field(
        "fresh", description="which mean average precision counts"
    )
    map_min: Share | None = Field(None, description="least mean average precision")
    map_drop_max: Share | None = Field(
        None, description="how much less than the latest it may have"
    )

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
