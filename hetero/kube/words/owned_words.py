"""Words of HAMi and of Volcano's plugin that hetero answers for: each is served or reported.

Vendors declare those of their cards, and `hami.toml` has the others. They mean pods that hetero
serves; any other pod keeps its words as they are, and nothing is said of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import field, frozen

from hetero.kube.objects.kinds import Container, Pod
from hetero.model.errors import BadInput
from hetero.plugin.resource_names import WordKind
from hetero.plugin.vendor import Vendor

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: On a pod: the words of it that have no effect, a list of names in JSON. The webhook writes it.
INEFFECTIVE_WORDS = "hetero.io/ineffective-words"
#: Characters of that annotation that are read: it may be a tenant's own.
_MOST_CHARACTERS = 4096
#: What is so of a variable that switches a limiter off, and of one that says a size, where they
#: have no effect.
_WITHOUT_RIGHT = (
    "to run without a limiter needs the right to policy off, which nobody who asks has: it is set "
    "to false; have ClusterRole hetero-use-off bound in the namespace"
)
_RAISED_LIMIT = (
    "it lowers a size in bytes that the container asks, and raises none: ask for another size "
    "among the resources"
)


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


class Effect(str, Enum):
    """What becomes of a word."""

    SERVED = "served"
    REPORTED = "reported"


@frozen(kw_only=True)
class OwnedWord:
    """Names of one kind, which may be patterns, and what becomes of them.

    `sentence` says what is so where they have no effect, "" where they always have. `values` are
    the values that are meant, all without any. A word that is served is so for pods that ask by
    claims, too, unless `by_claims` is false. `source` is the file that reads them, "" where a
    vendor declares them.
    """

    kind: WordKind = field(converter=WordKind)
    names: tuple[str, ...] = field(converter=_texts)
    effect: Effect = field(converter=Effect)
    sentence: str = ""
    values: tuple[str, ...] = field(default=(), converter=_texts)
    by_claims: bool = True
    source: str = ""

    def means(self, value: str | None) -> bool:
        """Return whether a word with this value is meant."""
        return not self.values or value in self.values


@frozen(kw_only=True)
class OwnedWords:
    """All words that hetero answers for in a cluster."""

    words: tuple[OwnedWord, ...]
    _exact: Mapping[str, tuple[tuple[str, OwnedWord], ...]] = field(init=False, repr=False)
    _patterns: tuple[tuple[str, OwnedWord], ...] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        rows = [(name, word) for word in self.words for name in word.names]
        exact: dict[str, tuple[tuple[str, OwnedWord], ...]] = {}
        for name, word in rows:
            if "*" not in name:
                exact[name] = (*exact.get(name, ()), (name, word))
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_patterns", tuple(row for row in rows if "*" in row[0]))

    def rows(self, name: str) -> Iterator[tuple[str, OwnedWord]]:
        """Yield the rows of a name, each with the name or the pattern by which it has it."""
        yield from self._exact.get(name, ())
        for pattern, word in self._patterns:
            if fnmatchcase(name, pattern):
                yield pattern, word

    def ineffective(self, pod: Pod, asking: Collection[str], *, by_claims: bool) -> tuple[str, ...]:
        """Return the names of the words of a pod that are not served, each once.

        `by_claims`: the pod asks by claims. Variables are those of the containers in `asking`, by
        name: elsewhere they limit nothing.
        """
        names = (
            name
            for kind, name, value in _said(pod, asking)
            for _, word in self.rows(name)
            if word.kind is kind
            and word.means(value)
            and (word.effect is Effect.REPORTED or (by_claims and not word.by_claims))
        )
        return tuple(dict.fromkeys(names))

    def sentence(self, name: str) -> str | None:
        """Return what is so of a word without effect, in one line; None if there is no such."""
        for _, word in self.rows(name):
            if word.sentence:
                return f"{word.kind.value} {name} has no effect: {word.sentence}"
        return None

    def pattern(self, name: str) -> str:
        """Return the declared name or pattern that a word goes by."""
        return next((pattern for pattern, _ in self.rows(name)), "")

    def sentences(self, annotations: Mapping[str, str]) -> Iterator[str]:
        """Yield a sentence for each word that the webhook noted in a pod's annotations."""
        for name in noted(annotations):
            sentence = self.sentence(name)
            if sentence is not None:
                yield sentence


def noted(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in the annotation of words without effect, none if it is not readable."""
    names_json = annotations.get(INEFFECTIVE_WORDS, "[]")
    try:
        names = json.loads(names_json) if len(names_json) <= _MOST_CHARACTERS else []
    except (RecursionError, ValueError):
        return ()
    if not isinstance(names, list):
        return ()
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def owned_words(vendors: Iterable[Vendor]) -> OwnedWords:
    """Return the words of these vendors' cards, and those that no vendor declares."""
    declared_words = tuple(word for vendor in vendors for word in _of_vendor(vendor))
    return OwnedWords(words=(*_of_no_vendor(), *dict.fromkeys(declared_words)))


def read_words(document: Mapping[str, Any]) -> tuple[OwnedWord, ...]:
    """Return the words in a document. Raises `BadInput` for a row that says too little."""
    words = tuple(OwnedWord(**row) for row in document["words"])
    for word in words:
        if word.effect is Effect.REPORTED and not word.sentence:
            raise BadInput(f"{word.names[0]}: is reported, and no sentence says what is so")
    return words


@cache
def _of_no_vendor() -> tuple[OwnedWord, ...]:
    toml_text = files(__package__).joinpath("hami.toml").read_text()
    return read_words(tomllib.loads(toml_text))


def _of_vendor(vendor: Vendor) -> Iterator[OwnedWord]:
    """Yield the words of a vendor's cards that change nothing, always or in some pods."""
    for declared in vendor.ineffective_words:
        yield OwnedWord(
            kind=declared.kind,
            names=declared.names,
            effect=Effect.REPORTED,
            sentence=declared.sentence,
            values=declared.values,
        )
    for resource_names in vendor.resource_names:
        switch = resource_names.policies.unlimited
        limit = resource_names.limiter_variables.memory
        if switch is not None:
            yield _served((switch,), _WITHOUT_RIGHT)
        if limit is not None:
            yield _served((limit, f"{limit}_*"), _RAISED_LIMIT)


def _served(names: tuple[str, ...], sentence: str) -> OwnedWord:
    """Return variables that have an effect, and what is so where they have none."""
    return OwnedWord(kind=WordKind.VARIABLE, names=names, effect=Effect.SERVED, sentence=sentence)


def _said(pod: Pod, asking: Collection[str]) -> Iterator[tuple[WordKind, str, str | None]]:
    """Yield all words of a pod that may be in the table: kind, name and value."""
    containers: tuple[Container, ...] = (*pod.spec.containers, *pod.spec.init_containers)
    for container in containers:
        for resource, amount in container.resources.amounts.items():
            yield WordKind.RESOURCE, resource, str(amount)
    for annotation, text in pod.metadata.annotations.items():
        yield WordKind.ANNOTATION, annotation, text
    for container in containers:
        for variable in container.env if container.name in asking else ():
            yield WordKind.VARIABLE, variable.name, variable.value
