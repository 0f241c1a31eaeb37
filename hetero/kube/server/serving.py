"""A gRPC server that is told to stop while it starts."""

from __future__ import annotations

import asyncio

import grpc


async def started(server: grpc.aio.Server) -> None:
    """Start a server; a caller who is cancelled meanwhile has one that can be stopped.

    Of a start that was cut short grpc (1.85) says `InvalidStateError` when the server is stopped,
    and what else was to be stopped went on.
    """
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting
        raise
