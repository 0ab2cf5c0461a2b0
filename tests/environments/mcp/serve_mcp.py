"""Runs an MCP server of the tests as its arguments say: over stdio, or `http` on a free port, which it prints.

Over HTTP it asks for the token in TEST_TOKEN, if that is set. It runs in the environment's own interpreter.
"""

import logging
import os
import socket
import sys

import uvicorn


def serve(server):
    logging.disable()
    if sys.argv[1:2] != ["http"]:
        server.run("stdio")
        return
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    application, token = server.streamable_http_app(), os.environ.get("TEST_TOKEN")

    async def guarded(scope, receive, send):
        given = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        if scope["type"] == "http" and token and given != token:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await application(scope, receive, send)

    uvicorn.Server(uvicorn.Config(guarded, log_level="critical")).run(sockets=[listening])
