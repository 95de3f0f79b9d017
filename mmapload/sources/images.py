"""Folders of image files, decoded by Pillow; the folder that an image is in is its class.

An image is stored as it was decoded: uint8 (height, width, channels), without the last axis where it is
gray; uint16, int32, float32 and bool where the file has those. Colours of a palette are looked up. Nothing is
resized, cropped or turned: what EXIF says of the orientation is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.sources.arrays import explained_read
from mmapload.sources.plainfiles import open_plain
from mmapload.sources.signatures import FIRST_BYTES, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    import numpy.typing as npt

    from mmapload.sources.listing import Listing

__all__ = ["IMAGE_SUFFIXES", "ImageSamples", "decode_image"]

IMAGE_SUFFIXES: Final = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pbm"),
)

_OF_8_BITS: Final = frozenset({"L", "LA", "P", "PA", "RGB", "RGBA", "RGBX"})
_MOST_LISTED: Final = 3


class ImageSamples:
    """Image files, each one sample: `image`, and `label` where they lie in folders, one a class.

    Classes are the folders at the top of the listing, sorted by code point as torchvision's ImageFolder has
    them; `label` is the number of an image's class.

    Parameters
    ----------
    files : Listing
        The images.

    Raises
    ------
    SourceError
        If some images lie in folders and others beside these.

    Examples
    --------
    >>> from mmapload.sources.listing import Listing
    >>> images = ImageSamples(Listing("/pets", ("cat/1.png", "dog/1.png", "dog/2.png"), 0, 0))
    >>> images.classes
    {'label': ('cat', 'dog')}
    """

    def __init__(self, files: Listing) -> None:
        self.kind = "images"
        self.parallel = True
        self._files = files
        folders = {name.partition("/")[0] for name in files.names if "/" in name}
        beside = [name for name in files.names if "/" not in name]
        if folders and beside:
            raise SourceError(
                files.root,
                None,
                f"holds {len(folders):,} folders, one a class, and {len(beside):,} images beside them that "
                f"have no class ({', '.join(map(shown, beside[:_MOST_LISTED]))}): move them",
            )
        self._numbers = {folder: number for number, folder in enumerate(sorted(folders))}
        self.classes: Mapping[str, Sequence[str]] = {"label": tuple(self._numbers)} if folders else {}

    def __len__(self) -> int:
        """Count the images."""
        return len(self._files)

    def name(self, index: int) -> str:
        """Path of image `index`, relative to the listing's root."""
        return self._files.names[index]

    def describe(self, index: int) -> str:
        """Path of image `index`."""
        return self._files.path(index)

    def arrays(self, index: int) -> AbstractContextManager[Mapping[str, Any]]:
        """Return `image`, decoded when it is asked for, and `label` where there are classes."""
        number = self._numbers.get(self._files.names[index].partition("/")[0]) if self._numbers else None
        return nullcontext(_Image(self._files.path(index), number))


class _Image(Mapping[str, Any]):
    """The arrays of one sample."""

    def __init__(self, path: str, number: int | None) -> None:
        self._path = path
        self._number = number

    def __iter__(self) -> Iterator[str]:
        return iter(("image",) if self._number is None else ("image", "label"))

    def __len__(self) -> int:
        return 1 if self._number is None else 2

    def __getitem__(self, name: str) -> Any:
        if name == "label":
            return np.int64(self._number or 0)
        try:
            with open_plain(self._path) as file:
                return decode_image(file, self._path)
        except OSError as error:
            raise explained_read(error, self._path) from error


def decode_image(file: BinaryIO, path: str, member: str | None = None) -> npt.NDArray[Any]:
    """Decode an image, exactly.

    Parameters
    ----------
    file : binary file
        Its bytes.
    path, member : str, str or None
        For messages.

    Returns
    -------
    ndarray
        Shape (height, width) or (height, width, channels).

    Raises
    ------
    SourceError
        If Pillow is missing or cannot decode it, it has several frames, or more bits than Pillow would keep.
    """
    image_module = _library(path)
    try:
        with image_module.open(file) as image:
            _check(image, path, member)
            if image.mode == "1":
                return np.not_equal(np.asarray(image).view(np.uint8), 0)  # Pillow has 255 for True
            if image.mode not in {"P", "PA"}:
                return np.asarray(image)
            transparent = image.mode == "PA" or "transparency" in image.info
            return np.asarray(image.convert("RGBA" if transparent else "RGB"))
    except image_module.UnidentifiedImageError:
        raise SourceError(path, member, _instead(file)) from None
    except Exception as error:
        raise explained_read(error, path, member) from error


def _instead(file: BinaryIO) -> str:
    """Say what a file is that Pillow does not know."""
    file.seek(0)
    what, advice = kind_of(file.read(FIRST_BYTES))
    if "image" in what:
        return f"{what}, cut short or damaged, or of a sort that Pillow cannot read: fetch or write it again"
    return f"not an image that Pillow can read, but {what}: {advice}"


def _check(image: Any, path: str, member: str | None) -> None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        what = f"holds {frames} frames or pages, and a sample is one image: save each in a file of its own"
        raise SourceError(path, member, what)
    if image.mode in _OF_8_BITS and any(_is_deep(tile[0], tile[3]) for tile in image.tile):
        what = f"has 16 bits in each channel of {image.mode}, which Pillow cuts to 8: save the array as .npy"
        raise SourceError(path, member, what)


def _is_deep(codec: str, arguments: Any) -> bool:
    """Whether a decoder of Pillow turns more than 8 bits into 8."""
    parts = arguments if isinstance(arguments, tuple) else (arguments,)
    deep = any(isinstance(part, str) and ";16" in part for part in parts)
    return deep or (codec == "ppm" and isinstance(parts[-1], int) and parts[-1] > 255)


def _library(path: str) -> ModuleType:
    try:
        import PIL.Image
    except ImportError:
        raise SourceError(
            path, None, 'images are decoded by Pillow, which is not installed: pip install "mmapload[images]"'
        ) from None
    return PIL.Image
