import numpy as np
import pytest

from compss_train._utils.numpy_files import load_numpy


def test_arrays_and_archives_are_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    assert load_numpy(tmp_path / "x.npy", mmap_mode="r").tolist() == [0, 1, 2]
    with load_numpy(tmp_path / "x.npz") as archive:
        assert archive["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("objects", [True, False])
def test_no_error_advises_to_unpickle(tmp_path, objects):
    path = tmp_path / "x.npy"
    if objects:
        np.save(path, np.array([{}], object))
    else:
        path.write_bytes(b"no array at all")
    with pytest.raises(ValueError, match="never read") as no:
        load_numpy(path)
    assert "unsafe" not in str(no.value)
    assert no.value.__suppress_context__
    with path.open("rb") as file, pytest.raises(ValueError, match=r"x\.npy is no file of numpy"):
        load_numpy(file)
