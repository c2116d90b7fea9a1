"""Files for the page: `/api/files/text`. Their text, to be looked at and then kept as a document."""

from typing import Annotated, Any

from litestar import Request, post
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.chat.files import Extracted, Extraction
from app.routes.cut import WAITS
from app.routes.published.told import told

LARGEST_FILE = 32 * 2**20


@post(
    "/files/text",
    status_code=200,
    request_max_body_size=LARGEST_FILE,
    opt=WAITS | told(takes={"application/octet-stream": None}),
)
async def read_file(
    request: Request[Any, Any, Any],
    extraction: NamedDependency[Extraction],
    name: Annotated[str, QueryParameter(max_length=300)] = "",
) -> Extracted:
    """The body is the file: PDF, HTML, Markdown or text. Nothing of it is kept."""
    return await extraction.text(await request.body(), name)


handlers = [read_file]
