"""The official data's download, by the package itself, from a server of its name that stands here.

Behind that name is a proxy, which the package's HTTP client is told of as any is; what is served is the tiny data,
packed by the package as its authors pack theirs.
"""

import contextlib
import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

from environments.appworld import data
from environments.worker.venv import InstallError, interpreter

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes its certificate"),
]

HOST = "s3.us-west-2.amazonaws.com"
PACK = """
import sys
from appworld.common.constants import PASSWORD, SALT
from appworld.common.utils import pack_bundle
pack_bundle(sys.argv[1], sys.argv[2], ["data"], PASSWORD, SALT, include_license=False)
"""


@pytest.fixture(scope="module")
def python() -> str:
    return interpreter("appworld", data.RECIPE)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, python: str) -> bytes:
    data.provide("tiny", python, print)
    folder = tmp_path_factory.mktemp("bundle")
    subprocess.run([python, "-c", PACK, str(folder / "packed"), str(data.find_root("tiny"))], check=True, cwd=folder)
    return (folder / "packed").read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, bundle: bytes) -> Path:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "appworld"


@contextlib.contextmanager
def proxy(folder: Path, monkeypatch: pytest.MonkeyPatch, body: bytes | None) -> Iterator[list[str]]:
    """The requests that reach it; a GET is answered by the body, or by 404 where there is none."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    request = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={HOST} -addext subjectAltName=DNS:{HOST}"
    command = [*request.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
            self.close_connection = False

        def do_HEAD(self) -> None:
            self.answer(200, b"")

        def do_GET(self) -> None:
            self.answer(200 if body else 404, body or b"")

        def answer(self, status: int, content: bytes) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        yield asked
        server.shutdown()


def test_the_data_is_downloaded_into_a_fresh_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, python: str, bundle: bytes
) -> None:
    with proxy(tmp_path, monkeypatch, bundle) as asked:
        data.provide("official", python, print)
    assert [request.split()[0] for request in asked] == ["HEAD", "GET"]
    assert all(request.endswith("/data-0.1.0.bundle") for request in asked)
    assert len(data.read_task_ids("official", "train")) == 21
    assert len(data.read_solution("official", data.read_task_ids("official", "test_normal")[0])) == 3
    assert not list(data.find_public_root("official").rglob("ground_truth"))
    # There it stays, whatever the network does later.
    data.provide("official", python, print)
    assert sorted(path.name for path in cache.iterdir()) == ["official", "official-public", "official.lock"]


def test_a_download_that_fails_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, python: str
) -> None:
    for body, told in ((None, r"left nothing: (.*\n)?.*404"), (b"no bundle", "broke off")):
        with proxy(tmp_path, monkeypatch, body), pytest.raises(InstallError, match=told) as failed:
            data.provide("official", python, print)
        assert "--data=tiny" in str(failed.value)
        assert [path.name for path in cache.iterdir()] == ["official.lock"]


def test_without_a_network_the_ways_forward_are_told_in_seconds(
    monkeypatch: pytest.MonkeyPatch, cache: Path, python: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (1, silent.getsockname()[1]):
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
            began = time.monotonic()
            with pytest.raises(InstallError, match=r"cannot be reached: (.*\n)+.*--data=tiny"):
                data.provide("official", python, print)
            assert time.monotonic() - began < patience(20)
