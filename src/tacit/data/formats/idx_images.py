"""MNIST and Fashion-MNIST: four IDX files, looked for in a folder, otherwise downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tacit.data.datasets import Dataset, TaskData
from tacit.data.files import PublishedFile, obtain
from tacit.data.formats.idx import read_labelled_images

__all__ = ["FASHION_MNIST", "MNIST", "IdxImages", "load_idx_images"]

_SHAPE = (28, 28)
_CLASSES = 10
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclass(frozen=True)
class IdxImages:
    """A data set of images in four IDX files.

    Args:
        name: as in the experiment file.
        url: where the files are, each as `<file>.gz`.
        sha256: of the content (decompressed) of each file.
        takes_bare_files: whether a file that lies in `data_dir` itself is taken for this data
            set. Both data sets use the same file names, so only one can have them; the other
            needs a folder of its name.
    """

    name: str
    url: str
    sha256: Mapping[str, str]
    takes_bare_files: bool


MNIST = IdxImages(
    name="mnist",
    url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    sha256={
        "train-images-idx3-ubyte": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        "train-labels-idx1-ubyte": (
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
        ),
        "t10k-images-idx3-ubyte": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        "t10k-labels-idx1-ubyte": (
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
        ),
    },
    takes_bare_files=True,
)

FASHION_MNIST = IdxImages(
    name="fashion-mnist",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    sha256={
        "train-images-idx3-ubyte": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        "train-labels-idx1-ubyte": (
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        "t10k-images-idx3-ubyte": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        "t10k-labels-idx1-ubyte": (
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    },
    takes_bare_files=False,
)


def load_idx_images(source: IdxImages, data_dir: Path) -> TaskData:
    """Read a data set of images: inputs float32 `[records, 1, 28, 28]` in [0, 1], targets int64.

    Raises:
        InputError: if a file is wrong, or is missing and cannot be downloaded.
    """
    train, test = (
        _read_half(_find(source, images, data_dir), _find(source, labels, data_dir))
        for images, labels in (_TRAIN, _TEST)
    )
    return TaskData(source.name, train, test, classes=_CLASSES)


def _read_half(images: Path, labels: Path) -> Dataset:
    pixels, classes = read_labelled_images(images, labels, _SHAPE)
    inputs = torch.from_numpy(pixels).unsqueeze(1).to(torch.float32).div_(255)
    return Dataset(inputs, torch.from_numpy(classes).to(torch.int64))


def _find(source: IdxImages, file: str, data_dir: Path) -> Path:
    """The path of one file, downloaded if it is in none of the folders."""
    url = f"{source.url.rstrip('/')}/{file}.gz"
    folders = _folders(source, data_dir)
    return obtain(
        PublishedFile(source.name, url, source.sha256[file]),
        data_dir,
        folders,
        f"put the four {source.name} files in {folders[0]}",
    )


def _folders(source: IdxImages, data_dir: Path) -> list[Path]:
    """Where the files of a data set may lie, best first."""
    own = data_dir / source.name
    named = data_dir.resolve().name
    others = {other.name for other in (MNIST, FASHION_MNIST)} - {source.name}
    # A folder that is named like the other data set surely holds the other's files.
    if named == source.name or (source.takes_bare_files and named not in others):
        return [own, data_dir]
    return [own]
