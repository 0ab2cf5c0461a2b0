"""What a call reaches in the server: the documented route of its API, as a user who logged in, and nothing else.

The package writes arguments into a path as they are, and signs access tokens by a key that is no secret. So arguments
of a path are looked at first, and the route that the server's own router finds in the end is the only judge: it answers
if it is the documented one of the call under way and was given the call's own arguments. Inside the workers alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

# Marks that end a segment of a path, or the path, or stand for an argument in a documented one.
_MARKS = frozenset("/\\?#{}")
# Characters that are no text: controls, formats, halves of a surrogate pair, separators of lines and paragraphs.
_NO_TEXT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Characters of an argument in a path.
_LONGEST = 1_000
_SLOT = re.compile(r"{(\w+)}")


@dataclasses.dataclass
class _Call:
    """The call under way: its documented route, None where it has none, and its arguments in the path."""

    route: Any
    slots: Mapping[str, str]
    reached: bool = False


class Access:
    """The routes and users of one world. The last one that a process makes rules there."""

    def __init__(self, server: Any, apps: list[str]) -> None:
        """`server` is the FastAPI application that all requests go to, `apps` those whose APIs may be called."""
        self._documented = _documented(server, apps)
        self._users: set[str] = set()
        self._call: _Call | None = None
        # A model's code may call from several threads.
        self._turn = threading.RLock()
        _enforce(self)

    def documented(self, app: Any, api: Any) -> bool:
        """Whether there is such an API."""
        return (app, api) in self._documented

    @contextlib.contextmanager
    def to(self, app: Any, api: Any, arguments: Mapping[str, Any]) -> Iterator[_Call]:
        """Opens the route of the API for one call, whose `reached` tells afterwards whether it was reached.

        No route is opened to an unknown API, or where an argument in the path could lead elsewhere.
        """
        path, route = self._documented.get((app, api), ("", None))
        slots = {name: str(value) for name, value in arguments.items() if f"{{{name}}}" in path}
        if not slots.keys() <= set(_SLOT.findall(path)) or any(map(leads_elsewhere, slots.values())):
            route = None
        with self._turn:
            before, self._call = self._call, (call := _Call(route, slots))
            try:
                yield call
            finally:
                self._call = before

    def admits(self, route: Any, scope: Mapping[str, Any]) -> bool:
        """Whether the route may answer the request in `scope`."""
        call = self._call
        if call is None or route is not call.route:
            return False
        given = scope["path_params"]
        if any(given.get(name) != value for name, value in call.slots.items()):
            return False
        call.reached = True
        return True

    def entered(self, subject: str) -> None:
        """Remembers that someone logged in; `subject` is what a token says of app and user."""
        self._users.add(subject)

    def knows(self, subject: str) -> bool:
        return subject in self._users


def leads_elsewhere(argument: str) -> bool:
    """Whether an argument, written into a path, could change what the path leads to.

    It could if it is empty, made of dots, too long, or holds a separator, a mark of a query or fragment, a brace, or
    what is no text; as it stands, with its percent forms resolved as often as there are some, or with wide letters
    made narrow.
    """
    if len(argument) > _LONGEST:
        return True
    while True:
        if not argument.strip(". ") or any(c in _MARKS or unicodedata.category(c) in _NO_TEXT for c in argument):
            return True
        resolved = unicodedata.normalize("NFKC", unquote(argument))
        if resolved == argument:
            return False
        argument = resolved


def _documented(server: Any, apps: list[str]) -> dict[tuple[str, str], tuple[str, Any]]:
    """(app, API) → its documented path and the route of the server that has this path and method."""
    from appworld.common.utils import get_name_to_apis
    from appworld.requester import _get_api_name_to_doc
    from starlette.routing import Mount, Route

    routes = {
        (method, mount.path + route.path): route
        for mount in server.routes
        if isinstance(mount, Mount)
        for route in mount.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    found = {}
    for app in apps:
        documents = _get_api_name_to_doc(app, include_private_apis=False)
        for api in get_name_to_apis(app, ignore_private_apis=True).keys() & documents.keys():
            path, method = documents[api]["path"], documents[api]["method"].upper()
            found[app, api] = path, routes[method, path]
    return found


# Who rules in this process.
_ruling: Access | None = None


def _enforce(access: Access) -> None:
    """Has every route and every access token of this process ask `access` first."""
    global _ruling
    _ruling, first = access, _ruling is None
    if not first:
        return
    from appworld.apps.api_lib import LogInOutManager
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    handled, created = Route.handle, LogInOutManager.create_access_token
    identified = LogInOutManager.get_user_identifier

    async def handle(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if _ruling is not None and _ruling.admits(self, scope):
            await handled(self, scope, receive, send)
        else:
            # The package answers so where an argument makes a path that it does not know.
            await PlainTextResponse("Method Not Allowed", status_code=405)(scope, receive, send)

    def create_access_token(self: Any, *, data: dict[str, Any], **more: Any) -> str:
        token = created(self, data=data, **more)
        if _ruling is not None:
            _ruling.entered(data["sub"])
        return token

    def get_user_identifier(self: Any, payload: dict[str, Any]) -> str:
        identifier = identified(self, payload)
        if _ruling is None or not _ruling.knows(payload["sub"]):
            raise self.not_authenticated_exception
        return identifier

    Route.handle = handle
    LogInOutManager.create_access_token = create_access_token
    LogInOutManager.get_user_identifier = get_user_identifier
