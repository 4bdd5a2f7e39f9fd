"""What is written directly is what any file would hold, however the file system takes it."""

import errno
import hashlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compss_train.checkpoints.direct import CHUNK, DirectFile

PAGE = 4096
sizes = st.sampled_from([0, 1, PAGE - 1, PAGE, PAGE + 1, CHUNK - PAGE, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])


def write(path, parts):
    with DirectFile(path) as file:
        for part in parts:
            file.write(memoryview(part))
        return file.finish()


def parts_of(*lengths):
    return [os.urandom(length) for length in lengths]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(sizes, max_size=4))
def test_a_file_holds_its_parts_in_order_and_its_checksum_is_theirs(tmp_path, lengths):
    path, parts = tmp_path / "file", parts_of(*lengths)
    path.unlink(missing_ok=True)
    checksum = write(path, parts)
    assert path.read_bytes() == b"".join(parts)
    assert checksum == hashlib.sha256(b"".join(parts)).hexdigest()


def test_where_there_are_no_direct_writes_it_is_written_as_any_file_is(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    parts = parts_of(2 * CHUNK, 5)
    write(tmp_path / "file", parts)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


class Particular:
    """A raw file that takes at most so much at a time, and nothing directly after the first."""

    def __init__(self, file, most):
        self.file, self.most, self.refused, self.taken = file, most, 0, 0
        self.fileno, self.close = file.fileno, file.close

    def write(self, content):
        if self.taken and file_is_direct(self.file):
            self.refused += 1
            raise OSError(errno.EINVAL, "Invalid argument")
        self.taken += 1
        return self.file.write(content[: self.most])


def file_is_direct(file):
    import fcntl

    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="there are no direct writes on this system")
@pytest.mark.parametrize("most", [PAGE, 100_000, CHUNK])
def test_a_file_system_that_takes_less_or_wants_other_sizes(tmp_path, monkeypatch, most):
    parts = parts_of(CHUNK, CHUNK, CHUNK + 3)
    with DirectFile(tmp_path / "file") as file:
        direct = file_is_direct(file._file)
        particular = Particular(file._file, most)
        monkeypatch.setattr(file, "_file", particular)
        for part in parts:
            file.write(memoryview(part))
        file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    assert particular.refused == (direct and most % PAGE == 0)  # the file system itself refuses others


def test_what_the_system_refuses_is_raised(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "file")
    if os.path.exists("/dev/full"):
        with DirectFile(tmp_path / "other") as file:
            file._file.close()
            file._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
            file.write(memoryview(b"x"))
            with pytest.raises(OSError, match="No space left"):
                file.finish()
