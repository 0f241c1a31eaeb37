"""The DRA driver: registers with the kubelet, prepares claims and reports the devices' health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, time

import grpc
from attrs import define, field, frozen

from hetero.kube.dra.node_claims import NodeClaims, named
from hetero.kube.dra.offers import DRIVER, offers
from hetero.kube.dra.proto import dra_pb2 as wire
from hetero.kube.dra.proto import health_pb2 as health
from hetero.kube.dra.proto import registration_pb2 as registration
from hetero.kube.dra.proto.dra_pb2_grpc import DRAPluginServicer, add_DRAPluginServicer_to_server
from hetero.kube.dra.proto.health_pb2_grpc import (
    DRAResourceHealthServicer,
    add_DRAResourceHealthServicer_to_server,
)
from hetero.kube.dra.proto.registration_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from hetero.kube.server.serving import started
from hetero.model.errors import HeteroError

log = logging.getLogger(__name__)

#: Seconds between two checks of the last discovery, and after which health is reported again: a
#: kubelet takes a report that is 30 s old for unknown.
_CHECK_PERIOD_S, _HEALTH_PERIOD_S = 1.0, 10.0


@frozen(kw_only=True)
class Sockets:
    """The sockets by which the kubelet with directory `kubelet` reaches this driver."""

    kubelet: Path

    @property
    def plugin(self) -> Path:
        """The socket that claims are prepared by."""
        return self.kubelet / "plugins" / DRIVER / "dra.sock"

    @property
    def registration(self) -> Path:
        """The socket that the kubelet looks for."""
        return self.kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"


@define(eq=False)
class DraDriver(DRAPluginServicer, RegistrationServicer, DRAResourceHealthServicer):
    """What the kubelet calls for the claims of one node; `due` has these looked at."""

    claims: NodeClaims
    sockets: Sockets
    due: asyncio.Event
    registered: bool = field(init=False, default=False)
    _servers: list[grpc.aio.Server] = field(init=False, factory=list)
    _made: dict[Path, int] = field(init=False, factory=dict)  # the inode of each socket

    # --- serving ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. The kubelet finds the sockets, now and at each restart."""
        if self._servers:
            return
        services: tuple[tuple[Path, tuple[Callable[..., None], ...]], ...] = (
            (
                self.sockets.plugin,
                (add_DRAPluginServicer_to_server, add_DRAResourceHealthServicer_to_server),
            ),
            (self.sockets.registration, (add_RegistrationServicer_to_server,)),
        )
        for path, add_services in services:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            server = grpc.aio.server()
            for add_service in add_services:
                add_service(self, server)
            server.add_insecure_port(f"unix://{path}")
            self._servers.append(server)
            await started(server)
            self._made[path] = _inode(path) or 0

    async def attend(self) -> None:
        """Serve again where a socket is gone: an agent that ends late removes its successor's."""
        if self._servers and any(_inode(path) != inode for path, inode in self._made.items()):
            log.warning("claims: a socket is gone: served anew, for the kubelet to find")
            await self.close()
            await self.start()

    async def close(self) -> None:
        """Stop serving; what is prepared stays."""
        for server in self._servers:
            await server.stop(grace=None)
        self._servers.clear()
        self._made.clear()
        self.registered = False

    # --- the services; their names are the protocols' ---------------------------------------------

    async def GetInfo(  # noqa: N802
        self,
        request: registration.InfoRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> registration.PluginInfo:
        """Return the driver's name and versions."""
        return registration.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self.sockets.plugin),
            supported_versions=["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"],
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: registration.RegistrationStatus,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> registration.RegistrationStatusResponse:
        """Note whether the kubelet took the registration."""
        self.registered = request.plugin_registered
        if request.plugin_registered:
            log.info("claims: registered with the kubelet")
        else:
            log.error("claims: the kubelet did not take the registration: %s", request.error)
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(  # noqa: N802
        self,
        request: wire.NodePrepareResourcesRequest,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> wire.NodePrepareResourcesResponse:
        """Prepare claims, each by itself; what fails is an error in the pod's events."""
        response = wire.NodePrepareResourcesResponse()
        for claim in request.claims:
            async with self.claims.alone(claim.uid):
                try:
                    claim_response = await self.claims.prepare(claim)
                except (HeteroError, OSError) as error:
                    claim_response = wire.NodePrepareResourceResponse(
                        error=f"{named(claim)}: {error}"
                    )
                    log.warning("%s", claim_response.error)
                response.claims[claim.uid].CopyFrom(claim_response)
        return response

    async def NodeUnprepareResources(  # noqa: N802
        self,
        request: wire.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> wire.NodeUnprepareResourcesResponse:
        """Take back what claims hold; what was never prepared is taken back."""
        response = wire.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            claim_response = wire.NodeUnprepareResourceResponse()
            async with self.claims.alone(claim.uid):
                try:
                    await asyncio.to_thread(self.claims.unprepare, claim.uid)
                    if claim.uid in self.claims.ending:
                        self.due.set()
                except (HeteroError, OSError) as error:
                    claim_response.error = f"{named(claim)}: {error}"
                    log.warning("%s", claim_response.error)
            response.claims[claim.uid].CopyFrom(claim_response)
        return response

    async def NodeWatchResources(  # noqa: N802
        self,
        request: health.NodeWatchResourcesRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        """Report the devices' health now, at each change, and before the kubelet forgets it."""
        sent_faults, sent_at_s = None, 0.0
        while True:
            fault_by_name = {
                device_name: next(
                    (device.health for device in offer.devices if not device.healthy), None
                )
                for device_name, offer in offers(self.claims.discovery().devices).items()
            }
            if fault_by_name != sent_faults or monotonic() - sent_at_s > _HEALTH_PERIOD_S:
                sent_faults, sent_at_s = fault_by_name, monotonic()
                yield _health(self.claims.name, fault_by_name)
            await asyncio.sleep(_CHECK_PERIOD_S)


def _inode(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def _health(
    node_name: str, fault_by_name: Mapping[str, str | None]
) -> health.NodeWatchResourcesResponse:
    """Return the health message for the kubelet: the fault of each device, None for none."""
    response = health.NodeWatchResourcesResponse()
    for device_name, fault in fault_by_name.items():
        response.devices.add(
            device=health.DeviceIdentifier(pool_name=node_name, device_name=device_name),
            health=health.HEALTHY if fault is None else health.UNHEALTHY,
            last_updated_time=int(time()),
            message=fault or "",
        )
    return response
