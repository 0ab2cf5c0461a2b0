"""Opens one AppWorld world in this process and records or replays its API calls. Only this file imports `appworld`.

A process opens only one world and ends with it, because an open world freezes the process's clocks and replaces
functions of the standard library.

Each call is limited to the documented route of its API in the server, as a user who logged in. The package writes
arguments into a path unescaped, and signs access tokens with a key that is no secret. So the arguments in a path are
checked first. Then the server's own router finds a route, which answers only if it is the documented route of the
current call and receives the call's own arguments.
"""

import contextlib
import datetime
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from urllib.parse import unquote

from cojax.types import content_hash

# The most calls of an episode. The package allows 1,000 calls in a block of code.
MAX_CALLS = 3_000
# The most bytes of their records.
RECORD_BYTES = 3 * 2**19
# Arguments that the requester itself takes; no API has them.
_RESERVED = frozenset({"client", "raise_on_failure", "show", "track", "_app_name", "_api_name", "_system_datetime"})
# How the package's error begins if a call is refused.
_REFUSAL_PREFIX = "Response status code is "


def make_own_root(data_folder: str) -> None:
    """Makes a root in /tmp for this process alone, with a link to the data; worlds write their files there.

    Call it before `appworld` is imported, and again in every child, which has its own /tmp.
    """
    own_root = tempfile.mkdtemp(prefix="world-")
    os.symlink(data_folder, os.path.join(own_root, "data"))
    os.environ["APPWORLD_ROOT"] = own_root
    os.environ["APPWORLD_CACHE"] = own_root
    if "appworld" in sys.modules:
        _forget_paths()


def import_package(data_folder: str) -> None:
    """Imports the package and loads what every world needs, in a process whose forks open worlds."""
    make_own_root(data_folder)
    from appworld.apps import get_all_apps
    from appworld.apps.api_lib import set_local_date_and_time
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.common.utils import get_name_to_apis, import_apis_module, import_models_module
    from appworld.environment import AppWorld  # noqa: F401
    from appworld.evaluator import evaluate_task  # noqa: F401
    from appworld.requester import _get_api_name_to_doc

    for app in get_all_apps():
        import_models_module(app)
        import_apis_module(app)
        get_name_to_apis(app, ignore_private_apis=True)
        _get_api_name_to_doc(app, include_private_apis=True)
    ApiDocCollection.load(load_apps=tuple(get_all_apps(skip_admin=True)), include_response_schemas=True)
    # The package caches its preparations for freezing clocks, which take half the time of opening a world.
    set_local_date_and_time(datetime.datetime(2023, 1, 1)).stop()
    _forget_paths()


class World:
    """The world of one task, and the calls in it."""

    def __init__(self, data_folder: str, task_id: str, seconds: float = 100.0) -> None:
        """Opens the world; `make_own_root` must have run. One block of code may take `seconds` of processor
        time.

        Raises ValueError for an unknown task.
        """
        if not task_folder(data_folder, task_id).is_dir():
            raise ValueError(f"no task {task_id!r} in {data_folder}")
        from appworld.environment import AppWorld

        self.id = task_id
        self.stock = AppWorld(
            task_id=task_id, experiment_name="episode", load_ground_truth=False, timeout_seconds=max(1, int(seconds))
        )
        self.access = Access(self.stock.requester.client.app, self.stock.task.allowed_apps)
        self._request = self.stock.requester.request
        # APIs and a model's code draw from one random generator. Here the APIs have their own state of it, so that only
        # the calls decide what they draw.
        self._random_state = random.getstate()
        self.calls: list[dict[str, Any]] | None = None
        self._call_count = self._record_bytes = 0
        self.stock.requester.request = self._record_request
        self.stock._shell_run_cell = self._run_cell

    def execute(self, code: str) -> tuple[str, list[dict[str, Any]]]:
        """Runs the code; returns its output or the reason of its failure, and the records of its calls."""
        call_records: list[dict[str, Any]] = []
        self.calls = call_records
        try:
            return self.stock.execute(code), call_records
        finally:
            self.calls = None

    def _run_cell(self, code: str) -> Any:
        """Replaces the package's function, whose alarm counts wall time: here only processor time counts.

        The worker's deadline ends code that only waits.
        """

        def raise_timeout(signal_number: int, frame: Any) -> None:
            raise TimeoutError(f"Function run_cell execution timed out after {self.stock.timeout_seconds} seconds.")

        signal.signal(signal.SIGPROF, raise_timeout)
        signal.setitimer(signal.ITIMER_PROF, self.stock.timeout_seconds)
        try:
            return self.stock.shell.run_cell(code)
        except TimeoutError:
            # The package reports the timeout in its own words.
            return None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def call(self, app_name: str, api_name: str, arguments: Mapping[str, Any]) -> str:
        """Makes one call as a model's code would; returns the digest of its reply.

        Raises ValueError for a call that a model's code cannot make, or that does not reach the API's own route.
        """
        if not self.access.is_documented(app_name, api_name):
            raise ValueError(f"there is no API {app_name}.{api_name}")
        if reserved_names := _RESERVED & arguments.keys():
            raise ValueError(f"{app_name}.{api_name} takes no {', '.join(sorted(reserved_names))}")
        # The package limits the requests of a block of code, but replayed calls belong to no block.
        self.stock.requester.reset_request_count()
        with self.access.open_route(app_name, api_name, arguments) as call:
            digest = self._digest_reply(app_name, api_name, arguments) if call.route is not None else ""
        if not call.reached:
            raise ValueError(f"these arguments do not reach {app_name}.{api_name}")
        return digest

    def _digest_reply(self, app_name: str, api: str, arguments: Mapping[str, Any]) -> str:
        with self._own_random_state():
            try:
                return content_hash(_to_plain_json(self._request(app_name, api, raise_on_failure=True, **arguments)))
            except Exception as error:
                return _digest_of(error)

    def peek(self, app: str, api: str, **arguments: Any) -> Any:
        """The reply to a call that is not recorded; None if the call is refused."""
        with contextlib.suppress(Exception), self._own_random_state(), self.access.open_route(app, api, arguments):
            return self._request(_app_name=app, _api_name=api, raise_on_failure=True, track=False, **arguments)
        return None

    def save(self) -> None:
        """Writes the files that the benchmark's evaluation reads."""
        self.stock._save_state(self.stock.output_db_home_path_on_disk)

    def close(self) -> None:
        """Closes everything, so that a process that runs no model's code may open another world."""
        self.stock.close()
        self.stock.close_all()

    @property
    def is_complete(self) -> bool:
        # This reads the row, because the package's API cannot show every answer.
        from appworld.apps.supervisor.constants import TASK_STATUS_LITERAL

        return self.stock.models.supervisor.Task.all()[0].status in get_args(TASK_STATUS_LITERAL)

    def set_instruction(self, instruction: str) -> None:
        """Replaces the benchmark's instruction in the world."""
        task = self.stock.models.supervisor.Task.all()[0]
        if instruction != task.instruction:
            task.instruction = instruction or "No instruction yet."
            task.save()

    def _record_request(self, _app_name: str, _api_name: str, *positional: Any, **arguments: Any) -> Any:
        """Replaces the requester's `request`, through which every call goes.

        It records every call that reached the route of its API, even one that failed. Raises OverflowError for more
        calls than an episode may make, and RuntimeError for a call after the end of its block.
        """
        if (call_records := self.calls) is None:
            raise RuntimeError("calls are made while a block of code runs")
        api_arguments = {name: value for name, value in arguments.items() if name not in _RESERVED}
        call_record = {"app": _app_name, "api": _api_name, "arguments": _to_plain_json(api_arguments), "digest": ""}
        record_bytes = len(json.dumps(call_record))
        if self._call_count >= MAX_CALLS or self._record_bytes + record_bytes > RECORD_BYTES:
            raise OverflowError(f"an episode makes at most {MAX_CALLS:,} calls of {RECORD_BYTES:,} bytes; not made")
        with self._own_random_state(), self.access.open_route(_app_name, _api_name, api_arguments) as call:
            try:
                reply = self._request(_app_name, _api_name, *positional, **arguments)
                call_record["digest"] = content_hash(_to_plain_json(reply))
            except Exception as error:
                call_record["digest"] = _digest_of(error)
                raise
            finally:
                if call.reached:
                    call_records.append(call_record)
                    self._call_count, self._record_bytes = self._call_count + 1, self._record_bytes + record_bytes
        return reply

    @contextlib.contextmanager
    def _own_random_state(self) -> Iterator[None]:
        outer_state = random.getstate()
        random.setstate(self._random_state)
        try:
            yield
        finally:
            self._random_state = random.getstate()
            random.setstate(outer_state)


def task_folder(data_folder: str, task_id: str) -> Path:
    """The folder of a task. Raises ValueError for an id that could lead to another folder."""
    if not isinstance(task_id, str) or not task_id.replace("_", "").isalnum():
        raise ValueError(f"{task_id!r:.100} is no task id")
    return Path(data_folder) / "tasks" / task_id


def _digest_of(error: Exception) -> str:
    """The digest of a refusal; "" if the API gave no reply."""
    return content_hash(str(error)) if str(error).startswith(_REFUSAL_PREFIX) else ""


def _to_plain_json(value: Any) -> Any:
    """The value as plain JSON, as an API receives it."""
    return json.loads(json.dumps(value, default=str))


def _forget_paths() -> None:
    """Clears the package's caches of paths, which a forked process has from its parent."""
    from appworld.apps.model_lib import get_db_home_path, get_direct_cached_sqlite3_connection

    get_db_home_path.cache_clear()
    get_direct_cached_sqlite3_connection.cache_clear()


# Characters that end a segment of a path, end the path, or mark an argument in a documented path.
_PATH_MARKS = frozenset("/\\?#{}")
# Unicode categories of characters that are no text: controls, formats, surrogates, line and paragraph separators.
_CONTROLS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The most characters of an argument in a path.
_MAX_PATH_ARGUMENT_CHARS = 1_000
_PATH_PARAMETER = re.compile(r"{(\w+)}")


class Access:
    """The routes and users of one world. The process obeys the last instance that it made."""

    def __init__(self, server: Any, apps: list[str]) -> None:
        """`server` is the FastAPI application that gets all requests; only the APIs of `apps` may be called."""
        self._routes = _find_documented_routes(server, apps)
        # Users who logged in, each as an access token names app and user.
        self.users: set[str] = set()
        # The current call: its documented route (None if it has none), its arguments in the path, and whether it
        # reached the route.
        self._call: SimpleNamespace | None = None
        # A model's code may call from several threads.
        self._call_lock = threading.RLock()
        _enforce(self)

    def is_documented(self, app: Any, api: Any) -> bool:
        """Whether the API exists and is documented."""
        return (app, api) in self._routes

    @contextlib.contextmanager
    def open_route(self, app: Any, api: Any, arguments: Mapping[str, Any]) -> Iterator[SimpleNamespace]:
        """Opens the route of the API for one call, whose `reached` then says whether it got there.

        It opens no route to an unknown API, or if an argument in the path could lead elsewhere.
        """
        path, route = self._routes.get((app, api), ("", None))
        slots = {parameter: str(value) for parameter, value in arguments.items() if f"{{{parameter}}}" in path}
        if not slots.keys() <= set(_PATH_PARAMETER.findall(path)) or any(map(leads_elsewhere, slots.values())):
            route = None
        with self._call_lock:
            outer_call, self._call = self._call, (call := SimpleNamespace(route=route, slots=slots, reached=False))
            try:
                yield call
            finally:
                self._call = outer_call

    def admits(self, route: Any, scope: Mapping[str, Any]) -> bool:
        """Whether the route may answer the request in `scope`."""
        call = self._call
        if call is None or route is not call.route:
            return False
        path_params = scope["path_params"]
        if any(path_params.get(parameter) != value for parameter, value in call.slots.items()):
            return False
        call.reached = True
        return True


def leads_elsewhere(argument: str) -> bool:
    """Whether an argument, written into a path, could make it another path.

    It could if it is empty, consists of dots, is too long, or holds a separator, a mark of a query or fragment, a brace
    or a character that is no text. The argument is checked as it is, and after each round of decoding percent forms and
    narrowing wide letters.
    """
    if len(argument) > _MAX_PATH_ARGUMENT_CHARS:
        return True
    while True:
        if not argument.strip(". ") or any(c in _PATH_MARKS or unicodedata.category(c) in _CONTROLS for c in argument):
            return True
        decoded_argument = unicodedata.normalize("NFKC", unquote(argument))
        if decoded_argument == argument:
            return False
        argument = decoded_argument


def _find_documented_routes(server: Any, apps: list[str]) -> dict[tuple[str, str], tuple[str, Any]]:
    """(app, API) → the documented path, and the server's route with this path and method."""
    from appworld.common.utils import get_name_to_apis
    from appworld.requester import _get_api_name_to_doc
    from starlette.routing import Mount, Route

    route_by_path = {
        (method, mount.path + route.path): route
        for mount in server.routes
        if isinstance(mount, Mount)
        for route in mount.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    routes_by_api = {}
    for app in apps:
        doc_by_api = _get_api_name_to_doc(app, include_private_apis=False)
        for api in get_name_to_apis(app, ignore_private_apis=True).keys() & doc_by_api.keys():
            path, method = doc_by_api[api]["path"], doc_by_api[api]["method"].upper()
            routes_by_api[app, api] = path, route_by_path[method, path]
    return routes_by_api


# The instance in force in this process.
_enforced_access: Access | None = None


def _enforce(access: Access) -> None:
    """Makes every route and every access token of this process ask `access` first."""
    global _enforced_access
    _enforced_access, is_first = access, _enforced_access is None
    if not is_first:
        return
    from appworld.apps.api_lib import LogInOutManager
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    official_handle, official_create = Route.handle, LogInOutManager.create_access_token
    official_identify = LogInOutManager.get_user_identifier

    async def handle(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if _enforced_access is not None and _enforced_access.admits(self, scope):
            await official_handle(self, scope, receive, send)
        else:
            # The package gives this answer to an argument that makes an unknown path.
            await PlainTextResponse("Method Not Allowed", status_code=405)(scope, receive, send)

    def create_access_token(self: Any, *, data: dict[str, Any], **options: Any) -> str:
        token = official_create(self, data=data, **options)
        if _enforced_access is not None:
            _enforced_access.users.add(data["sub"])
        return token

    def get_user_identifier(self: Any, payload: dict[str, Any]) -> str:
        identifier = official_identify(self, payload)
        if _enforced_access is None or payload["sub"] not in _enforced_access.users:
            raise self.not_authenticated_exception
        return identifier

    Route.handle = handle
    LogInOutManager.create_access_token = create_access_token
    LogInOutManager.get_user_identifier = get_user_identifier
