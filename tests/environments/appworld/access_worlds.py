"""Run in AppWorld's own virtual environment: calls every documented API with hostile arguments in its path.

    python access_worlds.py DATA TASK     standard input: a JSON list of arguments

In one world: all as the judge makes calls again, some as code makes them, some with the route that the server finds as
the only defence. Answers with a JSON object: "apis" and "slots" are how many there are; "strayed" what was made though
an argument is hostile, or ran another route than the documented one; "recorded" what was recorded of these;
"unreached" APIs that plain arguments do not reach.
"""

import json
import os
import shutil
import sys

from starlette.routing import Mount, Route

from environments.appworld import world

PLAIN = {"phone_number": "5551234567", "user_email": "a@example.com", "append_or_prepend": "append"}
# Real requests that are tried for each argument, of either kind.
EACH = 2
ran = []


def watch(server):
    """Notes which route's own function every request comes to; a route is known by its method and whole path."""
    for mount in [server, *(route for route in server.routes if isinstance(route, Mount))]:
        for route in mount.routes:
            if isinstance(route, Route):
                prefix = mount.path if isinstance(mount, Mount) else ""
                route.app = watched(route.app, prefix + route.path)


def watched(app, path):
    async def noted(scope, receive, send):
        ran.append(f"{scope['method']} {path}")
        await app(scope, receive, send)

    return noted


def slots(path):
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def reached(make):
    """The routes that ran, and whether the call was made at all."""
    ran.clear()
    try:
        make()
    except Exception:
        return list(ran), False
    return list(ran), True


def main():
    data, task = sys.argv[1:]
    hostile = json.load(sys.stdin)
    world.make_own_root(data)
    opened = world.World(data, task)
    watch(opened.stock.requester.client.app)
    documents = {(app, doc["api_name"]): doc for app in opened.stock.task.allowed_apps for doc in described(app)}
    strayed, unreached, recorded, turn = [], [], [], 0
    leads_elsewhere = world.leads_elsewhere
    for (app, api), doc in documents.items():
        route = f"{doc['method']} {doc['path']}"
        plain = {slot: PLAIN.get(slot, "1") for slot in slots(doc["path"])}
        if reached(lambda app=app, api=api, plain=plain: opened.call(app, api, plain))[0] != [route]:
            unreached.append(f"{app}.{api}")
        for slot in plain:
            tries = [({**plain, slot: value}, value) for value in hostile]
            for given, value in tries:
                if reached(lambda app=app, api=api, given=given: opened.call(app, api, given)) != ([], False):
                    strayed.append([app, api, slot, value, list(ran)])
            # A few by real requests, other ones each time: first as code makes them, then by the router alone.
            turn += 1
            few = [tries[(turn * EACH + place) % len(tries)] for place in range(EACH)]
            opened.calls, opened.stock.requester.request_tracker.max_num_requests = [], None
            for given, value in few:
                if reached(lambda app=app, api=api, given=given: opened.stock.apis[app][api](**given))[0]:
                    strayed.append([app, api, slot, value, list(ran)])
            recorded += opened.calls
            world.leads_elsewhere = lambda argument: False
            for given, value in few:
                if reached(lambda app=app, api=api, given=given: opened.call(app, api, given))[0] not in ([], [route]):
                    strayed.append([app, api, slot, value, list(ran)])
            world.leads_elsewhere = leads_elsewhere
            opened.calls = None
    shutil.rmtree(os.environ["APPWORLD_ROOT"])
    answer = {
        "apis": len(documents),
        "slots": sum(len(slots(doc["path"])) for doc in documents.values()),
        "strayed": strayed,
        "unreached": unreached,
        "recorded": recorded,
    }
    print(json.dumps(answer))


def described(app):
    from appworld.requester import _get_api_name_to_doc

    return _get_api_name_to_doc(app, include_private_apis=False).values()


main()
