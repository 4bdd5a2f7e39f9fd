"""Folders of images."""

from collections import Counter

import numpy as np
import pytest

from compss_train import FileDataset
from compss_train.data.readers import ImageFolderReader
from compss_train.exceptions import BadFileError
from tests.data.readers.formats import names, same
from tests.data.readers.test_table import read_all

Image = pytest.importorskip("PIL.Image")

CLASSES = {"cat": 7, "dog": 5, "Zebra": 3}


def pixels(name, shape=(4, 6, 3)):
    return np.random.default_rng(sum(name.encode())).integers(0, 256, shape, np.uint8)


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def folder(tmp_path):
    for kind, number in CLASSES.items():
        for place in range(number):
            save(tmp_path / kind / f"{place}.png", pixels(f"{kind}/{place}.png"))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "README.md").write_text("no class")
    return tmp_path


def test_images_and_classes_are_those_of_the_subfolders(folder):
    dataset = FileDataset(folder, ImageFolderReader(rows=4))
    assert dataset.classes == {"y": ("Zebra", "cat", "dog")}  # sorted as torchvision does
    assert dataset.sizes == (4, 4, 4, 3)
    assert dataset.training_keys() == ("x", "y")
    images, arrays = dataset.reader.images(str(folder)), read_all(dataset)
    assert sorted(images) == sorted(f"{kind}/{n}.png" for kind, number in CLASSES.items() for n in range(number))
    same(arrays["x"], np.stack([pixels(name).transpose(2, 0, 1) for name in images]))
    same(arrays["y"], np.array([dataset.classes["y"].index(name.split("/")[0]) for name in images]))


def test_single_images_are_rows_without_classes(folder):
    paths = [folder / "cat" / "0.png", folder / "dog" / "1.png"]
    dataset = FileDataset(paths)
    assert (dataset.classes, dataset.training_keys(targets=False)) == ({}, ("x",))
    same(read_all(dataset)["x"], np.stack([pixels(f"{p.parent.name}/{p.name}").transpose(2, 0, 1) for p in paths]))
    assert [dataset.part([n]).blocks[n].row_names() for n in (0, 1)] == [[str(path)] for path in paths]
    paths[1].write_text("no image")
    with pytest.raises(BadFileError, match=r"1\.png cannot be read as an image"):
        FileDataset(paths)


@pytest.mark.parametrize(("size", "shape"), [((3, 5), (3, 5)), (8, (8, 8))])
def test_images_are_resized(folder, size, shape):
    dataset = FileDataset(folder, ImageFolderReader(size))
    assert dataset.layout["x"].shape == (3, *shape)
    name = dataset.reader.images(str(folder))[0]
    resized = Image.fromarray(pixels(name)).resize(shape[::-1], Image.Resampling.BILINEAR)
    same(read_all(dataset)["x"][0], np.asarray(resized).transpose(2, 0, 1))


def test_classes_that_are_given_are_those(folder):
    dataset = FileDataset(folder, classes={"y": ["dog", "cat", "Zebra", "emu"]})
    labels = Counter(read_all(dataset)["y"].tolist())
    assert labels == {0: CLASSES["dog"], 1: CLASSES["cat"], 2: CLASSES["Zebra"]}
    with names(folder, "holds .*Zebra.*, which is none of its classes 'dog', 'cat'"):
        read_all(FileDataset(folder, classes={"y": ["dog", "cat"]}))


def test_the_error_of_different_sizes_says_how_to_resize(folder):
    save(folder / "cat" / "odd.png", pixels("odd", (5, 5, 3)))
    with names(folder, r"images of different sizes, .*resize them with reader=ImageFolderReader\(size="):
        read_all(FileDataset(folder, ImageFolderReader()))


@pytest.mark.parametrize("damage", [lambda content: content[:40], lambda content: b"no image"])
def test_a_damaged_image_is_an_error_that_names_it(folder, damage):
    damaged = folder / "dog" / "1.png"
    damaged.write_bytes(damage(damaged.read_bytes()))
    with names(folder, r"holds dog/1\.png, which cannot be read as an image"):
        read_all(FileDataset(folder, ImageFolderReader((4, 6))))


@pytest.mark.parametrize("given", [0, (3,), (3, 4, 5), (3, 0), (2.5, 3), "ab"])
def test_sizes_that_are_none_and_unknown_modes_are_errors(given):
    with pytest.raises(ValueError, match="give a height and a width"):
        ImageFolderReader(given)
    with pytest.raises(ValueError, match="mode='CMYK': choose one of 'RGB', 'L', 'RGBA'"):
        ImageFolderReader(mode="CMYK")


def test_a_cache_notices_an_image_that_changed(folder):
    dataset = FileDataset(folder, ImageFolderReader(rows=20), cache=folder.parent / "cache")
    entry = dataset.part([0]).cache_entry(0)
    entry.store(read_all(dataset))
    assert dataset.part([0]).cache_entry(0).load() is not None
    save(folder / "cat" / "0.png", 255 - pixels("cat/0.png"))
    assert dataset.part([0]).cache_entry(0).load() is None


def test_folders_that_link_in_a_circle_are_read_once(folder):
    expected = ImageFolderReader().images(str(folder))
    for kind in ("cat", "dog"):
        (folder / kind / "up").symlink_to("..")
    dataset = FileDataset(folder)
    assert dataset.number_samples == len(expected)
    assert dataset.reader.images(str(folder)) == expected


def test_links_out_of_the_folder_are_followed(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    save(outside / "0.png", pixels("0"))
    (folder / "bird").symlink_to(outside)
    assert FileDataset(folder).number_samples == sum(CLASSES.values()) + 1
