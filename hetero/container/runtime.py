"""The OCI runtime `hetero`: admits what a container's environment asks, then becomes the real one.

Engines run this file by its path, through a script that `hetero runtime install` writes. A
container that asks for nothing passes after a look at its text: nothing is imported for it, not
even `site`. For one that asks, admit.py takes the grant and makes the edits.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in typing, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

#: The subcommands that make a container, of runc(8) and crun(1).
_MAKING = ("create", "run", "restore")
#: Options that are followed by a value, before the subcommand and after it.
_VALUED = ("--root", "--log", "--log-format", "--criu", "--rootless", "--cgroup-manager")
_BUNDLE, _PROCESS = ("-b", "--bundle"), ("-p", "--process")
#: Where a container's config.json says what we added to its environment, for what is started later.
NOTE = "io.hetero.environment"
#: One of these is in every config.json that asks; `\u00` may spell any letter of it.
_ASKING = ('"HETERO=', '"EGPU=', "\\u00")


class Call:
    """A call of the runtime by an engine: the subcommand, its words, and the options before it."""

    def __init__(self, command: str, options: Mapping[str, str], words: Sequence[str]) -> None:
        self.command, self.options, self.words = command, options, words

    @property
    def container(self) -> str:
        """The id of the container, which is the last word."""
        return self.words[-1] if self.words else ""

    @property
    def bundle(self) -> str:
        """The directory with the container's config.json."""
        return os.path.abspath(self.word_after(_BUNDLE) or ".")

    @property
    def process(self) -> str | None:
        """The file that describes a process to start in the container."""
        return self.word_after(_PROCESS)

    def word_after(self, option_names: Sequence[str]) -> str | None:
        """Return the value of an option of the subcommand."""
        for word, next_word in zip(self.words, [*self.words[1:], ""]):  # noqa: B905 - as long
            option_name, equals, option_value = word.partition("=")
            if option_name in option_names:
                return option_value if equals else next_word
        return None

    def state(self, runtime_path: str) -> str:
        """Return the path of the runtime's state of the container."""
        state_root = self.options.get("--root") or f"/run/{os.path.basename(runtime_path)}"
        return os.path.join(state_root, self.container)


def main(runtime_path: str, arguments: Sequence[str]) -> NoReturn:
    """Do what the engine asks with the runtime at `runtime_path`; a refused one is not created."""
    environ = dict(os.environ)
    command = [runtime_path, *arguments]
    call = _call(arguments)
    if call and call.command in _MAKING and _may_ask(f"{call.bundle}/config.json"):
        _import_site()
        from pathlib import Path

        from hetero.container.admit import Creation, admit

        creation = Creation(
            container=call.container,
            bundle=Path(call.bundle),
            state=call.state(runtime_path),
            options=call.options,
            command=command,
            environ=environ,
        )
        admit(creation, note=NOTE)
    elif call and call.command == "exec" and call.process:
        state_dir = call.state(runtime_path)
        # crun's state does not have the note; what does is in the bundle it names.
        if NOTE in _text(f"{state_dir}/state.json") or _text(f"{state_dir}/status"):
            _import_site()
            from hetero.container.admit import carry_over

            carry_over(call.process, state_dir, note=NOTE)
    os.execve(runtime_path, command, environ)  # noqa: S606 - no shell is the point


def _call(arguments: Sequence[str]) -> Call | None:
    options: dict[str, str] = {}
    words_left = list(arguments)
    while words_left and words_left[0].startswith("-"):
        option_name, equals, option_value = words_left.pop(0).partition("=")
        options[option_name] = (
            words_left.pop(0)
            if not equals and option_name in _VALUED and words_left
            else option_value
        )
    if not words_left:
        return None
    return Call(words_left[0], options, words_left[1:])


def _may_ask(config_path: str) -> bool:
    config_text = _text(config_path)
    return any(marker in config_text for marker in _ASKING)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""  # the real runtime says it better


def _import_site() -> None:
    """Import the installed packages: the interpreter starts without them, which is faster."""
    import gc
    import site

    gc.disable()  # what is made is needed until this process becomes another
    if sys.flags.no_site:
        site.main()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
