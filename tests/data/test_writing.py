"""Files of data: what is written, and what a full disk leaves."""

import errno
import resource

import numpy as np
import pytest

from compss_train.data.writing import ARRAY_NAME, FORMATS, write_part


@pytest.mark.parametrize("format", [*FORMATS])
def test_a_file_beyond_the_disk_is_the_error_of_the_system(tmp_path, format):
    if format == "h5":
        pytest.skip("HDF5 raises an OSError of its own")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    part = {ARRAY_NAME: np.random.default_rng(0).normal(size=100_000)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            write_part(tmp_path / "file", part, format)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno in (errno.EFBIG, None)  # numpy's has none
