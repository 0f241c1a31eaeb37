"""The driver's parts that a container needs, and the variables of the vendor's own runtime."""

from __future__ import annotations

from hetero.model.frozen import frozen


@frozen(kw_only=True)
class ContainerEdits:
    """What a container needs for each granted device, in addition to variables.

    `{index}` and any `{attribute}` of the device are filled in. A text with an attribute that the
    device lacks is left out, and so is a file that the machine lacks.
    """

    #: The /dev entries of a device.
    device_nodes: tuple[str, ...] = ()
    #: The driver's libraries by name, and programs and directories by path: `path:path inside`.
    files: tuple[str, ...] = ()
    #: The kind of the vendor's own CDI devices, named by UUID: where they are, they bring all this.
    cdi: str | None = None


@frozen(kw_only=True)
class ContainerRuntime:
    """The inputs of the vendor's own container runtime. No pod may set them itself."""

    #: The variables that say which devices a container gets.
    variables: tuple[str, ...] = ()
    #: What it calls a device, filled in as paths are; None: what the machine calls it.
    name: str | None = None
    #: The variable that has it cut a card to a template.
    template: str | None = None
    #: What in its variables gives a container no device; hetero says the first.
    none: tuple[str, ...] = ()
    #: The path below which a mount at a device's name stands for that device, where it is told so.
    mounts: str | None = None
    #: Further variables, of devices or of what it gives of them.
    options: tuple[str, ...] = ()
    #: Whether the vendor's hook sets options; else each is empty for a container with a share.
    by_hook: bool = False

    @property
    def hiding(self) -> dict[str, str]:
        """The values of its variables that make it inject no device."""
        return dict.fromkeys(self.variables, self.none[0]) if self.none else {}

    @property
    def unsaid(self) -> tuple[str, ...]:
        """The variables of options that only hetero may set: any other value is removed."""
        return () if self.by_hook else self.options
