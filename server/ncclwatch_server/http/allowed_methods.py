"""Tells, with every 405, which methods a path takes: by all routes of the path, not by the first that matches."""

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Scope


async def tell(request: Request, error: HTTPException) -> Response:
    """Answer with an error of HTTP, as JSON."""
    answer = await http_exception_handler(request, error)
    if error.status_code == 405:
        answer.headers["Allow"] = ", ".join(sorted(_methods(request.app, request.scope)))
    return answer


def _methods(app: FastAPI, scope: Scope) -> set[str]:
    fitting = [route for route in app.routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE]
    # The name of a job may have slashes, so that the paths of what belongs to it are names of jobs as well.
    closest = max((route.path for route in fitting), key=len, default="")
    found = {method for route in fitting if route.path == closest for method in route.methods or ()}
    return found | ({"HEAD"} if "GET" in found else set())
