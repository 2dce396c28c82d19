"""Options of every verb that reads examples: how a source is laid out, where that cannot be seen."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SourceOptions:
    """Source: how it is laid out, where that cannot be seen.

    Attributes:
        depth: Folders: how many levels down the class folders are (below train, val, test). By default a class is the
            deepest folder that holds pictures, and the one above where those below are only dates or repeat in every
            class.
        root: Tables: folder that paths are relative to; that of the table by default.
        path_column: Tables: name of the column of paths, if it is not path, file, filename or image.
        label_column: Tables and features: name of the column of class names, if it is not label, class, category or
            target.
        split_column: Tables and features: name of the column that says train, val or test, if it is not split.
        feature_column: Features: name of the array or column of vectors, if it is not features, embeddings or vectors.
        labels: Features: file of the labels, if they are not beside the vectors: .npy, or text with one per line.
        group_depth: Folders: how many levels down, counted as for --depth, the folders are whose pictures belong
            together, such as photos of one scene. Groups are left out as a whole when accuracy, scale and threshold are
            measured. By default photos of one moment and near-copies are.
        group_column: Tables and features: name of the column that says which examples belong together; an example
            whose cell is empty belongs to no other.
    """

    depth: int = 0
    root: Path | None = None
    path_column: str = ""
    label_column: str = ""
    split_column: str = ""
    feature_column: str = ""
    labels: Path | None = None
    group_depth: int = 0
    group_column: str = ""


@dataclass(frozen=True)
class PackOptions(SourceOptions):
    """Source: how it is laid out, where that cannot be seen.

    Attributes:
        image_column: huggingface: name of the column of images.
        box: cub: cut each image to its bounding box.
        train_ids: meta-inat: file of the training category ids.
        test_ids: meta-inat: file of the test category ids.
    """

    image_column: str = ""
    box: bool = False
    train_ids: Path | None = None
    test_ids: Path | None = None
