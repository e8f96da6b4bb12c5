"""What every method shares: a hash function learned in one pass, as a scikit-learn estimator."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from sadih_dask.compute.codes import Where
from sadih_dask.compute.encode import (
    HashRows,
    LookUpLabels,
    RowFunction,
    ScoreRows,
    map_lazily,
    write_codes,
    write_lazy_codes,
)
from sadih_dask.compute.memory import MemoryPlan
from sadih_dask.compute.process import one_blas_thread, release_memory
from sadih_dask.compute.rows import StoreRows, check_labelled
from sadih_dask.compute.run import Progress, is_lazy, reporting
from sadih_dask.errors import InputError, LabelError
from sadih_dask.learning.classes import Vocabulary
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.objective import Trace
from sadih_dask.learning.randomness import draw_seed
from sadih_dask.learning.sample import KEPT_ROWS
from sadih_dask.learning.statistics import canonical_blocks
from sadih_dask.model.collections import as_arrays, column_names, in_memory, like, refuse_frames
from sadih_dask.model.inputs import (
    LabelledRows,
    as_targets,
    check_columns,
    check_features,
    check_width,
    group_targets,
    stored_targets,
)
from sadih_dask.model.model_file import Model, read_model, write_model
from sadih_dask.model.parameters import MAX_QUERIES, check_lengths, check_parameters
from sadih_dask.model.scanning import (
    CheckpointLike,
    Scanned,
    check_several_classes,
    known_scan,
    plan_scan,
    scan_change,
    scan_more,
    scan_removed,
    scan_rows,
)
from sadih_dask.retrieval.codes import check_bitorder, n_bytes, pack, reorder
from sadih_dask.retrieval.evaluation import sample_queries
from sadih_dask.retrieval.histograms import histograms_within
from sadih_dask.retrieval.metrics import mean_average_precision
from sadih_dask.retrieval.trees import AnyFunction
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.coverage import Coverage, Difference
from sadih_dask.stores.features import find_ids
from sadih_dask.types import Array, BitOrder, Bytes

if TYPE_CHECKING:
    from sadih_dask.retrieval.nearest import Neighbours


@dataclass(frozen=True, eq=False)
class Learned:
    """What a method makes of a scan.

    label_codes  packed code of each label group; None if it learns no codes of labels
    trace        the objective on the way, of methods that tell, or the number of iterations
    """

    hash_function: AnyFunction
    label_codes: Bytes | None = None
    trace: Trace = field(default_factory=lambda: Trace((), 0, 0))


@dataclass(eq=False, repr=False)
class Hasher(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """What all ways to learn a hash function share: rows in, statistics, codes and files out.

    Learning reads the data once, into statistics whose size does not depend on the number of rows;
    a method (`model.methods`) declares its parameters, as fields of a dataclass under names of
    `model.parameters`, and solves from these.

    Attributes
    ----------
    classes_ : class names or numbers, ascending; of a store its names, in its order; for multi-hot
        labels the names of the columns, or their numbers where they have none
    label_codes_ : packed codes: row k is the code of class k, or of label group k; none of a method
        that learns no codes of labels
    label_groups_ : sparse (groups, classes) 0/1 matrix: which labels each row of `label_codes_` has
    trace_ : the objective after every step of every start
    n_iter_ : iterations of the start that was kept
    statistics_ : what the data were reduced to
    hash_function_ : anchor map and affine map behind `transform`
    n_rows_loaded_ : rows that the last scan did not read: its checkpoint had what they come to

    """

    method: ClassVar[str]
    """What the method is called in model files, configurations and on the command line."""
    supervised: ClassVar[bool] = True
    """Whether codes follow labels; else rows need none."""
    learns_from: ClassVar[str] = "all rows"
    """Of a sample, whose size is the parameter ``sample_rows``, or of all rows, out of core."""
    sample_rows = KEPT_ROWS
    """Rows that the scan keeps beside the statistics."""
    _unsolved = cast("Scanned | None", None)  # no annotation: it is no parameter
    """Rows that were read and not learned from yet, with all that were before."""

    n_bits: int = 64
    _: KW_ONLY
    anchors: int | Array | None = None
    sigma: float | None = None
    block_rows: int = 8192
    random_state: Any = 0

    @abstractmethod
    def _solve(self, scanned: Scanned) -> Learned:
        """Codes and a hash function from what a scan has left."""

    # -- learning ---------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        progress: Progress | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Learn codes and a hash function from labelled rows.

        ``X`` and ``y`` are arrays, or Dask arrays and what is taken as them (Dask data frames,
        `xarray.DataArray`, `zarr.Array`); or ``X`` is a `FeatureStore`, which holds both.
        Of a store that this model has learned from already, only what has changed is read: rows
        that were added, and rows that were deleted, which are taken out. The result is that of a
        fit to all rows, with the anchors of the first.

        ``checkpoint`` is a folder or URL, which all workers can reach, for what the finished parts
        of a long pass over a store come to. After an interruption the same call reads the other
        rows only, and gives the same model. Discard it (`Checkpoint.discard`) when the model is
        saved. It knows its pass by the rows, `block_rows` and the anchors, so `random_state` must
        be a number where there are anchors.
        """
        check_parameters(self)
        coverage, change = getattr(self, "coverage_", None), self.change_in(X)
        if coverage is not None and change is not None:
            if change.is_empty:
                return self.refit()
            with reporting(progress):
                changed = scan_change(self, X, coverage, change, checkpoint)
            return self.learn_from(changed)
        if self.supervised:
            check_several_classes(X)
        before = dict(self.__dict__)
        try:
            with reporting(progress):
                scanned = scan_rows(self, X, y, checkpoint)
            if self.supervised:
                scanned.warn(self.n_bits)
            return self.learn_from(scanned)
        except BaseException:  # also an interrupt: the model is what it was
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def plan(self, store: FeatureStore) -> MemoryPlan:
        """Predict the memory of a fit; MemoryPlanError if it cannot fit where tasks run now.

        Reads the labels of a sample and no features.
        """
        check_parameters(self)
        if self.supervised:
            check_labelled(store)
        return plan_scan(self, StoreRows.of(store, 0), draw_seed(self.random_state))[0]

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        solve: bool = True,
        progress: Progress | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Add labelled rows: the same model as a fit on all rows so far.

        Anchors stay those of the first call; new classes are welcome. ``checkpoint`` is as in
        `fit`. Rows that come in many batches are only read with ``solve=False``, and all of them
        are learned from when `refit` is called; until then the model is what it was.
        """
        check_parameters(self)
        known = self._known()
        if known is None and solve:
            return self.fit(X, y, progress=progress, checkpoint=checkpoint)
        with reporting(progress):
            if known is None:
                scanned = scan_rows(self, X, y, checkpoint)
            else:
                scanned = scan_more(known, X, y, 0, checkpoint)
        if solve:
            return self.learn_from(scanned)
        self._unsolved = scanned
        return self

    def _check_solved(self) -> None:
        """Refuse a model that has not learned from all rows that it has read."""
        if self._unsolved is not None:
            raise InputError("rows were read that the model has not learned from: refit() first")
        check_is_fitted(self)

    def _check_fitted(self) -> None:
        """Refuse a model that has learned nothing so far, whatever it has read."""
        if self._unsolved is not None and not hasattr(self, "hash_function_"):
            raise NotFittedError("not fitted yet: rows were only read. refit() learns from them")
        check_is_fitted(self)

    def _known(self) -> Hasher | None:
        """As if it had learned from all rows that it has read; None if there are none."""
        if (scanned := self._unsolved) is None:
            return self if hasattr(self, "hash_function_") else None
        known = copy.copy(self)
        known.classes_, known.multi_label_ = scanned.classes, scanned.multi_label
        known.statistics_, known.coverage_ = scanned.statistics, scanned.coverage
        known.anchor_map_, known.seed_ = scanned.anchor_map, scanned.seed
        return known

    def forget(self, X: Any, y: Any = None) -> Self:
        """Take labelled rows out again: the same model as a fit without them.

        Where a fifth of the rows or more go, fewer sampled ones are left to choose by, so that
        choices may differ from those of that fit.

        The rows must be among those that were learned from, of which only sums are known. Rows
        that never were are refused where that shows: more rows of a label set than there are, or
        features that leave sums behind which no rows could have. Others go unnoticed, and the
        model is then of rows that do not exist. Anchors are rows that were learned from, and stay,
        forgotten or not: fit anew to draw others.
        """
        if self._unsolved is None:
            check_is_fitted(self)
        check_parameters(self)
        return self.learn_from(scan_removed(self._known() or self, X, y))

    def forget_ids(self, store: FeatureStore, ids: Any) -> Self:
        """Take rows of the store that was learned from out again, by their ids; anchors stay."""
        self._check_solved()
        check_parameters(self)
        change = self.change_in(store)
        if change is None or self.coverage_ is None or not change.is_empty:
            raise InputError(
                f"{store.url} is not the store that this model has learned from, or has changed "
                "since; fit the model to it first, or forget its rows with forget(X, y)"
            )
        places = find_ids(store, ids)
        coverage = self.coverage_.without(places)
        features, *labels = (store.take(name, places) for name in store.learned_from)
        targets = stored_targets(store, *labels)
        return self.learn_from(scan_removed(self, features, targets, coverage))

    def refit(self) -> Self:
        """Learn again from the same statistics, with the parameters as they are now.

        ``model.set_params(n_bits=32).refit()`` gives the model that a fit with 32 bits would give,
        without reading the data again. Anchors stay as they are. Rows that `partial_fit` has only
        read are learned from.
        """
        if self._unsolved is None:
            check_is_fitted(self)
        check_parameters(self)
        return self.learn_from(self._unsolved or known_scan(self))

    def at_lengths(self, lengths: Iterable[int], scanned: Scanned | None = None) -> dict[int, Self]:
        """The models that `refit` gives at other code lengths; together they take less time.

        They learn from what this one knows, or from another scan.
        """
        lengths = check_lengths(lengths)
        if scanned is None:
            self._check_solved()
            scanned = known_scan(self)
        return {n: copy.copy(self).set_params(n_bits=n).learn_from(scanned) for n in lengths}

    def learn_from(self, scanned: Scanned) -> Self:
        """Solve from a scan and take the result over; nothing is changed on failure."""
        if self.supervised:
            scanned.check_classes()
        release_memory()
        with one_blas_thread():
            learned = self._solve(scanned)
        model = Model(
            method=self.method,
            parameters=self.get_params(deep=False),
            seed=scanned.seed,
            n_features_in=self.n_features_in_,
            feature_names=getattr(self, "feature_names_in_", None),
            columns=self.columns_,
            classes=scanned.classes,
            multi_label=scanned.multi_label,
            groups=scanned.statistics.groups,
            label_codes=_label_codes(learned),
            hash_function=learned.hash_function,
            trace=learned.trace,
            statistics=scanned.statistics,
            coverage=scanned.coverage,
        )
        self.n_rows_loaded_ = scanned.n_rows_loaded
        return self._adopt(model)

    def _adopt(self, model: Model) -> Self:
        """Set every learned attribute."""
        self._model, self._unsolved = model, None
        self.n_features_in_ = model.n_features_in
        if model.feature_names is not None:
            self.feature_names_in_ = model.feature_names
        self.columns_ = model.columns
        self.classes_ = model.classes
        self.multi_label_ = model.multi_label
        self.groups_ = model.groups
        self.label_codes_ = model.label_codes
        self.hash_function_ = model.hash_function
        self.anchor_map_ = model.hash_function.anchor_map
        self.trace_ = model.trace
        self.n_iter_ = model.trace.n_iter
        self.statistics_ = model.statistics
        self.coverage_ = model.coverage
        self.seed_ = model.seed
        self._n_features_out = model.label_codes.shape[1]
        return self

    def take_over(self, other: Hasher) -> Self:
        """Know the rows that another model has learned from; `fit` or `refit` learns from them.

        Parameters that decide the scan have to be those of the other.
        """
        other._check_solved()
        return self._adopt(other._model)

    def change_in(self, X: Any) -> Difference | None:
        """What has changed in a store since this model has learned from it; None if it has not.

        None as well if that cannot be caught up with, and all rows have to be read again.
        """
        known: Coverage | None = getattr(self, "coverage_", None)
        if not isinstance(X, FeatureStore) or known is None or self.statistics_ is None:
            return None
        return known.difference(X)

    # -- using ------------------------------------------------------------------------------------

    def transform(self, X: Any, *, bitorder: BitOrder = "little") -> Any:
        """Hash rows to packed codes, uint8 (rows, ceil(n_bits / 8)).

        In little bit order, ``np.packbits(..., bitorder="little")``, they are the bytes that FAISS
        binary indexes take; "big" is NumPy's default, and what others take. Dask arrays and data
        frames, Zarr arrays and feature stores give a lazy Dask array, and an `xarray.DataArray`
        gives one with its coordinates of the rows; `encode` writes codes to disk.
        """
        codes = self._hash(X, bitorder)
        if is_lazy(codes):
            refuse_frames(self)
        return like(X, codes, "byte")

    def _hash(self, X: Any, bitorder: BitOrder = "little") -> Any:
        """Codes as an array, whatever `set_output` makes of them."""
        self._check_fitted()
        check_bitorder(bitorder)
        return self._map(X, HashRows(self.hash_function_, bitorder), "hash")

    def _map(self, X: Any, function: RowFunction, purpose: str) -> Any:
        """What a function makes of every row: lazy if the rows are."""
        names = column_names(X)
        if isinstance(X, FeatureStore):
            check_columns(self, X, X.url)
        rows = X.to_dask() if isinstance(X, FeatureStore) else as_arrays(X)
        if is_lazy(rows):
            check_width(self, rows, names=names)
            return map_lazily(rows, function, self.block_rows, purpose)
        features = check_features(self, rows, reset=False)
        found = np.empty((len(features), function.columns), function.dtype)
        for block in canonical_blocks(len(features), self.block_rows):
            found[block] = function(features[block], block.start)
        return found

    def project(self, X: Any) -> Any:
        """Real-valued scores whose signs are the bits, (rows, n_bits); lazy if the rows are."""
        self._check_fitted()
        return like(X, self._map(X, ScoreRows(self.hash_function_), "project"), "bit")

    def learned_codes(self, y: Any) -> Any:
        """Packed codes of labelled rows: the learned code of each row's label set.

        Lazy if the labels are.
        """
        known_codes, labels = self._known_label_codes(), as_arrays(y)
        codes = LookUpLabels(self.groups_, known_codes)
        if is_lazy(labels):
            known = SimpleNamespace(classes_=self.classes_, multi_label_=self.multi_label_)
            found: Any = map_lazily(labels, LabelledRows(known, codes), self.block_rows, "look-up")
        else:
            found = codes.of(*group_targets(self, labels))
        return like(y, found, "byte")

    def encode(
        self,
        X: Any,
        url: str | os.PathLike[str],
        *,
        learned: bool = False,
        bitorder: BitOrder = "little",
        overwrite: bool = False,
        ids: Any = None,
        progress: Progress | None = None,
    ) -> CodeStore:
        """Write the codes of every row of a store, or of an array, to a code store.

        Of a store, ``learned`` writes the learned codes of the rows' labels instead of hashing
        their features. The same call completes one that was interrupted, and later encodes only
        what has changed in the store; codes of another model are only replaced with ``overwrite``.
        ``bitorder`` is as in `transform`; the code store remembers it.

        Of a Dask array and all that is taken as one, each chunk is computed once, and its codes are
        written where they are. ``ids`` may name its rows; a store has its own.
        """
        if isinstance(X, FeatureStore):
            if ids is not None:
                raise InputError(f"{X.url} holds its own ids; pass none beside it")
            return self.update_codes(X, url, learned, overwrite, progress, bitorder=bitorder)[0]
        if learned:
            raise LabelError(
                "an array has no labels to look codes up by; pass the FeatureStore that has, or "
                "take learned_codes(y)"
            )
        codes, n_bits = self._hash(X, bitorder), self.hash_function_.n_bits
        known = {"n_bits": n_bits, "model": self.fingerprint_, "ids": ids, "bitorder": bitorder}
        if not is_lazy(codes):
            return CodeStore.create(url, codes, overwrite=overwrite, **known)
        with reporting(progress):
            return write_lazy_codes(codes, url, overwrite=overwrite, **known)

    def update_codes(
        self,
        store: FeatureStore,
        url: str | os.PathLike[str],
        learned: bool = False,
        overwrite: bool = False,
        progress: Progress | None = None,
        *,
        bitorder: BitOrder = "little",
    ) -> tuple[CodeStore, int]:
        """As `encode`; return also how many rows had to be encoded."""
        check_is_fitted(self)
        check_bitorder(bitorder)
        check_width(self, store)
        encoder: HashRows | LookUpLabels = HashRows(self.hash_function_, bitorder)
        if learned:
            codes = reorder(self._known_label_codes(), "little", bitorder)
            encoder = LookUpLabels.in_store(self.groups_, codes, Vocabulary(self.classes_), store)
        with reporting(progress):
            return write_codes(
                store,
                encoder,
                url,
                n_bits=self.hash_function_.n_bits,
                model=self.fingerprint_,
                block_rows=self.block_rows,
                bitorder=bitorder,
                overwrite=overwrite,
            )

    def _known_label_codes(self) -> Bytes:
        check_is_fitted(self)
        if not len(self.label_codes_):
            raise LabelError(
                f"{type(self).__name__} learns no codes of labels; hash features with transform(X)"
            )
        return self.label_codes_

    def search(
        self,
        codes: Any,
        X: Any,
        k: int = 10,
        *,
        symmetric: bool = False,
        where: Where | None = None,
        bitorder: BitOrder = "little",
        progress: Progress | None = None,
    ) -> Neighbours:
        """Hash rows, or one row, and find their ``k`` nearest among codes of this model.

        ``codes`` is a code store (`encode`), whose ids the result has, or an array of
        `transform`, packed in ``bitorder``; a store knows its own. Bits of which a row is
        certain count more, unless ``symmetric``; ``where`` confines the search, for example to
        ``{"label": "cat"}``. `sadih_dask.search` says how, and searches within a radius.
        """
        from sadih_dask.compute.search import search  # its compiler is large, and no fit needs it

        self.check_codes(codes)
        rows = np.asarray(X)[None] if np.ndim(X) == 1 else X
        scores = in_memory(self._map(rows, ScoreRows(self.hash_function_), "project"))
        projections = None if symmetric else scores
        given: dict[str, Any] = {"projections": projections, "where": where, "progress": progress}
        queries = reorder(pack(scores), "little", bitorder)
        found: Neighbours = search(codes, queries, k, bitorder=bitorder, **given)
        return found

    def check_codes(self, codes: Any) -> None:
        """Refuse a store with codes of another model."""
        if isinstance(codes, CodeStore) and codes.model != self.fingerprint_:
            raise InputError(
                f"{codes.url} holds codes of model {codes.model!r}, and this is model "
                f"{self.fingerprint_!r}; codes of two models cannot be compared. Encode the rows "
                "with this one first"
            )

    def score(self, X: Any, y: Any) -> float:
        """Mean average precision of these rows looked up among each other, by their hashed codes.

        Relevant is what shares a label, also one that the model does not know; rows without any
        partner are left out. Rows that were not learned from tell what the codes are worth. Of more
        than 10,000 rows so many are drawn, always the same. Ties in distance are averaged over all
        orders. `evaluate_model` has the other protocols.
        """
        codes, labels = in_memory(self._hash(X)), as_targets(in_memory(y)).labels
        if labels.shape[0] != len(codes):
            raise LabelError(
                f"X has {len(codes)} rows but y has {labels.shape[0]}; both must describe the same "
                "rows"
            )
        groups, ids = group_rows(labels)
        drawn = sample_queries(len(codes), MAX_QUERIES)
        n_bits = self.hash_function_.n_bits
        found = histograms_within(codes[drawn], (groups, ids[drawn]), np.arange(len(drawn)), n_bits)
        return mean_average_precision(found)

    @property
    def label_groups_(self) -> sp.csr_array:
        """Which labels each row of `label_codes_` stands for, sparse 0/1 (groups, classes)."""
        check_is_fitted(self)
        return self.groups_.matrix.astype(np.uint8)

    @property
    def fingerprint_(self) -> str:
        """What tells this model's codes from those of another: a hash of the hash function."""
        check_is_fitted(self)
        return self._model.fingerprint

    # -- files ------------------------------------------------------------------------------------

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        statistics: bool = True,
        since: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the fitted model to one file of arrays and JSON, atomically.

        ``path`` may be a URL (``s3://bucket/m.sadih``), with ``storage_options`` for its library.
        Without ``statistics`` the file is small, and the loaded model hashes but cannot
        `partial_fit` or `forget`. With ``since``, the version that a file had
        (`files.file.locate(path).version()`), a later one is not replaced: ConflictError.
        """
        self._check_solved()
        parameters = self.get_params(deep=False)
        if not isinstance(self.random_state, Integral | None):
            parameters["random_state"] = self.seed_
        if isinstance(self.anchors, np.ndarray):  # they are in the hash function
            parameters["anchors"] = len(self.anchors)
        plain = {  # JSON takes no NumPy scalars
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in parameters.items()
        }
        kept = self.statistics_ if statistics else None
        model = replace(self._model, parameters=plain, statistics=kept)
        write_model(path, model, since=since, storage_options=storage_options)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read a model that `save` wrote, from a path or URL."""
        return cls.of_model(read_model(path, storage_options=storage_options), path)

    @classmethod
    def of_model(cls, model: Model, path: str | os.PathLike[str]) -> Self:
        """An estimator of what a file holds."""
        if model.method != cls.method:
            raise InputError(
                f"{os.fspath(path)} holds a model of the method {model.method!r}, not "
                f"{cls.method!r}; load_model reads either"
            )
        if unknown := set(model.parameters) - set(cls._get_param_names()):
            raise InputError(f"{os.fspath(path)} has unknown parameters {sorted(unknown)}")
        return cls(**model.parameters)._adopt(model)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "hash_function_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.supervised
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _label_codes(learned: Learned) -> Bytes:
    """Codes of the label groups, no rows where there are none."""
    if learned.label_codes is not None:
        return learned.label_codes
    return np.zeros((0, n_bytes(learned.hash_function.n_bits)), np.uint8)
