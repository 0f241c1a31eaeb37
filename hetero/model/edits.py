"""What confines a program to its allocation, in the nouns of the Container Device Interface."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field

from hetero.model.frozen import frozen


@frozen
class Mount:
    """A host path made visible to a container, read-only unless said otherwise."""

    source: str
    target: str
    writable: bool = False


@frozen(kw_only=True)
class Edits:
    """What is added to a container or process (the nouns of the Container Device Interface).

    `cdi` names the vendor's own CDI devices. Where the machine has those, they bring the device
    nodes and the driver's `files`; elsewhere we do. Such a file is a library by the name programs
    open it by, or a program by its path.
    `parts` names, by device UUID, the slice that was made for the grant of that device.
    """

    env: Mapping[str, str] = field(factory=dict)
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(factory=dict)

    def merged(self, other_edits: Edits) -> Edits:
        """Return both together; where they name the same variable, `other_edits` has it."""
        return Edits(
            env={**self.env, **other_edits.env},
            mounts=self.mounts + other_edits.mounts,
            device_nodes=tuple(dict.fromkeys(self.device_nodes + other_edits.device_nodes)),
            cdi=self.cdi + other_edits.cdi,
            files=self.files + other_edits.files,
            parts={**self.parts, **other_edits.parts},
        )
