"""Pages of lists: the parameters `limit` and `cursor`, and the address of the next page as the header `Link`.

A route names its list and the types of its key; the cursor of another list is refused.
"""

from __future__ import annotations

from typing import Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response

from wherry.model.paging import MOST, Page, Wanted
from wherry.service.lists import Lists, cursor_of, key_of
from wherry.service.rest.dependencies import ContextDep, PeerDep

Found = TypeVar("Found")
Limit = Annotated[int, Query(ge=1, le=10_000, description="most rows of a page")]
Cursor = Annotated[str, Query(max_length=1000, description="of the next page, as the header `Link` has it")]


class Paging:
    """The page that a request asks for, and the header of its answer."""

    def __init__(self, request: Request, response: Response, limit: Limit = MOST, cursor: Cursor = "") -> None:
        self._request, self._response, self._limit, self._cursor = request, response, limit, cursor
        self._name = request.url.path.removeprefix("/v1/")

    def wanted(self, *types: type, newest: bool = False) -> Wanted:
        """The page of a list with a key of these types. USAGE for a cursor of another list."""
        name = f"{self._name} newest" if newest else self._name
        self._name = name
        behind = key_of(name, self._cursor, types) if self._cursor else ()
        return Wanted(self._limit, behind, newest)

    def answer(self, page: Page[Found]) -> list[Found]:
        """The rows; the header has the address of the next page, if there is one."""
        if page.next is not None:
            words = [pair for pair in self._request.query_params.multi_items() if pair[0] not in ("cursor", "wait")]
            query = urlencode([*words, ("cursor", cursor_of(self._name, page.next))])
            self._response.headers["Link"] = f'<{self._request.url.path}?{query}>; rel="next"'
        return page.rows


def _lists(context: ContextDep, peer: PeerDep) -> Lists:
    return Lists(context, peer)


PagingDep = Annotated[Paging, Depends()]
ListsDep = Annotated[Lists, Depends(_lists)]
Newest = Annotated[bool, Query(description="the newest rows first: the next page has older ones")]
