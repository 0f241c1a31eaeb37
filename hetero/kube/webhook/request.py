"""What the API server asks the webhook: whether somebody may make a pod so, or change it."""

from __future__ import annotations

from msgspec import field

from hetero.kube.objects.kinds import Part, Plain, Pod


class AdmissionRequest(Part, frozen=True):
    """A request for a pod; `user_info` is who makes it, `old_object` the pod before a change."""

    operation: str
    object: Pod
    old_object: Pod | None = None
    sub_resource: str = ""
    namespace: str = "default"
    user_info: Plain = field(default_factory=dict)

    @property
    def before(self) -> Pod:
        """The pod before the change. Raises `ValueError` where the API server names none."""
        if self.old_object is None:
            raise ValueError("a change without oldObject")
        return self.old_object
