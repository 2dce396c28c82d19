"""What the internet sends: nothing is executed, nothing is written elsewhere, one sentence says what was wrong."""

import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from helpers import image_files as files
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anyshot.data import archives
from anyshot.data.benchmarks import read_ids
from anyshot.data.pack import pack
from anyshot.data.pictures import decode_picture
from anyshot.data.unpickle import unpickle
from anyshot.errors import BadInput


class Command:
    """Unpickled by the standard reader, this creates a file."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def written(path, value, protocol=4):
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.mkdir, eval, exec, open, getattr, np.load, np.fromfile, subprocess.call])
def test_a_malicious_pickle_runs_nothing(tmp_path, call, protocol):
    target = tmp_path / "ran"
    argument = f"__import__('os').mkdir({str(target)!r})" if call in (eval, exec) else str(target)
    path = written(tmp_path / "x.pkl", [np.zeros(3), {"images": Command(call, argument)}], protocol)
    with pytest.raises(BadInput, match="asks for"):
        unpickle(path)
    assert not target.exists()


def test_a_malicious_cache_does_not_pack(tmp_path):
    for split in ("train", "val", "test"):
        (tmp_path / "mini").mkdir(exist_ok=True)
        written(tmp_path / "mini" / f"cache-{split}.pkl", {"image_data": Command(os.mkdir, str(tmp_path / "ran"))})
    with pytest.raises(BadInput, match=r"posix\.mkdir"):
        pack("mini", tmp_path / "mini", tmp_path / "s")
    assert sorted(os.listdir(tmp_path)) == ["mini"]


def test_a_malicious_torch_file_runs_nothing(tmp_path):
    import torch

    torch.save([Command(os.mkdir, str(tmp_path / "ran"))], tmp_path / "ids.pth")
    with pytest.raises(BadInput, match="not a list of ids"):
        read_ids(tmp_path / "ids.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["numpy\nsave", "numpy.core.multiarray\nfromfile", "builtins\nbytes.join", "copyreg\n_reconstructor"]
)
def test_names_near_those_allowed_are_refused(tmp_path, name):
    path = written(tmp_path / "x.pkl", f"c{name}\n.".encode())
    with pytest.raises(BadInput, match="asks for"):
        unpickle(path)


def test_arrays_of_objects_and_other_types_are_refused(tmp_path):
    for array in (np.array([{}, 1], object), np.zeros(2, "M8[s]"), np.zeros(2, [("a", "i4")])):
        with pytest.raises(BadInput):
            unpickle(written(tmp_path / "x.pkl", array))


def test_an_array_that_claims_more_than_it_has_is_refused(tmp_path):
    data = pickle.dumps(np.zeros((3, 3), np.uint8), 2).replace(b"K\x03K\x03\x86", b"K\x03K\xff\x86")
    with pytest.raises(BadInput, match="not a pickle that can be read"):
        unpickle(written(tmp_path / "x.pkl", data))


def test_pickles_that_refer_to_themselves_or_fan_out(tmp_path):
    loop = []
    loop.append(loop)
    with pytest.raises(BadInput):
        unpickle(written(tmp_path / "x.pkl", loop))
    laughs = ["ha"]
    for _ in range(60):
        laughs = [laughs, laughs]
    assert len(unpickle(written(tmp_path / "x.pkl", laughs))) == 2  # 2^60 leaves if they were not shared


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=60)
@given(plain, st.integers(0, 5))
def test_plain_values_are_read_as_they_are(tmp_path_factory, value, protocol):
    path = written(tmp_path_factory.mktemp("p") / "x.pkl", [value], protocol)
    assert unpickle(path) == [value]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", "S3", "U2", "?"])
def test_arrays_are_read_as_they_are(tmp_path, protocol, dtype):
    for array in (
        np.arange(12).reshape(3, 4).astype(dtype),
        np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype)),
    ):
        read = unpickle(written(tmp_path / "x.pkl", {"a": array, "s": array[0, 0]}, protocol))
        assert np.array_equal(read["a"], array)
        assert read["a"].dtype == array.dtype
        assert read["s"] == array[0, 0]


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_noise_is_no_pickle_or_plain(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("p") / "x.pkl"
    path.write_bytes(data)
    with contextlib.suppress(BadInput):
        unpickle(path)


EVIL = ["../evil.png", "/tmp/anyshot-evil.png", "a/../../evil.png"]


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_writes_nowhere_else(tmp_path, kind, name):
    archive = tmp_path / "deep" / f"x.{kind}"
    archive.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as bundle:
            bundle.writestr("a/0.png", files.encoded())
            bundle.writestr(name, files.encoded())
    else:
        with tarfile.open(archive, "w") as bundle:
            for member in ("a/0.png", name):
                info = tarfile.TarInfo(member)
                info.size = len(files.encoded())
                bundle.addfile(info, io.BytesIO(files.encoded()))
    with pytest.raises(BadInput, match="lies outside"):
        pack("folder", archive, tmp_path / "deep" / "s", split=(0, 0, 1))
    assert os.listdir(tmp_path) == ["deep"]
    assert os.listdir(tmp_path / "deep") == [archive.name]
    assert not os.path.exists("/tmp/anyshot-evil.png")


def test_links_in_an_archive_are_left_out(tmp_path):
    (tmp_path / "secret.png").write_bytes(files.encoded(9))
    with tarfile.open(tmp_path / "x.tar", "w") as bundle:
        for kind, name in ((tarfile.SYMTYPE, "a/1.png"), (tarfile.LNKTYPE, "a/2.png"), (tarfile.FIFOTYPE, "a/3.png")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(tmp_path / "secret.png")
            bundle.addfile(info)
        info = tarfile.TarInfo("a/0.png")
        info.size = len(files.encoded())
        bundle.addfile(info, io.BytesIO(files.encoded()))
    assert len(pack("folder", tmp_path / "x.tar", tmp_path / "s", size=8, split=(0, 0, 1)).items) == 1


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_a_bomb_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(archives, "MIN_LIMIT", 1 << 20)
    archive = tmp_path / f"x.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
            bundle.writestr("a/0.png", bytes(20 << 20))
    else:
        with tarfile.open(archive, "w:gz") as bundle:
            info = tarfile.TarInfo("a/0.png")
            info.size = 20 << 20
            bundle.addfile(info, io.BytesIO(bytes(20 << 20)))
    with pytest.raises(BadInput, match="no set of images"):
        pack("folder", archive, tmp_path / "s", split=(0, 0, 1))
    assert os.listdir(tmp_path) == [archive.name]


@pytest.mark.parametrize("kind", ["npz", "features"])
def test_a_bomb_in_an_npz_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(archives, "MIN_LIMIT", 1 << 20)
    name = "images" if kind == "npz" else "features"
    np.savez_compressed(tmp_path / "x.npz", **{name: np.zeros((8000, 32, 32, 3), np.uint8)})
    with pytest.raises(BadInput, match="no set of images"):
        pack(kind, tmp_path / "x.npz", tmp_path / "s")


def test_an_archive_cut_short_is_told(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abc", 3)
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as bundle:
        bundle.add(root, "photos")
    data = (tmp_path / "x.tgz").read_bytes()
    (tmp_path / "x.tgz").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadInput, match=r"downloaded whole|could not unpack"):
        pack("folder", tmp_path / "x.tgz", tmp_path / "s")


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "a/../../secret.png"])
def test_a_table_reads_nowhere_else(tmp_path, name):
    files.write(tmp_path / "secret.png")
    files.write(tmp_path / "own" / "0.png")
    (tmp_path / "own" / "t.csv").write_text(f"path,label\n0.png,a\n{name},b\n")
    with pytest.raises(BadInput, match="lies outside"):
        pack("table", tmp_path / "own" / "t.csv", tmp_path / "s", split=(0, 0, 1))


def test_a_link_out_of_the_folder_is_outside(tmp_path):
    files.write(tmp_path / "secret.png")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "0.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "own" / "t.csv").write_text("path,label\n0.png,a\n")
    with pytest.raises(BadInput, match="lies outside"):
        pack("table", tmp_path / "own" / "t.csv", tmp_path / "s", split=(0, 0, 1))


def test_one_pixel_and_one_line_images(tmp_path):
    for height, width in ((1, 1), (1, 20_000), (20_000, 1)):
        fitted = decode_picture(files.encoded(0, height, width), 92, "crop")
        assert fitted.shape == (92, 92, 3)


def empty_png(width, height):
    """A PNG that claims to be large: its header is all there is."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def test_images_that_cannot_be_used_are_named_counted_and_left_out(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abc", 2)
    whole = files.encoded(1, 200, 200, "JPEG")
    broken = {
        "cut.jpg": whole[: len(whole) // 2],
        "empty.png": b"",
        "huge.png": empty_png(20_000, 20_000),
        "lie.png": empty_png(100, 100),
        "text.jpg": b"<html>404 not found</html>",
    }
    for name, data in broken.items():
        files.write(root / "b" / name, data)
    store = pack("folder", root, tmp_path / "s", size=8, split=(0, 0, 1))
    assert store.part("test").counts.tolist() == [2, 2, 2]
    assert [entry["name"] for entry in store.about["skipped"]] == sorted(f"b/{name}" for name in broken)
    assert "DecompressionBomb" in next(entry["why"] for entry in store.about["skipped"] if "huge" in entry["name"])


def test_a_20000_pixel_photo_is_read_at_reduced_scale(tmp_path):
    strip = Image.new("RGB", (20_000, 800), (10, 200, 30))
    file = io.BytesIO()
    strip.save(file, "JPEG")
    assert np.abs(decode_picture(file.getvalue(), 92, "crop").astype(int) - (10, 200, 30)).max() <= 3


def test_empty_class_folders_are_noted(tmp_path):
    root = files.class_folders(tmp_path / "photos", "abc", 1)
    (root / "nothing").mkdir()
    files.write(root / "broken" / "0.png", b"")
    store = pack("folder", root, tmp_path / "s", size=8, split=(0, 0, 1))
    assert store.class_names == ("a", "b", "c")
    notes = " ".join(store.about["notes"])
    assert "nothing has no images" in notes
    assert "'broken' (test) has no readable image" in notes
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"CLASS/IMAGE\.jpg"):
        pack("folder", tmp_path / "empty", tmp_path / "t")


def test_folder_names_with_spaces_unicode_and_line_breaks(tmp_path):
    names = ["red panda", "猫 neko", "line\nbreak", "-rf", "%s{0}", "~"]
    store = pack("folder", files.class_folders(tmp_path / "photos", names, 1), tmp_path / "s", size=8, split=(0, 0, 1))
    assert sorted(store.class_names) == sorted(names)
    from anyshot.inspect.doctor import diagnose_to_folder

    assert "6 classes" in diagnose_to_folder(store).text


def test_a_disk_that_fills_up_leaves_no_store_and_the_pack_goes_on_later(tmp_path):
    """The limit on file sizes fails a write exactly as a full disk does."""
    files.class_folders(tmp_path / "photos", "abcdefgh", 30)
    code = f"""
import resource, signal, sys
sys.argv = ["anyshot", "pack", "folder", {str(tmp_path / "photos")!r}, "-o", {str(tmp_path / "s")!r}, "--size", "32"]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
from anyshot.cli.main import main
main()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "could not write" in done.stderr
    assert "the same command goes on" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()
    store = pack("folder", tmp_path / "photos", tmp_path / "s", size=32)
    assert np.array_equal(store.items, pack("folder", tmp_path / "photos", tmp_path / "t", size=32).items)
