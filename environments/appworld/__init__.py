"""AppWorld: the official `appworld` package (Apache-2.0, its apps redistributed in encrypted form alone), in workers."""

from __future__ import annotations

from environments.worker.venv import Recipe

RECIPE = Recipe(
    requirements=("appworld==0.1.3.post1",),
    # What `appworld install` does; its tests go there too, instead of into the user's home.
    prepare="import os, sys; os.environ['APPWORLD_CACHE'] = sys.prefix + '/package'; "
    "from appworld.install import install_package; install_package()",
    proof="import appworld.apps.spotify.models",
)
