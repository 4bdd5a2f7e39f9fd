"""HDF5 and NetCDF files: what is packed, missing, or no number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compss_train import BadFileError, FileDataset
from tests.data.readers.formats import names, same
from tests.data.readers.test_table import read_all

h5py = pytest.importorskip("h5py")


def saved(path, values, dtype=None, **attributes):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=values, dtype=dtype)
        data.attrs.update(attributes)
        file["y"] = np.arange(len(values))
    return str(path)


PACKED = st.sampled_from(["i1", "u1", "i2", "u2", "i4"]).flatmap(
    lambda dtype: arrays(dtype, (5, 2))
)
NUMBERS = st.floats(-1e3, 1e3, width=32)


@pytest.mark.parametrize("suffix", [".nc", ".h5"])
@given(
    values=PACKED,
    scale=st.none() | NUMBERS,
    offset=st.none() | NUMBERS,
    width=st.sampled_from(["f4", "f8"]),
    mark=st.none() | st.integers(-128, 127),
)
def test_packed_numbers_are_unpacked_and_missing_ones_named(
    tmp_path_factory, suffix, values, scale, offset, width, mark
):
    attributes = {"scale_factor": scale, "add_offset": offset}
    attributes = {
        key: np.dtype(width).type(value) for key, value in attributes.items() if value is not None
    }
    marked = None if mark is None else np.array([mark]).astype(values.dtype)
    path = tmp_path_factory.getbasetemp() / f"packed{suffix}"
    path = saved(path, values, **attributes, **({} if marked is None else {"_FillValue": marked}))
    rows = [] if marked is None else np.flatnonzero((values == marked).any(axis=1))
    if len(rows):
        with names(path, f"lacks .* in 'x', the first in row {rows[0]}"):
            read_all(FileDataset(path))
        return
    expected = values
    if attributes:
        expected = values.astype(width) * np.dtype(width).type(1 if scale is None else scale)
        expected += np.dtype(width).type(0 if offset is None else offset)
    same(read_all(FileDataset(path))["x"], expected)


def test_bytes_may_be_unsigned(tmp_path):
    path = saved(
        tmp_path / "f.nc",
        np.array([0, 127, -1, -128], "i1"),
        _Unsigned="true",
        scale_factor=np.float32(2),
    )
    same(read_all(FileDataset(path))["x"], np.array([0, 254, 510, 256], "f4"))


def test_numbers_that_are_missing_are_no_numbers(tmp_path):
    path = saved(
        tmp_path / "f.nc", np.array([0, np.nan, 1], "f4"), _FillValue=np.array([np.nan], "f4")
    )
    with names(path, "lacks a value in 'x', the first in row 1"):
        read_all(FileDataset(path))
    path = saved(
        tmp_path / "g.h5",
        np.array([0, 1, -99, -98], "i2"),
        missing_value=np.array([-98, -99], "i2"),
    )
    with names(path, "lacks 2 values in 'x', the first in row 2"):
        read_all(FileDataset(path))
    assert read_all(FileDataset(path)[:2])["x"].tolist() == [0, 1]


BOUNDS = {
    "valid_min": (np.float32(1), [0]),
    "valid_max": (np.float32(2), [3]),
    "valid_range": (np.array([1, 2], "f4"), [0, 3]),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("key", BOUNDS)
def test_numbers_outside_their_valid_range_are_missing(tmp_path, key, packed):
    bound, rows = BOUNDS[key]
    values = np.arange(4, dtype="i2" if packed else "f4")
    for number, limit in enumerate(
        (bound.astype(values.dtype), bound * np.float32(0.1))[: 1 + packed]
    ):
        scale = {"scale_factor": np.float32(0.1)} if packed else {}
        path = saved(tmp_path / f"{number}.nc", values, **scale, **{key: limit})
        with names(path, f"lacks .* in 'x', the first in row {rows[0]}"):
            read_all(FileDataset(path))
        assert read_all(FileDataset(path)[1:3])["x"].shape == (2,)
    path = saved(
        tmp_path / "u.nc",
        np.array([0, 127, -1, -128], "i1"),
        _Unsigned="true",
        valid_max=np.int8(-128),
    )
    with names(path, "lacks a value in 'x', the first in row 2"):
        read_all(FileDataset(path))


def test_bounds_are_rounded_as_the_numbers_are(tmp_path):
    path = saved(
        tmp_path / "f.nc", np.array([0.1, 0.3], "f4"), valid_range=[0.1, 0.3], missing_value=0.7
    )
    same(read_all(FileDataset(path))["x"], np.array([0.1, 0.3], "f4"))


def test_marks_that_no_stored_number_can_have_mark_none(tmp_path):
    path = saved(
        tmp_path / "f.nc",
        np.array([0, 1, -128], "i1"),
        missing_value=np.float32("nan"),
        _FillValue=-999.0,
    )
    same(read_all(FileDataset(path))["x"], np.array([0, 1, -128], "i1"))


@pytest.mark.parametrize(
    ("key", "value"), [("missing_value", "n/a"), ("scale_factor", "0.1"), ("valid_range", 1)]
)
def test_attributes_that_are_no_numbers_are_named(tmp_path, key, value):
    path = saved(tmp_path / "f.nc", np.arange(3), **{key: value})
    with names(path, f"has 'x' with a {key} of .*, which is no number"):
        FileDataset(path)


def test_a_filter_that_is_not_installed_is_named(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=np.arange(9), chunks=(9,), compression="gzip")
    content = (tmp_path / "f.h5").read_bytes()
    start = content.index(b"deflate") - 8
    (tmp_path / "f.h5").write_bytes(
        content[:start] + (32015).to_bytes(2, "little") + content[start + 2 :]
    )
    with names(
        tmp_path / "f.h5",
        ("has 'x', compressed with HDF5's filter 32015 .*, which is not installed: set HDF5"),
    ):
        FileDataset(tmp_path / "f.h5")


def test_values_that_were_never_written_are_missing_if_there_is_a_mark_for_them(tmp_path):
    for fill, dtype in ((9.969209968386869e36, "f4"), (-32767, "i2")):
        with h5py.File(tmp_path / "f.nc", "w") as file:
            file.create_dataset("x", (3,), dtype, fillvalue=fill, chunks=(2,))[:2] = 1
        with names(tmp_path / "f.nc", "lacks a value in 'x', the first in row 2"):
            read_all(FileDataset(tmp_path / "f.nc"))


def test_dimensions_without_values_are_no_arrays(tmp_path):
    path = saved(tmp_path / "f.nc", np.arange(3.0))
    with h5py.File(path, "a") as file:
        lat = file.create_dataset("lat", (7,), "f4")
        lat.make_scale("This is a netCDF dimension but not a netCDF variable.         7")
    assert list(FileDataset(path).layout) == ["x", "y"]


def test_arrays_as_values_are_rows(tmp_path):
    values = np.arange(12, dtype="f4").reshape(3, 2, 2)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", (3,), np.dtype("(2,2)f4"))[...] = values
    same(read_all(FileDataset(tmp_path / "f.h5", y=None))["x"], values)


NO_NUMBERS = {
    "text in 'x'": (["a", "bc", "d"], None),
    "different lengths in 'x'": ([np.ones(n, "f4") for n in (1, 2, 3)], h5py.vlen_dtype("f4")),
    "references in 'x'": ([h5py.Reference()] * 3, h5py.ref_dtype),
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_is_no_number_is_named_where_it_is_used(tmp_path, name, raises):
    values, dtype = NO_NUMBERS[name]
    with h5py.File(tmp_path / "f.h5", "w") as file:
        data = file.create_dataset("x", (3,), dtype or h5py.string_dtype())
        for row, value in enumerate(values):
            data[row] = value
        file["y"] = np.arange(3)
    with raises(BadFileError, name):
        FileDataset(tmp_path / "f.h5")
    assert FileDataset(tmp_path / "f.h5", x="y", y=None, keys=["y"]).number_samples == 3


@pytest.mark.parametrize("version", [1, 2, 5])
def test_older_netcdf_is_named(tmp_path, version):
    path = tmp_path / "f.nc"
    path.write_bytes(b"CDF" + bytes([version]) + bytes(80))
    with names(path, "is a NetCDF-3 file: convert it to NetCDF-4, nccopy -k nc4"):
        FileDataset(path)
