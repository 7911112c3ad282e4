"""Makes the options of a command from the fields of a frozen class."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from undersong_common.errors import ConfigurationError


def with_options(options: type[Any], *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each named field of a frozen options class, or for all if none is named.

    The decorated function receives the value as its parameter ``options``. The fields are annotated with
    :class:`undersong_common.program.declarations.Option`.
    """
    hints = get_type_hints(options, include_extras=True)
    declarations = {
        option_field.name: {
            "default": option_field.default,
            "type": get_args(hints[option_field.name])[0],
            **get_args(hints[option_field.name])[1],
        }
        for option_field in fields(options)
        if get_origin(hints[option_field.name]) is Annotated and option_field.name in (names or hints)
    }
    lists = {name: settings.pop("each") for name, settings in declarations.items() if "each" in settings}
    flags = {name: settings.pop("name", f"--{name.replace('_', '-')}") for name, settings in declarations.items()}

    def parameter_of(name: str) -> inspect.Parameter:
        settings = dict(declarations[name])
        default, kind = settings.pop("default"), settings.pop("type")
        if name in lists:
            kind = str if default is not None else str | None
        annotation = Annotated[kind, typer.Option(flags[name], **settings)]  # type: ignore[valid-type]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in declarations}
            list_texts = {name: text for name in lists if (text := values[name]) is not None}
            values |= {name: _split(text, lists[name], flags[name]) for name, text in list_texts.items()}
            command(options=options(**values), **given)

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "options":
                parameters += map(parameter_of, declarations)
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _split(text: str, convert: Callable[[str], Any], option: str) -> list[Any]:
    try:
        return [convert(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigurationError(f"{option} {text!r}: not a list of numbers", "separate them by commas") from None
