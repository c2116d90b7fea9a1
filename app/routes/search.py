"""Search for the page: `/api/search`. Whose messages are looked through is asked in `chat.search`."""

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.chat.search import LONGEST_PAGE, LONGEST_QUERY, FoundPage, Search
from app.people.accounts import Principal


@get("/search")
async def find_messages(
    principal: NamedDependency[Principal],
    search: NamedDependency[Search],
    words: Annotated[str, QueryParameter(max_length=LONGEST_QUERY)],
    *,
    cursor: Annotated[str | None, QueryParameter(max_length=100)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=LONGEST_PAGE)] = 20,
) -> FoundPage:
    """Messages that have all these words, each perhaps only begun; the newest first."""
    return await search.find(principal.user_id, words, cursor=cursor, limit=limit)


handlers = [find_messages]
