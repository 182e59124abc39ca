"""Fixtures of several files of unit tests: those of tests/unit."""

from __future__ import annotations

from databases import compile_once
from descriptors import thousand_descriptors
from rest_service import http, service

__all__ = ["compile_once", "http", "service", "thousand_descriptors"]
