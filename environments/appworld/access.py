"""Limits each call to the documented route of its API in the server, as a user who logged in.

The package writes arguments into a path unescaped, and signs access tokens with a key that is no secret. So the
arguments of a path are checked first; then the route that the server's own router finds decides. It answers only if it
is the documented route of the current call and got the call's own arguments. Used inside the workers alone.
"""

import contextlib
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

# Characters that end a segment of a path, end the path, or mark an argument in a documented path.
_MARKS = frozenset("/\\?#{}")
# Categories of characters that are no text: controls, formats, surrogates, line and paragraph separators.
_NO_TEXT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The most characters of an argument in a path.
_LONGEST = 1_000
_SLOT = re.compile(r"{(\w+)}")


class Access:
    """The routes and users of one world. The last instance that a process makes is in force."""

    def __init__(self, server: Any, apps: list[str]) -> None:
        """`server` is the FastAPI application that all requests go to, `apps` those whose APIs may be called."""
        self._documented = _documented_routes(server, apps)
        # Those who logged in, as an access token names app and user.
        self.users: set[str] = set()
        # The current call: its documented route, None where it has none, its arguments in the path, and whether it got
        # there.
        self._call: SimpleNamespace | None = None
        # A model's code may call from several threads.
        self._turn = threading.RLock()
        _enforce(self)

    def documented(self, app: Any, api: Any) -> bool:
        """Whether the API exists and is documented."""
        return (app, api) in self._documented

    @contextlib.contextmanager
    def to(self, app: Any, api: Any, arguments: Mapping[str, Any]) -> Iterator[SimpleNamespace]:
        """Opens the route of the API for one call; its `reached` says afterwards whether the call got there.

        No route is opened to an unknown API, or where an argument in the path could lead elsewhere.
        """
        path, route = self._documented.get((app, api), ("", None))
        slots = {name: str(value) for name, value in arguments.items() if f"{{{name}}}" in path}
        if not slots.keys() <= set(_SLOT.findall(path)) or any(map(leads_elsewhere, slots.values())):
            route = None
        with self._turn:
            before, self._call = self._call, (call := SimpleNamespace(route=route, slots=slots, reached=False))
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


def leads_elsewhere(argument: str) -> bool:
    """Whether an argument, written into a path, could lead the path elsewhere.

    It could if it is empty, consists of dots, is too long, or holds a separator, a mark of a query or fragment, a brace
    or a character that is no text. This is checked as it stands, after every decoding of percent forms, and with wide
    letters made narrow.
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


def _documented_routes(server: Any, apps: list[str]) -> dict[tuple[str, str], tuple[str, Any]]:
    """(app, API) → its documented path, and the server's route with this path and method."""
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


# The instance in force in this process.
_ruling: Access | None = None


def _enforce(access: Access) -> None:
    """Makes every route and every access token of this process ask `access` first."""
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
            # The package's own answer to an argument that makes an unknown path.
            await PlainTextResponse("Method Not Allowed", status_code=405)(scope, receive, send)

    def create_access_token(self: Any, *, data: dict[str, Any], **more: Any) -> str:
        token = created(self, data=data, **more)
        if _ruling is not None:
            _ruling.users.add(data["sub"])
        return token

    def get_user_identifier(self: Any, payload: dict[str, Any]) -> str:
        identifier = identified(self, payload)
        if _ruling is None or payload["sub"] not in _ruling.users:
            raise self.not_authenticated_exception
        return identifier

    Route.handle = handle
    LogInOutManager.create_access_token = create_access_token
    LogInOutManager.get_user_identifier = get_user_identifier
