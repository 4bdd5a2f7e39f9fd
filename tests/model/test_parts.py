"""Parts of parameters: each element in one of them, and the whole again from all."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compss_train.model.compression import CHUNK, compress
from compss_train.model.parts import Cut, Part, arrays_of, joined, joined_moments

SHAPES = st.lists(
    st.sampled_from([(), (0,), (3,), (2, 5), (CHUNK,), (CHUNK + 1,), (3, CHUNK), (CHUNK, 2)]),
    min_size=1,
    max_size=6,
)


def parameters_of(shapes):
    random = np.random.default_rng(0)
    return {
        f"layer.{number}": random.normal(size=shape).astype(np.float32)
        for number, shape in enumerate(shapes)
    }


@given(SHAPES, st.integers(1, 9), st.booleans())
def test_joined_parts_are_the_whole(shapes, number, inside):
    parameters = parameters_of(shapes)
    cut = Cut.of(parameters, number, inside=inside)
    parts = cut.parameters(parameters)
    assert 1 <= len(parts) <= number
    whole = joined(parts)
    assert [*whole] == [*parameters]
    for name, array in parameters.items():
        np.testing.assert_array_equal(whole[name], array, strict=True)
    elements = sum(array.size for part in parts for array in arrays_of(part).values())
    assert elements == sum(array.size for array in parameters.values())
    if not inside:
        assert all(not part.cut for part in parts if isinstance(part, Part))


@given(SHAPES, st.integers(1, 9))
def test_moments_are_cut_as_their_parameters(shapes, number):
    parameters = parameters_of(shapes)
    moments = {}
    for name, array in parameters.items():
        moments |= {(name, "step"): np.array(3.0), (name, "exp_avg"): 2 * array}
    split = Cut.of(parameters, number, inside=True).split_moments(moments)
    whole = joined_moments(split, Cut.of(parameters, number, inside=True).shapes)
    assert whole.keys() == moments.keys()
    for key, array in moments.items():
        np.testing.assert_array_equal(whole[key], array, strict=True)


def test_parts_have_about_equal_bytes():
    parameters = parameters_of([(1000, 1000), (10,), (500, 1000), (1000,)])
    for number in (2, 3, 4, 8):
        sizes = [
            sum(array.nbytes for array in arrays_of(part).values())
            for part in Cut.of(parameters, number, inside=True).parameters(parameters)
        ]
        assert len(sizes) == number
        assert max(sizes) - min(sizes) <= 2 * CHUNK * 4


def test_compressed_changes_keep_the_scale_of_the_whole_array():
    after = np.linspace(-3, 5, 3 * CHUNK, dtype=np.float32)
    change, _ = compress(np.zeros_like(after), after, "int8")
    split = Cut.of({"w": after}, 3, inside=True).split({"w": change})
    np.testing.assert_array_equal(np.concatenate([part["w"][:] for part in split]), change[:])
