"""The safetensors format: what the library reads and writes is what we write and read, and damage has a name."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cojax.policy.pretrained import DamagedFile, StoredTensor, find_code, read_header, split_files, write_tensors

ARRAYS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "c": np.array([[0.25]], np.float16),
}
OUTLINES = {"a.weight": ("F32", (2, 3)), "b": ("BF16", (2,)), "c": ("F16", (1, 1))}


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, OUTLINES, iter(ARRAYS.items()))
    found = load_file(path)
    assert {name: (array.dtype, array.tobytes()) for name, array in found.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in ARRAYS.items()
    }
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    entries = read_header(tmp_path / "x.safetensors")
    assert entries.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        found = entries[name].read()
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert entries[name].damage((tmp_path / "x.safetensors").stat().st_size) == ""


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(ARRAYS, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    faults = [fault for entry in read_header(path).values() if (fault := entry.damage(len(whole) - 1))]
    assert len(faults) == 1
    assert f"ends at byte {len(whole)}, but the file has {len(whole) - 1}: it is truncated" in faults[0]
    last = max(read_header(path).values(), key=lambda entry: entry.end)
    with pytest.raises(DamagedFile, match="1 bytes before the end of the tensor"):
        last.read()


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", b"\x00" * 20, (10**9).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"[]"],
    ids=["empty", "short", "no header", "length beyond the file", "no object"],
)
def test_what_is_no_such_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"{path} cannot be read"):
        read_header(path)


@pytest.mark.parametrize("record", [{"dtype": "F32"}, {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}])
def test_a_damaged_header(tmp_path: Path, record: dict) -> None:
    text = json.dumps({"a": record}).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DamagedFile, match="its header is damaged"):
        read_header(tmp_path / "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "maximum recursion depth"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e999]}}', "has sizes or offsets that are negative"),
        ('{"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}', "not whole numbers"),
        ('{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}', "not whole numbers"),
        ('{"a": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}}', "not whole numbers"),
        ('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1' + "0" * 4_000 + "]}}", "too large or not whole"),
        ('{"a": {"dtype": "F32", "shape": [' + "1," * 99 + '1], "data_offsets": [0, 4]}}', "too large or not whole"),
        ('{"a\\nb": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', r"'a\\nb' is not a tensor's name"),
        ('{"' + "a" * 999 + '": 5}', "is not a tensor's name"),
    ],
)
def test_a_hostile_header_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text.encode())
    with pytest.raises(DamagedFile, match=f"its header is damaged: .*{message}") as error:
        read_header(tmp_path / "x")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_bytes_that_do_not_make_the_shape() -> None:
    entry = StoredTensor(Path("x"), "a", "F32", (2, 3), 100, 120)
    assert entry.damage(1000) == "a in x takes 20 bytes, expected 24 for F32[2, 3]"


def test_an_array_that_is_not_as_outlined_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        write_tensors(tmp_path / "x", OUTLINES, iter({"a.weight": np.zeros((3, 2), np.float32)}.items()))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_named() -> None:
    with pytest.raises(OSError, match=r"cannot write /proc/x: .*choose another folder"):
        write_tensors(Path("/proc/x"), {}, iter(()))


def test_files_are_cut_at_their_largest_size() -> None:
    """Sizes 24, 4 and 2 bytes."""
    assert [list(file) for file in split_files(OUTLINES, 28)] == [["a.weight", "b"], ["c"]]
    assert [list(file) for file in split_files(OUTLINES, 5)] == [["a.weight"], ["b"], ["c"]]
    assert len(split_files(OUTLINES, 30)) == 1


def test_codes() -> None:
    assert [find_code(name) for name in ("float32", "bfloat16", "float16")] == ["F32", "BF16", "F16"]
    with pytest.raises(ValueError, match="dtype 'float64' is not supported; available: float32, bfloat16, float16"):
        find_code("float64")
