"""Makes the options of a command from the fields of frozen classes."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from undersong_common.errors import ConfigurationError
from undersong_common.program.entry import Quiet

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


@dataclass(frozen=True)
class Output:
    """The form in which a command prints its result."""

    as_json: AsJson = False
    quiet: Quiet = False


def with_options(options: type[Any] | None = None, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that gives a command one option for each field of its dataclass parameters.

    The command receives objects of these classes. A field becomes an option if its annotation holds a
    :class:`undersong_common.program.declarations.Option`, a ``typer.Option`` or a ``typer.Argument``.

    Args:
        options: class of the parameter ``options``, if its annotation does not name it.
        names: fields of this class that become options; all if none is named.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        classes = {parameter_name: parameter.annotation for parameter_name, parameter in signature.parameters.items()}
        if options is not None:
            classes["options"] = options
        groups = {
            parameter_name: _OptionGroup(group_class, names if parameter_name == "options" else ())
            for parameter_name, group_class in classes.items()
            if isinstance(group_class, type) and is_dataclass(group_class)
        }

        @functools.wraps(command)
        def run(**arguments: Any) -> Any:
            group_values = {group_name: group.take(arguments) for group_name, group in groups.items()}
            return command(**group_values, **arguments)

        parameters: list[inspect.Parameter] = []
        for parameter_name, parameter in signature.parameters.items():
            if parameter_name in groups:
                parameters += groups[parameter_name].parameters
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


class _OptionGroup:
    """The options that are made from the fields of one frozen class.

    Attributes:
        parameters: the command's parameter for each option.
    """

    def __init__(self, options: type[Any], names: Iterable[str]) -> None:
        hints = get_type_hints(options, include_extras=True)
        self.parameters: list[inspect.Parameter] = []
        self._class = options
        self._lists: dict[str, tuple[Callable[[str], Any], str]] = {}  # type of each element and option name, by field
        for option_field in fields(options):
            hint = hints[option_field.name]
            if get_origin(hint) is Annotated and option_field.name in (names or hints):
                annotation, default = self._declare(option_field, hint)
                self.parameters.append(
                    inspect.Parameter(
                        option_field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                    )
                )

    def _declare(self, option_field: Field[Any], hint: Any) -> tuple[Any, Any]:
        option_type, declaration = get_args(hint)[:2]
        if option_field.default is MISSING:
            default = inspect.Parameter.empty
        else:
            default = option_field.default
        if not isinstance(declaration, dict):
            return hint, default
        settings = {"default": default, "type": option_type, **declaration}
        flag = settings.pop("name", f"--{option_field.name.replace('_', '-')}")
        default = settings.pop("default")
        option_type = settings.pop("type")
        if "each" in settings:
            self._lists[option_field.name] = (settings.pop("each"), flag)
            option_type = str if default is not None else str | None
        return Annotated[option_type, typer.Option(flag, **settings)], default

    def take(self, arguments: dict[str, Any]) -> Any:
        """Removes this class's options from a command's arguments, and returns an object of the class with them."""
        option_names = [parameter.name for parameter in self.parameters if parameter.name in arguments]
        option_values = {parameter_name: arguments.pop(parameter_name) for parameter_name in option_names}
        for list_name, (convert, flag) in self._lists.items():
            if option_values.get(list_name) is not None:
                option_values[list_name] = _split(option_values[list_name], convert, flag)
        return self._class(**option_values)


def _split(text: str, convert: Callable[[str], Any], option: str) -> list[Any]:
    try:
        return [convert(list_item.strip()) for list_item in text.split(",") if list_item.strip()]
    except ValueError:
        raise ConfigurationError(f"{option} {text!r}: not a list of numbers", "separate them by commas") from None
