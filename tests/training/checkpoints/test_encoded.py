"""A list that grows is encoded as if it were encoded anew each time, and each item once."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compss_train.training.checkpoints import json_encoding as encoded
from compss_train.training.checkpoints import read, write
from compss_train.training.checkpoints.json_encoding import Encoded, GrowingList
from tests.training.checkpoints.trees import assert_same, trees

changes = st.lists(st.tuples(st.sampled_from(["append", "cut", "replace", "last"]), st.integers(0, 9), trees))


def changed(items, change):
    """Return the list after a change; items but the last are other objects where they are others."""
    kind, place, value = change
    if kind == "append" or not items:
        return [*items, {"value": value}]
    if kind == "cut":
        return items[:place]
    if kind == "replace":
        place %= len(items)
        return [*items[:place], {"value": value}, *items[place + 1 :]]
    items[-1]["value"] = value
    return items


@settings(max_examples=60)
@given(changes)
def test_it_is_encoded_as_a_whole_is(steps):
    growing, items = GrowingList("history"), []
    for step in steps:
        items = changed(items, step)
        ours, theirs = growing.encoded(items), Encoded.of(items, "history")
        assert ours.text == theirs.text
        assert ours.tensors.keys() == theirs.tensors.keys()
        for name, tensor in ours.tensors.items():
            assert_same(tensor, theirs.tensors[name])


def test_each_item_is_encoded_when_it_is_the_last_and_once_more(monkeypatch):
    seen = []
    monkeypatch.setattr(encoded, "cut", lambda value, *rest: seen.append(value["round"]))
    growing, items = GrowingList("history"), []
    for number in range(4):
        items = [*items, {"round": number}]
        growing.encoded(items)
    assert seen == [0, 0, 1, 1, 2, 2, 3]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(trees, max_size=4), trees)
def test_encoded_values_are_read_as_others_are(tmp_path, items, other):
    content = {"other": other, "history": items}
    write(tmp_path / "it", {**content, "history": GrowingList("history").encoded(items)})
    assert_same(content, read(tmp_path / "it"))
    write(tmp_path / "it", {"history": GrowingList("history").encoded(items)})
    assert_same({"history": items}, read(tmp_path / "it"))


def test_numbers_of_numpy_in_records_come_back(tmp_path):
    records = [{"round": n, "own": np.float64(n / 3), "all": np.arange(n)} for n in range(3)]
    write(tmp_path / "it", {"history": GrowingList("history").encoded(records)})
    assert_same(records, read(tmp_path / "it")["history"])
