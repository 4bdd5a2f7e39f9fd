"""Folders of images."""

import struct
import zipfile
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    FileDataset,
    Merge,
    PartialShuffle,
    PartialShuffleSampler,
)
from compss_train.data import file_cache
from compss_train.data.readers import ImageFolderReader
from compss_train.exceptions import BadFileError
from tests.data.readers.formats import names, overwritten, same
from tests.data.readers.table_files import pa, parquet
from tests.data.readers.test_table import read_all
from tests.helpers.notes import Notes

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
    images = dataset.reader.images(str(folder))
    arrays = read_all(dataset)
    assert sorted(images) == sorted(
        f"{kind}/{n}.png" for kind, number in CLASSES.items() for n in range(number)
    )
    same(arrays["x"], np.stack([pixels(name).transpose(2, 0, 1) for name in images]))
    same(arrays["y"], np.array([dataset.classes["y"].index(name.split("/")[0]) for name in images]))


def test_single_images_are_rows_without_classes(folder):
    paths = [folder / "cat" / "0.png", folder / "dog" / "1.png"]
    dataset = FileDataset(paths)
    assert (dataset.classes, dataset.training_keys(targets=False)) == ({}, ("x",))
    same(
        read_all(dataset)["x"],
        np.stack([pixels(f"{p.parent.name}/{p.name}").transpose(2, 0, 1) for p in paths]),
    )
    assert [dataset.part([n]).blocks[n].row_names() for n in (0, 1)] == [
        [str(path)] for path in paths
    ]
    before = dataset.fingerprint()
    assert before is not None
    save(paths[0], pixels("another"))
    assert dataset.fingerprint() != before
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
    hint = r"resize them with reader=ImageFolderReader\(size="
    with names(folder, rf"which has the size .*, unlike others .*: {hint}"):
        read_all(FileDataset(folder, ImageFolderReader()))


@pytest.mark.parametrize("size", [0, (3,), (3, 4, 5), (3, 0), (2.5, 3), "ab"])
def test_sizes_that_are_none_and_unknown_modes_are_errors(size):
    with pytest.raises(ValueError, match="give a height and a width"):
        ImageFolderReader(size)
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


def test_what_is_hidden_is_no_sample(folder):
    expected = FileDataset(folder)
    for name in (
        ".ipynb_checkpoints/0.png",
        "cat/._0.png",
        "dog/.thumbs/0.png",
        "__MACOSX/cat/0.png",
        "cat/@eaDir/0.png",
    ):
        save(folder / name, pixels(name))
    (folder / ".DS_Store").write_bytes(b"Bud1")
    dataset = FileDataset(folder)
    assert (dataset.classes, dataset.number_samples) == (expected.classes, expected.number_samples)
    same(read_all(dataset)["y"], read_all(expected)["y"])
    save(folder / "._x.png", pixels("x"))
    save(folder / "x.png", pixels("x"))
    assert FileDataset(f"{folder}/*.png").files == [f"{folder}/x.png"]


DEPTHS = {
    "png": lambda folder, values: Image.fromarray(values).save(folder / "x.png"),
    "tif": lambda folder, values: Image.fromarray(values).save(folder / "x.tif"),
    "tif, other byte order": lambda folder, values: Image.fromarray(values.astype(">u2")).save(
        folder / "x.tif"
    ),
    "pgm": lambda folder, values: (folder / "x.pgm").write_bytes(
        b"P5\n%d %d\n65535\n" % values.shape[::-1] + values.astype(">u2").tobytes()
    ),
}


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("write", DEPTHS.values(), ids=DEPTHS)
@given(values=arrays(np.uint16, (3, 4)))
def test_sixteen_bits_are_scaled(tmp_path_factory, write, mode, values):
    folder = tmp_path_factory.getbasetemp() / "depth"
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    write(folder, values)
    x = read_all(FileDataset(f"{folder}/*", ImageFolderReader(mode=mode)))["x"][0]
    for channel in x[:3]:
        same(channel, (values // 256).astype(np.uint8))


def test_twelve_bits_are_scaled_too(tmp_path):
    strip = bytes.fromhex("fff0008007ff")  # 4095, 0, 2048, 2047
    tags = [
        (256, 4),
        (257, 1),
        (258, 12),
        (259, 1),
        (262, 1),
        (273, 8),
        (277, 1),
        (278, 1),
        (279, len(strip)),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    header = struct.pack("<2sHI", b"II", 42, 8 + len(strip))
    content = header + strip + struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "x.tif").write_bytes(content)
    x = read_all(FileDataset(tmp_path / "x.tif", ImageFolderReader(mode="L")))["x"]
    same(x, np.array([[[[255, 0, 128, 127]]]], np.uint8))


def tiff(path, values, **tags):
    """Write one row of gray values in TIFF, uncompressed."""
    fields = {"bits": (258, values.dtype.itemsize * 8), "white": (262, 1), "format": (339, 1)}
    fields |= {name: (fields[name][0], value) for name, value in tags.items()}
    entries = [
        (256, len(values)),
        (257, 1),
        (259, 1),
        (273, 8),
        (277, 1),
        (278, 1),
        (279, values.nbytes),
    ]
    entries = sorted([*entries, *fields.values()])
    content = (
        struct.pack("<2sHI", b"II", 42, 8 + values.nbytes)
        + values.tobytes()
        + struct.pack("<H", len(entries))
    )
    path.write_bytes(
        content
        + b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in entries)
        + bytes(4)
    )


@pytest.mark.parametrize("dtype", ["<u1", "<u2"])
@given(values=arrays(np.uint16, 4))
def test_zero_is_white_where_the_image_says_so(tmp_path_factory, dtype, values):
    path = tmp_path_factory.getbasetemp() / "white.tif"
    values = values.astype(dtype)
    for white, scaled in ((1, values), (0, np.iinfo(dtype).max - values)):
        tiff(path, values, white=white)
        same(
            read_all(FileDataset(path, ImageFolderReader(mode="L")))["x"][0, 0, 0],
            (scaled >> values.itemsize * 8 - 8).astype("u1"),
        )


@pytest.mark.parametrize("dtype", ["<i1", "<i2", "<i4"])
def test_signed_integers_are_refused(tmp_path, dtype):
    tiff(tmp_path / "x.tif", np.array([-1, 0, 1, 2], dtype), format=2)
    with names(tmp_path / "x.tif", "has signed integers, whose range is unknown"):
        FileDataset(tmp_path / "x.tif")


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_they_say(tmp_path, suffix, orientation):
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6) * 10)
    exif = Image.Exif()
    exif[274] = orientation
    options = {"lossless": True} if suffix == "webp" else {}
    image.save(tmp_path / f"plain.{suffix}", **options)
    image.save(tmp_path / f"turned.{suffix}", exif=exif, **options)
    plain, turned = (
        read_all(FileDataset(tmp_path / f"{name}.{suffix}", ImageFolderReader(mode="L")))["x"][0, 0]
        for name in ("plain", "turned")
    )
    turns = [
        plain,
        plain[:, ::-1],
        plain[::-1, ::-1],
        plain[::-1],
        plain.T,
        np.rot90(plain, -1),
        plain.T[::-1, ::-1],
    ]
    same(turned, [*turns, np.rot90(plain)][orientation - 1])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # of Pillow
def test_damaged_exif_data_leave_the_pixels(tmp_path):
    Image.new("L", (4, 6), 7).save(tmp_path / "x.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01")
    same(
        read_all(FileDataset(tmp_path / "x.jpg", ImageFolderReader(mode="L")))["x"],
        np.full((1, 1, 6, 4), 7, "u1"),
    )


def test_images_that_are_no_samples_are_counted(folder):
    expected = FileDataset(folder)
    save(folder / "beside.png", pixels("beside"))
    (folder / "bird").mkdir()
    for name in ("bird/0.heic", "cat/1.JFIF"):
        (folder / name).write_bytes(b"an image")
    with pytest.warns(
        UserWarning,
        match=rf"^3 images in {folder} are no samples, .* beside\.png: only those in sub",
    ):
        dataset = FileDataset(folder)
    assert (dataset.classes, dataset.number_samples) == (expected.classes, expected.number_samples)


def test_images_in_an_archive_are_those_of_its_folders(folder, tmp_path_factory):
    pytest.importorskip("fsspec")
    path = tmp_path_factory.mktemp("archive") / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in FileDataset(folder).reader.images(str(folder)):
            archive.write(folder / name, name)
            archive.write(folder / name, f"__MACOSX/{name}")
    same(read_all(FileDataset(f"zip://::{path}"))["x"], read_all(FileDataset(folder))["x"])


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_values_of_unknown_range_are_refused(folder, dtype, mode):
    Image.fromarray(pixels("deep", (4, 6)).astype(dtype)).save(folder / "dog" / "deep.tif")
    with names(folder, r"holds dog/deep\.tif, which has .*, whose range is unknown"):
        read_all(FileDataset(folder, ImageFolderReader((4, 6), mode)))


def test_frames_that_are_no_samples_are_counted_once(folder):
    frames = [Image.fromarray(pixels(str(number))) for number in range(5)]
    for name, number in {"cat/a.gif": 5, "cat/b.webp": 3, "dog/c.tif": 2, "dog/d.tiff": 1}.items():
        frames[0].save(folder / name, save_all=True, append_images=frames[1:number])
    (folder / "cat" / "damaged.tif").write_bytes(b"II*\0")
    with pytest.warns(
        UserWarning, match=f"^7 frames or pages of images are not read, .* in {folder}: only"
    ) as told:
        dataset = FileDataset(folder)
    assert len(told) == 1
    assert dataset.number_samples == sum(CLASSES.values()) + 5
    with pytest.warns(UserWarning, match=f"^4 frames .* in {folder}/cat/a.gif"):
        FileDataset(f"{folder}/cat/*.gif")


def test_an_image_that_was_cut_off_is_an_error_that_names_it(folder):
    """Its header can be read."""
    cut = folder / "dog" / "1.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    with names(folder, r"holds dog/1\.png, which cannot be read as an image: .*truncated"):
        read_all(FileDataset(folder, ImageFolderReader((4, 6))))


@pytest.mark.parametrize(
    "error",
    [
        *(Image.DecompressionBombError, SyntaxError, ValueError, OverflowError),
        *(struct.error, IndexError, OSError, EOFError),
    ],
)
def test_every_error_in_reading_an_image_names_it(folder, error, monkeypatch):
    dataset = FileDataset(folder, ImageFolderReader((4, 6)))
    monkeypatch.setattr(Image, "open", Mock(side_effect=error("bad")))
    with names(folder, r"holds \w+/\d\.png, which cannot be read as an image: "):
        read_all(dataset)


# Images that cannot be read are left out alone


@pytest.fixture
def damaged(folder):
    """The folder with four bad images, and their paths."""
    bad = [
        folder / "cat" / "2.png",
        folder / "dog" / "0.png",
        folder / "Zebra" / "1.png",
        folder / "cat" / "6.tif",
    ]
    bad[0].write_bytes(bad[0].read_bytes()[:60])
    bad[1].write_bytes(b"no image")
    save(bad[2], pixels("odd", (5, 5, 3)))
    Image.fromarray(pixels("deep", (4, 6)).astype(np.float32)).save(bad[3])
    return folder, sorted(map(str, bad))


def expected_images(folder, bad):
    names = [
        name for name in ImageFolderReader().images(str(folder)) if f"{folder}/{name}" not in bad
    ]
    return sorted((pixels(name).transpose(2, 0, 1).tobytes(), name.split("/")[0]) for name in names)


def named(batches, dataset):
    """Return the bytes and the class of each image, sorted."""
    pairs = [pair for x, y in batches for pair in zip(np.asarray(x), np.asarray(y), strict=True)]
    return sorted((image.tobytes(), dataset.classes["y"][label]) for image, label in pairs)


WAYS = {
    "block by block": {"shuffle": None, "shuffle_block_data": False},
    "shuffled": {},
    "pools": {"shuffle": PartialShuffle(pool_size=4)},
    "two pools": {"shuffle": PartialShuffle(pool_size=3, pools=2)},
    "a buffer": {"buffer": BufferSpec("fifo", capacity=6)},
    "rounds inside epochs": {"merge": Merge(every=1, unit="batches"), "shuffle_block_data": False},
}


@pytest.mark.parametrize("cache", [None, "memory"])
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_only_images_that_cannot_be_read_are_left_out(damaged, rows, options, cache):
    folder, bad = damaged
    expected = expected_images(folder, bad)
    seen = Notes()

    def step(net, batch, context):
        seen.append(batch)
        return net(batch[0].flatten(1).float()).sum() * 0

    dataset = FileDataset(folder, ImageFolderReader(rows=rows), on_bad_file="skip", cache=cache)
    trainer = DistributedTrainer(2, engine="serial", seed=0)
    trainer.build(nn.Linear(72, 1), {"optimizer": "sgd", "lr": 0.1}, training_step=step)
    for _ in range(2):
        seen.clear()
        before = len(trainer.history)
        with pytest.warns(
            UserWarning, match=("skipped .*png (cannot be read|has the size)|6.tif has floating")
        ):
            trainer.fit(dataset, num_epochs=1, batch_size=3, progress=False, **options)
        assert named(seen, dataset) == expected
        assert sorted(trainer.history[-1]["skipped"]) == bad
        assert sum(record["samples"] for record in trainer.history[before:]) == len(expected)


def test_all_images_of_a_part_that_cannot_be_read_are_named(folder):
    bad = [f"{folder}/{name}" for name in ImageFolderReader().images(str(folder))[:3]]
    for path in bad:
        Path(path).write_bytes(b"no image")
    dataset = FileDataset(folder, ImageFolderReader(rows=3), on_bad_file="skip")
    for cache in (None, file_cache.make_cache("memory", None)):
        dataset.cache = cache
        sampler = PartialShuffleSampler(dataset, batch_size=2)
        assert sum(len(batch["y"]) for batch in sampler) == len(dataset) - 3
        assert sorted(sampler.skipped) == sorted(bad)


def test_classes_are_read_without_their_images(damaged):
    folder, _ = damaged
    dataset = FileDataset(folder, ImageFolderReader(rows=5), keys=["y"], on_bad_file="skip")
    sampler = PartialShuffleSampler(dataset, batch_size=2)
    assert sum(len(batch["y"]) for batch in sampler) == len(dataset)
    assert sampler.skipped == {}


def test_optimizers_are_renewed_in_blocks_whose_first_images_cannot_be_read(folder):
    for name in ImageFolderReader().images(str(folder))[:2]:
        (folder / name).write_bytes(b"no image")
    made = Notes()

    def adam(parameters):
        made.append(torch.optim.Adam(parameters, lr=0.1))
        return made[-1]

    dataset = FileDataset(folder, ImageFolderReader(rows=4), on_bad_file="skip")
    trainer = DistributedTrainer(1, engine="serial", seed=0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))
    trainer.build(net, adam, "cross_entropy", transform=torch.Tensor.float)
    counts = []
    options = {"num_epochs": 1, "shuffle_block_data": False, "progress": False}
    for state in ("keep", "keep", "reset_blocks"):  # the first fit also makes one to know its rates
        made.clear()
        with pytest.warns(UserWarning, match="skipped"):
            trainer.fit(dataset, batch_size=2, merge=Merge(optimizer_state=state), **options)
        counts.append(len(made))
    assert counts[2] - counts[1] == len(dataset.files)


@pytest.mark.parametrize("pools", [1, 2])
def test_a_sampler_leaves_out_only_them_too(damaged, pools):
    folder, bad = damaged
    dataset = FileDataset(folder, ImageFolderReader(rows=5), on_bad_file="skip")
    sampler = PartialShuffleSampler(dataset, shuffle_buffer=4, batch_size=2, pools=pools)
    assert named([(batch["x"], batch["y"]) for batch in sampler], dataset) == expected_images(
        folder, bad
    )
    assert sorted(sampler.skipped) == bad


def test_the_first_image_need_not_be_good(folder):
    names = ImageFolderReader().images(str(folder))
    (folder / names[0]).write_bytes(b"no image")
    dataset = FileDataset(folder, on_bad_file="skip")
    assert (dataset.layout["x"].shape, dataset.skipped) == ((3, 4, 6), {})
    with pytest.raises(BadFileError, match="cannot be read as an image"):
        read_all(dataset)


def test_only_row_groups_that_cannot_be_read_are_left_out_and_named(tmp_path):
    path = tmp_path / "f.parquet"
    numbers = np.arange(20)
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    parquet.write_table(
        pa.table({"x": numbers * 1.0, "y": numbers}), path, row_group_size=6, **options
    )
    overwritten(path, numbers[6:12] * 1.0)
    sampler = PartialShuffleSampler(FileDataset(path, on_bad_file="skip"), batch_size=4)
    assert sorted(y for batch in sampler for y in batch["y"]) == [*range(6), *range(12, 20)]
    assert list(sampler.skipped) == [f"{path}#1"]
