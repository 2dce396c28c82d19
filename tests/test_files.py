"""Files appear whole or not at all: whoever reads while one is written sees what was there before."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from anyshot import files
from anyshot.errors import BadInput
from anyshot.files import atomic_write, read_json, write_json, write_text
from anyshot.measure.recalls import Recalls, read_recalls, write_recalls
from anyshot.models.model import read_tensors, write_tensors
from anyshot.progress import progress
from anyshot.tables import read_table, write_table

PLAN = {"way": 2, "queries": 3, "episodes": 4, "seed": 0, "id": "x"}


def recalls(value):
    of = {"head": "proto"}
    return [Recalls(of, PLAN, (1,), np.tile([0, 1], (4, 1)), np.full((1, 4, 2), float(value)))]


WRITERS = {
    "text": (lambda path, value: write_text(path, str(value)), lambda path: int(path.read_text())),
    "json": (lambda path, value: write_json(path, {"x": value}), lambda path: read_json(path)["x"]),
    "table": (lambda path, value: write_table(path, [{"seed": value}]), lambda path: read_table(path)[0]["seed"]),
    "tensors": (
        lambda path, value: write_tensors(path, {"x": torch.tensor(value)}, {}),
        lambda path: int(read_tensors(path)[0]["x"]),
    ),
    "recalls": (
        lambda path, value: write_recalls(path, recalls(value)),
        lambda path: int(read_recalls(path)[0].recall[0, 0, 0]),
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(kind, tmp_path, monkeypatch):
    write, read = WRITERS[kind]
    path, seen, rename = tmp_path / "file", [], os.replace
    write(path, 0)

    def look_and_rename(aside, target):
        seen.append((read(path), read(Path(aside))))
        rename(aside, target)

    monkeypatch.setattr(os, "replace", look_and_rename)
    write(path, 1)
    assert seen == [(0, 1)]  # the last moment before the new file takes its place
    assert read(path) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_reader_sees_the_old_file_between_two_writes(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    with atomic_write(path) as aside, aside.open("w") as file:
        for part in ("new, ", "and whole"):
            file.write(part)
            file.flush()
            assert path.read_text() == "old"
    assert path.read_text() == "new, and whole"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_was_not_finished_leaves_the_old_file_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "file"
    write_text(path, "old")

    def write_half():
        with atomic_write(path) as aside:
            aside.write_text("half")
            raise error

    with pytest.raises(BadInput if isinstance(error, OSError) else KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_a_dead_process_left_is_cleared_away_and_what_a_living_one_writes_is_not(tmp_path):
    dead, living = tmp_path / ".anyshot-dead.part", []
    (dead / "new").mkdir(parents=True)
    (dead / "old" / "model").mkdir(parents=True)  # it was about to put another in its place, and died
    (dead / "old" / "model" / "config.json").write_text("{}")
    with files.atomic_write(tmp_path / "other") as aside:
        living.append(aside.parent)
        aside.write_text("not yet")
        write_text(tmp_path / "x", "done")
        assert living[0].is_dir()
        assert not dead.exists()
        assert (tmp_path / "model" / "config.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other", "x"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_bytes_are_on_the_disk_before_they_have_their_name_and_the_name_is_there_afterwards(
    kind, tmp_path, monkeypatch
):
    events, sync, place = [], os.fsync, files._swap_into_place

    def synced(descriptor):
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(files, "_swap_into_place", lambda *given: (events.append("placed"), place(*given)))
    with atomic_write(tmp_path / "made") as aside:
        if kind == "folder":
            aside.mkdir()
            (aside / "a").write_text("a")
        else:
            aside.write_text("a")
    written = aside / "a" if kind == "folder" else aside
    assert events.index(written) < events.index("placed") < events.index(tmp_path)


def test_a_device_or_a_pipe_is_never_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="device or a pipe"):
        write_text(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()


def test_who_sees_work_begin_sees_it_end(capsys):
    with progress("counting", 4.0, every=0.0) as advance:
        advance(1.0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("counting: 100%")
    with progress("counting", 4.0) as advance:
        advance(1.0)
    assert capsys.readouterr().err == ""  # it was over before anyone asked
