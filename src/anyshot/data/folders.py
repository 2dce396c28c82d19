"""List the pictures of class folders, and find out which folders are classes and splits.

Class folders may be nested, may lie below train, val and test, and all may lie in one more folder, as in the archives
of desktop tools.

A class is a folder that holds pictures, with everything below it. Where the names of these folders are only dates or
numbers, or repeat in every folder above (cat/front, cat/side, dog/front, dog/side), the classes are the folders above.
A class has the name of its folder, or its path where two folders have the same name.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from anyshot.data.archives import list_tar
from anyshot.data.layout import PackOptions
from anyshot.data.pictures import SUFFIXES, FileBytes
from anyshot.data.source import Item, ReadPicture, SkippedFile, Source
from anyshot.data.store import SPLIT_NAMES, SPLITS
from anyshot.errors import BadInput
from anyshot.text import list_first

HEIC = (".heic", ".heif", ".hif")
RAW = (".arw", ".cr2", ".cr3", ".crw", ".dng", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".srw", ".x3f")
FILMS = (".mov", ".mp4", ".m4v", ".avi", ".mkv", ".3gp", ".webm", ".mpg", ".mpeg")
# Reasons why a file is skipped, for messages.
HIDDEN = "hidden, such as the ._ files of macOS"
LOOSE = "in no class folder"
NO_PICTURE = "no picture by its name"
LINKED_TWICE = "a link to a folder that another link has led to"
Parts = tuple[str, ...]  # the names of a path below the folder that is read


def read_folder(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the pictures of a folder with their classes and, where folders say so, their splits.

    Args:
        path: The folder.
        options: `depth` says how many levels down the class folders are; 0 finds them by the rule above. `group_depth`
            says so of the folders whose pictures belong together.
        labelled: Whether classes are needed; if not, every picture is listed by its full path.
    """
    check_folder(path)
    files, skipped, empty_folders = _list_folder(path)
    if not labelled:
        items = [Item(str(path.joinpath(*file)), "", None, FileBytes(path.joinpath(*file))) for file in files]
        return Source(items, skipped=tuple((str(path / name), why) for name, why in skipped))
    readers = {file: FileBytes(path.joinpath(*file)) for file in files}
    source = _label_by_folder(path, readers, options, skipped)
    notes = [f"class folder {path.joinpath(*folder)} has no images and is left out" for folder in empty_folders]
    return replace(source, notes=(*source.notes, *notes))


def _label_by_folder(
    path: Path, readers: Mapping[Parts, ReadPicture], options: PackOptions, skipped: Sequence[SkippedFile]
) -> Source:
    """Return the pictures below a path, with classes, splits and groups by their folders.

    `readers` reads each picture, by the parts of its path; `skipped` are files that were left out before.
    """
    depth, group_depth = options.depth, options.group_depth
    for level in (depth, group_depth):
        if level < 0:
            raise BadInput(f"a depth of {str(level)[:20]} is not sensible: folders are 1 or more levels down.")
    places, in_no_split = _find_splits(sorted(readers))
    class_of, notes = _find_classes([folders for _, _, folders in places], depth, has_groups=group_depth > 0)
    names = _name_classes(class_of.values())
    items = [
        Item(_join(file), names[class_of[folders]], split, readers[file], group=_name_group(folders, group_depth))
        for file, split, folders in places
        if folders in class_of
    ]
    in_no_class = [(_join(file), LOOSE) for file, _, folders in places if folders not in class_of]
    skipped = (*skipped, *in_no_split, *in_no_class)
    if not items:
        raise BadInput(
            f"{path} has no images in class folders: it should look like {path}/CLASS/IMAGE.jpg"
            f"{_describe_others(skipped)}{f', and --depth {depth} may be too deep' if depth else ''}."
        )
    if group_depth and not any(item.group for item in items):
        raise BadInput(f"{path} has no folder {group_depth} levels down: --group-depth is too deep.")
    items.sort(key=lambda item: (SPLITS.index(item.split) if item.split else 0, item.class_name, item.name.split("/")))
    return Source(items, notes=tuple(notes), skipped=skipped)


def check_folder(path: Path) -> None:
    """Raise a BadInput where a folder was expected and a path is a file."""
    if path.is_file():
        raise BadInput(f"{path} is a file: give the folder that it is in, or an archive (zip, tar) of that.")


def is_hidden(name: str) -> bool:
    """Return whether a name is that of a hidden file or folder."""
    return name.startswith((".", "__MACOSX"))


def why_skipped(name: str) -> str:
    """Return why a file is not read, by its name; empty for a picture."""
    suffix = os.path.splitext(name)[1].lower()
    if name.startswith("."):
        return HIDDEN
    if suffix in SUFFIXES:
        return ""
    if suffix in HEIC:
        return "HEIC, which `pip install 'anyshot[heic]'` reads"
    if suffix in RAW:
        return "camera raw, which has to be saved as JPEG or TIFF first"
    return "a film" if suffix in FILMS else NO_PICTURE


# ------------------------------------------------------------------------------------------------------------ listing


def _list_folder(path: Path) -> tuple[list[Parts], list[SkippedFile], list[Parts]]:
    """Return the pictures below a folder, the files that are skipped, and the class folders without a picture.

    Links to folders are followed, but not in circles, and only the first link to each folder: n folders that link to
    each other have n! paths.
    """
    files: list[Parts] = []
    skipped: list[SkippedFile] = []
    folders: set[Parts] = set()
    linked: set[tuple[int, int]] = set()  # inodes of folders that a link has led to

    def visit(folder: Path, above: Parts, inodes: frozenset[tuple[int, int]]) -> None:
        """List a folder; `inodes` are its own and those of the folders above."""
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            parts = (*above, entry.name)
            if entry.is_dir() and not is_hidden(entry.name):
                status = entry.stat()
                inode = status.st_dev, status.st_ino
                if inode in inodes:
                    continue
                if entry.is_symlink() and inode in linked:
                    skipped.append((_join(parts), LINKED_TWICE))
                    continue
                if entry.is_symlink():
                    linked.add(inode)
                folders.add(parts)
                visit(folder / entry.name, parts, inodes | {inode})
            elif entry.is_file():
                if why := why_skipped(entry.name):
                    skipped.append((_join(parts), why))
                else:
                    files.append(parts)

    status = path.stat()
    visit(path, (), frozenset({(status.st_dev, status.st_ino)}))
    parents = {parts[:end] for parts in files for end in range(len(parts))}
    empty = {parts for parts in folders - parents if parts[:-1] in parents}
    return sorted(files), sorted(skipped), sorted(empty)


def _join(parts: Parts) -> str:
    return "/".join(parts)


def _describe_others(skipped: Sequence[SkippedFile]) -> str:
    """Return the end of a message that says which files there are instead of pictures in class folders."""
    reasons = Counter(why for _, why in skipped)
    return f"; files that are there: {', '.join(f'{many} {why}' for why, many in reasons.items())}" if reasons else ""


# ------------------------------------------------------------------------------------------------- splits and classes


def _count_wrappers(files: Sequence[Parts]) -> int:
    """Return how many levels of folders only wrap the others, as archives often have one.

    The folder of such a level is the only one there, and holds several folders, or one folder and no picture.
    """
    level = 0
    while True:
        tops = {parts[level] if len(parts) > level + 1 else "" for parts in files}  # "" stands for a picture
        if len(tops) != 1 or "" in tops or tops.pop().lower() in SPLIT_NAMES:
            return level
        inner = {parts[level + 1] if len(parts) > level + 2 else "" for parts in files}
        if "" in inner and len(inner) <= 2:
            return level
        level += 1


def _find_split_folders(files: Sequence[Parts]) -> dict[str, str]:
    """Return the split of each top folder that is one: it has the name of a split, and holds class folders.

    A folder of that name without class folders is a class called test, unless all top folders have names of splits.
    """
    tops = {parts[0] for parts in files if len(parts) > 1}
    split_of = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
    if split_of and split_of.keys() == tops:
        return split_of
    return {top: split for top, split in split_of.items() if any(len(parts) > 2 for parts in files if parts[0] == top)}


def _find_splits(files: Sequence[Parts]) -> tuple[list[tuple[Parts, str | None, Parts]], list[SkippedFile]]:
    """Return the path of each picture, its split and its folders below that; and the pictures that are in no split.

    Folders that are no splits are left out if there is a training folder, and are the training set if there is none.
    """
    level = _count_wrappers(files)
    splits = _find_split_folders([file[level:] for file in files])
    places: list[tuple[Parts, str | None, Parts]] = []
    skipped: list[SkippedFile] = []
    for file in files:
        parts = file[level:]
        if not splits:
            places.append((file, None, parts[:-1]))
        elif parts[0] in splits and len(parts) > 1:
            places.append((file, splits[parts[0]], parts[1:-1]))
        elif "train" in splits.values():
            skipped.append((_join(file), f"beside {', '.join(sorted(splits))}, in none of them"))
        else:
            places.append((file, "train", parts[:-1]))
    return places, skipped


def _find_classes(folders: Sequence[Parts], depth: int, *, has_groups: bool) -> tuple[dict[Parts, Parts], list[str]]:
    """Return the class folder of each folder that holds pictures, and notes on the choice."""
    distinct = {folder for folder in folders if folder}
    if depth:
        return {folder: folder[:depth] for folder in distinct if len(folder) >= depth}, []
    class_of = {
        folder: next(folder[:end] for end in range(1, len(folder) + 1) if folder[:end] in distinct)
        for folder in distinct
    }
    nested = sorted({_join(class_of[folder]) for folder in distinct if class_of[folder] != folder})
    while _are_parts_of_classes(set(class_of.values())):
        class_of = {folder: class_[:-1] for folder, class_ in class_of.items()}
    return class_of, _describe_choice(class_of, nested, has_groups)


def _describe_choice(class_of: dict[Parts, Parts], nested: Sequence[str], has_groups: bool) -> list[str]:
    """Return a note that says which folders are the classes, where there are folders in folders."""
    if not any(len(folder) > 1 for folder in class_of):
        return []
    verb = "holds" if len(nested) == 1 else "hold"
    why = f"{list_first(nested)} {verb} pictures and folders of pictures" if nested else "there are folders in folders"
    names = list_first(sorted({_join(class_) for class_ in class_of.values()}))
    hint = "`--depth` counts the levels down to the class folders, where that is wrong"
    if not has_groups and any(class_ != folder for folder, class_ in class_of.items()):
        deepest = max(map(len, class_of))
        hint += f"; `--group-depth {deepest}` says that pictures of one folder below belong together, such as a scene's"
    return [f"{why}: the classes are {names} ({hint})"]


def _are_parts_of_classes(classes: set[Parts]) -> bool:
    """Return whether the last folders divide classes further: their names have no letters, or repeat in every class."""
    if min(map(len, classes), default=0) < 2:
        return False
    if not any(letter.isalpha() for class_ in classes for letter in class_[-1]):
        return True
    return len(classes) > 1 and min(Counter(class_[-1] for class_ in classes).values()) > 1


def _name_group(folders: Parts, depth: int) -> str:
    """Return the path of the folder at a depth; empty where a picture is not so deep, or the depth is 0."""
    return _join(folders[:depth]) if len(folders) >= depth else ""


def _name_classes(classes: Iterable[Parts]) -> dict[Parts, str]:
    """Return the name of each class: that of its folder, or its path where another folder has that name."""
    distinct = set(classes)
    counts = Counter(class_[-1] for class_ in distinct)
    return {class_: class_[-1] if counts[class_[-1]] == 1 else _join(class_) for class_ in distinct}


# ----------------------------------------------------------------------------------------------------------- tar files


def read_tars(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the pictures of an uncompressed tar file, or of all tar files in a folder, without unpacking them.

    As in WebDataset, the class of KEY.jpg is the text of KEY.cls or KEY.txt. A single tar file without such texts is
    read like a folder; among several tar files, a picture without a text has the class of the folder it is in.
    """
    tars = [path] if path.is_file() else sorted(path.glob("*.tar"))
    items: list[Item] = []
    skipped: list[SkippedFile] = []
    for tar in tars:
        pictures, labels, others = _list_pictures(tar)
        if labelled and len(tars) == 1 and not any(labels.values()):
            return _label_by_folder(path, pictures, options, others)
        for file, text in labels.items():
            label = text or "".join(file[-2:-1])
            if labelled and not label:
                raise BadInput(f"{_join(file)} of {tar} has no class: neither a .cls file beside it nor a folder.")
            items.append(Item(f"{tar.name if labelled else tar}/{_join(file)}", label, None, pictures[file]))
        skipped += [(name, why) for name, why in others if not name.endswith((".cls", ".txt"))]
    return Source(items, skipped=tuple(skipped))


def _list_pictures(tar: Path) -> tuple[dict[Parts, ReadPicture], dict[Parts, str], list[SkippedFile]]:
    """Return the readers of the pictures of a tar file, the text beside each or "", and the skipped files."""
    members, texts = list_tar(tar)
    reasons = {file: HIDDEN if any(map(is_hidden, file[:-1])) else why_skipped(file[-1]) for file in members}
    pictures: dict[Parts, ReadPicture] = {file: members[file] for file, why in reasons.items() if not why}
    labels = {file: texts.get((*file[:-1], os.path.splitext(file[-1])[0]), "") for file in pictures}
    return pictures, labels, sorted((_join(file), why) for file, why in reasons.items() if why)
