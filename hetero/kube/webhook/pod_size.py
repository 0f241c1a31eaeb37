"""Keeps pods so small that they can be changed: else nobody could take a finalizer off one."""

from __future__ import annotations

from msgspec import Raw, Struct, json

#: What is read of an admission review.
MOST_BYTES = 3 * 2**20
#: A pod may have half of that: a review of a change has its old and its new state.
_POD_BYTES = (MOST_BYTES - 2**17) // 2
_NULL = Raw(b"null")


class _Pods(Struct):
    """The texts of a pod's new and old state."""

    object: Raw = _NULL
    oldObject: Raw = _NULL  # noqa: N815 - the API's name


class _Review(Struct):
    request: _Pods


def too_large(review_json: bytes) -> str | None:
    """Return why a pod is not to be made, or to grow, None if it may be changed later.

    Raises `ValueError` for what is no review.
    """
    if len(review_json) <= _POD_BYTES:
        return None
    pod_versions = json.decode(review_json, type=_Review).request
    size_bytes, bytes_before = (
        len(memoryview(pod_versions.object)),
        len(memoryview(pod_versions.oldObject)),
    )
    if size_bytes <= max(_POD_BYTES, bytes_before):
        return None
    return f"the pod has {size_bytes} bytes: over {_POD_BYTES} it could not be changed any more"
