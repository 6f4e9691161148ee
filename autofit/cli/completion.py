"""`autofit completion`: prints a completion script, generated from the parser."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autofit import exporters, searchers, trackers
from autofit.cli import parser
from autofit.cli.arguments import KNOBS, TECHNIQUES

_FILE_METAVARS = ("FILE", "PLAN", "TARGET", "PATH")


_OFFERED: dict[str, Callable[[], Iterable[str]]] = {
    "--only": lambda: TECHNIQUES,
    "--without": lambda: TECHNIQUES,
    "--set": lambda: [f"{name}=" for name in KNOBS],
    "--track": lambda: [member.name for member in trackers.members()],
    "--searcher": lambda: [member.name for member in searchers.members()],
    "--to": lambda: [member.name for member in exporters.members()],
}
"""Values that are offered for a flag without fixed choices. One that ends with "=" is followed by no space."""


@dataclass(frozen=True, slots=True)
class CommandFlag:
    """An optional argument of a command.

    Attributes:
        names: such as ("-o", "--output").
        about: what it does, on one line.
        choices: values that are offered; () if none are known.
        takes: metavar of its value; "" if it takes none.
    """

    names: Sequence[str]
    about: str
    choices: Sequence[str]
    takes: str

    @property
    def takes_file(self) -> bool:
        """Whether its value is the name of a file."""
        return self.takes in _FILE_METAVARS


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        name: one word or two.
        about: what it does.
        flags: its optional arguments.
        choices: choices of its positional argument; () if it takes a file.
        actions: second words of the commands of two words that begin with its name.
    """

    name: str
    about: str
    flags: Sequence[CommandFlag]
    choices: Sequence[str]
    actions: Sequence[str] = ()


def execute(given: argparse.Namespace) -> int:
    """Prints a shell completion script."""
    commands = list(_commands())
    print(_SCRIPTS[given.shell](commands))
    return 0


def _commands() -> Iterator[Command]:
    """Yields every command of the parser; the command line itself comes first, with an empty name."""
    top = parser()
    (subs,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    about = {action.dest: action.help or "" for action in subs._choices_actions}
    yield Command("", "", list(_flags(top)), [name for name in subs.choices if " " not in name])
    for name, sub in subs.choices.items():
        actions = [other.removeprefix(f"{name} ") for other in subs.choices if other.startswith(f"{name} ")]
        positional = [a for a in sub._actions if not a.option_strings]
        choices = [str(choice) for action in positional for choice in action.choices or ()]
        yield Command(name, about[name], list(_flags(sub)), choices, actions)


def _flags(of: argparse.ArgumentParser) -> Iterator[CommandFlag]:
    for action in of._actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        text = " ".join((action.help or "").split()) % {"default": action.default, "prog": of.prog}
        takes = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
        offered = [choice for name in action.option_strings if name in _OFFERED for choice in _OFFERED[name]()]
        yield CommandFlag(action.option_strings, text, [str(c) for c in action.choices or offered], takes)


def _bash(commands: Sequence[Command]) -> str:
    top, *others = commands
    cases = [line for command in others for line in _bash_case(command)]
    return "\n".join(
        [
            "# bash completion for autofit",
            "_autofit() {",
            '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" files=""',
            '    local command="${COMP_WORDS[1]}"',
            "    if [ $COMP_CWORD -gt 2 ]; then",
            '        case "$command ${COMP_WORDS[2]}" in',
            f'            {_pairs(others)}) command="$command ${{COMP_WORDS[2]}}" ;;',
            "        esac",
            "    fi",
            '    case "$command" in',
            *cases,
            "    esac",
            "    if [ $COMP_CWORD -eq 1 ]; then",
            f'        files="" words="{" ".join([*top.choices, *_names(top)])}"',
            "    fi",
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            '    case "${COMPREPLY[0]-}" in *=) compopt -o nospace 2>/dev/null ;; esac',
            "    local IFS=$'\\n'",  # names of files may have spaces
            '    if [ -n "$files" ]; then COMPREPLY+=($(compgen -f -- "$word")); fi',
            "}",
            "complete -o filenames -F _autofit autofit",
        ]
    )


def _bash_case(command: Command) -> list[str]:
    """Returns the branch of one command: what may follow, and for each flag its values."""
    takers = [flag for flag in command.flags if flag.takes]
    branches = []
    for flag in takers:
        found = f'words="{" ".join(flag.choices)}" files="{"yes" if flag.takes_file else ""}"'
        branches.append(f"                {'|'.join(flag.names)}) {found} ;;")
    words = " ".join([*command.choices, *command.actions, *_names(command)])
    after = f'words="{words}" files="{"" if command.choices else "yes"}"'
    return [
        f"        {_quoted(command.name)})",
        '            case "$before" in',
        *branches,
        f"                *) {after} ;;",
        "            esac ;;",
    ]


def _zsh(commands: Sequence[Command]) -> str:
    top, *others = commands
    lines = ["#compdef autofit", "_autofit() {", "    local -a commands", "    commands=("]
    lines += [f"        {_quoted(f'{_escaped(c.name)}:{c.about}')}" for c in others if c.name in top.choices]
    lines += ["    )", "    if (( CURRENT == 2 )); then"]
    lines += ["        _describe command commands", f"        _arguments {' '.join(map(_zsh_flag, top.flags))}"]
    lines += ["        return", "    fi", "    local command=${words[2]}", "    shift words; (( CURRENT-- ))"]
    lines += ['    case "$command ${words[2]}" in', f"        {_pairs(others)}) if (( CURRENT > 2 )); then"]
    lines += ['            command="$command ${words[2]}"; shift words; (( CURRENT-- ))', "        fi ;;", "    esac"]
    lines += ['    case "$command" in']
    for command in others:
        specs = [spec for flag in command.flags for spec in _zsh_flags(flag)]
        lines += [f"        {_quoted(command.name)}) _arguments {' '.join([*specs, _zsh_position(command)])} ;;"]
    return "\n".join([*lines, "    esac", "}", 'if [ "$funcstack[1]" = "_autofit" ]; then', '    _autofit "$@"',
                      "else", "    compdef _autofit autofit", "fi"])  # fmt: skip


def _zsh_position(command: Command) -> str:
    if command.choices:
        return f"'1:value:({' '.join(command.choices)})'"
    if not command.actions:
        return "'*:file:_files'"
    actions = f"actions\\:action\\:({' '.join(command.actions)})"
    return f'\'1:file:{{_alternative "{actions}" "files\\:file\\:_files"}}\''


def _zsh_flags(flag: CommandFlag) -> list[str]:
    about = flag.about.replace("[", "(").replace("]", ")").replace(":", " -")
    if not flag.takes:
        return [_quoted(f"{name}[{about}]") for name in flag.names]
    values = f"({' '.join(flag.choices)})" if flag.choices else "_files" if flag.takes_file else ""
    if flag.choices and flag.choices[0].endswith("="):
        values = f'{{compadd -S "" -- {" ".join(flag.choices)}}}'
    return [_quoted(f"*{name}[{about}]:{_escaped(flag.takes)}:{values}") for name in flag.names]


def _zsh_flag(flag: CommandFlag) -> str:
    return " ".join(_zsh_flags(flag))


def _fish(commands: Sequence[Command]) -> str:
    top, *others = commands
    lines = ["# fish completion for autofit", "complete -c autofit -f"]
    one = [c for c in others if c.name in top.choices]
    lines += [f"complete -c autofit -n __fish_use_subcommand -a {c.name} -d {_quoted(c.about)}" for c in one]
    lines += [_fish_flag("__fish_use_subcommand", flag) for flag in top.flags]
    for command in others:
        within = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.name.split())
        if command.actions:
            within += f"; and not __fish_seen_subcommand_from {' '.join(command.actions)}"
            lines.append(f"complete -c autofit -n {_quoted(within)} -a {_quoted(' '.join(command.actions))}")
        if command.choices:
            lines.append(f"complete -c autofit -n {_quoted(within)} -a {_quoted(' '.join(command.choices))}")
        else:
            lines.append(f"complete -c autofit -n {_quoted(within)} -F")
        lines += [_fish_flag(within, flag) for flag in command.flags]
    return "\n".join(lines)


def _fish_flag(within: str, flag: CommandFlag) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    values = f" -r -f -a {_quoted(' '.join(flag.choices))}" if flag.choices else ""
    if flag.takes and not flag.choices:
        values = " -r -F" if flag.takes_file else " -x"
    return f"complete -c autofit -n {_quoted(within)} {names}{values} -d {_quoted(flag.about)}"


def _pairs(commands: Sequence[Command]) -> str:
    """Returns the commands of two words as a pattern of `case`."""
    return "|".join(_quoted(command.name) for command in commands if " " in command.name)


def _names(command: Command) -> list[str]:
    return [name for flag in command.flags for name in flag.names]


def _quoted(text: str) -> str:
    """Returns `text` in single quotes, as all three shells read it."""
    return "'" + text.replace("'", "’") + "'"


def _escaped(text: str) -> str:
    return text.replace(":", r"\:")


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
