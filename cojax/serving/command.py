"""Keeps SGLang servers running on a rollout host.

    python -m experiments.serve --config=FILE [--config.sglang.KEY=VALUE …] [--host=H] [--follow=RUN] [--router=R]

They serve the newest version in sglang.folder/weights, or the folder model.path if there is none, on sglang.port and
the ports after it, until this process is stopped. A server that dies or hangs is restarted. A trainer attaches with
--config.engine=sglang --config.sglang.urls=http://HOST:PORT,… and gives every server, even a restarted one, its weights
before it sends requests. With --config.sglang.follow=True, here and at the trainer, the trainer only writes versions,
and this process has its servers load each new one. sglang.folder must be the trainer's, at the same path. A version
that all processes of a trainer saved together (sglang.sync) is first restored here. With --follow=RUN the servers load
the newest checkpoint of the run directory RUN instead, even while nothing trains it. With --router=PORT an
sglang-router is started on that port, in front of the servers; with --router=URL the servers join a router elsewhere,
and leave it when this process is stopped. A trainer then needs only --config.sglang.router=URL. --host must be an
address by which router and trainer reach the servers.
"""

import functools
from collections.abc import Sequence

from absl import flags

from cojax.settings import flags as settings

_HOST_FLAG = flags.DEFINE_string("host", "0.0.0.0", "The address to listen on.")
_FOLLOW_FLAG = flags.DEFINE_string("follow", "", "A run directory: serve its newest checkpoint.")
_ROUTER_FLAG = flags.DEFINE_string("router", "", "A port for an sglang-router here, or the address of one to join.")


def main(argv: Sequence[str]) -> None:
    from cojax.serving.serve import run  # now, so that a wrong flag need not wait for JAX

    run(_HOST_FLAG.value, _FOLLOW_FLAG.value, _ROUTER_FLAG.value)


start = functools.partial(settings.start_command, main, __doc__)
