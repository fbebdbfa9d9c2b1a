"""The frame of every command: global options, where output goes, and the one place where exceptions become exit codes.

A command is a function `(console, ...) -> int` that parses, calls one function, renders and returns its exit code. The
frame adds `-q`, `--no-color` and `--debug` to each command, so that they may stand before or behind its name.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fleet.errors import DescriptionError, KvWaybillError
from scenarios.cli.console import Console
from scenarios.cli.streams import open_closed, tell

YES, NO, WRONG_USE, CANNOT_SAY, BROKE, INTERRUPTED = 0, 1, 2, 3, 4, 130
READER_LEFT = 141
"""128 + SIGPIPE: what a shell reports for git when its reader closes the pipe."""

_CODES = {
    "admitted": YES, "equal": YES, "proved": YES, "valid": YES, "passed": YES,
    "refused": NO, "different": NO, "not proved": NO, "missing": NO, "failed": NO,
    "unverified": CANNOT_SAY, "inconclusive": CANNOT_SAY,
}  # fmt: skip


class Format(StrEnum):
    """How a result is printed."""

    text = "text"
    json = "json"


FormatOption = Annotated[
    Format, typer.Option("-o", "--output", "--format", help="How the result is printed.", show_default=True)
]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no remarks on stderr.")]
_NoColor = Annotated[bool, typer.Option("--no-color", help="No colour; the same with NO_COLOR or without a terminal.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")]
_COMMON = {"quiet": _Quiet, "no_color": _NoColor, "debug": _Debug}

PURPOSE = "Admit a prefill/decode split before anyone rents a machine, run it, and prove the bytes it moved."

Command = Callable[..., int]


def exit_code(verdict: str) -> int:
    """The exit code of one answer. KeyError for a word that is no verdict: never guessed."""
    return _CODES[verdict]


def exit_code_of(verdicts: Sequence[str]) -> int:
    """Several answers at once: 0 if all are yes, 1 if any is no, else 3."""
    codes = {exit_code(verdict) for verdict in verdicts}
    if codes <= {YES}:
        return YES
    return NO if NO in codes else CANNOT_SAY


class _Group(TyperGroup):
    """Commands with their whole sentence, folded where the terminal is narrow: click cuts it and writes "..."."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands of a help page."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(1000)) for name, each in found if each is not None and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def new_app(help_text: str) -> typer.Typer:
    """A typer app or group in our manner: no rich markup (start-up time), no pretty tracebacks."""
    return typer.Typer(
        cls=_Group,
        help=help_text,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(app: typer.Typer, name: str, asks: Mapping[str, Any] | None = None) -> Callable[[Command], Command]:
    """Registers `function(console, ...)` as a command. Typer sees its signature less `console`, plus -q and others.

    `asks`: options, None or False where not given, that the function takes as one mapping `asked` of those that were
    given; they stand in its place.
    """
    options = asks or {}

    def register(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        own: list[inspect.Parameter] = []
        for key, parameter in signature.parameters.items():
            if key == "asked":
                kind = inspect.Parameter.KEYWORD_ONLY
                own += [inspect.Parameter(k, kind, default=None, annotation=option) for k, option in options.items()]
            elif key != "console":
                own.append(parameter)
        common = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
            for key, option in _COMMON.items()
        ]

        def call(**values: Any) -> int:
            flags = {key: values.pop(key) for key in _COMMON}
            if options:
                held = ((key, values.pop(key)) for key in options)
                values["asked"] = {key: value for key, value in held if value is not None and value is not False}
            try:
                return function(STATE.console(**flags), **values)
            except DescriptionError as error:
                raise _told_shortly(error, _called(function, name), own, values) from error

        keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        call.__signature__ = inspect.Signature([*keyword_only, *common])  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *common)}
        call.__doc__ = function.__doc__
        app.command(name)(call)
        return function

    return register


def _told_shortly(
    error: DescriptionError, command: str, own: Sequence[inspect.Parameter], values: Mapping[str, Any]
) -> DescriptionError:
    """The error, a file of another kind than is wanted told in one sentence."""
    from scenarios.cli.misplaced import told_shortly

    asked = {**values, **(values.get("asked") or {})}
    return told_shortly(error, command, {each.name: (_flag(each), asked.get(each.name)) for each in own})


def _called(function: Command, name: str) -> str:
    """`fleet show` of a command of a group, whose file is named by it."""
    group = function.__module__.rpartition(".")[2].partition("_")[0]
    return name if group == name else f"{group} {name}"


def _flag(parameter: inspect.Parameter) -> str | None:
    """`--fleet` of an option, None of an argument."""
    told = parameter.annotation.__metadata__[0] if hasattr(parameter.annotation, "__metadata__") else None
    if not isinstance(told, typer.models.OptionInfo):
        return None
    # Within Annotated the first name of an option stands where typer has the default of other options.
    names = [each for each in (told.default, *(told.param_decls or ())) if isinstance(each, str)]
    return next((each for each in names if each.startswith("--")), f"--{parameter.name.replace('_', '-')}")


class _State:
    """The global options of this call, as they stood before the command's name."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.quiet = False
        self.no_color = False
        self.debug = False

    def console(self, *, quiet: bool, no_color: bool, debug: bool) -> Console:
        """A console for the command. What is said before or behind the name of the command counts."""
        self.debug = self.debug or debug
        return Console(quiet=self.quiet or quiet, no_color=self.no_color or no_color)


STATE = _State()


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        sys.stdout.write(f"kvwaybill {version('kvwaybill')}\n")
        raise typer.Exit(YES)


_Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
]


def global_options(
    quiet: _Quiet = False, no_color: _NoColor = False, debug: _Debug = False, version: _Version = False
) -> None:
    STATE.quiet, STATE.no_color, STATE.debug = quiet, no_color, STATE.debug or debug


def main(make_app: Callable[[], typer.Typer], arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and gives its exit code. No exception leaves it, and no traceback without --debug.

    The app is made inside, so that a broken command file is a code, too.
    """
    STATE.reset()
    open_closed()
    # An output that cannot show a character (LANG=C) must not turn a result into a crash.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(make_app, list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return READER_LEFT
    except OSError as error:
        return _stdout_lost(error)
    return code


def _run(make_app: Callable[[], typer.Typer], arguments: list[str]) -> int:
    STATE.debug = "--debug" in arguments  # also for a failure before the options are parsed
    try:
        entry = typer.main.get_command(make_app())
        return _answered(entry(arguments, prog_name="kvwaybill", standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort):
        return _said("interrupted", INTERRUPTED)
    except BrokenPipeError:
        raise
    except KvWaybillError as error:
        return _failed(str(error), error.exit_code)
    except SystemExit as stop:
        # Typer ends the process itself, with 1, when a pipe closes under it; 1 must only ever mean "no".
        raise BrokenPipeError from stop
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes a code: a crash must never read as "no"
        return _unexpected(error)


def _answered(value: Any) -> int:
    """What a command returned. A command that forgets its code is a bug and must not read as yes."""
    if value == INTERRUPTED:
        return _said("interrupted", INTERRUPTED)  # typer turns Ctrl-C into this code
    if type(value) is not int:
        raise TypeError(f"a command returned {value!r} instead of an exit code")
    return value


def _unexpected(error: Exception) -> int:
    if isinstance(error, _usage_error()):
        shown = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError" and shown is not None:
            return _said(shown.get_help(), WRONG_USE)
        hint = f"\nTry '{shown.command_path} --help'." if shown is not None else ""
        return _said(f"error: {_usage_words(error)}{hint}", WRONG_USE)
    if isinstance(error, OSError) and error.filename is None and error.errno in _STDOUT_LOST:
        return _stdout_lost(error)
    if isinstance(error, MemoryError):
        return _failed("out of memory; nothing was written", BROKE)
    if isinstance(error, RecursionError):
        return _failed("internal error: nested too deeply; run again with --debug for details", BROKE)
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return _failed(f"internal error: {words[:300]}; run again with --debug for details", BROKE)


_PARSED = {
    "int_parsing": "{value} is no whole number; write digits, e.g. 8",
    "int_parsing_size": "{value} has too many digits; write a smaller number",
    "float_parsing": "{value} is no number; write e.g. 0.5",
    "finite_number": "{value} is not finite; write e.g. 0.5",
    "greater_than": "{value} is out of range; write more than {gt}",
    "greater_than_equal": "{value} is out of range; use {ge} or more",
    "less_than": "{value} is out of range; write less than {lt}",
    "less_than_equal": "{value} is out of range; use {le} or less",
}
"""Our words for what typer leaves to pydantic, by pydantic's type of fault: its own do not tell the value."""


def _usage_words(error: Any) -> str:
    """The message of wrong usage, with the value that was given."""
    words = str(error.format_message())
    faults = getattr(error.__cause__, "errors", None)
    if not callable(faults) or not (found := faults()):
        return words
    from decimal import Decimal

    fault = found[0]
    value = repr(str(fault["input"])[:64])
    told = fault.get("ctx", {}).items()
    limits = {name: f"{Decimal(str(limit)).normalize():f}" for name, limit in told if isinstance(limit, int | float)}
    if (known := _PARSED.get(fault["type"])) is not None:
        plain = known.format(value=value, **limits)
    else:
        plain = fault["msg"].removeprefix("Value error, ")
    return words.replace(fault["msg"], plain)


def _usage_error() -> Any:
    """click's ClickException, which newer versions of typer carry inside: found by the class that typer exports."""
    return next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def _failed(words: str, code: int) -> int:
    if STATE.debug:
        import traceback

        tell(traceback.format_exc().rstrip("\n"))
    # Several faults stand one a line, each with its own file:line:column for editors to jump to.
    return _said(words if "\n" in words else f"error: {words}", code)


def _said(words: str, code: int) -> int:
    tell(words)
    return code


_STDOUT_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF)
"""What a write can end with whose file is not ours to name: only stdout is written to without a name."""


def _stdout_lost(error: OSError) -> int:
    _drop_stdout()
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror
    return _said(f"error: the result could not be written to stdout: {reason}", BROKE)


def _drop_stdout() -> None:
    """Points stdout at nothing, or the interpreter would fail on what is left in its buffer once more at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # a stdout that is no file has nothing to point elsewhere
        os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def wrong_use(message: str) -> NoReturn:
    """Ends the command as wrong usage (code 2)."""
    raise DescriptionError.at("command line", "", message)
