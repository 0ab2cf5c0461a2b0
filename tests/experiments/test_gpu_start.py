"""The kit's script: pieces found by content, joined and unpacked; what is missing, damaged or for another Python."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import start
from benchmarks.gpu.kit import parse_size
from benchmarks.gpu.start import KitError, prepare

ABSENT = "absent-1-py3-none-any.whl"


def tar(files: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return memory.getvalue()


def wheel(module: str) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr(f"{module}.py", "HERE = True\n")
    return memory.getvalue()


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Pieces of an archive of each kind in a folder, and their manifest."""
    folder = tmp_path / "pieces"
    folder.mkdir()
    archives = {
        "code": tar({"code/cojax/__init__.py": b"#", "expected.npz": b"numbers"}),
        "wheels": tar(
            {"wheels/absent-1-py3-none-any.whl": wheel("absent"), "wheels/jax-1-py3-none-any.whl": b"no zip"}
        ),
        "model": tar({"packages/model.whl": bytes(range(256)) * 40}),
    }
    manifest: dict[str, Any] = {"name": "a-commit", "python": "3.99", "archives": {}}
    for name, archive in archives.items():
        manifest["archives"][name] = []
        for number, begin in enumerate(range(0, len(archive), 200), 1):
            part = archive[begin : begin + 200]
            digest = hashlib.sha256(part).hexdigest()
            manifest["archives"][name].append({"name": f"{name}.{number}", "bytes": len(part), "sha256": digest})
            (folder / f"{name}.{number}").write_bytes(part)
    manifest["wheels"] = [{"name": "absent-package", "file": ABSENT}, {"name": "jax", "file": "jax-1-py3-none-any.whl"}]
    monkeypatch.setattr(start, "MANIFEST", manifest)
    return manifest


def test_all_pieces_are_joined_and_only_missing_packages_unpacked(kit: dict[str, Any], tmp_path: Path) -> None:
    unpacked = prepare([tmp_path / "pieces"], tmp_path / "into")
    assert unpacked == tmp_path / "into" / "a-commit"
    assert (unpacked / "code/cojax/__init__.py").read_bytes() == b"#"
    assert (unpacked / "packages/model.whl").read_bytes() == bytes(range(256)) * 40
    assert [path.name for path in (unpacked / "site").iterdir()] == ["absent.py"]
    assert not list(unpacked.glob("*.tar"))


def test_pieces_come_one_copy_after_another_under_any_name(
    kit: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces, copies = tmp_path / "pieces", tmp_path / "copies"
    for folder, names in (("first", ("code", "wheels")), ("second/deep", ("model",))):
        (copies / folder).mkdir(parents=True)
        for number, path in enumerate(path for name in names for path in pieces.glob(f"{name}.*")):
            shutil.copy(path, copies / folder / f"copy {number}")
    prepare([copies / "first"], tmp_path / "into")
    assert "of the model missing or damaged: what needs the model is left out" in capsys.readouterr().err
    shutil.rmtree(copies / "first")
    unpacked = prepare([copies], tmp_path / "into")
    assert (unpacked / "packages/model.whl").exists()
    assert capsys.readouterr().err == ""


def test_a_damaged_piece_is_named(kit: dict[str, Any], tmp_path: Path) -> None:
    piece = tmp_path / "pieces" / "code.1"
    piece.write_bytes(b"X" + piece.read_bytes()[1:])
    with pytest.raises(KitError, match=r"^code\.1 of \d pieces? of the code missing or damaged; copy that"):
        prepare([tmp_path / "pieces"], tmp_path / "into")


def test_a_piece_that_is_changed_once_it_was_found_is_not_unpacked(
    kit: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = tar({"code/evil.py": b"#"})
    copy = shutil.copyfileobj
    monkeypatch.setattr(shutil, "copyfileobj", lambda part, file, block: copy(io.BytesIO(evil), file, block))
    with pytest.raises(KitError, match=r"code\.1 was changed meanwhile; copy it again"):
        prepare([tmp_path / "pieces"], tmp_path / "into")
    assert not list((tmp_path / "into").rglob("evil.py"))


def test_a_module_beside_the_script_is_not_imported(tmp_path: Path) -> None:
    shutil.copy(start.__file__, tmp_path / "start.py")
    for name in ("argparse", "hashlib", "zipfile", "jax"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    done = subprocess.run(
        [sys.executable, "-s", str(tmp_path / "start.py"), "--help"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "--pieces" in done.stdout) == (0, True), done.stderr


def test_missing_wheels_matter_where_a_package_is_absent(kit: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pieces" / "wheels.1").unlink()
    with pytest.raises(KitError, match=r"wheels\.1 of .*, and this machine has no absent-package; copy that"):
        prepare([tmp_path / "pieces"], tmp_path / "into")
    kit["wheels"] = [one for one in kit["wheels"] if one["name"] == "jax"]
    assert (prepare([tmp_path / "pieces"], tmp_path / "into") / "code").is_dir()


def test_a_compiled_wheel_for_another_python_is_refused(kit: dict[str, Any], tmp_path: Path) -> None:
    kit["wheels"][0]["file"] = "absent-1-cp399-cp399-manylinux_2_28_x86_64.whl"
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(KitError, match=rf"is for Python 3\.99, and this is .*make gpu-kit CARD_PYTHON={own}"):
        prepare([tmp_path / "pieces"], tmp_path / "into")


def test_a_full_disk_leaves_nothing_half_done(
    kit: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        patched.setattr(sys, "argv", ["start.py", f"--pieces={tmp_path / 'pieces'}"])
        patched.setattr(start, "__file__", str(tmp_path / "start.py"))
        with pytest.raises(SystemExit, match=r"cannot unpack the kit into .*: No space left on device; mend that"):
            start.main()
    assert not [path for path in (tmp_path / "unpacked").rglob("*") if path.is_file()]
    assert (prepare([tmp_path / "pieces"], tmp_path / "unpacked") / "code").is_dir()


@pytest.mark.parametrize(
    ("text", "expected"), [("50MiB", 50 * 2**20), ("64 kib", 2**16), ("0.5GiB", 2**29), ("3MB", 3_000_000)]
)
def test_sizes_of_pieces(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "50", "1KiB", "-3MiB", "nanMiB", "50MiB!", "1e3MB"])
def test_what_is_no_size_of_a_piece(text: str) -> None:
    with pytest.raises(ValueError, match="expected 64KiB or more, as 50MiB"):
        parse_size(text)
