"""The secrets of a release as it goes on, and the logs of all that ran, where none may be."""

import base64
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.cluster.lab import TOKEN, Lab, processes
from tests.cluster.release import NAMESPACE, Release
from tests.kube.control_plane import wait_for

SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
#: What tests send as a token.
CANARY = "a-canary-token"
#: What is long enough to be no accident: the last line of a key may be a few characters.
_SHORT = 12


def root_of(release: Release, node: str) -> Path:
    """Return the files that the agent of a node sees, once it runs."""

    def first() -> int | None:
        with suppress(StopIteration, KeyError):  # it is being started
            (status,) = release.agent(node)["status"]["containerStatuses"]
            return min(processes(status), default=None)  # those of vendors' plugins may end
        return None

    return Path(f"/proc/{wait_for(first)}/root")


def note_secrets(release: Release) -> set[str]:
    """Keep the lines of private keys and the tokens of now, and return all that were kept."""
    noted = release.lab.secrets
    for secret in release.lab.call("GET", SECRETS)["items"]:
        for name, text in (secret.get("data") or {}).items():
            plain = base64.b64decode(text).decode()
            if "PRIVATE KEY" in plain:
                noted |= {line for line in plain.splitlines() if "PRIVATE KEY" not in line}
            elif name == "token":
                noted.add(plain)
    for node in release.lab.racks:
        for path in ("kubernetes.io/serviceaccount/token", "hetero/token"):
            noted.add(wait_for(partial(_token, release, node, path)))
    return noted


def _token(release: Release, node: str, path: str) -> str:
    """Return a token of a node's agent, "" if the process that it was looked for by has ended."""
    with suppress(FileNotFoundError):
        return (root_of(release, node) / "var/run/secrets" / path).read_text()
    return ""


def leaks(lab: Lab) -> Iterator[str]:
    """Yield the logs of a lab that say a secret: of its machines, and of all hetero's pods."""
    secrets = {TOKEN.removeprefix("Bearer "), CANARY, *lab.secrets}
    texts = [one.encode() for one in secrets if len(one) > _SHORT]
    for path in lab.logs():
        text = path.read_bytes()
        if any(one in text for one in texts):
            yield str(path)
