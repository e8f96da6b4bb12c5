"""An id names one row: among the new ones, in the store, and in both parts of held-out rows."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sadih_dask.errors import DtypeError, InputError
from sadih_dask.ingest import DataFiles, HoldOut, ids, ingest, ingestion
from sadih_dask.jobs import ingest as job
from sadih_dask.stores import FeatureStore

ROWS = np.random.default_rng(0).normal(size=(90, 4)).astype("f4")


def shard(folder, name, rows, names):
    np.savez(folder / f"{name}.npz", features=ROWS[: len(rows)], labels=np.arange(len(rows)) % 3)
    np.save(folder / f"{name}.ids.npy", names)
    return folder / f"{name}.npz", folder / f"{name}.ids.npy"


def files(*shards, **more):
    features, names = zip(*shards, strict=True)
    return DataFiles(features, ids=names, **more)


@pytest.fixture(params=["integers", "text"])
def named(request):
    return (lambda rows: np.array(rows)) if request.param == "integers" else as_text


def as_text(rows):
    return np.array([f"a rather long name {row}" for row in rows])


def test_an_id_twice_is_refused_with_both_places(tmp_path, named):
    one = shard(tmp_path, "a", range(40), named(range(40)))
    two = shard(tmp_path, "b", range(30), named([*range(40, 60), 17, *range(61, 70)]))
    with pytest.raises(InputError, match=r"b.ids.npy row 20: the id .*17.* is that of .*a.ids.npy"):
        ingest(files(one, two), tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr" / "segments").exists()


def test_an_id_of_the_store_is_refused_before_anything_is_added(tmp_path, named):
    url = tmp_path / "s.zarr"
    ingest(files(shard(tmp_path, "a", range(40), named(range(40)))), url)
    ingest(files(shard(tmp_path, "b", range(5), named(range(40, 45)))), url, mode="append")
    more = shard(tmp_path, "c", range(6), named([50, 51, 42, 53, 54, 55]))
    with pytest.raises(InputError, match=r"c.ids.npy row 2: the id .*42.* is that of row 42 of"):
        ingest(files(more), url, mode="append")
    assert FeatureStore.open(url).n_rows == 45


def test_an_id_of_a_deleted_row_may_come_again(tmp_path, named):
    url = tmp_path / "s.zarr"
    ingest(files(shard(tmp_path, "a", range(40), named(range(40)))), url)
    FeatureStore.open(url).delete(named([3]))
    ingest(files(shard(tmp_path, "b", range(2), named([3, 41]))), url, mode="append")
    assert Counter(FeatureStore.open(url).read("ids").tolist()).most_common(1)[0][1] == 1


def test_rows_that_somebody_adds_meanwhile_are_compared_at_the_commit(tmp_path, named, monkeypatch):
    url = tmp_path / "s.zarr"
    ingest(files(shard(tmp_path, "a", range(40), named(range(40)))), url)
    slow = shard(tmp_path, "b", range(4), named([70, 71, 72, 73]))
    fast = shard(tmp_path, "c", range(4), named([80, 72, 81, 82]))
    pour = ingestion._write

    def overtaken(*given):
        monkeypatch.setattr(ingestion, "_write", pour)
        ingest(files(fast), url, mode="append")
        return pour(*given)

    monkeypatch.setattr(ingestion, "_write", overtaken)
    with pytest.raises(InputError, match=r"b.ids.npy row 2: the id .*72.* is that of row 41 of"):
        ingest(files(slow), url, mode="append")
    assert FeatureStore.open(url).n_rows == 44


@pytest.mark.parametrize("twice", [False, True])
def test_any_number_of_parts_and_hashes_in_common_change_nothing(
    tmp_path, named, monkeypatch, twice
):
    monkeypatch.setattr(ids, "MOST_HASHES", 7)
    honest = ids.hashes
    monkeypatch.setattr(ids, "hashes", lambda block: honest(block) & np.uint64(0xF << 60))
    url = tmp_path / "s.zarr"
    ingest(files(shard(tmp_path, "a", range(40), named(range(40)))), url)
    more = files(shard(tmp_path, "b", range(30), named([*range(40, 69), 11 if twice else 69])))
    if twice:
        with pytest.raises(InputError, match=r"row 29: the id .*11.* is that of row 11 of"):
            ingest(more, url, mode="append")
    else:
        assert ingest(more, url, mode="append").store.n_rows == 70


def test_integers_and_text_do_not_mix(tmp_path):
    url = tmp_path / "s.zarr"
    ingest(files(shard(tmp_path, "a", range(9), np.arange(9))), url)
    with pytest.raises(DtypeError, match=r"these are ids, and those of .* are integers"):
        ingest(files(shard(tmp_path, "b", range(9), as_text(range(9)))), url, mode="append")


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)))
def test_hashes_of_text_differ_as_the_text_does(texts):
    trimmed = {text.rstrip("\0") for text in texts}
    found = ids.hashes(np.array([*trimmed, "", "x" * 40], "U"))
    alone = [ids.hashes(np.array([text], "U"))[0] for text in [*trimmed, "", "x" * 40]]
    np.testing.assert_array_equal(found, alone)
    assert len(set(found.tolist())) == len({*trimmed, "", "x" * 40})


def held_out(features, part):
    return DataFiles(features, hold_out=HoldOut(0.3, part=part))


def both_parts(tmp_path, features, mode="create"):
    stores = job.Stores(str(tmp_path / "s.zarr"), str(tmp_path / "q.zarr"))
    parts = {stores.database: "database", stores.queries: "queries"}
    reads = {url: (held_out(features, part), mode) for url, part in parts.items()}
    done = job.ingest(reads, stores, {})
    return [done[url].store for url in parts]


def test_rows_that_are_held_out_keep_their_numbers_as_ids(tmp_path):
    features, _ = shard(tmp_path, "a", range(90), np.arange(90))
    database, queries = both_parts(tmp_path, [features])
    for store in (database, queries):
        np.testing.assert_array_equal(store.read("features"), ROWS[store.read("ids")])
    numbers = np.concatenate([database.read("ids"), queries.read("ids")])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(90))


def test_numbers_go_on_with_files_that_come_later_alike_in_both_parts(tmp_path):
    b, _ = shard(tmp_path, "b", range(50), np.arange(50))
    both_parts(tmp_path, [b])
    a, _ = shard(tmp_path, "a", range(40), np.arange(40))
    database, queries = both_parts(tmp_path, [a, b], "append")
    rows = np.concatenate([ROWS[:50], ROWS[:40]])
    for store in (database, queries):
        np.testing.assert_array_equal(store.read("features"), rows[store.read("ids")])
    numbers = np.concatenate([database.read("ids"), queries.read("ids")])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(90))


def test_a_store_that_was_made_without_ids_gets_none_of_its_own_accord(tmp_path):
    url = tmp_path / "s.zarr"
    old, _ = shard(tmp_path, "a", range(9), np.arange(9))
    ingest(DataFiles(old), url)
    new = tmp_path / "b.npz"
    np.savez(new, features=ROWS[:5], labels=np.arange(5) % 3, id=np.arange(5))
    assert ingest(DataFiles(new), url, mode="append").store.arrays == ("features", "labels")


def test_an_index_of_pandas_names_rows_only_where_no_column_does(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"embedding": list(ROWS[:20]), "label": list("ab") * 10})
    frame.index = [1, *range(5, 24)]
    frame.to_parquet(tmp_path / "index.parquet")
    frame.assign(id=np.arange(20) + 100).to_parquet(tmp_path / "both.parquet")
    for name, first in (("index", 1), ("both", 100)):
        found = ingest(DataFiles([tmp_path / f"{name}.parquet"]), tmp_path / f"{name}.zarr")
        assert FeatureStore.open(tmp_path / f"{name}.zarr").read("ids")[0] == first, found
