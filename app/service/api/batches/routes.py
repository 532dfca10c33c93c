"""Routes of OpenAI's Files API, /v1/files, as far as batches need it, and of its Batch API, /v1/batches."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Literal, cast

from pydantic import Field, StrictStr
from starlette.requests import Request
from starlette.responses import FileResponse
from typing_extensions import TypedDict

from app.protocol.errors import RequestError
from app.service.api.app_state import app_state
from app.service.api.batches.batches import BatchObject
from app.service.api.batches.files import DEFAULT_EXPIRY_S, FileObject
from app.service.api.fields import Body
from app.service.api.responses.exchange import Page, page_of
from app.service.api.responses.requests import Metadata
from app.service.http.forms import read_upload
from app.service.http.guard import caller_of
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse

router = Router()

_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")
_MOST_HOURS = 336
_MOST_FILES, _MOST_BATCHES = 10_000, 100
_USUAL_BATCHES = 20


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class UploadBody(Body):
    """The fields of an upload's form; `file` is the name of the file in it."""

    file: StrictStr
    purpose: Literal["batch"]
    expires_after: ExpiresAfter | None = None

    @property
    def expiry_s(self) -> int:
        return DEFAULT_EXPIRY_S if self.expires_after is None else self.expires_after.seconds


class BatchBody(Body):
    input_file_id: StrictStr
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: StrictStr
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def window_s(self) -> float:
        """The time in which the batch has to end. Raises RequestError for another form than 24h."""
        found = _WINDOW.fullmatch(self.completion_window)
        if found is None or int(found[1]) > _MOST_HOURS:
            cause = f"completion_window is {self.completion_window[:40]!r}."
            raise RequestError(cause, f"Give a number of hours up to {_MOST_HOURS}h, such as 24h.")
        return int(found[1]) * 3600.0


class FileList(TypedDict):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchList(TypedDict):
    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


@router.post("/v1/files", form=UploadBody)
@router.post("/files", form=UploadBody)
async def upload(request: Request) -> JsonResponse[FileObject]:
    """Store a file of requests, sent as multipart/form-data with `file` and `purpose`."""
    sent = await read_upload(request, UploadBody)
    owner = caller_of(request.scope).owner
    files = app_state(request).batches.files
    return JsonResponse(await asyncio.to_thread(files.add, sent.file, sent.body.file, sent.body.expiry_s, owner))


@router.get("/v1/files", refusals=errors(400))
@router.get("/files", refusals=errors(400))
async def list_files(
    request: Request, limit: str = "", order: str = "", after: str = "", purpose: str = ""
) -> JsonResponse[FileList]:
    """The files, the newest first unless `order` is asc."""
    page = Page.of(limit, order, after, usual=_MOST_FILES, most=_MOST_FILES)
    stored = await asyncio.to_thread(app_state(request).batches.files.all, caller_of(request.scope))
    wanted = [dict(each) for each in stored if purpose in ("", each["purpose"])]
    return JsonResponse(cast("FileList", page_of(wanted, page)))


@router.get("/v1/files/{file_id}", refusals=errors(404))
@router.get("/files/{file_id}", refusals=errors(404))
async def file(request: Request, file_id: str) -> JsonResponse[FileObject]:
    """What a file is."""
    return JsonResponse(app_state(request).batches.files.find(file_id, caller_of(request.scope)))


@router.get("/v1/files/{file_id}/content", refusals=errors(404))
@router.get("/files/{file_id}/content", refusals=errors(404))
async def file_content(request: Request, file_id: str) -> FileResponse:
    """The content of a file."""
    path = app_state(request).batches.files.path_of(file_id, caller_of(request.scope))
    headers = {"x-content-type-options": "nosniff"}  # a page must not show it as what it claims to be
    return FileResponse(path, headers=headers, media_type="application/octet-stream")


@router.delete("/v1/files/{file_id}", refusals=errors(400, 404))
@router.delete("/files/{file_id}", refusals=errors(400, 404))
async def delete_file(request: Request, file_id: str) -> JsonResponse[DeletedFile]:
    """Delete a file. Raises RequestError for the input of a batch that has not ended."""
    batches = app_state(request).batches
    if batches.is_input(batches.files.find(file_id, caller_of(request.scope))["id"]):
        raise RequestError("A batch that has not ended needs this file.", "Cancel the batch, or wait for its end.")
    batches.files.remove(file_id)
    return JsonResponse({"id": file_id, "object": "file", "deleted": True})


@router.post("/v1/batches", refusals=errors(404, 429))
@router.post("/batches", refusals=errors(404, 429))
async def create_batch(request: Request, body: BatchBody) -> JsonResponse[BatchObject]:
    """Answer the requests of a file as a job of the service, behind all other requests."""
    expiry_s = DEFAULT_EXPIRY_S if body.output_expires_after is None else body.output_expires_after.seconds
    batch = await app_state(request).batches.create(
        body.input_file_id,
        body.endpoint,
        body.completion_window,
        body.window_s,
        expiry_s,
        body.metadata,
        caller_of(request.scope),
    )
    return JsonResponse(batch)


@router.get("/v1/batches", refusals=errors(400))
@router.get("/batches", refusals=errors(400))
async def list_batches(request: Request, limit: str = "", after: str = "") -> JsonResponse[BatchList]:
    """The batches, the newest first."""
    page = Page.of(limit, "", after, usual=_USUAL_BATCHES, most=_MOST_BATCHES)
    found = [dict(batch) for batch in await app_state(request).batches.listed(caller_of(request.scope))]
    return JsonResponse(cast("BatchList", page_of(found, page)))


@router.get("/v1/batches/{batch_id}", refusals=errors(404))
@router.get("/batches/{batch_id}", refusals=errors(404))
async def batch(request: Request, batch_id: str) -> JsonResponse[BatchObject]:
    """A batch, and how far it is."""
    return JsonResponse(await app_state(request).batches.get(batch_id, caller_of(request.scope)))


@router.post("/v1/batches/{batch_id}/cancel", refusals=errors(400, 404))
@router.post("/batches/{batch_id}/cancel", refusals=errors(400, 404))
async def cancel_batch(request: Request, batch_id: str) -> JsonResponse[BatchObject]:
    """Cancel a batch; what is answered so far will be in its output file."""
    return JsonResponse(await app_state(request).batches.cancel(batch_id, caller_of(request.scope)))
