"""The connection to a Ray cluster: its address, its nodes and their actors. The only importer of Ray.

Ray's ports have no authentication by default: whoever reaches them runs code on every node. Keep a cluster private.
"""

import concurrent.futures
import contextlib
import importlib.util
import logging
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import tenacity

from cojax.host.background import run_on_thread
from .host import Host

_ADDRESS_PATTERN = re.compile(r"auto|(?:ray://)?(?P<host>[\w.-]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")
# Seconds for the cluster to accept a connection.
_REACH_TIMEOUT_S = 5.0
# Seconds to join it, and how often that is tried.
_JOIN_S, _JOIN_ATTEMPTS = 120.0, 3
# Calls of one actor under way at the same time: those of all its episodes.
_MAX_OPEN_CALLS = 10_000
# A process has one connection, and keeps it to its end.
_own_address = ""
_connect_lock = threading.Lock()


def check(address: str) -> None:
    """Raises ValueError for an invalid address, and if Ray is not installed. Connects to nothing."""
    if not _ADDRESS_PATTERN.fullmatch(address):
        raise ValueError(
            f"environment.cluster is {address!r:.200}; expected ray://HOST:PORT, or HOST:PORT or auto on a host of the "
            "cluster"
        )
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            f"environment.cluster is {address!r}, but Ray is not installed; run pip install 'cojax[ray]', or leave the "
            "setting empty to keep the environment on this host"
        )


def connect(address: str) -> "RayCluster":
    """The cluster at that address. Raises ValueError if it cannot be reached or used."""
    global _own_address
    check(address)
    with _connect_lock:
        import ray

        if ray.is_initialized() and _own_address != address:
            raise ValueError(
                f"environment.cluster is {address!r}, but this process uses {_own_address or 'another cluster'} already"
            )
        if not ray.is_initialized():
            _expect_listener(address)
            logging.getLogger("ray").setLevel(logging.ERROR)
            with _keep_signal_handler():
                _join(ray, address)
            _own_address = address
    return RayCluster(ray)


def _join(ray: Any, address: str) -> None:
    """Connects within _JOIN_S seconds: Ray itself tries for minutes where something else listens."""
    # The server that ray:// starts for a client sometimes ends at once: then it is asked for another.
    retry_call = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(ConnectionError),
        stop=tenacity.stop_after_attempt(_JOIN_ATTEMPTS),
        reraise=True,
    )
    init_options = {"address": address, "namespace": "cojax", "log_to_driver": False, "configure_logging": False}
    future = run_on_thread("cluster-join", lambda: retry_call(ray.init, **init_options))
    if not concurrent.futures.wait([future], _JOIN_S).done:
        reason = (
            f"it did not take a connection within {_JOIN_S:g} s; ray://HOST:PORT takes the port of the cluster's "
            "client server (10001 by default), HOST:PORT that of its head (6379)"
        )
    elif error := future.exception():
        reason = " ".join(str(error).split())[:500]
    else:
        return
    raise ValueError(f"environment.cluster is {address!r}, which cannot be used: {reason}")


class RayCluster:
    """The requests to Ray, through the module of that name."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        # An actor takes no processor from Ray's books: its node has only it, and its children come and go.
        self._hosts = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=_MAX_OPEN_CALLS)(Host)

    def list_nodes(self) -> dict[str, str]:
        """The living nodes that offer processors, in a fixed order: Ray's id → the node in words."""
        node_records: list[Mapping[str, Any]] = self._ray.nodes()
        usable_nodes = [node for node in node_records if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        node_addresses = sorted((node["NodeID"], node["NodeManagerAddress"]) for node in usable_nodes)
        return {node_id: f"node {address} ({node_id[:8]})" for node_id, address in node_addresses}

    def actor(self, node_id: str) -> Any:
        """A new actor on that node, and on no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return self._hosts.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()

    def send(self, method: Any, *arguments: Any) -> concurrent.futures.Future[Any]:
        """Calls a method of an actor."""
        return method.remote(*arguments).future()

    def kill_actor(self, actor: Any) -> None:
        """Ends an actor with its processes. Never raises."""
        with contextlib.suppress(Exception):
            self._ray.kill(actor)

    def is_call_failure(self, error: BaseException) -> bool:
        """Whether an error is the call's own, so that the actor still works."""
        return isinstance(error, self._ray.exceptions.RayTaskError)


def _expect_listener(address: str) -> None:
    """Raises ValueError if nothing listens at the address: Ray itself would try for half a minute."""
    match = _ADDRESS_PATTERN.fullmatch(address)
    if match is None or match["host"] is None:
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), _REACH_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"environment.cluster is {address!r}, but nothing answers there ({error}); start the cluster, or correct "
            "the address"
        ) from error


@contextlib.contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Restores this process's handler of SIGTERM, which Ray replaces by its own."""
    old_handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, old_handler)
