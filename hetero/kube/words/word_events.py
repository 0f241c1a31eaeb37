"""Writes events about the words of pods that change nothing, as the webhook noted them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from attrs import define, field

from hetero.kube.client.events import Events
from hetero.kube.objects.kinds import Pod
from hetero.kube.words.owned_words import INEFFECTIVE_WORDS, OwnedWords

#: The reason of these events.
_REASON = "IneffectiveWord"


@define(eq=False)
class WordEvents:
    """Tells each pod once, before it is bound, where `acts` says so of this process now."""

    events: Events
    words: OwnedWords
    acts: Callable[[Pod], bool]
    _told_uids: set[str] = field(factory=set)
    _tasks: set[asyncio.Future[None]] = field(factory=set)

    def pods_listed(self, uids: set[str]) -> None:
        """Forget all pods but these."""
        self._told_uids &= uids

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Write the events of a pod that waits for a node; forget a deleted one."""
        uid = pod.metadata.uid
        if event == "DELETED":
            self._told_uids.discard(uid)
        elif (
            INEFFECTIVE_WORDS in pod.metadata.annotations
            and not pod.spec.node_name
            and uid not in self._told_uids
            and self.acts(pod)
        ):
            self._told_uids.add(uid)
            for sentence in self.words.sentences(pod.metadata.annotations):
                task = asyncio.ensure_future(self.events.tell(pod.metadata, _REASON, sentence))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
