"""The section of a configuration about SGLang servers."""

from __future__ import annotations

from typing import Annotated, Literal

from cojax.registry.annotations import Range
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.process import LaunchSettings
from cojax.rollout.sglang.server import ServerLimits
from cojax.settings.leaf import Count, Leaf, Number, Seconds, Section, defaults


def sglang() -> Section:
    """Servers for engine.name=sglang: running ones, or ones launched on this host."""
    own, waits, launch = defaults(SGLangEngine), defaults(ServerLimits), defaults(LaunchSettings)
    return {
        "urls": Leaf("", str, 'running servers, http://HOST:PORT,…; "" launches sglang.servers on this host'),
        "router": Leaf(
            own["router"],
            str,
            "sglang-router's address, which completion requests go to; without `urls` its servers are those used",
        ),
        "servers": Leaf(own["servers"], Count, "number of servers to launch"),
        "python": Leaf("", str, 'an interpreter with SGLang; "" is the one of `make sglang`, which serves on the CPU'),
        "device": Leaf(launch["device"], str, 'cpu, or "" to leave the choice to SGLang and `flags`'),
        "flags": Leaf(launch["flags"], str, 'more flags of sglang.launch_server, e.g. "--tp 4 --base-gpu-id {index}"'),
        "port": Leaf(
            launch["port"], Annotated[int, Range(0, 65_535)], "port of the first launched server; 0: any free ports"
        ),
        **_weights(),
        "startup_deadline": Leaf(waits["startup"], Seconds, "for a server to start"),
        "sync_deadline": Leaf(waits["sync"], Seconds, "for a server to load new weights"),
        "probe_every": Leaf(waits["probe_every"], Seconds, "between two checks of a server's health"),
        "restarts": Leaf(waits["restarts"], Number, "most restarts of each launched server"),
        "attempts": Leaf(own["attempts"], Count, "most requests for one completion"),
        "mixed": Leaf(
            own["mixed"], bool, "keep completions during which weights changed, instead of sampling them again"
        ),
        "release_memory": Leaf(
            own["release_memory"], bool, "servers release the memory of weights and cache while the learner works"
        ),
    }


def _weights() -> Section:
    """How weights reach the servers."""
    own = defaults(SGLangEngine)
    return {
        "dtype": Leaf(
            own["dtype"], Literal["", "float32", "bfloat16", "float16"],
            'dtype of the weights that servers load; "" is the policy\'s own',
        ),
        "folder": Leaf(
            "", str, 'folder of weights/ and logs, with the same path for every server; "" is the workdir'
        ),
        "follow": Leaf(
            own["follow"], bool, "servers at `urls` load new weights from `folder` by themselves (experiments.serve)"
        ),
        "sync": Leaf(
            "", Literal["", "folder", "orbax"],
            "folder: process 0 writes a model folder; orbax: all processes save together, each its part, and "
            "experiments.serve restores it, for which `follow` is needed; "
            '"": orbax with several processes and `follow`',
        ),
        "local": Leaf(
            "", str,
            "where experiments.serve keeps model folders that it made itself; "
            '"": /dev/shm where they fit into memory, else the temporary folder',
        ),
    }  # fmt: skip
