"""An upstream that tells which values it read of a request, by the usual means of its framework.

    reads.py uvicorn-httptools|uvicorn-h11|waitress|gunicorn|wsgiref

Prints `listening ADDRESS`. Each reply is a JSON object; what was not sent is null in it.
"""

import json
import socket
import sys
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs


def listener():
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    print("listening {}:{}".format(*server.getsockname()), flush=True)
    return server


def fastapi():
    from fastapi import FastAPI, Request
    from fastapi.security import HTTPBearer
    from starlette.datastructures import Headers

    app, bearer = FastAPI(), HTTPBearer(auto_error=False)

    @app.api_route("/{rest:path}", methods=["GET", "POST"])
    async def read(request: Request):
        await request.body()
        # As a dependency that is resolved after the body sees them.
        headers = Headers(raw=request.scope["headers"])
        token = await bearer(request)
        form = await request.form()
        return {
            "header": headers.get("x-api-key"),
            "bearer": token and token.credentials,
            "query": request.query_params.get("username"),
            "form": form.get("username"),
            "cookie": request.cookies.get("session"),
            "internal": headers.get("x-internal"),
            "user": headers.get("x-user"),
            "plan": headers.get("x-plan"),
        }

    return app


def flask():
    from flask import Flask, request

    app = Flask("reads")

    @app.route("/", defaults={"rest": ""}, methods=["GET", "POST"])
    @app.route("/<path:rest>", methods=["GET", "POST"])
    def read(rest):
        authorization = request.authorization
        return {
            "header": request.headers.get("X-Api-Key"),
            "bearer": authorization and authorization.type == "bearer" and authorization.token or None,
            "query": request.args.get("username"),
            "form": request.form.get("username"),
            "cookie": request.cookies.get("session"),
            "internal": request.headers.get("X-Internal"),
            "user": request.headers.get("X-User"),
            "plan": request.headers.get("X-Plan"),
        }

    return app


def standard(environ, start_response):
    """With the standard library alone."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    form = parse_qs(environ["wsgi.input"].read(length).decode("latin-1"))
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    try:
        cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get("session")
    except CookieError:
        cookie = None
    read = {
        "header": environ.get("HTTP_X_API_KEY"),
        "bearer": token.strip() or None if scheme.lower() == "bearer" else None,
        "query": parse_qs(environ.get("QUERY_STRING", "")).get("username", [None])[0],
        "form": form.get("username", [None])[0],
        "cookie": cookie and cookie.value,
        "internal": environ.get("HTTP_X_INTERNAL"),
        "user": environ.get("HTTP_X_USER"),
        "plan": environ.get("HTTP_X_PLAN"),
    }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(read).encode()]


def on_uvicorn(http):
    import uvicorn

    server = listener()
    uvicorn.run(fastapi(), http=http, fd=server.fileno(), log_level="error", lifespan="off")


def on_waitress():
    import waitress

    waitress.serve(flask(), sockets=[listener()], threads=2, _quiet=True)


def on_gunicorn():
    from gunicorn.app.base import BaseApplication

    server = listener()

    class Application(BaseApplication):
        def load_config(self):
            self.cfg.set("bind", [f"fd://{server.fileno()}"])
            self.cfg.set("worker_class", "gthread")
            self.cfg.set("threads", 2)
            self.cfg.set("loglevel", "error")
            self.cfg.set("timeout", 600)

        def load(self):
            return flask()

    Application().run()


def on_wsgiref():
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_):
            pass

    server = make_server("127.0.0.1", 0, standard, handler_class=Quiet)
    print("listening {}:{}".format(*server.server_address), flush=True)
    server.serve_forever()


SERVERS = {
    "uvicorn-httptools": lambda: on_uvicorn("httptools"),
    "uvicorn-h11": lambda: on_uvicorn("h11"),
    "waitress": on_waitress,
    "gunicorn": on_gunicorn,
    "wsgiref": on_wsgiref,
}

SERVERS[sys.argv[1]]()
