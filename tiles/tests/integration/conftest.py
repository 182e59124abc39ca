"""Fixtures of all files."""

from __future__ import annotations

from session_directories import own_session_directories

__all__ = ["own_session_directories"]
