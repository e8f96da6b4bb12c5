"""Classes by name and their numbers."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sadih_dask.errors import LabelError
from sadih_dask.learning.classes import Targets, Vocabulary, renumbering


def names(*values: Any) -> Vocabulary:
    return Vocabulary(np.array(values))


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (["b", "a"], ["b", "a"]),
        (["2", "-1", "10"], [2, -1, 10]),
        (["07", "8"], ["07", "8"]),  # another spelling would be lost
        (["9" * 19], ["9" * 19]),
        (["True", "False"], [True, False]),
        (["True", "1"], ["True", "1"]),
    ],
)
def test_names_that_spell_values_are_these(given: list[str], values: list[Any]) -> None:
    found = Vocabulary.of_names(given)
    assert found.values.tolist() == values
    assert list(found.names) == given


@pytest.mark.parametrize(
    ("known", "other", "places"),
    [
        (names("dog", "ant"), names("ant", "bee", "dog"), [1, -1, 0]),
        (names(7, 5), names("5", "7", "six"), [1, 0, -1]),
        (names("7", "x"), names(7, 5), [0, -1]),
        (names(b"cat"), names("cat"), [0]),
        (names(False, True), names("True", "no"), [1, -1]),
        (names(1.0, 2.0), names("2"), [1]),
        (names(1, 2), Vocabulary(np.zeros(0, int)), []),
        (Vocabulary(np.zeros(0, str)), names("a"), [-1]),
    ],
)
def test_classes_are_found_by_name(known: Vocabulary, other: Vocabulary, places: list[int]) -> None:
    assert known.find(other).tolist() == places


@pytest.mark.parametrize(
    ("known", "new", "order", "joined"),
    [
        (names("ant", "dog"), names("bee"), None, ["ant", "bee", "dog"]),
        (names("dog", "ant"), names("cat", "bee"), None, ["dog", "ant", "bee", "cat"]),
        (
            names("dog", "ant"),
            names("bee"),
            names("dog", "cat", "bee", "ant"),
            ["dog", "bee", "ant"],
        ),
        (names("ant", "dog"), names("bee"), names("dog", "bee", "ant"), ["ant", "bee", "dog"]),
        (names(1, 3), names("2"), None, [1, 2, 3]),
        (names(1, 3), names("cat"), names("1", "3", "cat"), ["1", "3", "cat"]),
        (names("1", "cat"), names(1), None, ["1", "cat"]),
    ],
)
def test_both_sets_of_classes(
    known: Vocabulary, new: Vocabulary, order: Vocabulary | None, joined: list[Any]
) -> None:
    assert known.joined(new, order).values.tolist() == joined


def test_names_and_numbers_do_not_mix() -> None:
    with pytest.raises(LabelError, match="names or class numbers throughout"):
        names(1, 2).joined(names("cat"))
    with pytest.raises(LabelError, match=r"names and the other class numbers.*'cat'"):
        renumbering(names("cat"), None)
    with pytest.raises(LabelError, match=r"names and the other class numbers.*'cat'"):
        renumbering(names(1, 2), names("cat"))
    with pytest.raises(LabelError, match="two classes are called 'a'"):
        Vocabulary.of_names(["a", "b", "a"])


def test_renumbering_of_stores_without_names() -> None:
    assert renumbering(None, None) is None
    assert renumbering(names(0, 1), names("0", "1")) is None
    into = renumbering(None, names(3, 5))
    assert into is not None
    assert into(np.array([1, 0])).tolist() == [5, 3]
    out = renumbering(names(5, 3), None)
    assert out is not None
    assert out(np.array([3, 5, 4, 99])).tolist() == [1, 0, 2, 2]  # 2: none that is known
    with pytest.raises(LabelError, match="label of row 11 is -1"):
        out(np.array([3, -1]), 10)
    some = renumbering(names("b", "a"), names("a", "b"))
    assert some is not None
    with pytest.raises(LabelError, match="label of row 1 is 2, but only 2 classes have names"):
        some(np.array([0, 2]))
    found = some(sp.csr_array([[1, 0], [1, 1]]))
    assert found.toarray().tolist() == [[0, 1], [1, 1]]


def test_targets_keep_the_order_of_rows() -> None:
    found = Targets.of(["b", "a", "b"])
    assert (found.labels.tolist(), found.classes.values.tolist()) == ([1, 0, 1], ["a", "b"])
    tags = Targets.of([["b"], ["c", "a", "a"]])
    assert tags.classes.values.tolist() == ["a", "b", "c"]
    assert tags.labels.toarray().tolist() == [[0, 1, 0], [1, 0, 1]]
    wider = tags.within(names("c", "b", "a", "d"))
    assert wider.toarray().tolist() == [[0, 1, 0, 0], [1, 0, 1, 0]]
    with pytest.raises(LabelError, match=r"label of row 1 is .*'a'.* none of the 2 known classes"):
        tags.within(names("b", "c"))
    with pytest.raises(LabelError, match=r"lists of tags, but row 6 is 'c'"):
        Targets.of([["b"], "c"], first_row=5)
    with pytest.raises(LabelError, match=r"lists of tags, but row 1 is \[3\]"):
        Targets.of([["b"], [3]])


@pytest.mark.parametrize(
    ("classes", "mark"),
    [
        (["a;b", "b;c", "a;c", "a;b;c", "a"], ";"),
        (["a|b", "b|c", "a|c", "c|b"], "|"),
        (["a;b", "a", "b", "c;a"], ";"),  # most have one tag
        (["Smith, Ann", "Smith, Bob", "Jones, Cid", "Brown, Eve"], None),  # parts are not shared
        (["a", "b", "c", "d;a"], None),
        (["a;b", "c"], None),
        ([1, 2, 3, 4], None),
    ],
)
def test_tags_within_names_are_noticed(classes: list[Any], mark: str | None) -> None:
    assert names(*classes).separator() == mark
