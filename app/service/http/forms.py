"""Uploads: a file with fields beside it, as multipart/form-data. The file goes to disk as it comes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, BinaryIO, Generic, TypeVar

from pydantic import BaseModel
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from app.protocol.errors import RequestError
from app.service.http.access_log import record_of
from app.service.http.errors import RefusedError
from app.service.http.routing import validated
from quantizer.figures import format_number
from quantizer.system.files import explained

UPLOAD_TIMEOUT_S = 600.0  # for 200 MiB from another room
_MOST_FIELDS = 100
_MOST_FIELD_BYTES = 64 << 10
_PART = re.compile(r"(\w+)\[(\w*)\]")  # of an object in a form, or of a list

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Upload(Generic[Body]):
    """The fields of a form, and the file in it, which is closed when the answer was sent."""

    body: Body
    file: BinaryIO


async def read_upload(request: Request, kind: type[Body]) -> Upload[Body]:
    """Read a form whose part `file` is a file; `kind` has its name as that field. The request's record learns which
    fields have no effect. Raises RefusedError for another Content-Type (415) and a form that is too slow (408),
    RequestError for an invalid one, StorageError where the disk takes no more."""
    form = await _read_form(request)
    record = record_of(request.scope)
    fields: dict[str, Any] = {}
    content: UploadFile | None = None
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            record.until_end.callback(value.file.close)
            content, value = value, value.filename or ""
        if not (part := _PART.fullmatch(name)):
            fields[name] = value
        elif part[2]:
            _under(fields, part[1], {})[part[2]] = value
        else:
            _under(fields, part[1], []).append(value)
    body = validated(kind, fields, record)
    if content is None or content.filename != fields["file"]:
        raise RequestError("`file` is no file.", "Send its content and its name as the part `file`.")
    return Upload(body, content.file)


async def _read_form(request: Request) -> FormData:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise RefusedError(415, "unsupported_media_type", "An upload is multipart/form-data.", "Send it as a form.")
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):  # its error is one of the system, too
            with explained("The upload cannot be stored", "Free some space for temporary files."):
                return await request.form(max_files=1, max_fields=_MOST_FIELDS, max_part_size=_MOST_FIELD_BYTES)
    except TimeoutError:
        raise RefusedError(
            408, "timeout", f"The file did not come within {format_number(UPLOAD_TIMEOUT_S)} s."
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "disconnected", "The client went away before its file was complete.") from None
    except HTTPException as error:  # not a form, or too many parts
        raise RequestError(f"The form cannot be read: {error.detail}", "Send `file` and the other fields.") from None


def _under(fields: dict[str, Any], name: str, empty: Any) -> Any:
    """Return the object or list `name` of a form, made where it is new, or another type was sent under that name."""
    if type(fields.get(name)) is not type(empty):
        fields[name] = empty
    return fields[name]
