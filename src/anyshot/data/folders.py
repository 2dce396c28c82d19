"""Own images in folders, as people have them: class folders, perhaps in folders of their own, perhaps below train, val
and test, perhaps all in one folder more, as desktop tools pack it.

A class is a folder that holds pictures, with all that lies below it. Where every class would lie in a further folder
and those are dates or numbers, or have the same names everywhere (cat/front, cat/side, dog/front, dog/side), the class
is the folder above. A class is called by its folder's name, or by its path where two folders have that name.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from anyshot.data.packer import FileBytes, Item, SkippedFile, Source
from anyshot.data.pictures import SUFFIXES
from anyshot.data.store import SPLIT_NAMES, SPLITS
from anyshot.errors import BadInput
from anyshot.text import group_by

HEIC = (".heic", ".heif", ".hif")
RAW = (".arw", ".cr2", ".cr3", ".crw", ".dng", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".srw", ".x3f")
FILMS = (".mov", ".mp4", ".m4v", ".avi", ".mkv", ".3gp", ".webm", ".mpg", ".mpeg")
HIDDEN = "hidden, such as the ._ files of macOS"
LOOSE = "in no class folder"
NO_PICTURE = "no picture by its name"
Parts = tuple[str, ...]  # a path below the folder that is read


def read_folder(path: Path, depth: int = 0) -> Source:
    """The pictures of a folder, each with its class and, where folders say so, its split. `depth` is how many levels
    down the class folders are, where the rule above would choose others."""
    check_folder(path)
    if depth < 0:
        raise BadInput(f"a depth of {depth} is not sensible: class folders are 1 or more levels down.")
    files, left_out, empty = _look(path)
    places, in_no_split = _places(files)
    left_out += in_no_split
    class_of, notes = _classes([folders for _, _, folders in places], depth)
    notes += [f"class folder {path.joinpath(*folder)} has no images and is left out" for folder in empty]
    names = _names(class_of.values())
    items: list[Item] = []
    for file, split, folders in places:
        if folders in class_of:
            items.append(Item(_name(file), names[class_of[folders]], split, FileBytes(path.joinpath(*file))))
        else:
            left_out.append((_name(file), LOOSE))
    if not items:
        raise BadInput(
            f"{path} has no images in class folders: it should look like {path}/CLASS/IMAGE.jpg"
            f"{_counted(left_out)}{f', and --depth {depth} may be too deep' if depth else ''}."
        )
    items.sort(key=lambda item: (SPLITS.index(item.split) if item.split else 0, item.class_name, item.name.split("/")))
    return Source(items, notes=tuple(notes), left_out=tuple(left_out))


def check_folder(path: Path) -> None:
    """Say what is wrong with a folder of pictures, where it is none."""
    if path.is_file():
        raise BadInput(f"{path} is a file: give the folder that it is in, or an archive (zip, tar) of that.")
    if not path.is_dir():
        raise BadInput(f"there is no folder {path}.")
    if (path / "store.json").is_file():
        raise BadInput(f"{path} is a store: give the folder of pictures that it was packed from.")


def list_pictures(path: Path) -> tuple[list[Path], list[SkippedFile]]:
    """All pictures of a folder, however deep and without a thought for classes, and what else is there."""
    files, left_out, _ = _look(path)
    return [path.joinpath(*file) for file in files], left_out


def list_class_folders(path: Path) -> list[Path]:
    """The folders of classes in a folder, in order; hidden ones are none."""
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not _is_hidden(folder.name))


def list_class_images(folder: Path, split: str | None, root: Path) -> list[Item]:
    """Files with the suffix of an image, in order of their paths; the class is the folder's name."""
    return [
        Item(file.relative_to(root).as_posix(), folder.name, split, FileBytes(file))
        for file in list_pictures(folder)[0]
    ]


def find_similar_names(names: Iterable[str]) -> list[list[str]]:
    """Names that only differ in case, spaces, or the way in which letters with accents are coded."""
    plain = group_by(sorted(set(names)), lambda name: tuple(unicodedata.normalize("NFKC", name).casefold().split()))
    return [alike for alike in plain.values() if len(alike) > 1]


# -------------------------------------------------------------------------------------------------------- what is there


def _look(path: Path) -> tuple[list[Parts], list[SkippedFile], list[Parts]]:
    """The pictures below a folder in order, the files that are none, with the reason, and the folders without any."""
    files, left_out, folders = [], [], set()
    for parts, is_folder in _walk(path, (), frozenset()):
        if is_folder:
            folders.add(parts)
        elif why := _why_not(parts):
            left_out.append((_name(parts), why))
        else:
            files.append(parts)
    full = {parts[:end] for parts in files for end in range(len(parts))}
    empty = {parts for parts in folders - full if parts[:-1] in full}
    return sorted(files), sorted(left_out), sorted(empty)


def _walk(folder: Path, above: Parts, seen: frozenset[tuple[int, int]]) -> Iterator[tuple[Parts, bool]]:
    """Every file and folder below a folder, and which it is; links to folders are followed, but not in circles."""
    about = folder.stat()
    here = about.st_dev, about.st_ino
    if here in seen:
        return
    for entry in os.scandir(folder):
        parts = (*above, entry.name)
        if entry.is_dir() and not _is_hidden(entry.name):
            yield parts, True
            yield from _walk(folder / entry.name, parts, seen | {here})
        elif entry.is_file():
            yield parts, False


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _why_not(parts: Parts) -> str:
    """Why a file is not read, by its name; empty for a picture."""
    suffix = os.path.splitext(parts[-1])[1].lower()
    if parts[-1].startswith("."):
        return HIDDEN
    if suffix in SUFFIXES:
        return ""
    if suffix in HEIC:
        return "HEIC, which `pip install 'anyshot[heic]'` reads"
    if suffix in RAW:
        return "camera raw, which has to be saved as JPEG or TIFF first"
    return "a film" if suffix in FILMS else NO_PICTURE


def _name(parts: Parts) -> str:
    return "/".join(parts)


def _counted(left_out: Sequence[SkippedFile]) -> str:
    """What there is instead of pictures in class folders, for the end of a complaint."""
    reasons = Counter(why for _, why in left_out)
    return f"; files that are there: {', '.join(f'{many} {why}' for why, many in reasons.items())}" if reasons else ""


# -------------------------------------------------------------------------------------------------------- what it means


def _wrapper(files: Sequence[Parts]) -> Parts:
    """The folders that only wrap the others: each is alone at its level, and holds several folders, or one and no
    picture."""
    wrapper: Parts = ()
    while True:
        at = len(wrapper)
        tops = {parts[at] if len(parts) > at + 1 else "" for parts in files}
        if len(tops) != 1 or "" in tops or (only := tops.pop()).lower() in SPLIT_NAMES:
            return wrapper
        inner = {parts[at + 1] if len(parts) > at + 2 else "" for parts in files}
        if len(inner - {""}) < 2 and ("" in inner or not inner):
            return wrapper
        wrapper = (*wrapper, only)


def _splits(files: Sequence[Parts]) -> dict[str, str]:
    """The folders at the top that are splits: called so, and with class folders in them. (A class may be called test.)
    Where all folders are called so, they are splits whatever is in them."""
    tops = {parts[0] for parts in files if len(parts) > 1}
    named = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
    if named and named.keys() == tops:
        return named
    return {top: split for top, split in named.items() if any(len(parts) > 2 for parts in files if parts[0] == top)}


def _places(files: Sequence[Parts]) -> tuple[list[tuple[Parts, str | None, Parts]], list[SkippedFile]]:
    """Of each picture its path, its split, and its folders below that; and those that are left out, with the reason."""
    wrapper = len(_wrapper(files))
    splits = _splits([file[wrapper:] for file in files])
    places: list[tuple[Parts, str | None, Parts]] = []
    left_out: list[SkippedFile] = []
    for file in files:
        place = _place(file[wrapper:], splits)
        if isinstance(place, str):
            left_out.append((_name(file), place))
        else:
            places.append((file, *place))
    return places, left_out


def _place(parts: Parts, splits: dict[str, str]) -> tuple[str | None, Parts] | str:
    """The split of a picture and its folders below that, or why it is left out. Beside a training folder, other folders
    are none of the set; without one they are what there is to learn from."""
    if not splits:
        return None, parts[:-1]
    if parts[0] in splits and len(parts) > 1:
        return splits[parts[0]], parts[1:-1]
    if "train" in splits.values():
        return f"beside {', '.join(sorted(splits))}, in none of them"
    return "train", parts[:-1]


def _classes(folders: Sequence[Parts], depth: int) -> tuple[dict[Parts, Parts], list[str]]:
    """The class folder of every folder that holds pictures (loose ones have none), and what there is to say of it."""
    holding = {folder for folder in folders if folder}
    if depth:
        return {folder: folder[:depth] for folder in holding if len(folder) >= depth}, []
    class_of = {
        folder: next(folder[:end] for end in range(1, len(folder) + 1) if folder[:end] in holding) for folder in holding
    }
    notes = []
    if further := sorted({_name(class_of[folder]) for folder in holding if class_of[folder] != folder}):
        notes.append(
            f"{_some(further)} {'holds' if len(further) == 1 else 'hold'} pictures and folders of pictures: all are of "
            "that class (`--depth` counts the levels down to the class folders, where that is wrong)"
        )
    while _are_parts(set(class_of.values())):
        class_of = {folder: class_[:-1] for folder, class_ in class_of.items()}
    if any(len(class_) > 1 for class_ in class_of.values()):
        notes.append("classes are the folders that hold the pictures (`--depth 1` takes the uppermost folders instead)")
    elif any(len(folder) > 1 for folder in holding) and not further:
        notes.append(
            "folders below those of the classes repeat or are numbers, and belong to the class (`--depth 2` makes them "
            "classes)"
        )
    return class_of, notes


def _are_parts(classes: set[Parts]) -> bool:
    """Whether the last folders are rather parts of classes than classes: dates, or the same names in every class."""
    if min(map(len, classes), default=0) < 2:
        return False
    if not any(letter.isalpha() for class_ in classes for letter in class_[-1]):
        return True
    return len(classes) > 1 and min(Counter(class_[-1] for class_ in classes).values()) > 1


def _names(classes: Iterable[Parts]) -> dict[Parts, str]:
    """What each class is called: its folder's name, or the whole path where another folder has that name."""
    distinct = set(classes)
    many = Counter(class_[-1] for class_ in distinct)
    return {class_: class_[-1] if many[class_[-1]] == 1 else "/".join(class_) for class_ in distinct}


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
