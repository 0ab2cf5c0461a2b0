"""A Ray cluster of several nodes on this machine, by Ray's own utility. Needs Ray."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from cojax.host.processes import family

# Bytes of each node's object store: replies are small.
_OBJECT_STORE_BYTES = 80 * 2**20
_START_ATTEMPTS = 5
_T = TypeVar("_T")


class RayNodes:
    """`size` nodes of one processor, and a head without. `address` is for a host of the cluster, `client` for any
    host."""

    def __init__(self, size: int) -> None:
        # Sockets lie in the folder, and their paths may not be long.
        self.folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
        self.nodes: list[Any] = []
        try:
            self._start(size)
        except BaseException:
            self.close()
            raise

    def _start(self, size: int) -> None:
        from ray.cluster_utils import Cluster

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        head_options = {
            "num_cpus": 0, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True,
            "object_store_memory": _OBJECT_STORE_BYTES, "ray_client_server_port": port, "temp_dir": self.folder,
        }  # fmt: skip
        self.cluster = _patiently(lambda: Cluster(initialize_head=True, head_node_args=head_options))
        self.address, self.client = self.cluster.address, f"ray://127.0.0.1:{port}"
        for _ in range(size):
            self.add()

    def add(self) -> None:
        node_options = {"num_cpus": 1, "object_store_memory": _OBJECT_STORE_BYTES, "include_log_monitor": False}
        with _own_handlers():
            self.nodes.append(_patiently(lambda: self.cluster.add_node(**node_options)))

    def kill(self, id: str) -> None:
        """Ends all processes of a node at once, as when its machine is gone."""
        (node,) = (candidate for candidate in self.nodes if candidate.node_id == id)
        self.nodes.remove(node)
        raylets = [process.process.pid for process in node.all_processes["raylet"]]
        _end([member for raylet in raylets for member in family(raylet)])
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """Ends all processes of the cluster: those that name its folder, and what descends from them."""
        own_pids = [pid for pid in family(os.getpid()) if self.folder.encode() in command_line(pid)]
        _end({member for one in own_pids for member in family(one)})
        shutil.rmtree(self.folder, ignore_errors=True)


def _patiently(start: Callable[[], _T]) -> _T:
    """Ray gives a node 30 seconds to start, which may be too few on a busy machine. What did not start is ended."""
    pids_before = set(family(os.getpid()))
    for _ in range(_START_ATTEMPTS - 1):
        try:
            return start()
        except Exception:
            _end(set(family(os.getpid())) - pids_before)
    return start()


def _end(processes: Iterable[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def ray_nodes(size: int) -> Iterator[RayNodes]:
    """The cluster; its nodes also find the modules beside the tests. Afterwards this process has left it."""
    old_variables = dict(os.environ)
    tests_folder = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(tests_folder.parent), str(tests_folder), old_variables.get("PYTHONPATH")))
    )
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray._common.utils import get_default_ray_temp_dir

    # A node's own folder is elsewhere, yet Ray notes its address in this one.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    with _own_handlers():
        nodes = RayNodes(size)
    try:
        yield nodes
    finally:
        with _own_handlers():
            ray.shutdown()
            nodes.close()
        os.environ.clear()
        os.environ.update(old_variables)


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """This process keeps its handlers of signals, in whose place a node that starts sets its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)
