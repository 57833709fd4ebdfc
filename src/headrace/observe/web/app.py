"""The routes of the server. All of them only read."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.observe.metrics import exposition
from headrace.observe.step_durations import StepDurations
from headrace.observe.watching import Reading, StorageWatcher, with_own_names
from headrace.observe.web.answers import (
    encoded,
    named,
    picture_answer,
    readiness_of,
    summary_of,
)
from headrace.observe.web.guard import OPEN_PATH, Access, Guard


def create_app(
    watchers: Sequence[StorageWatcher], access: Access, durations: StepDurations | None = None
) -> ASGIApp:
    """Return the server's application. The guard is outermost, so even failures pass through it.

    Args:
        watchers: the storages that it shows.
        access: which requests it answers.
        durations: how long the steps of a run in this process took, if there is one.
    """
    return Guard(Starlette(routes=routes_of(watchers, durations)), access)


def routes_of(
    watchers: Sequence[StorageWatcher], durations: StepDurations | None = None
) -> list[Route]:
    """Return the routes for scrapers, probes and programs."""
    routes = _Routes(watchers, durations)
    return [
        Route(OPEN_PATH, routes.healthz),
        Route("/readyz", routes.readyz),
        Route("/metrics", routes.metrics),
        Route("/api/v1/pipelines", routes.pipelines),
        Route("/api/v1/picture", routes.picture),
    ]


class _Routes:
    """The answers. Those that read a storage are plain functions, which Starlette runs in threads."""

    def __init__(self, watchers: Sequence[StorageWatcher], durations: StepDurations | None) -> None:
        self._watchers = watchers
        self._durations = durations

    async def healthz(self, _: Request) -> Response:
        """Answer while the process does."""
        return PlainTextResponse("ok\n")

    def readyz(self, _: Request) -> Response:
        """Say whether all storages can be read."""
        found = [readiness_of(reading) for reading in self._readings()]
        ready = all(of.ready for of in found)
        return json_answer(encoded({"ready": ready, "pipelines": found}), 200 if ready else 503)

    def metrics(self, request: Request) -> Response:
        """Return the metrics for a scraper."""
        data, content_type = exposition(
            self._readings(), request.headers.get("accept", ""), self._durations
        )
        return Response(data, headers={"Content-Type": content_type})

    def pipelines(self, _: Request) -> Response:
        """List the pipelines."""
        return json_answer(encoded([summary_of(reading) for reading in self._readings()]))

    def picture(self, request: Request) -> Response:
        """Return the picture of one pipeline."""
        readings = self._readings()
        reading = named(readings, request.query_params.get("pipeline"))
        if reading is None:
            names = [reading.pipeline for reading in readings]
            error = "say ?pipeline=NAME, with one of these names"
            return JSONResponse({"error": error, "pipelines": names}, 404)
        return json_answer(picture_answer(reading))

    def _readings(self) -> list[Reading]:
        return with_own_names([watcher.reading() for watcher in self._watchers])


def json_answer(data: bytes | None, status: int = 200) -> Response:
    """Return data as an answer; an error if it is None, because it is too large."""
    if data is None:
        return JSONResponse({"error": "the answer is too large: use headrace status"}, 500)
    return Response(data, status, media_type="application/json")
