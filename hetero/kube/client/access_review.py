"""Asks the API server for the identity of a user and for the rights of a user."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from hetero.kube.client.api import ApiCalls
from hetero.kube.objects.kinds import Plain

_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCOUNTS = "system:serviceaccounts"


@frozen(kw_only=True)
class UserInfo:
    """A user as the API server knows it."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(factory=dict)

    @classmethod
    def read(cls, plain: Plain) -> UserInfo:
        """Return the user of an admission request or of a TokenReview."""
        return cls(
            name=plain.get("username") or "",
            groups=tuple(plain.get("groups") or ()),
            uid=plain.get("uid") or "",
            extra={
                extra_name: tuple(values)
                for extra_name, values in (plain.get("extra") or {}).items()
            },
        )

    @classmethod
    def service_account(cls, namespace: str, account_name: str) -> UserInfo:
        """Return the user of programs with a service account."""
        groups = (_ACCOUNTS, f"{_ACCOUNTS}:{namespace}", "system:authenticated")
        return cls(name=f"system:serviceaccount:{namespace}:{account_name}", groups=groups)

    async def may(self, api: ApiCalls, **attributes: Mapping[str, str]) -> bool:
        """Return whether the user may do this: `resourceAttributes` or `nonResourceAttributes`.

        Raises `ApiError`.
        """
        spec = {
            "user": self.name,
            "groups": list(self.groups),
            "uid": self.uid,
            "extra": {extra_name: list(values) for extra_name, values in self.extra.items()},
            **{attributes_kind: dict(values) for attributes_kind, values in attributes.items()},
        }
        access_review = await api.post(
            _ACCESS, _review("authorization", "SubjectAccessReview", spec)
        )
        return bool((access_review.get("status") or {}).get("allowed"))


async def user_of(api: ApiCalls, token: str, *, audience: str | None = None) -> UserInfo | None:
    """Return the user of a bearer token, None if it is not valid. Raises `ApiError`.

    `audience` is the service it must be issued for; None: the API server.
    """
    spec = {"token": token, **({"audiences": [audience]} if audience else {})}
    token_review = _review("authentication", "TokenReview", spec)
    review_status = (await api.post(_TOKENS, token_review)).get("status") or {}
    is_meant = audience is None or audience in (review_status.get("audiences") or ())
    is_known = review_status.get("authenticated") and is_meant
    return UserInfo.read(review_status.get("user") or {}) if is_known else None


def _review(group: str, kind: str, spec: Plain) -> Plain:
    return {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
