"""Writes and finds CDI specs, by which docker, podman and containerd know a device by its name.

Format: the Container Device Interface specification, version 0.3.0. It is the oldest that has all
that is needed, so that every runtime with CDI reads it. A device node that the machine has at
another path (`hostPath`) takes version 0.5.0.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hetero.container.preload import TARGET, hook
from hetero.model import Edits
from hetero.model.errors import BadInput, HeteroError, Refused
from hetero.model.frozen import frozen
from hetero.node.ledger.grant_dir import replace

KIND = "hetero.io/share"
_VERSION, _MOVING_VERSION = "0.3.0", "0.5.0"
_NAME = r"[A-Za-z]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"


@frozen
class Specs:
    """The CDI specs of a machine: lasting ones and, last, those that a reboot removes.

    `kind` is the kind of those that are written here. Specs that are `hooked` preserve the preload
    file of an image, which needs this program on the machine.
    """

    directories: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    kind: str = KIND
    hooked: bool = True

    def path(self, share_name: str) -> Path:
        """Return the path of the spec of a share."""
        return self.directories[-1] / f"{self.kind.replace('/', '-')}_{share_name}.json"

    def put(self, share_name: str, edits: Edits, *, owner: Path) -> None:
        """Write the spec of a share whose grant is in the ledger `owner`.

        Raises `Refused` if the name is taken by a spec of another ledger.
        """
        self.expect_free(share_name, owner=owner)
        self.replace(share_name, edits)

    def replace(self, share_name: str, edits: Edits) -> None:
        """Write a spec without the check for its owner, for names that are known to be free."""
        spec_text, spec_path = self._text(share_name, edits), self.path(share_name)
        try:
            if spec_path.exists() and spec_path.read_text() == spec_text:
                return
            spec_path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            replace(spec_path, spec_text.encode(), mode=0o644)
        except OSError as error:
            raise HeteroError(f"{spec_path}: {error.strerror}") from None

    def expect_free(self, share_name: str, *, owner: Path) -> None:
        """Raise `Refused` if the spec of that name is not one of the ledger `owner`."""
        if self.path(share_name).exists() and share_name not in self.owned(owner):
            raise Refused(f"{self.path(share_name)} is not of {owner}: choose another name")

    def remove(self, share_name: str) -> None:
        """Remove the spec of a share: from here on no new container gets it."""
        self.path(share_name).unlink(missing_ok=True)

    def owned(self, owner: Path) -> tuple[str, ...]:
        """Return the names of the shares whose specs lead into the ledger `owner`."""
        prefix = json.dumps(f"{owner}/grants/")[:-1]
        return tuple(
            path.stem.partition("_")[2]
            for path in sorted(self.directories[-1].glob(self.path("*").name))
            if prefix in path.read_text(errors="replace")
        )

    def present(self, qualified_name: str) -> bool:
        """Return whether any spec, JSON or YAML, has a device such as `vendor.com/class=name`."""
        device_kind, _, device_name = qualified_name.partition("=")
        word_patterns = [
            re.compile(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])")
            for word in (device_kind, device_name)
        ]
        return any(
            all(word.search(spec_text) for word in word_patterns) for spec_text in self._texts()
        )

    def _text(self, share_name: str, edits: Edits) -> str:
        container_edits: dict[str, object] = {
            "mounts": [
                {
                    "hostPath": mount.source,
                    "containerPath": mount.target,
                    "options": mount_options(writable=mount.writable),
                }
                for mount in edits.mounts
            ]
        }
        # The specification has no empty lists.
        if edits.env:
            container_edits["env"] = [
                f"{variable_name}={variable_value}"
                for variable_name, variable_value in edits.env.items()
            ]
        if edits.device_nodes:
            container_edits["deviceNodes"] = [
                {"path": target, **({"hostPath": source} if source != target else {})}
                for source, target in edits.device_node_paths
            ]
        if self.hooked and any(mount.target == TARGET for mount in edits.mounts):
            container_edits["hooks"] = [hook()]
        document = {
            "cdiVersion": _MOVING_VERSION
            if any(source != target for source, target in edits.device_node_paths)
            else _VERSION,
            "kind": self.kind,
            "devices": [{"name": share_name, "containerEdits": container_edits}],
        }
        return json.dumps(document, indent=2) + "\n"

    def _texts(self) -> Iterator[str]:
        for directory in self.directories:
            for path in sorted(directory.glob("*")):
                if path.suffix in (".json", ".yaml") and os.access(path, os.R_OK):
                    yield path.read_text(errors="replace")


def check_name(share_name: str) -> None:
    """Raise `BadInput` for a name that CDI does not allow for a device."""
    if re.fullmatch(_NAME, share_name) is None:
        raise BadInput(
            f"share {share_name!r}: a name is a letter, then up to 62 letters, digits or . _ -, "
            "the last one not a sign"
        )


def mount_options(*, writable: bool) -> list[str]:
    """Return the mount options of a file of ours."""
    return ["rw" if writable else "ro", "nosuid", "nodev", "bind"]
