"""Synthetic stores: the same rows in any chunks, by any number of workers."""

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from sadih_dask import SADIH
from sadih_dask.errors import ConflictError, InputError
from sadih_dask.ingest import synthetic
from sadih_dask.ingest.synthetic import generate


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_content_depends_on_the_seed_alone(tmp_path: Path, multi_label: bool, dtype: Any) -> None:
    options: dict[str, Any] = {"dtype": dtype, "multi_label": multi_label, "seed": 7}
    with dask.config.set(scheduler="synchronous"):
        one = generate(tmp_path / "a", 3000, 6, 4, chunk_rows=3000, **options)
    with dask.config.set(scheduler="threads", num_workers=4):
        other = generate(tmp_path / "b", 3000, 6, 4, chunk_rows=77, compression="zstd", **options)
    for name in ("features", "labels"):
        np.testing.assert_array_equal(one.read(name), other.read(name))
    assert one.dtype("features") == dtype
    longer = generate(tmp_path / "c", 5000, 6, 4, **options)
    np.testing.assert_array_equal(longer.read("features", 0, 3000), one.read("features"))
    options["seed"] = 8
    assert not np.array_equal(
        generate(tmp_path / "d", 3000, 6, 4, **options).read("features"), one.read("features")
    )


def test_rows_are_clouds_about_their_class(tmp_path: Path) -> None:
    store = generate(tmp_path / "s", 4000, 8, 5, spread=3.0)
    features, labels = store.read("features"), store.read("labels")
    assert np.unique(labels).tolist() == list(range(5))
    inside = np.concatenate(
        [features[labels == k] - features[labels == k].mean(0) for k in range(5)]
    )
    np.testing.assert_allclose(inside.std(axis=0), 1, atol=0.05)
    assert (
        SADIH(n_bits=16, anchors=None, n_init=1).fit(store).score(features[:500], labels[:500])
        > 0.9
    )
    tags = generate(tmp_path / "t", 2000, 8, 5, multi_label=True).read("labels")
    assert set(tags.sum(axis=1)) == {1, 2, 3}
    assert generate(tmp_path / "u", 50, 2, 1, multi_label=True).read("labels").all()


def test_an_interrupted_one_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = synthetic._write_block

    def failing(writer: Any, block: int, clouds: Any) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(block)
        real(writer, block, clouds)

    monkeypatch.setattr(synthetic, "_write_block", failing)
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(KeyboardInterrupt):
            generate(tmp_path / "s", 1000, 3, 2, chunk_rows=100)
        first, made[:] = set(made), []
        monkeypatch.setattr(
            synthetic, "_write_block", lambda *task: made.append(task[1]) or real(*task)
        )
        found = generate(tmp_path / "s", 1000, 3, 2, chunk_rows=100)
    assert first.isdisjoint(made)
    assert len(made) == 7
    expected = generate(tmp_path / "e", 1000, 3, 2)
    np.testing.assert_array_equal(found.read("features"), expected.read("features"))


@pytest.mark.parametrize("sizes", [(0, 2, 2), (2, 0, 2), (2, 2, 0)])
def test_sizes_that_make_no_sense(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        generate(tmp_path / "s", *sizes)


def test_queries_are_other_rows_of_the_same_clouds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"spread": 5.0, "seed": 3}
    database = generate(tmp_path / "d", 4000, 6, 4, **options)
    queries = generate(tmp_path / "q", 2000, 6, 4, part="queries", **options)
    means = [
        np.stack([store.read("features")[store.read("labels") == k].mean(0) for k in range(4)])
        for store in (database, queries)
    ]
    np.testing.assert_allclose(means[0], means[1], atol=0.3)
    both = np.concatenate([database.read("features"), queries.read("features")])
    assert len(np.unique(both, axis=0)) == 6000
    with pytest.raises(InputError, match="part must be 'database' or 'queries'"):
        generate(tmp_path / "x", 10, 2, 2, part="rest")  # type: ignore[arg-type]


def test_noise_is_normal(tmp_path: Path) -> None:
    noise = generate(tmp_path / "s", 50_000, 4, 1, spread=0.0).read("features")
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(noise.T), np.eye(4), atol=0.03)
    fourth = (noise.astype(np.float64) ** 4).mean()
    assert abs(fourth - 3) < 0.1
    beyond = (np.abs(noise) > 2.5758).mean()
    assert abs(beyond - 0.01) < 0.001


def test_a_finished_one_is_opened_and_another_replaced_on_request(tmp_path: Path) -> None:
    first = generate(tmp_path / "s", 1000, 3, 2, chunk_rows=100)
    again = generate(tmp_path / "s", 1000, 3, 2, chunk_rows=100, overwrite=True)
    assert (again.uid, again.generation) == (first.uid, first.generation)
    assert generate(tmp_path / "s", 1000, 3, 2).uid == first.uid
    for sizes, options in (((1001, 3, 2), {}), ((1000, 3, 2), {"seed": 1})):
        with pytest.raises(ConflictError, match="already holds a finished store"):
            generate(tmp_path / "s", *sizes, **options)
    assert generate(tmp_path / "s", 1001, 3, 2, overwrite=True).n_rows == 1001


def test_progress_is_told_in_rows(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with dask.config.set(scheduler="synchronous"):
        generate(
            tmp_path / "s", 950, 3, 2, chunk_rows=100, progress=lambda *rows: seen.append(rows)
        )
    assert seen == [(k * 95, 950) for k in range(11)]
