"""SADIH as a scikit-learn estimator."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any, Self, get_args

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from sadih_dask import targets
from sadih_dask.arrays import Array, Bytes, Floats, Ints
from sadih_dask.errors import InputError, LabelError
from sadih_dask.learning.encoders import EncoderKind, hash_function
from sadih_dask.learning.features import SAMPLE_ROWS, AnchorMap, sample_rows
from sadih_dask.learning.labels import LabelGroups, as_rows, group_rows
from sadih_dask.learning.problem import Problem
from sadih_dask.learning.similarity import SimilarityKind
from sadih_dask.learning.solver import Loss, Schedule, SolverKind, StartKind, solve
from sadih_dask.learning.statistics import (
    Statistics,
    canonical_blocks,
    check_finite,
    merge_in_order,
)
from sadih_dask.retrieval.codes import n_bytes, pack
from sadih_dask.retrieval.forecast import MAX_GROUPS, Forecast
from sadih_dask.retrieval.histograms import hamming_histograms
from sadih_dask.retrieval.metrics import mean_average_precision
from sadih_dask.storage.model import Model, read_model, write_model

_CHOICES: dict[str, tuple[str, ...]] = {
    "loss": get_args(Loss),
    "solver": get_args(SolverKind),
    "start": get_args(StartKind),
    "encoder": get_args(EncoderKind),
    "similarity": get_args(SimilarityKind),
}


class SADIH(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Semantic-aware discrete hashing: binary codes whose Hamming distance follows labels.

    Learning reads the data once, into statistics whose size does not depend on the number of rows;
    everything after that works on the statistics. Rows can be added (:meth:`partial_fit`) and
    taken out again (:meth:`forget`) without a second look at the rest.

    Parameters
    ----------
    n_bits : int, default=64
        Length of the codes. Any positive number; codes are packed into ``ceil(n_bits / 8)`` bytes
        and the spare bits of the last byte are zero.
    loss : {"l21", "l1"}, default="l21"
        "l21" is SADIH (discrete coordinate descent), "l1" is SADIH-L1 (one sign).
    solver : {"exact", "paper"}, default="exact"
        "exact" minimises in every step, so the objective never rises (with the l21 loss); "paper"
        runs the equations as printed.
    start : {"separated", "random"}, default="separated"
        Codes to start from: well separated and easy to predict from the features, or the paper's
        random ones.
    encoder : {"ridge", "orthogonal", "lemma"}, default="ridge"
        Hash function for rows without labels: ridge regression to the learned codes, or the
        paper's orthogonal encoder by exact descent or by its Lemma 1.
    anchors : int or None, default=1000
        Number of radial basis functions about training rows; None hashes the features themselves.
    sigma : float or None, default=None
        Kernel width of the anchor features; by default set from the mean distance.
    alpha, beta, gamma : float
        Weights of reconstruction, encoding and regularisation in the objective.
    ridge : float
        Ridge penalty of the encoder per row.
    similarity : {"shared-label", "cosine"}, default="shared-label"
        Rows are similar when they share a label, or by the cosine of their label sets.
    max_iter, tol : int, float
        Iterations of the alternation at most, and the relative decrease that ends it.
    n_init : int
        Starts to try; they cost no further pass over the data.
    block_rows : int
        Rows whose statistics are computed at a time.
    random_state : int, Generator or None, default=0
        What anchors and starts are drawn from.

    Attributes
    ----------
    classes_ : class names, ascending; column numbers for multi-hot labels
    label_codes_ : packed codes: row k is the code of class k, or of label group k
    label_groups_ : sparse (groups, classes) 0/1 matrix: which labels each row of `label_codes_` has
    trace_ : the objective after every step of every start
    n_iter_ : iterations of the start that was kept
    statistics_ : what the data were reduced to
    hash_function_ : anchor map and affine map behind :meth:`transform`

    """

    def __init__(
        self,
        n_bits: int = 64,
        *,
        loss: Loss = "l21",
        solver: SolverKind = "exact",
        start: StartKind = "separated",
        encoder: EncoderKind = "ridge",
        anchors: int | None = 1000,
        sigma: float | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        gamma: float = 1e-3,
        ridge: float = 1e-3,
        similarity: SimilarityKind = "shared-label",
        max_iter: int = 10,
        tol: float = 1e-5,
        n_init: int = 8,
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
        self.similarity = similarity
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.block_rows = block_rows
        self.random_state = random_state

    # -- learning ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Learn codes and a hash function from labelled rows."""
        self._check_parameters()
        features, y, multi_label = self._check_rows(X, y, reset=True)
        classes = np.arange(_columns(y)) if multi_label else targets.class_names(y)
        labels = y if multi_label else targets.class_numbers(y, classes)
        seed = _draw_seed(self.random_state)
        anchor_map = self._draw_anchors(features, seed)
        statistics = self._scan(features, labels, len(classes), anchor_map)
        return self._learn(statistics, classes, multi_label, anchor_map, seed)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add labelled rows: the same model as a fit on all rows so far.

        Anchors stay those of the first call; new classes are welcome.
        """
        if not hasattr(self, "hash_function_"):
            return self.fit(X, y)
        self._check_parameters()
        features, y, multi_label = self._check_rows(X, y, reset=False)
        known = self._known_statistics(multi_label)
        if multi_label:
            classes, labels = self.classes_, self._check_columns(y)
        else:
            classes = targets.join_classes(self.classes_, targets.class_names(y))
            labels = targets.class_numbers(y, classes)
            known = known.relabel(np.searchsorted(classes, self.classes_), len(classes))
        added = self._scan(features, labels, len(classes), self.hash_function_.anchor_map)
        return self._learn(
            known.merge(added), classes, multi_label, self.hash_function_.anchor_map, self.seed_
        )

    def forget(self, X: Any, y: Any) -> Self:
        """Take labelled rows out again: the same model as a fit without them.

        The rows must be among those that were learned from. Anchors stay as they are.
        """
        check_is_fitted(self)
        self._check_parameters()
        features, y, multi_label = self._check_rows(X, y, reset=False)
        known = self._known_statistics(multi_label)
        classes = self.classes_
        labels = self._check_columns(y) if multi_label else targets.class_numbers(y, classes)
        removed = self._scan(features, labels, len(classes), self.hash_function_.anchor_map)
        left = known.without(removed)
        if not multi_label:  # classes that have lost their last row are gone
            left, kept = left.compact()
            classes = classes[kept]
        return self._learn(left, classes, multi_label, self.hash_function_.anchor_map, self.seed_)

    def refit(self) -> Self:
        """Learn again from the same statistics, with the parameters as they are now.

        ``model.set_params(n_bits=32).refit()`` gives the model that a fit with 32 bits would give,
        without reading the data again. Anchors stay as they are.
        """
        check_is_fitted(self)
        self._check_parameters()
        return self._learn(
            self._known_statistics(self.multi_label_),
            self.classes_,
            self.multi_label_,
            self.hash_function_.anchor_map,
            self.seed_,
        )

    def _scan(
        self, features: Array, labels: Any, n_classes: int, anchor_map: AnchorMap | None
    ) -> Statistics:
        """Reduce the rows to statistics, block by block."""
        if sp.issparse(labels):
            labels = as_rows(labels)
        return merge_in_order(
            Statistics.of_block(
                features[rows] if anchor_map is None else anchor_map(features[rows]),
                labels[rows],
                n_classes,
                first_row=rows.start,
            )
            for rows in canonical_blocks(len(features), self.block_rows)
        )

    def _learn(
        self,
        statistics: Statistics,
        classes: Array,
        multi_label: bool,
        anchor_map: AnchorMap | None,
        seed: int,
    ) -> Self:
        """Solve from statistics and set every learned attribute; nothing is set on failure."""
        if statistics.groups.n_groups < 2:
            raise LabelError(
                "all rows carry the same labels, that is one class; codes can only tell classes "
                "apart when there are two or more. Add rows of another class"
            )
        problem = Problem.from_statistics(
            statistics,
            self.n_bits,
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
            ridge=self.ridge,
            similarity=self.similarity,
        )
        schedule = Schedule(
            self.loss, self.solver, self.start, self.max_iter, self.tol, self.n_init
        )
        forecast = None
        if self.encoder in ("posterior", "ridge") and len(statistics.groups) <= MAX_GROUPS:
            forecast = Forecast(
                problem, statistics.groups, self.encoder, _generator(seed, "forecast")
            )
        solution = solve(problem, schedule, _generator(seed, "starts"), forecast)
        self.hash_function_ = hash_function(
            self.encoder, statistics, problem, solution.state, anchor_map
        )
        self.statistics_: Statistics | None = statistics
        self.classes_ = classes
        self.multi_label_ = multi_label
        self.groups_ = statistics.groups
        self.label_codes_: Bytes = pack(solution.state.B.T)
        self.trace_ = solution.trace
        self.n_iter_ = solution.trace.n_iter
        self.seed_ = seed
        self._n_features_out = n_bytes(self.n_bits)
        return self

    def _draw_anchors(self, features: Array, seed: int) -> AnchorMap | None:
        if self.anchors is None:
            return None
        rng = _generator(seed, "anchors")
        rows = sample_rows(len(features), max(SAMPLE_ROWS, self.anchors), rng)
        return AnchorMap.from_sample(features[rows], self.anchors, rng, sigma=self.sigma)

    # -- using ------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Bytes:
        """Hash rows to packed codes, uint8 (rows, ceil(n_bits / 8)), little bit order.

        These are the bytes that FAISS binary indexes take.
        """
        check_is_fitted(self)
        features = self._check_features(X, reset=False)
        codes = np.empty((len(features), self.label_codes_.shape[1]), np.uint8)
        for rows in canonical_blocks(len(features), self.block_rows):
            codes[rows] = pack(self.hash_function_.project(features[rows]))
        return codes

    def project(self, X: Any) -> Floats:
        """Real-valued scores whose signs are the bits, (rows, n_bits)."""
        check_is_fitted(self)
        features = self._check_features(X, reset=False)
        scores = np.empty((len(features), self.hash_function_.n_bits))
        for rows in canonical_blocks(len(features), self.block_rows):
            scores[rows] = self.hash_function_.project(features[rows])
        return scores

    def learned_codes(self, y: Any) -> Bytes:
        """Packed codes of labelled rows: the learned code of each row's label set."""
        check_is_fitted(self)
        groups, ids = self._group_targets(y)
        place = self.groups_.find(groups)[ids]
        unknown = np.flatnonzero(place < 0)
        if len(unknown):
            raise LabelError(
                f"row {unknown[0]} has a label set that no learned row had ({len(unknown)} such "
                "rows); partial_fit rows with it first, or hash the features with transform"
            )
        return self.label_codes_[place]

    def score(self, X: Any, y: Any) -> float:
        """Mean average precision of these rows as queries over the rows learned from.

        The database carries its learned codes, the queries are hashed; relevant is what shares a
        label. Ties in distance are averaged over all orders. Costs rows x label groups.
        """
        codes = self.transform(X)
        statistics = self._known_statistics(self.multi_label_)
        queries = self._group_targets(y)
        histograms = hamming_histograms(
            codes,
            queries,
            self.label_codes_,
            (self.groups_, np.arange(self.groups_.n_groups)),
            self.hash_function_.n_bits,
            counts=statistics.counts,
        )
        return mean_average_precision(histograms)

    @property
    def label_groups_(self) -> sp.csr_array:
        """Which labels each row of `label_codes_` stands for, sparse 0/1 (groups, classes)."""
        check_is_fitted(self)
        return self.groups_.matrix.astype(np.uint8)

    # -- files ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, statistics: bool = True) -> None:
        """Write the fitted model to one file of arrays and JSON, atomically.

        Without ``statistics`` the file is small, and the loaded model hashes but cannot
        `partial_fit`, `forget` or `score`.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if not isinstance(self.random_state, Integral | None):
            parameters["random_state"] = self.seed_
        model = Model(
            parameters={name: _plain(value) for name, value in parameters.items()},
            seed=self.seed_,
            n_features_in=self.n_features_in_,
            feature_names=getattr(self, "feature_names_in_", None),
            classes=self.classes_,
            multi_label=self.multi_label_,
            groups=self.groups_,
            label_codes=self.label_codes_,
            hash_function=self.hash_function_,
            trace=self.trace_,
            statistics=self.statistics_ if statistics else None,
        )
        write_model(path, model)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote."""
        model = read_model(path)
        known = set(cls._get_param_names())
        if unknown := set(model.parameters) - known:
            raise InputError(f"{os.fspath(path)} has unknown parameters {sorted(unknown)}")
        self = cls(**model.parameters)
        self.n_features_in_ = model.n_features_in
        if model.feature_names is not None:
            self.feature_names_in_ = model.feature_names
        self.hash_function_ = model.hash_function
        self.statistics_ = model.statistics
        self.classes_ = model.classes
        self.multi_label_ = model.multi_label
        self.groups_ = model.groups
        self.label_codes_ = model.label_codes
        self.trace_ = model.trace
        self.n_iter_ = model.trace.n_iter
        self.seed_ = model.seed
        self._n_features_out = model.label_codes.shape[1]
        return self

    # -- checks -----------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name}={getattr(self, name)!r} is unknown; choose one of {allowed}"
                )
        for name in ("n_bits", "anchors", "max_iter", "n_init", "block_rows"):
            value = getattr(self, name)
            least = 0 if name == "max_iter" else 1
            if name == "anchors" and value is None:
                continue
            if not _is_whole(value) or value < least:
                raise InputError(f"{name}={value!r}; expected a whole number of {least} or more")
        for name in ("alpha", "beta", "gamma", "ridge", "tol"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
                raise InputError(f"{name}={value!r}; expected a finite number of 0 or more")
        if self.sigma is not None and not (isinstance(self.sigma, Real) and self.sigma > 0):
            raise InputError(f"sigma={self.sigma!r}; expected a positive number or None")

    def _check_features(self, X: Any, *, reset: bool) -> Array:
        try:
            features: Array = validate_data(
                self, X, reset=reset, dtype="numeric", ensure_all_finite=False
            )
        except ValueError as error:  # the same message, as an error of this package
            raise InputError(str(error)) from error
        check_finite(features)
        return features

    def _check_rows(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, Any, bool]:
        """Validated features and targets, and whether the targets are multi-hot."""
        y = targets.as_targets(y)
        features = self._check_features(X, reset=reset)
        if y.shape[0] != len(features):
            raise LabelError(
                f"X has {len(features)} rows but y has {y.shape[0]}; "
                "both must describe the same rows"
            )
        return features, y, targets.is_multi_label(y)

    def _check_columns(self, y: Any) -> Any:
        if _columns(y) != len(self.classes_):
            raise LabelError(
                f"y has {_columns(y)} columns but the model knows {len(self.classes_)} labels; "
                "multi-hot labels keep the columns of the first fit"
            )
        return y

    def _known_statistics(self, multi_label: bool) -> Statistics:
        if self.statistics_ is None:
            raise InputError(
                "this model was saved without statistics, so it hashes but cannot learn or score; "
                "save it with statistics=True"
            )
        self._check_form(multi_label)
        return self.statistics_

    def _check_form(self, multi_label: bool) -> None:
        if multi_label != self.multi_label_:
            kinds = ("one class per row", "a multi-hot matrix")
            raise LabelError(
                f"y is {kinds[multi_label]} but the model was fitted with "
                f"{kinds[self.multi_label_]}; use one form throughout"
            )

    def _group_targets(self, y: Any) -> tuple[LabelGroups, Ints]:
        """Label groups of targets in the form that the model knows."""
        y = targets.as_targets(y)
        self._check_form(multi_label := targets.is_multi_label(y))
        if multi_label:
            return group_rows(self._check_columns(y), len(self.classes_))
        return group_rows(targets.class_numbers(y, self.classes_), len(self.classes_))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _columns(y: Any) -> int:
    return int(np.shape(y)[1])


def _plain(value: Any) -> Any:
    """Turn a NumPy scalar into the Python number that JSON takes."""
    return value.item() if isinstance(value, np.generic) else value


def _draw_seed(random_state: Any) -> int:
    """One integer from whatever was given, from which every random number follows."""
    if isinstance(random_state, Integral):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return int(np.random.default_rng(random_state).integers(2**63))


def _generator(seed: int, purpose: str) -> np.random.Generator:
    """Independent random numbers for each purpose, so that one does not shift the other."""
    return np.random.default_rng([seed, *purpose.encode()])
