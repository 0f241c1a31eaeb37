"""The least a device plugin can be: so many devices, none with a choice, given at once.

    python -m tests.cluster.plain_plugin RESOURCE COUNT

What pods wait for under it, they wait for Kubernetes and the machine. It tells when it was asked in
an answer's environment, which the kubelet keeps.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import grpc

from hetero.kube.agent.proto import deviceplugin_pb2 as wire
from hetero.kube.agent.proto.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)

RESOURCE = "lab.local/card"
ASKED = "LAB_ASKED"
SOCKETS = Path("/var/lib/kubelet/device-plugins")
ENDPOINT = "plain.sock"


class Plain(DevicePluginServicer):
    """Names of methods are the protocol's."""

    def GetDevicePluginOptions(  # noqa: N802
        self,
        request: wire.Empty,
        context: grpc.ServicerContext,
    ) -> wire.DevicePluginOptions:
        """Ask for no more calls than must be."""
        return wire.DevicePluginOptions()

    def ListAndWatch(  # noqa: N802
        self,
        request: wire.Empty,
        context: grpc.ServicerContext,
    ) -> Iterator[wire.ListAndWatchResponse]:
        """Tell the devices, once."""
        cards = (wire.Device(ID=f"card-{n}", health="Healthy") for n in range(int(sys.argv[2])))
        yield wire.ListAndWatchResponse(devices=cards)
        Event().wait()

    def Allocate(  # noqa: N802
        self,
        request: wire.AllocateRequest,
        context: grpc.ServicerContext,
    ) -> wire.AllocateResponse:
        """Give what is asked for."""
        given = wire.ContainerAllocateResponse(envs={ASKED: str(time.time())})
        return wire.AllocateResponse(container_responses=[given] * len(request.container_requests))


def main() -> None:
    """Register with the kubelet and serve until killed."""
    server = grpc.server(ThreadPoolExecutor(4))
    add_DevicePluginServicer_to_server(Plain(), server)  # type: ignore[no-untyped-call]
    (SOCKETS / ENDPOINT).unlink(missing_ok=True)
    server.add_insecure_port(f"unix://{SOCKETS / ENDPOINT}")
    server.start()
    # The authority that gRPC makes of a socket's path is one that Go's servers refuse.
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{SOCKETS / 'kubelet.sock'}", options=options) as kubelet:
        request = wire.RegisterRequest(
            version="v1beta1", endpoint=ENDPOINT, resource_name=sys.argv[1]
        )
        RegistrationStub(kubelet).Register(request)  # type: ignore[no-untyped-call]
    server.wait_for_termination()


if __name__ == "__main__":
    main()
