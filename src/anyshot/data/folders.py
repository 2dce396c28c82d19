"""Own images: a folder of class folders, with or without train, val and test above them."""

from pathlib import Path

from anyshot.data.packing import File, Item, Source
from anyshot.data.pictures import SUFFIXES
from anyshot.data.store import SPLITS
from anyshot.errors import BadInput

OTHER_NAMES = {"valid": "val", "validation": "val", "dev": "val", "training": "train", "testing": "test"}


def read_folder(path: Path) -> Source:
    """Every image below a class folder, however deep, belongs to that class."""
    check_folder(path)
    folders = {OTHER_NAMES.get(folder.name.lower(), folder.name.lower()): folder for folder in class_folders(path)}
    if folders and folders.keys() <= set(SPLITS):
        parts: dict[str | None, Path] = {split: folders[split] for split in SPLITS if split in folders}
    else:
        parts = {None: path}
    items: list[Item] = []
    notes: list[str] = []
    for split, part in parts.items():
        for folder in class_folders(part):
            images = images_of_class(folder, split, path)
            items += images
            if not images:
                notes.append(f"class folder {folder} has no images and is left out")
    if not items:
        raise BadInput(f"{path} has no images in class folders: it should look like {path}/CLASS/IMAGE.jpg.")
    return Source(items, notes=tuple(notes))


def check_folder(path: Path) -> None:
    """Say what is wrong with a folder of pictures, where it is none."""
    if path.is_file():
        raise BadInput(f"{path} is a file: give the folder that it is in, or an archive (zip, tar) of that.")
    if not path.is_dir():
        raise BadInput(f"there is no folder {path}.")
    if (path / "store.json").is_file():
        raise BadInput(f"{path} is a store: give the folder of pictures that it was packed from.")


def class_folders(path: Path) -> list[Path]:
    """The folders of classes in a folder, in order; hidden ones are none."""
    return sorted(
        folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith((".", "__MACOSX"))
    )


def images_of_class(folder: Path, split: str | None, root: Path) -> list[Item]:
    """Files with the suffix of an image, in order of their paths; the class is the folder's name."""
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and is_shown(file, folder))
    return [Item(file.relative_to(root).as_posix(), folder.name, split, File(file)) for file in files if file.is_file()]


def is_shown(file: Path, folder: Path) -> bool:
    """Whether neither the file nor a folder on the way to it is hidden (such as the ._ files of macOS)."""
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)
