"""Reader of images and of folders of them, a subfolder a class; needs Pillow (extra ``images``)."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.imports import import_optional
from compss_train._utils.validation import check_choice, check_count
from compss_train.data import locations
from compss_train.data.classes import class_codes
from compss_train.data.layout import CONTENT_ERRORS, Description, Field, FileContentError, Layout
from compss_train.data.readers.base import Arrays, Reader, select_keys
from compss_train.exceptions import BadFileError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
"""The files that are images; others in the folders are ignored."""
_UNREAD = (
    ".jfif",
    ".jpe",
    ".jp2",
    ".j2k",
    ".jxl",
    ".avif",
    ".heic",
    ".heif",
    ".tga",
    ".apng",
    ".svg",
)
"""Images that are not read."""
_WITH_FRAMES = (".tif", ".tiff", ".webp", ".gif")
"""The images that may have several frames or pages."""
CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
"""The modes that images are converted to, and their channels."""

_THREADS = 8


class ImageFolderReader(Reader):
    """Reads images from a folder with a subfolder a class, as torchvision's ``ImageFolder`` does.

    Arrays: ``x``, uint8 of shape (channels, height, width); ``y``, int64, the index of the
    subfolder in the sorted names. Because a folder lists images class by class, rows are in a fixed
    random order instead, so that each block has images of all classes; ``images`` returns this
    order. A file that is an image is one row, without y.

    Hidden files and folders are no samples, and neither are further frames of an image: their
    number is in a warning when a data set is opened, and so are images of other formats and images
    beside the subfolders. Images are turned as their EXIF orientation says. Values of 16 bits are
    scaled to 8; signed integers, those of 32 bits and floating-point numbers are an error, because
    their range is unknown. Without the mode ``"RGBA"``, transparency is left out.

    Parameters
    ----------
    size:
        Height and width that images are resized to, or one number for both; with ``None`` (default)
        all images must have the size of the first.
    mode:
        Pillow's mode that images are converted to: ``"RGB"``, ``"L"`` (grayscale) or ``"RGBA"``.
    rows:
        Number of images in a block.
    """

    def __init__(
        self, size: int | Sequence[int] | None = None, mode: str = "RGB", rows: int = 256
    ) -> None:
        check_choice("mode", mode, CHANNELS)
        sides = (size, size) if isinstance(size, int) else size
        if sides is not None and (
            len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides)
        ):
            raise ValueError(f"size={size!r}: give a height and a width, or one number for both")
        self.size = None if sides is None else (int(sides[0]), int(sides[1]))
        self.mode = mode
        self.rows = check_count("rows", rows)
        self.classes: Mapping[str, Sequence[Any]] = {}
        self.listed: tuple[int, Mapping[int, str]] | None = None
        """Number of images in the folder, and the names, by row, of the ones that a task reads."""

    def with_columns(
        self,
        groups: Mapping[str, tuple[str, ...]],
        class_columns: Collection[str],
        classes: Mapping[str, Sequence[Any]],
    ) -> Self:
        """Return a reader whose classes are ``classes["y"]``; ``groups`` are a ``TypeError``."""
        super().with_columns(groups, class_columns, {})
        return self._with(classes={**self.classes, **classes})

    def with_files(self, number: int, names: Mapping[int, str]) -> Self:
        """Return a reader that knows the number of images in a folder and some of them by row.

        It does not list the folder again.
        """
        return self._with(listed=(number, names))

    def images(self, folder: str) -> list[str]:
        """Return the names of the images, ``class/name``, in the order of their rows.

        The folder may be an image itself, whose name from there is empty.
        """
        return self._images(folder)[0]

    def _images(self, folder: str) -> tuple[list[str], list[str]]:
        """Return a folder's images in the order of their rows, and those that are no samples."""
        if folder.lower().endswith(SUFFIXES) and not locations.is_folder(folder):
            return [""], []
        samples = []
        unread = []
        for name in sorted(locations.files_below(folder)):
            suffixed = name.lower()
            if suffixed.endswith(SUFFIXES) and "/" in name:
                samples.append(name)
            elif suffixed.endswith(SUFFIXES + _UNREAD):
                unread.append(name)
        if not samples:
            raise FileContentError(
                f"is a folder without images in subfolders, one a class ({', '.join(SUFFIXES)}); "
                "give its files, for example '*.npz' or '*.png'"
            )
        order = np.random.default_rng(0).permutation(len(samples))
        return [samples[place] for place in order], unread

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the number of images, their layout and the classes.

        Without a size, the first image is read.
        """
        images, unread = self._images(path)
        sides = self.size or self._first_size(path, images)
        layout = {"x": Field("uint8", (CHANNELS[self.mode], *sides))}
        classes = {}
        if images[0]:
            layout["y"] = Field("int64", ())
            classes["y"] = tuple(self.classes.get("y") or _classes_of(images))
        bounds = [*range(0, len(images), self.rows), len(images)]
        return Description(
            rows=len(images),
            layout={key: layout[key] for key in select_keys(keys, layout)},
            blocks=tuple(stop - start for start, stop in pairwise(bounds)),
            classes=classes,
            files=tuple(images),
            unread_frames=self._unread_frames(path, images),
            unread_files=tuple(unread),
        )

    def read(
        self, path: str, start: int, stop: int, keys: Collection[str] | None = None
    ) -> tuple[Arrays, int]:
        """Return the images of these rows, and their classes."""
        arrays, number, errors = self.read_good(path, start, stop, keys=keys, layout=None)
        for error in errors.values():
            if error.file == path:
                raise FileContentError(error.reason)
            name = error.file.removeprefix(f"{path}/")
            raise FileContentError(f"holds {name}, which {error.reason}")
        return arrays, number

    def read_good(
        self, path: str, start: int, stop: int, keys: Collection[str] | None, layout: Layout | None
    ) -> tuple[Arrays, int, Mapping[int, BadFileError]]:
        """Return the images, their classes, and the errors of bad ones, or of another size."""
        number, images = self._listing(path)
        names = [images[row] for row in range(start, min(stop, number))]
        chosen = select_keys(keys, ("x",) if names == [""] else ("x", "y"))
        arrays: Arrays = {}
        errors: dict[int, BadFileError] = {}
        if "x" in chosen:
            shape = None if layout is None else layout["x"].shape
            pixels, errors = self._pixels(path, names, shape)
            if pixels is not None:
                arrays["x"] = pixels
        if "y" in chosen:
            classes = self.classes.get("y") or _classes_of(images.values())
            classes_of_rows = [_class_of(name) for name in names]
            places = np.arange(len(names))
            arrays["y"] = class_codes("y", classes_of_rows, places, classes=classes, first=start)
        return {key: arrays[key] for key in chosen if key in arrays}, number, errors

    def _pixels(
        self, path: str, names: Sequence[str], shape: tuple[int, ...] | None
    ) -> tuple[NDArray[np.uint8] | None, dict[int, BadFileError]]:
        """Return the pixels of images, and the errors of bad ones by place; ``None`` for all bad.

        Without a ``shape``, images of another shape than the first good one are bad.
        """
        images = []
        errors = {}
        for place, name in enumerate(names):
            try:
                image = self._decode(path, name)
                shape = shape or image.shape
                if image.shape != shape:
                    raise FileContentError(
                        f"has the size {image.shape[1:]}, unlike others with {tuple(shape[1:])}: "
                        "resize them with reader=ImageFolderReader(size=(height, width))"
                    )
                images.append(image)
            except FileContentError as error:
                errors[place] = BadFileError(image_path(path, name), str(error))
                images.append(np.zeros(shape or (), np.uint8))
        if shape is None:
            return None, errors
        return np.stack([np.broadcast_to(image, shape) for image in images]), errors

    def stamp(self, path: str, start: int, stop: int) -> list[int] | None:
        """Return a checksum of the sizes and versions of the images in these rows.

        ``None`` without rows, or if a store does not have versions. The folder's own modification
        time does not reflect changes below it.
        """
        if start == stop:
            return None
        number, images = self._listing(path)
        names = [images[row] for row in range(start, min(stop, number))]
        paths = [image_path(path, name) for name in names]
        with ThreadPoolExecutor(_THREADS) as threads:
            stamps = list(threads.map(locations.file_stamp, paths))
        if None in stamps:
            return None
        digest = hashlib.sha256(json.dumps([names, stamps]).encode()).hexdigest()
        return [int(digest[:15], 16)]

    def _listing(self, path: str) -> tuple[int, Mapping[int, str]]:
        if self.listed is not None:
            return self.listed
        images = self.images(path)
        return len(images), dict(enumerate(images))

    def _first_size(self, path: str, names: Sequence[str]) -> tuple[int, ...]:
        """Return height and width of the first image that can be read."""
        first_error: FileContentError | None = None
        for name in names:
            try:
                return self._decode(path, name).shape[1:]
            except FileContentError as error:
                reason = f"holds {name}, which {error}" if name else str(error)
                first_error = first_error or FileContentError(reason)
        raise first_error or FileContentError("holds no images")

    def _unread_frames(self, path: str, names: Sequence[str]) -> int:
        def count(name: str) -> int:
            # A bad image is an error when it is read.
            with suppress(FileContentError), _opened(path, name) as image:
                return int(getattr(image, "n_frames", 1)) - 1
            return 0

        suffixes = _WITH_FRAMES
        candidates = [name for name in names if image_path(path, name).lower().endswith(suffixes)]
        with ThreadPoolExecutor(_THREADS) as threads:
            return sum(threads.map(count, candidates))

    def _decode(self, path: str, name: str) -> NDArray[np.uint8]:
        """Return an image, shape (channels, height, width)."""
        with _opened(path, name) as image:
            image.load()
            # EXIF data may be damaged; the pixels have been read.
            with suppress(*CONTENT_ERRORS, SyntaxError):
                _pillow("PIL.ImageOps").exif_transpose(image, in_place=True)
            converted = _of_bytes(image).convert(self.mode)
            if self.size is not None and converted.size != self.size[::-1]:
                converted = converted.resize(self.size[::-1], _pillow().Resampling.BILINEAR)
            values: NDArray[np.uint8] = np.asarray(converted, np.uint8)
            pixels = values.reshape(converted.height, converted.width, -1)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _pillow(module: str = "PIL.Image") -> Any:
    return import_optional(module, extra="images", needed_by="folders of images", package="Pillow")


@contextmanager
def _opened(path: str, name: str) -> Iterator[Any]:
    """Open an image; what is wrong with it is a ``FileContentError``, and not a failing network."""
    module = _pillow()
    try:
        with locations.open_binary(image_path(path, name)) as file, module.open(file) as image:
            yield image
    except (*CONTENT_ERRORS, OSError, SyntaxError, module.DecompressionBombError) as error:
        if isinstance(error, OSError) and (error.errno is not None or hasattr(error, "response")):
            raise
        if isinstance(error, FileContentError):
            raise
        raise FileContentError(f"cannot be read as an image: {error}") from error


def _of_bytes(image: Any) -> Any:
    """Return an image with values from 0 to 255; Pillow's conversions would cut off larger ones."""
    tags = image.tag_v2 if image.format == "TIFF" else {}
    is_signed = _SIGNED in np.atleast_1d(tags.get(_SAMPLE_FORMAT, 1))
    has_16_bits = image.mode.startswith("I;16") or (
        image.mode == "I" and image.format in ("PNG", "PPM")
    )
    if has_16_bits and not is_signed:
        bits = tags.get(_BITS_PER_SAMPLE, (16,))[0]
        # The upper bits, as Pillow takes of colours with 16 bits.
        upper = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
        is_inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        return _pillow().fromarray(255 - upper if is_inverted else upper)
    if is_signed or image.mode in ("I", "F"):
        kind = "integers of 32 bits" if image.mode == "I" else "floating-point numbers"
        if is_signed:
            kind = "signed integers"
        raise FileContentError(
            f"has {kind}, whose range is unknown: save it with 8 or 16 bits, or as arrays (.npy)"
        )
    return image


# tags of TIFF
_BITS_PER_SAMPLE = 258
_PHOTOMETRIC = 262
_SAMPLE_FORMAT = 339
_WHITE_IS_ZERO = 0
_SIGNED = 2


def image_path(folder: str, name: str) -> str:
    """Return the path of an image by its name from a folder, or from itself."""
    if not name:
        return folder
    path, separator, archive = folder.partition("::")
    return f"{path.removesuffix('/')}/{name}{separator}{archive}"


def _class_of(image: str) -> str:
    return image.partition("/")[0]


def _classes_of(images: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({_class_of(image) for image in images}))
