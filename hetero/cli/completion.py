"""hetero completion: a shell's script that completes commands, options and the names there are."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from inspect import cleandoc

import click
from attrs import define, field

#: What a value names, by the parameter's own name; `hetero.node.complete` answers for these.
_KIND_BY_PARAMETER = {
    "grant": "grants",
    "share": "shares",
    "devices": "devices",
    "device": "devices",
    "vendor": "vendors",
    "model": "models",
    "uuid": "uuids",
    "user": "users",
    "benchmark": "benchmarks",
    "arguments": "file",
}

#: In every shell, by sh: what may stand at the cursor, a line each, perhaps with a tab and help.
#: Or `:file`, or `:command N` where the last N words are a command line of their own.
_ANSWER_SCRIPT = r"""
_hetero_answer() {
    _h_path='' _h_kind='' _h_place=0
    while [ $# -gt 1 ]; do
        case $1 in
        -?*) _h_kind='' ;;  # the option before it goes without its value
        esac
        if [ "$1" = = ]; then
            :
        elif [ -n "$_h_kind" ]; then
            _h_kind=''
        elif [ "$1" = -- ]; then
            _h_place=0
            _hetero_argument
            if [ "$_h_kind" = command ]; then
                printf ':command %s\n' $(($# - 1))
                return
            fi
            _h_kind=''
        else
            case $1 in
            -*=*) ;;
            -*) _hetero_option "$_h_path $1" ;;
            *)
                if _hetero_is_group "$_h_path"; then
                    _h_path="$_h_path $1"
                else
                    _hetero_argument
                    if [ "$_h_kind" = command ]; then
                        printf ':command %s\n' $#
                        return
                    fi
                    _h_kind='' _h_place=$((_h_place + 1))
                fi ;;
            esac
        fi
        shift
    done
    _h_before=''
    case $1 in
    -?*) _h_kind='' ;;
    esac
    if [ -z "$_h_kind" ]; then
        case $1 in
        -*=*)
            _h_before="${1%%=*}="
            _hetero_option "$_h_path ${1%%=*}" ;;
        -*)
            _hetero_options
            return ;;
        *)
            if _hetero_is_group "$_h_path"; then
                _hetero_commands
                return
            fi
            _hetero_argument ;;
        esac
    fi
    case $_h_kind in
    '' | text) ;;
    file) echo :file ;;
    command) echo ':command 1' ;;
    'one of'*) printf '%s\n' "$_h_kind" | sed "1d; s/^/$_h_before/" ;;
    *) @PYTHON@ -m hetero.node.complete "$_h_kind" 2>/dev/null | while read -r _h_word; do
        printf '%s%s\n' "$_h_before" "$_h_word"
    done ;;
    esac
}
"""

_BASH_SCRIPT = r"""
_hetero() {
    local current=${COMP_WORDS[COMP_CWORD]} line name count IFS=$'\n'
    [[ $current == = ]] && current=
    COMPREPLY=()
    for line in $(_hetero_answer "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$current"); do
        name=${line%%$'\t'*}
        case $current in
        [\'\"]*) ;;  # the quote is there: bash puts what follows it, and ends it
        *) name=${name// /\\ } ;;
        esac
        case $line in
        :file) COMPREPLY=($(compgen -f -- "$current")); compopt -o filenames ;;
        ':command '*)
            count=${line#:command }
            if declare -F _command_offset >/dev/null; then
                _command_offset $((COMP_CWORD - count + 1))
            elif ((count == 1)); then
                COMPREPLY=($(compgen -A command -- "$current") $(compgen -d -S / -- "$current"))
            else
                COMPREPLY=($(compgen -f -- "$current")); compopt -o filenames
            fi ;;
        *) [[ $name == "${current#[\'\"]}"* ]] && COMPREPLY+=("$name") ;;
        esac
    done
}
complete -F _hetero hetero
"""

_ZSH_SCRIPT = r"""
autoload -Uz compinit
(( $+functions[compdef] )) || compinit
_hetero() {
    local -a lines names shown
    local line count
    lines=("${(@f)$(_hetero_answer "${(@)words[2,CURRENT-1]}" "$PREFIX")}")
    case $lines[1] in
    :file) _files ;;
    ':command '*)
        count=${lines[1]#:command }
        words=("${(@)words[CURRENT-count+1,-1]}")
        CURRENT=$count
        _normal ;;
    *)
        for line in $lines; do
            names+=("${line%%$'\t'*}")
            shown+=("${line/$'\t'/  -- }")
        done
        compadd -l -d shown -a names ;;
    esac
}
compdef _hetero hetero
"""

_FISH_SCRIPT = r"""
function __hetero
    set -l words (commandline -opc) (commandline -ct)
    set -l lines (sh -c @ANSWER@' _hetero_answer "$@"' sh $words[2..-1])
    switch "$lines[1]"
        case :file
            __fish_complete_path (commandline -ct)
        case ':command *'
            set -l before (math (count $words) - (string replace ':command ' '' -- $lines[1]))
            set -l last $words[-1]
            test $before -gt 0; and set -e words[1..$before]
            set -e words[-1]
            complete -C (string join ' ' -- (string escape -- $words) $last)
        case '*'
            string join \n -- $lines
    end
end
complete -c hetero -f -a '(__hetero)'
"""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that has SHELL complete commands, options, names and files.

    Names are grants with their labels, shares, cards, models, vendors, users and
    benchmarks; behind `hetero run … --` commands and files.

    \b
      eval "$(hetero completion bash)"      # in ~/.bashrc
      eval "$(hetero completion zsh)"       # in ~/.zshrc
      hetero completion fish | source       # in ~/.config/fish/config.fish

    A shell starts faster with the script in a file, made again after an upgrade:

    \b
      hetero completion bash > ~/.local/share/bash-completion/completions/hetero
      hetero completion fish > ~/.config/fish/completions/hetero.fish
    """
    script = _ANSWER_SCRIPT.replace("@PYTHON@", shlex.quote(sys.executable)) + _tables(
        context.find_root()
    )
    if shell == "fish":
        quoted_script = "'" + script.replace("\\", "\\\\").replace("'", "\\'") + "'"
        click.echo(_FISH_SCRIPT.replace("@ANSWER@", quoted_script))
    else:
        click.echo(script + (_BASH_SCRIPT if shell == "bash" else _ZSH_SCRIPT))


@define
class _Place:
    """A command by its path, such as ` share rm`: what may stand behind it."""

    path: str
    command: click.Command
    commands: tuple[tuple[str, str], ...] = ()
    options: list[tuple[str, str]] = field(factory=list)
    values: dict[str, str] = field(factory=dict)  # the kind of an option's value, by the option
    arguments: list[str] = field(factory=list)  # the kinds of its arguments
    repeats: bool = False  # whether the last of them stands for all that follow


def _places(context: click.Context, command: click.Command, path: str) -> Iterator[_Place]:
    """Yield the command and all those below it."""
    subcommands: dict[str, click.Command] = {}
    if isinstance(command, click.Group):
        for command_name in command.list_commands(context):
            subcommand = command.get_command(context, command_name)
            if subcommand is not None and not subcommand.hidden:
                subcommands[command_name] = subcommand
    place = _Place(
        path,
        command,
        tuple(
            (command_name, subcommand.get_short_help_str())
            for command_name, subcommand in subcommands.items()
        ),
    )
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            for flag in (*parameter.opts, *parameter.secondary_opts):
                place.options.append((flag, (parameter.help or "").partition(". ")[0]))
                if not (parameter.is_flag or parameter.count or _is_optional(parameter)):
                    place.values[flag] = _kind(parameter)
        else:
            place.arguments.append(_kind(parameter))
            place.repeats = parameter.nargs < 0
    yield place
    for command_name, subcommand in subcommands.items():
        yield from _places(context, subcommand, f"{path} {command_name}")


def _is_optional(option: click.Option) -> bool:
    """Whether its value comes behind `=` or not at all."""
    return (option.metavar or "").startswith("[=")


def _kind(parameter: click.Parameter) -> str:
    """Return what a value names; text is what nobody can complete."""
    if isinstance(parameter.type, click.Choice):
        return "\n".join(("one of", *map(str, parameter.type.choices)))
    if isinstance(parameter.type, click.Path | click.File):
        return "file"
    if isinstance(parameter.type, click.types.UnprocessedParamType):
        return (
            "command"
            if parameter.name == "command"
            else _KIND_BY_PARAMETER.get(str(parameter.name), "text")
        )
    return _KIND_BY_PARAMETER.get(str(parameter.name).removeprefix("exclude_"), "text")


def _tables(root_context: click.Context) -> str:
    """Return the functions that `_hetero_answer` looks things up by, as sh reads them."""
    command_places = list(_places(root_context, root_context.command, ""))
    group_actions = {place.path: ":" for place in command_places if place.commands}
    option_lists = {place.path: _lines(place.options) for place in command_places}
    command_lists = {
        place.path: _lines(place.commands) for place in command_places if place.commands
    }
    option_kinds = {
        f"{place.path} {option}": f"_h_kind={shlex.quote(value_kind)}"
        for place in command_places
        for option, value_kind in place.values.items()
    }
    argument_kinds = {
        f"{place.path} {position}": f"_h_kind={shlex.quote(value_kind)}"
        for place in command_places
        for position, value_kind in enumerate(place.arguments)
    }
    for place in command_places:
        if place.repeats:
            argument_kinds[f"{place.path} *"] = f"_h_kind={shlex.quote(place.arguments[-1])}"
    return "".join(
        (
            _function("_hetero_is_group", "$1", group_actions, otherwise="return 1"),
            _function("_hetero_commands", "$_h_path", command_lists, otherwise=":"),
            _function("_hetero_options", "$_h_path", option_lists, otherwise=":"),
            _function("_hetero_option", "$1", option_kinds, otherwise="_h_kind=''"),
            _function(
                "_hetero_argument", "$_h_path $_h_place", argument_kinds, otherwise="_h_kind=''"
            ),
        )
    )


def _lines(pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> str:
    """Return the command that prints each word with its help."""
    return "printf '%s\\n' " + " ".join(
        shlex.quote(f"{word}\t{' '.join(cleandoc(help_text).split())}") for word, help_text in pairs
    )


def _function(function_name: str, subject: str, cases: dict[str, str], *, otherwise: str) -> str:
    """Return a function of sh that does the action of the first pattern that matches `subject`."""
    patterns: dict[str, list[str]] = {}
    for pattern, action in cases.items():
        if not pattern.endswith("*"):
            patterns.setdefault(action, []).append(shlex.quote(pattern) or "''")
    branches = [(" | ".join(words), action) for action, words in patterns.items()]
    # A pattern for several words follows the patterns for single words.
    branches += [
        (f"{shlex.quote(pattern[:-1])}*", action)
        for pattern, action in cases.items()
        if pattern.endswith("*")
    ]
    body = "".join(f"    {pattern}) {action} ;;\n" for pattern, action in branches)
    head = f'{function_name}() {{\n    case "{subject}" in'
    return f"{head}\n{body}    *) {otherwise} ;;\n    esac\n}}\n"
