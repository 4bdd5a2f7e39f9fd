"""The comparison of checkouts finds what differs, and a few kinds have the same bits on two
engines.
"""

import numpy as np
import pytest

from tests.same_bits.comparison import differences, read, write
from tests.same_bits.fitting import Place
from tests.same_bits.program import KINDS, ON_LOCAL, chosen

SOME = (
    "merged in int8, outer optimizer",
    "several workers a task, total shuffle",
    "augmentation",
    "two optimizers",
)
BITS = {
    "one": {"weight": np.float32([[1, 2], [3, 4]]), "loss": np.array([0.5])},
    "two": {"count": np.array([3])},
}


def changed(kind, name, array):
    return {**BITS, kind: {**BITS[kind], name: array}}


def test_equal_bits_are_no_difference_and_survive_a_file(tmp_path):
    write(tmp_path / "bits", BITS)
    assert list(differences(read(tmp_path / "bits"), BITS)) == []
    assert list(differences({**BITS, "new": {}}, BITS)) == []


@pytest.mark.parametrize(
    ("ours", "line"),
    [
        (
            changed(
                "one",
                "weight",
                np.nextafter(np.float32([[1, 2], [3, 4]]), np.float32([[1, 2], [3, 9]])),
            ),
            "one: weight: 1 of 4 numbers differ, by 4.77e-07 at most",
        ),
        (
            changed("one", "loss", np.array([-0.0])),
            ("one: loss: 1 of 1 numbers differ, by 0.5 at most"),
        ),
        (
            changed("one", "loss", np.float32([0.5])),
            r"one: loss: float32 \(1,\) instead of float64 \(1,\)",
        ),
        (changed("two", "more", np.array([1])), "two: more: not in the other checkout"),
        ({"one": BITS["one"], "two": {}}, "two: count: missing"),
        ({"one": BITS["one"]}, "two: missing"),
    ],
)
def test_what_differs_has_a_line(ours, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        raise ValueError("\n".join(differences(ours, BITS)))


def test_a_zero_with_another_sign_differs():
    (line,) = differences({"kind": {"zero": np.array([-0.0])}}, {"kind": {"zero": np.array([0.0])}})
    assert line == "kind: zero: 0 of 1 numbers differ, by 0 at most"


def test_unknown_names_are_refused():
    assert chosen(["merged every"]) == [name for name in KINDS if name.startswith("merged every")]
    assert set(ON_LOCAL) < set(chosen([]))
    with pytest.raises(SystemExit, match="there is no kind 'none'"):
        chosen(["none"])


@pytest.mark.parametrize("kind", SOME)
def test_the_local_engine_has_the_bits_of_the_serial_one(kind, shared_local, tmp_path):
    results = []
    for engine in ("serial", shared_local):
        folder = tmp_path / str(len(results))
        folder.mkdir()
        results.append({kind: KINDS[kind](Place(engine, folder, in_order=engine == "serial"))})
    assert list(differences(*results)) == []
