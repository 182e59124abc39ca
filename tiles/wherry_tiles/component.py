"""The parts that tiles bring to Wherry (wherry.base.components)."""

from __future__ import annotations

from wherry.base.components import Command, Component

COMPONENT = Component(
    name="tiles",
    commands=(Command("tile", "wherry_tiles.cli:app", "Tiles: small kernels, and processes that move between them."),),
    status="wherry_tiles.status",
    requests="wherry_tiles.client:TileRequests",
    routes="wherry_tiles.service.routes:router",
    rights={
        ("GET", "/v1/tiles"): "SIGNED",
        ("PUT", "/v1/tiles"): "SOCKET",
        ("DELETE", "/v1/tiles"): "SOCKET",
        ("POST", "/v1/tiles/processes"): "SOCKET",
        ("GET", "/v1/tiles/output"): "SOCKET",
        ("POST", "/v1/tiles/moves"): "SOCKET",
    },
    events=("tile", "tiles"),
    service="wherry_tiles.service.part",
    tasks=("wherry_tiles.service.auto_balancer:TileAutoBalancer",),
    studies="wherry_tiles.study.manycore:STUDIES",
)
