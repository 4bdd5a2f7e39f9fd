"""Remote files, by fsspec: its memory and local file systems, and a server of S3 on this
machine.
"""

import http.server
import io
import json
import threading
import uuid
import zipfile
from functools import partial
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
import torch

from compss_train import FileDataset
from compss_train.data.locations import file_stamp, suffix_of
from compss_train.data.reading import bad_file_errors
from tests.data.readers.formats import filled, names, same, save_hdf5
from tests.data.readers.table_files import TABLES, columns
from tests.data.readers.test_table import read_all

X = filled((12, 3))
Y = np.arange(12) % 2


def saved_bytes(save, *arguments, **options):
    save(content := io.BytesIO(), *arguments, **options)
    return content.getvalue()


FILES = {
    ".npz": saved_bytes(np.savez, x=X, y=Y),
    ".pt": saved_bytes(
        lambda file, value: torch.save(value, file), {"x": torch.tensor(X), "y": torch.tensor(Y)}
    ),
    ".h5": saved_bytes(save_hdf5, x=X, y=Y),
}


@pytest.fixture
def memory():
    """Return the name of a folder in fsspec's memory."""
    folder = f"memory://{uuid.uuid4().hex}"
    yield folder
    fsspec.filesystem("memory").rm(folder, recursive=True)


def put(name, content):
    with fsspec.open(name, "wb") as file:
        file.write(content)


@pytest.mark.parametrize("suffix", FILES)
def test_arrays_of_remote_files_are_read(memory, suffix):
    for number in range(2):
        put(f"{memory}/{number}{suffix}", FILES[suffix])
    dataset = FileDataset(f"{memory}/*{suffix}")
    assert dataset.sizes == (12, 12)
    arrays = read_all(dataset)
    same(np.asarray(arrays["x"]), np.concatenate([X, X]))
    same(np.asarray(arrays["y"]), np.concatenate([Y, Y]))


def test_a_remote_array_and_the_local_file_system_are_read(memory, tmp_path):
    put(f"{memory}/f.npy", saved_bytes(np.save, X))
    same(read_all(FileDataset(f"{memory}/f.npy"))["x"], X)
    np.savez(tmp_path / "f.npz", x=X, y=Y)
    same(read_all(FileDataset(f"file://{tmp_path}/*.npz"))["x"], X)


@pytest.mark.parametrize("kind", TABLES)
def test_remote_tables_are_read(memory, tmp_path, kind):
    form = TABLES[kind]
    with open(form.saved(tmp_path, **columns()), "rb") as file:
        put(f"{memory}/f{form.suffix}", file.read())
    dataset = FileDataset(f"{memory}/f{form.suffix}", x=["a", "b"], y="kind")
    assert dataset.sizes == form.blocks
    same(read_all(dataset)["x"], np.stack([columns()["a"], columns()["b"]], 1))
    assert dataset.classes == {"kind": ("cat", "dog", "eel")}


def test_remote_images_are_read(memory):
    image = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        put(
            f"{memory}/{kind}/1.png",
            saved_bytes(image.fromarray(np.full((2, 3), 7, np.uint8)).save, format="png"),
        )
    dataset = FileDataset(memory)
    assert (dataset.sizes, dataset.classes) == ((2,), {"y": ("cat", "dog")})
    same(read_all(dataset)["x"], np.full((2, 3, 2, 3), 7, np.uint8))


def test_a_stamp_changes_with_the_file(memory):
    put(name := f"{memory}/f.npz", FILES[".npz"])
    before = file_stamp(name)
    assert len(before) == 2
    assert before == file_stamp(name)
    put(name, FILES[".npz"])
    assert before != file_stamp(name)


class ClientError(Exception):
    """What a package that reaches a store may raise."""


class AnswerError(OSError):
    """What a client of HTTP raises for an answer."""

    def __init__(self, status):
        super().__init__(str(status))
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    "error",
    [
        *(
            ClientError("503"),
            PermissionError(13, "expired"),
            OSError(16, "slow down"),
            ConnectionError("lost"),
        ),
        *(TimeoutError("no answer"), AnswerError(429)),
    ],
)
def test_errors_of_a_store_are_not_those_of_a_file(error):
    with pytest.raises(type(error)) as caught, bad_file_errors("s3://bucket/f.npz"):
        raise error
    assert caught.value is error
    assert "while reading s3://bucket/f.npz" in error.__notes__


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        *(
            ("http://host/f.NPZ?signature=a.b", ".npz"),
            ("s3://bucket/f.tsv", ".tsv"),
            ("what?.npz", ".npz"),
        ),
        ("http://host/f?x", ""),
    ],
)
def test_the_suffix_of_an_address_is_before_its_query(name, suffix):
    assert suffix_of(name) == suffix


def test_a_missing_remote_file_is_an_error(memory):
    put(f"{memory}/f.npz", FILES[".npz"])
    with names(f"{memory}/g.npz", "does not exist"):
        FileDataset(f"{memory}/g.npz")
    with pytest.raises(ValueError, match="no files found"):
        FileDataset(f"{memory}/*.pt")


@pytest.mark.parametrize("name", ["gs://bucket/f.npz", "gs://bucket/*.npz"])
def test_a_missing_package_of_a_store_is_explained(monkeypatch, name):
    def missing(path):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(ImportError, match="install gcsfs"):
        FileDataset(name, on_bad_file="skip")


def test_a_file_that_names_other_files_is_not_read(tmp_path):
    np.savez(tmp_path / "secret.npz", x=X, y=Y)
    references = tmp_path / "references.npz"
    references.write_text(json.dumps({"a.npz": [str(tmp_path / "secret.npz")]}))
    for name in (
        f"reference://a.npz::{references}",
        f"simplecache::reference://*.npz::{references}",
    ):
        with pytest.raises(ValueError, match="files of references are not read"):
            FileDataset(name)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files, without ranges; those below ``chunked`` without a length, ``busy`` not at
    all.
    """

    def log_message(self, *_):
        pass

    def send_head(self):
        if self.path.startswith("/busy"):
            return self.send_error(503)
        return super().send_head()


@pytest.fixture
def site(tmp_path):
    """Serve a folder by HTTP, and return its address."""
    pytest.importorskip("aiohttp")
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Files, directory=tmp_path)
    ) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("suffix", FILES)
def test_files_of_a_server_without_ranges_are_read_from_a_copy(site, tmp_path, suffix):
    (tmp_path / f"f{suffix}").write_bytes(FILES[suffix])
    dataset = FileDataset([f"simplecache::{site}/f{suffix}?signature=a.b"])
    same(read_all(dataset)["x"], X)
    assert FileDataset(f"simplecache::{site}/f{suffix}").sizes == (12,)


def test_a_missing_file_and_a_failing_server_are_told_apart(site):
    with names(f"{site}/f.npz", "does not exist"):
        FileDataset([f"{site}/f.npz"])
    for address in (f"{site}/busy.npz", "http://127.0.0.1:9/f.npz"):
        with pytest.raises(FileNotFoundError) as caught:
            FileDataset([address], on_bad_file="skip")
        assert f"while reading {address}" in caught.value.__notes__


@pytest.mark.parametrize("place", ["{}", "file://{}", "relative"])
def test_files_in_an_archive_are_read_by_name_and_by_pattern(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("d.zip", "w") as archive:
        for name in ("d/0.npz", "d/1.npz", "d/._1.npz", "other.txt"):
            archive.writestr(name, FILES[".npz"] if "._" not in name else b"of a system")
    place = "d.zip" if place == "relative" else place.format(tmp_path / "d.zip")
    for files in (
        f"zip://d/*.npz::{place}",
        [f"zip://d/{number}.npz::{place}" for number in (0, 1)],
    ):
        dataset = FileDataset(files)
        assert dataset.files == [f"zip://d/{number}.npz::{place}" for number in (0, 1)]
        monkeypatch.chdir("/")
        same(np.asarray(read_all(dataset)["x"]), np.concatenate([X, X]))
        monkeypatch.chdir(tmp_path)
    with names(
        f"zip://d/9.npz::{place if '://' in place else tmp_path / 'd.zip'}", ("does not exist")
    ):
        FileDataset(f"zip://d/9.npz::{place}")
