"""How a source is laid out, where that cannot be seen: options that every verb which reads examples has."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SourceOptions:
    """How the source is laid out, where it is not plain to see."""

    depth: int = 0
    """Folders: how many levels down the class folders are (below train, val, test). By default a class is the deepest
    folder that holds pictures, and the one above where those below are only dates or repeat in every class."""
    root: Path | None = None
    """Tables: folder that paths are relative to; that of the table by default."""
    path_column: str = ""
    """Tables: name of the column of paths, if it is not path, file, filename or image."""
    label_column: str = ""
    """Tables and features: name of the column of class names, if it is not label, class, category or target."""
    split_column: str = ""
    """Tables and features: name of the column that says train, val or test, if it is not split."""
    feature_column: str = ""
    """Features: name of the array or column of vectors, if it is not features, embeddings or vectors."""
    labels: Path | None = None
    """Features: file of the labels, if they are not beside the vectors: .npy, or text with one per line."""


@dataclass(frozen=True)
class PackOptions(SourceOptions):
    """What only some kinds of sources have."""

    image_column: str = ""
    """huggingface: name of the column of images."""
    box: bool = False
    """cub: cut each image to its bounding box."""
    train_ids: Path | None = None
    """meta-inat: file of the training category ids."""
    test_ids: Path | None = None
    """meta-inat: file of the test category ids."""
