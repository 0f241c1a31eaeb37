"""Holds the nodes' ledgers against the API: nothing over capacity, nobody with another's share."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException, HTTPResponse, HTTPSConnection

from attrs import Factory, define, field

from hetero.kube.words.annotations import ALLOCATION, INVENTORY, published_devices
from hetero.model import Device
from hetero.node.ledger.ledger import Ledger
from tests.cluster.lab import TOKEN, Lab, Plain


@define(eq=False)
class Books:
    """What the cards have, and what of them is given: in the ledgers, and by the API's pods."""

    lab: Lab
    nodes: Sequence[str] = field(default=Factory(lambda it: tuple(it.lab.racks), takes_self=True))
    events: int = field(default=0, init=False)  # after how many the books were looked at
    failures: list[str] = field(factory=list, init=False)  # what was wrong then
    _cards: dict[str, tuple[Device, ...]] = field(factory=dict, init=False)

    def faults(self, pods: Sequence[Plain] | None = None) -> list[str]:
        """Return a line for every counter of a card of which more is given than the card has."""
        lines = []
        pods = list(self.lab.pods().values()) if pods is None else pods
        for node in self.nodes:
            ledger = [entry["allocation"] for entry in self.lab.standing(node)]
            bound = [one for pod in pods for one in given(pod, node)]
            for where, allocations in (("ledger", ledger), ("API", bound)):
                for (device, counter), amount in _sums(allocations).items():
                    if amount > (most := self.capacity(node)[device][counter]):
                        lines.append(f"{where} of {node}: {device} {counter}: {amount} of {most}")
        return lines

    def strangers(self) -> list[str]:
        """Return a line for every grant that is not what the scheduler gave its very pod."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.lab.pods().values()}
        return [
            f"{entry['label']}: {entry['allocation']['pieces']}"
            for node in self.nodes
            for entry in self.lab.standing(node)
            if entry["owner"].get("uid") not in pods
            or _takes(entry["allocation"])
            not in map(_takes, given(pods[entry["owner"]["uid"]], node))
        ]

    def doubles(self) -> list[str]:
        """Return a line for every slot of a device that two pods' grants were given for."""
        held: dict[str, set[str]] = {}
        for node in self.nodes:
            for path in self.lab.records(node):
                with suppress(FileNotFoundError):  # it went at this moment
                    label = json.loads(path.read_text())["label"]
                    for line in Ledger(path.parents[2]).notes(path.parent.name):
                        for uuid in filter(None, line.partition(" ")[2].split(",")):
                            held.setdefault(f"{node} {uuid}", set()).add(label)
        return [f"{one}: {', '.join(pods)}" for one, pods in held.items() if len(pods) > 1]

    def capacity(self, node: str) -> dict[str, Mapping[str, int]]:
        """Return what each card of a node has, as its agent published it."""
        return {card.uuid: card.capacity for card in self.cards(node)}

    def cards(self, node: str) -> tuple[Device, ...]:
        """Return the cards of a node, as its agent published them."""
        if node not in self._cards:
            notes = self.lab.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
            self._cards[node] = tuple(published_devices(notes[INVENTORY], node=node))
        return self._cards[node]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Look into them after every event of the API's pods, meanwhile."""
        server, tls = self.lab.api.partition("://")[2], ssl._create_unverified_context()
        pods: dict[str, Plain] = {}

        def follow() -> None:
            self.lab.enter()
            connection.request("GET", path, headers={"Authorization": TOKEN})
            answer = connection.getresponse()
            for line in lines(answer):
                event = json.loads(line)
                pods[event["object"]["metadata"]["uid"]] = event["object"]
                if event["type"] == "DELETED":
                    del pods[event["object"]["metadata"]["uid"]]
                try:
                    self.failures += self.faults(list(pods.values()))
                except Exception as error:
                    self.failures.append(repr(error))  # else nobody would look any more, unseen
                self.events += 1

        def lines(answer: HTTPResponse) -> Iterator[bytes]:
            with suppress(OSError, HTTPException, ValueError, AttributeError):  # until it is closed
                while (line := answer.readline()).endswith(b"\n"):  # less is the end, or a part
                    yield line

        path = "/api/v1/namespaces/default/pods?watch=true"
        with closing(HTTPSConnection(server, context=tls, timeout=600)) as connection:
            thread = threading.Thread(target=follow)
            thread.start()
            try:
                yield
            finally:
                if connection.sock is not None:
                    # The socket's own: TLS's would have what comes next read as it is encrypted.
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
                thread.join()


def given(pod: Plain, node: str) -> Iterator[Plain]:
    """Yield the allocations of a pod on a node that has not ended."""
    text = pod["metadata"].get("annotations", {}).get(ALLOCATION)
    if (
        text
        and pod["spec"].get("nodeName") == node
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
    ):
        yield from (allocation for _, allocation in json.loads(text)["containers"])


def _takes(allocation: Plain) -> list[tuple[str, Plain]]:
    return [(grant["device"], grant["takes"]) for grant in allocation["pieces"]]


def _sums(allocations: Sequence[Plain]) -> dict[tuple[str, str], int]:
    held: dict[tuple[str, str], int] = {}
    for allocation in allocations:
        for grant in allocation["pieces"]:
            for counter, amount in grant["takes"].items():
                key = (grant["device"], counter)
                held[key] = held.get(key, 0) + amount
    return held
