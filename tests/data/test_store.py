"""A store is whole or absent, says when it is damaged, and is read from disk a slice at a time."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from anyshot.data import store as store_module
from anyshot.data.store import open_store, write_store
from anyshot.errors import BadInput


def small(path, many=10, **about):
    items = np.arange(many * 4 * 4 * 3, dtype=np.uint8).reshape(many, 4, 4, 3)
    labels = np.sort(np.arange(many) % 4)
    names, splits = ["a", "b", "c", "d"], ["train", "train", "val", "test"]
    return write_store(path, iter([items[:3], items[3:]]), labels, names, splits, **about), items, labels


def test_what_is_written_is_read(tmp_path):
    store, items, labels = small(tmp_path / "s", kind="test")
    assert np.array_equal(store.items, items)
    assert np.array_equal(store.labels, labels)
    assert store.about == {"kind": "test"}
    parts = [store.part(split) for split in ("train", "val", "test")]
    assert np.array_equal(np.concatenate([part.items for part in parts]), items)
    assert [part.class_names for part in parts] == [("a", "b"), ("c",), ("d",)]
    assert [part.labels.min() for part in parts] == [0, 0, 0]
    assert [part.counts.tolist() for part in parts] == [[3, 3], [2], [2]]
    assert isinstance(store.items, np.memmap)


def test_an_existing_store_is_not_overwritten(tmp_path):
    small(tmp_path / "s")
    with pytest.raises(BadInput, match="exists already"):
        small(tmp_path / "s")


@pytest.mark.parametrize("labels", [[1, 0], [0], [0, 0, 0]])
def test_a_store_out_of_order_or_of_wrong_length_is_refused(tmp_path, labels):
    with pytest.raises(BadInput):
        write_store(tmp_path / "s", [np.zeros((2, 4, 4, 3), np.uint8)], labels, ["a", "b"], ["train", "test"])
    assert os.listdir(tmp_path) == []


def test_splits_out_of_order_and_unlike_items_are_refused(tmp_path):
    with pytest.raises(BadInput, match="in order of split"):
        write_store(tmp_path / "s", [np.zeros((2, 1, 4), np.float32)], [0, 1], ["a", "b"], ["test", "train"])
    chunks = [np.zeros((1, 4), np.float32), np.zeros((1, 5), np.float32)]
    with pytest.raises(BadInput, match="alike"):
        write_store(tmp_path / "s", chunks, [0, 1], ["a", "b"], ["train", "test"])


@pytest.mark.parametrize("name", ["items.npy", "labels.npy"])
def test_a_changed_byte_is_found_by_verify(tmp_path, name):
    small(tmp_path / "s")
    path = tmp_path / "s" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"checksum|damaged"):
        open_store(tmp_path / "s", verify=True)


@pytest.mark.parametrize("name", ["items.npy", "labels.npy", "store.json"])
def test_a_file_cut_short_is_told(tmp_path, name):
    small(tmp_path / "s")
    path = tmp_path / "s" / name
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"damaged|cut short"):
        open_store(tmp_path / "s")


def test_json_that_does_not_fit_is_told(tmp_path):
    small(tmp_path / "s")
    about = json.loads((tmp_path / "s" / "store.json").read_text())
    (tmp_path / "s" / "store.json").write_text(json.dumps({**about, "class_names": ["a"], "class_split": ["train"]}))
    with pytest.raises(BadInput, match="damaged"):
        open_store(tmp_path / "s")
    with pytest.raises(BadInput, match="not a store"):
        open_store(tmp_path)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    """The limit on file sizes fails a write exactly as a full disk does."""
    code = f"""
import resource, signal, numpy as np
from pathlib import Path
from anyshot.data.store import write_store
from anyshot.errors import BadInput
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    write_store(Path({str(tmp_path / "s")!r}), [np.zeros((50, 32, 32, 3), np.uint8)] * 4, [0] * 200, ["a"], ["test"])
except BadInput as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment(), check=True)
    assert "could not write" in done.stdout
    assert os.listdir(tmp_path) == []


def test_items_written_in_parts_are_one_array(tmp_path):
    rows = np.arange(24, dtype=np.uint8).reshape(6, 4)
    store_module.write_items(tmp_path / "items.npy", [rows[:3], rows[3:]])
    np.save(tmp_path / "plain.npy", rows)
    assert (tmp_path / "items.npy").read_bytes() == (tmp_path / "plain.npy").read_bytes()
    with pytest.raises(BadInput, match="must be alike"):
        store_module.write_items(tmp_path / "items.npy", [rows, rows[:, :2]])


def test_opening_a_large_store_takes_no_memory(tmp_path):
    """A sparse file of 6 GB: reading a batch of it must not read the rest."""
    (tmp_path / "s").mkdir()
    np.lib.format.open_memmap(tmp_path / "s" / "items.npy", "w+", np.uint8, (300_000, 84, 84, 3))
    np.save(tmp_path / "s" / "labels.npy", np.repeat(np.arange(100, dtype=np.int32), 3000))
    about = {"format": 1, "class_names": [str(i) for i in range(100)], "class_split": ["test"] * 100, "sha256": {}}
    (tmp_path / "s" / "store.json").write_text(json.dumps(about))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = open_store(tmp_path / "s").part("test")
    batch = part.items[np.arange(0, 300_000, 3000)]
    assert batch.shape == (100, 84, 84, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
