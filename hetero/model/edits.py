"""What confines a program to its allocation, with the names of the Container Device Interface."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field

from hetero.model.frozen import frozen


@frozen
class Mount:
    """A host path that is mounted into a container, read-only unless `writable`."""

    source: str
    target: str
    writable: bool = False


@frozen(kw_only=True)
class Edits:
    """The additions to a container or process, with the names of the Container Device Interface.

    `cdi` names the vendor's own CDI devices. Where the machine has their specs, these bring the
    device nodes and the driver's `files`; elsewhere hetero does. A file is a library, by the name
    that programs open it by, or a program, by its path. A device node is a path, or the machine's
    path and the container's (`/driver/dev/a:/dev/a`). `parts` names the slice that was made for the
    grant, by device UUID.
    """

    env: Mapping[str, str] = field(factory=dict)
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(factory=dict)

    @property
    def device_node_paths(self) -> tuple[tuple[str, str], ...]:
        """The device nodes, each by where the machine has it and where the container gets it."""
        parts = (device_node.partition(":/") for device_node in self.device_nodes)
        return tuple(
            (source, f"/{target}" if separator else source) for source, separator, target in parts
        )

    def merged(self, other_edits: Edits) -> Edits:
        """Return both together. Where both set a variable, `other_edits` wins."""
        return Edits(
            env={**self.env, **other_edits.env},
            mounts=self.mounts + other_edits.mounts,
            device_nodes=tuple(dict.fromkeys(self.device_nodes + other_edits.device_nodes)),
            cdi=self.cdi + other_edits.cdi,
            files=self.files + other_edits.files,
            parts={**self.parts, **other_edits.parts},
        )
