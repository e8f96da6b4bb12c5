"""SADIH as a scikit-learn estimator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from types import SimpleNamespace
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

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
from sadih_dask.compute.rows import StoreRows
from sadih_dask.compute.run import Progress, is_lazy, reporting
from sadih_dask.errors import InputError, LabelError
from sadih_dask.learning.classes import Vocabulary
from sadih_dask.learning.labels import group_rows
from sadih_dask.learning.randomness import draw_seed
from sadih_dask.learning.statistics import canonical_blocks
from sadih_dask.model.collections import as_arrays, column_names, in_memory, like, refuse_frames
from sadih_dask.model.inputs import (
    LabelledRows,
    as_targets,
    check_features,
    check_width,
    group_targets,
    stored_targets,
)
from sadih_dask.model.model_file import Model, read_model, write_model
from sadih_dask.model.parameters import MAX_QUERIES, check_parameters
from sadih_dask.model.scanning import (
    CheckpointLike,
    Scanned,
    known_scan,
    plan_scan,
    scan_change,
    scan_more,
    scan_removed,
    scan_rows,
)
from sadih_dask.model.solve import learn
from sadih_dask.retrieval.codes import check_bitorder, pack, reorder
from sadih_dask.retrieval.evaluation import sample_queries
from sadih_dask.retrieval.histograms import histograms_within
from sadih_dask.retrieval.metrics import mean_average_precision
from sadih_dask.stores import CodeStore, FeatureStore
from sadih_dask.stores.coverage import Coverage, Difference
from sadih_dask.stores.features import find_ids
from sadih_dask.types import BitOrder, EncoderKind, Loss, SimilarityKind, SolverKind, StartKind


class SADIH(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Semantic-aware discrete hashing: binary codes whose Hamming distance follows labels.

    Learning reads the data once, into statistics whose size does not depend on the number of rows;
    everything after that works on the statistics. Rows can be added (:meth:`partial_fit`) and
    taken out again (:meth:`forget`) without a second look at the rest.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes, up to 2048; they are packed into ``ceil(n_bits / 8)`` bytes, and the
        spare bits of the last byte are zero.
    loss : {"l21", "l1"}, default="l21"
        "l21" is SADIH (discrete coordinate descent), "l1" is SADIH-L1 (one sign).
    solver : {"exact", "paper"}, default="exact"
        "exact" minimises in every step, so the objective never rises (with the l21 loss); "paper"
        runs the equations as printed.
    start : {"separated", "random"}, default="separated"
        Codes to start from: well separated and easy to predict from the features, or the paper's
        random ones.
    encoder : {"auto", "posterior", "ridge", "orthogonal", "lemma"}, default="auto"
        Hash function for rows without labels: a vote of the label groups' codes weighted by how
        likely each group is, ridge regression to the learned codes, or the paper's orthogonal
        encoder by exact descent or by its Lemma 1. "auto" is posterior, or ridge where label sets
        are so many that they hardly ever come twice.
    anchors : int or None, default=1000
        Number of radial basis functions about training rows; None hashes the features themselves.
    sigma : float or None, default=None
        Kernel width of the anchor features; by default set from the mean distance.
    alpha, beta, gamma : float
        Weights of reconstruction, encoding and regularisation in the objective.
    ridge : float or "auto"
        Ridge penalty of the encoder per row. Here and below "auto" is what does best on rows that
        are left out: up to 2,048, sampled during the scan and taken out of the statistics again.
    sharpness : float or "auto"
        Power that the scores of the label groups are raised to before they vote ("posterior"): 1
        lets all have their say, from about 16 on the likeliest decides alone.
    openness : float from 0 to 1, or "auto"
        From "the classes I know" to "whatever comes": how much a row's code owes to where it lies
        among all rows, whichever its class, beside the codes of the known classes. "auto" leaves
        out classes as well as rows, and gives up .005 of mean average precision at most for known
        classes. Not for the paper's encoders.
    similarity : {"shared-label", "cosine"}, default="shared-label"
        Rows are similar when they share a label, or by the cosine of their label sets.
    max_iter, tol : int, float
        Iterations of the alternation at most, and the relative decrease that ends it.
    n_init : int or "auto"
        Starts to try; they cost no further pass over the data. "auto" is 8, and fewer where there
        are more than 256 label groups.
    block_rows : int
        Rows whose statistics are computed at a time. In large collections anchors are drawn from
        some such blocks, so another size draws others.
    random_state : int, Generator, RandomState or None, default=0
        What anchors and starts are drawn from.

    Attributes
    ----------
    classes_ : class names or numbers, ascending; of a store its names, in its order; for multi-hot
        labels the names of the columns, or their numbers where they have none
    label_codes_ : packed codes: row k is the code of class k, or of label group k
    label_groups_ : sparse (groups, classes) 0/1 matrix: which labels each row of `label_codes_` has
    trace_ : the objective after every step of every start
    n_iter_ : iterations of the start that was kept
    statistics_ : what the data were reduced to
    hash_function_ : anchor map and affine map behind :meth:`transform`
    n_rows_loaded_ : rows that the last scan did not read: its checkpoint had what they come to

    """

    def __init__(
        self,
        n_bits: int = 64,
        *,
        loss: Loss = "l21",
        solver: SolverKind = "exact",
        start: StartKind = "separated",
        encoder: EncoderKind | Literal["auto"] = "auto",
        anchors: int | None = 1000,
        sigma: float | None = None,
        alpha: float = 0.01,
        beta: float = 0.01,
        gamma: float = 1e-3,
        ridge: float | Literal["auto"] = "auto",
        sharpness: float | Literal["auto"] = "auto",
        openness: float | Literal["auto"] = "auto",
        similarity: SimilarityKind = "shared-label",
        max_iter: int = 10,
        tol: float = 1e-5,
        n_init: int | Literal["auto"] = "auto",
        block_rows: int = 8192,
        random_state: int | np.random.Generator | None = 0,
    ) -> None:
        self.n_bits = n_bits
        self.loss = loss
        self.solver = solver
        self.start = start
        self.encoder = encoder
        self.anchors = anchors
        self.sigma = sigma
        self.alpha = alpha
        self.beta = beta
        self.gamma = gamma
        self.ridge = ridge
        self.sharpness = sharpness
        self.openness = openness
        self.similarity = similarity
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.block_rows = block_rows
        self.random_state = random_state

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
        before = dict(self.__dict__)
        try:
            with reporting(progress):
                scanned = scan_rows(self, X, y, checkpoint)
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
        return plan_scan(self, StoreRows.of(store, 0), draw_seed(self.random_state))[0]

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        progress: Progress | None = None,
        checkpoint: CheckpointLike = None,
    ) -> Self:
        """Add labelled rows: the same model as a fit on all rows so far.

        Anchors stay those of the first call; new classes are welcome. ``checkpoint`` is as in
        :meth:`fit`.
        """
        if not hasattr(self, "hash_function_"):
            return self.fit(X, y, progress=progress, checkpoint=checkpoint)
        check_parameters(self)
        with reporting(progress):
            scanned = scan_more(self, X, y, 0, checkpoint)
        return self.learn_from(scanned)

    def forget(self, X: Any, y: Any = None) -> Self:
        """Take labelled rows out again: the same model as a fit without them.

        Where a fifth of the rows or more go, fewer sampled ones are left to choose by, so that
        choices may differ from those of that fit.

        The rows must be among those that were learned from, of which only sums are known. Rows
        that never were are refused where that shows: more rows of a label set than there are, or
        features that leave sums behind which no rows could have. Others go unnoticed, and the
        model is then of rows that do not exist. Anchors stay as they are.
        """
        check_is_fitted(self)
        check_parameters(self)
        return self.learn_from(scan_removed(self, X, y))

    def forget_ids(self, store: FeatureStore, ids: Any) -> Self:
        """Take rows of the store that was learned from out again, by their ids."""
        check_is_fitted(self)
        check_parameters(self)
        change = self.change_in(store)
        if change is None or self.coverage_ is None or not change.is_empty:
            raise InputError(
                f"{store.url} is not the store that this model has learned from, or has changed "
                "since; fit the model to it first, or forget its rows with forget(X, y)"
            )
        places = find_ids(store, ids)
        coverage = self.coverage_.without(places)
        features, labels = (store.take(name, places) for name in ("features", "labels"))
        targets = stored_targets(store, labels)
        return self.learn_from(scan_removed(self, features, targets, coverage))

    def refit(self) -> Self:
        """Learn again from the same statistics, with the parameters as they are now.

        ``model.set_params(n_bits=32).refit()`` gives the model that a fit with 32 bits would give,
        without reading the data again. Anchors stay as they are.
        """
        check_is_fitted(self)
        check_parameters(self)
        return self.learn_from(known_scan(self))

    def learn_from(self, scanned: Scanned) -> Self:
        """Solve from a scan and take the result over; nothing is changed on failure."""
        scanned.check_classes()
        solution, hash_function = learn(self, scanned.statistics, scanned.anchor_map, scanned.seed)
        model = Model(
            parameters=self.get_params(deep=False),
            seed=scanned.seed,
            n_features_in=self.n_features_in_,
            feature_names=getattr(self, "feature_names_in_", None),
            classes=scanned.classes,
            multi_label=scanned.multi_label,
            groups=scanned.statistics.groups,
            label_codes=pack(solution.state.B.T),
            hash_function=hash_function,
            trace=solution.trace,
            statistics=scanned.statistics,
            coverage=scanned.coverage,
        )
        self.n_rows_loaded_ = scanned.n_rows_loaded
        return self._adopt(model)

    def _adopt(self, model: Model) -> Self:
        """Set every learned attribute."""
        self._model = model
        self.n_features_in_ = model.n_features_in
        if model.feature_names is not None:
            self.feature_names_in_ = model.feature_names
        self.classes_ = model.classes
        self.multi_label_ = model.multi_label
        self.groups_ = model.groups
        self.label_codes_ = model.label_codes
        self.hash_function_ = model.hash_function
        self.trace_ = model.trace
        self.n_iter_ = model.trace.n_iter
        self.statistics_ = model.statistics
        self.coverage_ = model.coverage
        self.seed_ = model.seed
        self._n_features_out = model.label_codes.shape[1]
        return self

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
        gives one with its coordinates of the rows; :meth:`encode` writes codes to disk.
        """
        codes = self._hash(X, bitorder)
        if is_lazy(codes):
            refuse_frames(self)
        return like(X, codes, "byte")

    def _hash(self, X: Any, bitorder: BitOrder = "little") -> Any:
        """Codes as an array, whatever `set_output` makes of them."""
        check_is_fitted(self)
        check_bitorder(bitorder)
        return self._map(X, HashRows(self.hash_function_, bitorder), "hash")

    def _map(self, X: Any, function: RowFunction, purpose: str) -> Any:
        """What a function makes of every row: lazy if the rows are."""
        names = column_names(X)
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
        check_is_fitted(self)
        return like(X, self._map(X, ScoreRows(self.hash_function_), "project"), "bit")

    def learned_codes(self, y: Any) -> Any:
        """Packed codes of labelled rows: the learned code of each row's label set.

        Lazy if the labels are.
        """
        check_is_fitted(self)
        codes, labels = LookUpLabels(self.groups_, self.label_codes_), as_arrays(y)
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
        ``bitorder`` is as in :meth:`transform`; the code store remembers it.

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
        """As :meth:`encode`; return also how many rows had to be encoded."""
        check_is_fitted(self)
        check_bitorder(bitorder)
        check_width(self, store)
        encoder: HashRows | LookUpLabels = HashRows(self.hash_function_, bitorder)
        if learned:
            codes = reorder(self.label_codes_, "little", bitorder)
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
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if not isinstance(self.random_state, Integral | None):
            parameters["random_state"] = self.seed_
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
        """Read a model that :meth:`save` wrote, from a path or URL."""
        model = read_model(path, storage_options=storage_options)
        if unknown := set(model.parameters) - set(cls._get_param_names()):
            raise InputError(f"{os.fspath(path)} has unknown parameters {sorted(unknown)}")
        return cls(**model.parameters)._adopt(model)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags
