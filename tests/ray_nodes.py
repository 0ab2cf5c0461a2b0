"""A Ray cluster of several nodes on this machine, by Ray's own utility. Needs Ray."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cojax.host.processes import family

# Bytes of each node's object store: replies are small.
_STORE = 80 * 2**20


class RayNodes:
    """`size` nodes of one processor, and a head without. `address` is for a host of the cluster, `client` for any
    host."""

    def __init__(self, size: int) -> None:
        from ray.cluster_utils import Cluster

        # Sockets lie in the folder, and their paths may not be long.
        self.folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        head = {
            "num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE, "ray_client_server_port": port,
            "temp_dir": self.folder,
        }  # fmt: skip
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address, self.client = self.cluster.address, f"ray://127.0.0.1:{port}"
        self.nodes: list[Any] = []
        for _ in range(size):
            self.add()

    def add(self) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=1, object_store_memory=_STORE))

    def kill(self, id: str) -> None:
        """Ends all processes of a node at once, as when its machine is gone."""
        (node,) = (one for one in self.nodes if one.node_id == id)
        self.nodes.remove(node)
        raylets = [process.process.pid for process in node.all_processes["raylet"]]
        for pid in [member for raylet in raylets for member in family(raylet)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self.cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def ray_nodes(size: int) -> Iterator[RayNodes]:
    """The cluster; its nodes also find the modules beside the tests. Afterwards this process has left it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    variables = dict(os.environ)
    here = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(here.parent), str(here), variables.get("PYTHONPATH"))))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    made = RayNodes(size)
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield made
    finally:
        ray.shutdown()
        made.close()
        os.environ.clear()
        os.environ.update(variables)
        for number, handler in handlers.items():
            signal.signal(number, handler)
