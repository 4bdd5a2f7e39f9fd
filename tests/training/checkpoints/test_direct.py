"""What is written directly is what any file would hold, however the file system takes it."""

import errno
import hashlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compss_train.training.checkpoints.arrays import CHUNK, DirectFile

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

    def __init__(self, file, most, error):
        self.file, self.most, self.error = file, most, error
        self.taken = self.refused = 0
        self.fileno, self.close = file.fileno, file.close

    def write(self, content):
        if self.taken and is_direct(self.file):
            self.refused += 1
            raise OSError(self.error, os.strerror(self.error))
        self.taken += 1
        return self.file.write(content[: self.most])


def is_direct(file):
    import fcntl

    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)


def takes_direct_writes(folder):
    try:
        os.close(os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


needs_direct = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no direct writes")


@needs_direct
def test_it_is_written_directly_where_the_file_system_does_that(tmp_path):
    with DirectFile(tmp_path / "file") as file:
        assert is_direct(file._file) == takes_direct_writes(tmp_path)
        file.write(memoryview(bytes(3 * CHUNK)))
        assert is_direct(file._file) == takes_direct_writes(tmp_path)


@needs_direct
@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.parametrize("most", [PAGE, 100_000, CHUNK])
def test_a_file_system_that_takes_less_or_wants_other_sizes(tmp_path, monkeypatch, most, error):
    parts = parts_of(CHUNK, CHUNK, CHUNK + 3)
    with DirectFile(tmp_path / "file") as file:
        particular = Particular(file._file, most, error)
        monkeypatch.setattr(file, "_file", particular)
        for part in parts:
            file.write(memoryview(part))
        file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    assert particular.refused <= takes_direct_writes(tmp_path)  # it is asked once
    assert most == 100_000 or particular.refused == takes_direct_writes(tmp_path)


@needs_direct
def test_a_file_system_without_direct_writes(tmp_path, monkeypatch):
    import fcntl

    def refusing(file, what, flags=0):
        if what == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return before(file, what, flags)

    before = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", refusing)
    parts = parts_of(CHUNK + 3)
    write(tmp_path / "file", parts)
    assert (tmp_path / "file").read_bytes() == parts[0]


def test_it_is_brought_to_the_disk_when_all_is_written(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    write(tmp_path / "file", parts_of(CHUNK, 5))
    assert sizes == [CHUNK + 5]


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
