"""AppWorld: the official `appworld` package (Apache-2.0, its apps redistributed in encrypted form alone), in workers."""

from __future__ import annotations

from environments.worker.venv import Recipe

RECIPE = Recipe(
    requirements=("appworld==0.1.3.post1",),
    # The apps are unpacked by `appworld install`, after this: see data.py.
    proof="import appworld",
)
