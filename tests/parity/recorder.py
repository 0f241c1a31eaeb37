"""Notes what each test sends to what is tested, where $RECORD_SENT is set, as by `make test`.

What counts as sent: objects of the API server, real or fake; pods to the webhook and nodes to the
extender; values to the chart; settings; files of HAMi's; command lines and environments; paths that
HTTP clients ask for. Of metrics, which nobody sends, what a test reads counts. The words that
rows.toml names are kept, by test, in a file of each process below build/parity;
docs/make_parity.py compares them with the rows.
"""

import functools
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import click.testing
import prometheus_client
import pytest
import yaml
from aiohttp.test_utils import TestClient

from hetero.kube.migrate import hami
from hetero.kube.scheduler.verbs import NodeVerbs
from hetero.kube.webhook.admission import Webhook
from hetero.kube.words import settings as cluster_settings
from hetero.node import settings as node_settings
from tests.cluster.lab import Lab
from tests.kube.api_server import FakeApi as ApiServer
from tests.kube.control_plane import ControlPlane
from tests.kube.fake_api import FakeApi

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "deploy"), str(ROOT / "docs")]
import render  # type: ignore[import-not-found]  # noqa: E402
from make_parity import RECORDS, read_rows  # noqa: E402

_TOKEN = re.compile(r"[A-Za-z0-9_./*@-]+")
_DOCUMENTS = (".toml", ".yaml", ".yml", ".json")
_LARGEST = 200_000  # bytes of a file that is read for its words
#: Of a test that sends ever more, what comes later says nothing new.
_MOST = 20_000

Sent = set[str]
#: What notes first, and what it took the place of.
_replaced: list[tuple[Any, str, Callable[..., Any]]] = []


class Recorder:
    """What the test that runs has sent, and what fixtures of several tests had sent before it."""

    def __init__(self, vocabulary: Container[str]) -> None:
        self._vocabulary = vocabulary
        self.now: Sent = set()
        self._left = _MOST
        self._by_fixture: dict[int, Sent] = {}
        self.by_test: dict[str, Sent] = {}

    def note(self, sent: Any) -> None:
        """Note the words in what is sent: a document, or a text."""
        if self._left > 0:
            self.now.update(word for word in self._words(sent) if word in self._vocabulary)

    def _words(self, sent: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
        """Yield texts and their parts, keys, ends of paths to them, and `key=value`."""
        self._left -= 1
        if isinstance(sent, Mapping):
            for key, value in sent.items():
                way = (*path, str(key))
                yield from (".".join(way[place:]) for place in range(len(way)))
                if isinstance(value, str | int | float):
                    yield f"{key}={str(value).lower() if isinstance(value, bool) else value}"
                yield from self._words(value, way)
        elif isinstance(sent, list | tuple | set):
            for entry in sent:
                yield from self._words(entry, path)
        elif isinstance(sent, str):
            yield sent
            yield from _TOKEN.findall(sent[:_LARGEST])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Keep what a test sends, its own fixtures among it."""
        self.now, self._left = set(), _MOST
        result = yield
        for fixtures in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
            self.now |= self._by_fixture.get(id(fixtures[-1]), set())
        name = item.nodeid.partition("[")[0]
        self.by_test.setdefault(name, set()).update(self.now)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Keep what a fixture of several tests sends for all of them."""
        if fixturedef.scope == "function":
            return (yield)
        before, self.now = self.now, set()
        try:
            return (yield)
        finally:
            self._by_fixture[id(fixturedef)] = self.now
            self.now = before

    def pytest_sessionfinish(self) -> None:
        """Write what was sent; a process that ran no test, as pytest-xdist's first, writes none."""
        if self.by_test:
            RECORDS.mkdir(parents=True, exist_ok=True)
            text = json.dumps({test: sorted(words) for test, words in self.by_test.items()})
            run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "alone")
            (RECORDS / f"{run}-{os.getpid()}.json").write_text(text)


def begin(config: pytest.Config) -> None:
    """Note from now on what tests send: `RECORD_SENT=all` keeps every word, to find some."""
    words = {word for row in read_rows() for word in row.words}
    recorder = Recorder(_Everything() if os.environ["RECORD_SENT"] == "all" else words)
    config.pluginmanager.register(recorder)
    listen(recorder.note)


class _Everything:
    """All that looks like a word."""

    def __contains__(self, word: object) -> bool:
        return re.fullmatch(r"[A-Za-z/_-][\w./*=-]{2,70}", str(word)) is not None


def listen(note: Callable[[Any], None]) -> None:
    """Have what tests call to send something note it first."""

    def spy(owner: Any, name: str, seen: Callable[..., Any]) -> None:
        called = getattr(owner, name)

        @functools.wraps(called)
        def noting(*arguments: Any, **options: Any) -> Any:
            note(seen(*arguments, **options))
            return called(*arguments, **options)

        _replaced.append((owner, name, called))
        setattr(owner, name, noting)

    def hear(owner: Any, name: str) -> None:
        called = getattr(owner, name)

        @functools.wraps(called)
        def noting(*arguments: Any, **options: Any) -> Any:
            answer = called(*arguments, **options)
            note(answer.decode())
            return answer

        _replaced.append((owner, name, called))
        setattr(owner, name, noting)

    def second(_: Any, sent: Any, *__: Any, **___: Any) -> Any:
        return sent

    def rest(_: Any, *arguments: Any, **options: Any) -> Any:
        return [*arguments, options]

    hear(prometheus_client, "generate_latest")
    spy(prometheus_client.CollectorRegistry, "get_sample_value", rest)
    spy(ApiServer, "put", rest)
    spy(FakeApi, "put_now", rest)
    spy(FakeApi, "post", rest)
    spy(FakeApi, "patch", rest)
    spy(ControlPlane, "call", rest)
    spy(Lab, "ask", rest)
    spy(Webhook, "admit", second)
    spy(NodeVerbs, "filter", second)
    spy(render, "render", lambda **options: options["values"])
    spy(cluster_settings, "read", lambda text, **_: _document(text, ".toml"))
    spy(node_settings, "read_settings", lambda document, *_: document)
    spy(hami, "migrate", lambda values, configs: [_file(path) for path in (values, *configs)])
    spy(subprocess.Popen, "__init__", _command)
    spy(click.testing.CliRunner, "invoke", rest)
    spy(pytest.MonkeyPatch, "setenv", rest)
    spy(TestClient, "request", rest)
    spy(urllib.request, "urlopen", lambda asked, *_, **__: getattr(asked, "full_url", asked))


def _command(_: Any, args: Any, *__: Any, env: Any = None, **___: Any) -> Any:
    """Return a command line, what its environment says anew, and the documents that they name."""
    line = [args] if isinstance(args, str | bytes | os.PathLike) else args
    words = [os.fsdecode(word) for word in line]
    new = {k: v for k, v in (env or {}).items() if os.environ.get(k) != v}
    named = [word.rpartition("=")[2] for word in (*words, *map(str, new.values()))]
    if "--bundle" in words:  # a container's, as OCI has it
        named.append(f"{words[words.index('--bundle') + 1]}/config.json")
    return [words, new, [_file(Path(word)) for word in named if word.endswith(_DOCUMENTS)]]


def _file(path: Path) -> Any:
    try:
        text = path.read_text() if path.stat().st_size < _LARGEST else ""
    except (OSError, ValueError):
        return None
    return _document(text, path.suffix)


def _document(text: str, kind: str) -> Any:
    """Return what a text says, or the text itself where it is of no such language."""
    try:
        if kind == ".toml":
            return tomllib.loads(text)
        return list(yaml.safe_load_all(text))
    except (ValueError, RecursionError, yaml.YAMLError):
        return text
