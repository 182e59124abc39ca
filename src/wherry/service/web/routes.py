"""All routes of the page."""

from __future__ import annotations

from fastapi import APIRouter

from wherry.service.web import actions, admin_actions, pages, profile_page, sign_in
from wherry.service.web.dependencies import is_page, refused, refused_before

__all__ = ["is_page", "refused", "refused_before", "router"]

router = APIRouter(include_in_schema=False)
for _part in (sign_in, pages, profile_page, actions, admin_actions):
    router.include_router(_part.router)
