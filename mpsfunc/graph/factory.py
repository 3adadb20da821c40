"""Makes the functions that users call to get nodes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import mpsfunc as mf
from mpsfunc.core.arguments import entries, is_a, text
from mpsfunc.graph.nodes import FilterNode, ImageNode, Kind, StateNode, as_image, frozen, shown

GIVEN = Parameter.empty
# Whoever says one of these places windows himself.
_PLACES = ("padding", "offset", "out_size", "output_padding", "state", "ceil_mode")

Filter = Callable[..., Any]
Own = dict[str, tuple[Any, str, str]]  # by an argument's name its default, its type and what it means

_NAME: Own = {"name": (None, "str | None", "Its name in errors and drawings. Default: the operation.")}
_NAMED: Own = {"name": (GIVEN, "str", "Name of its parameters and states.")}
_SHARED: Own = {
    "params": (
        *(None, "str | None"),
        "A name of parameters that several nodes share; give it to each. Default: name.",
    )
}


def filter_of(
    kind: Kind,
    like: Callable[..., Any],
    mps: str,
    example: str,
    *,
    sources: Sequence[str] = ("x",),
    own: Own | None = None,
    without: Sequence[str] = (),
    made: type[FilterNode] = FilterNode,
    name: str = "",
    **defaults: Any,
) -> Filter:
    """What makes the nodes of a kind.

    Args:
        kind: The kind.
        like: The function whose arguments they take.
        mps: Their class.
        example: A call.
        sources: The arguments that are images, or sequences of images.
        own: Arguments that the function does not have. Those without a default follow the images.
        without: Arguments of the function that they do not have.
        made: Class of the nodes.
        name: Name of the filter, if it is not the kind's.
        defaults: Defaults that differ from the function's.
    """
    op = name or kind.name
    own = (own or {}) | (_NAMED if kind.weights or kind.memory else _NAME) | (_SHARED if kind.weights else {})
    signature, plain = _signature(like, sources, own, without, defaults, made), inspect.signature(like).parameters

    def make(*args: Any, **kwargs: Any) -> FilterNode:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{op}: {error}") from None
        said = set(bound.arguments)
        bound.apply_defaults()
        options = frozen(bound.arguments)
        optional = {source for source in sources if signature.parameters[source].default is not GIVEN}
        images = [image for at in sources for image in _images(op, at, options.pop(at), at in optional)]
        called, params = (_called(op, argument, options.pop(argument, None)) for argument in ("name", "params"))
        placed = said.intersection(_PLACES) or is_a(options.get("kernel_size"), str)
        if placed and "padding" in options and "padding" not in said:
            options["padding"] = 0
        if options.get("antialias") is True:  # which MPS's nodes do not have
            options |= {other: plain[other].default for other in defaults if other not in said}
        state = options.pop("state", None)
        return made(
            kind,
            images,
            options,
            name=called or op,
            params=(params or called) if kind.weights else "",
            shares=bool(params),
            states=[] if state is None else [_state(op, state)],
        )

    make.__name__ = make.__qualname__ = op
    make.__signature__ = signature  # type: ignore[attr-defined]
    make.__doc__ = _doc(like, mps, example, own, defaults, made)
    return make


def _signature(
    like: Callable[..., Any],
    sources: Sequence[str],
    own: Own,
    without: Sequence[str],
    defaults: dict[str, Any],
    made: type[FilterNode],
) -> inspect.Signature:
    theirs = [
        argument.replace(
            default=defaults.get(argument.name, argument.default),
            annotation=_node_type(argument) if argument.name in (*sources, "state") else argument.annotation,
        )
        for argument in inspect.signature(like).parameters.values()
        if argument.name not in (*own, *without, "stream")
    ]
    first = [argument for argument in theirs if argument.name in sources and argument.default is GIVEN]
    by_place = [name for name, (default, *_) in own.items() if default is GIVEN and name != "name"]
    mine = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD if name in by_place else Parameter.KEYWORD_ONLY,
            default=default,
            annotation=kind,
        )
        for name, (default, kind, _) in own.items()
    ]
    rest = [argument for argument in theirs if argument not in first]
    ahead = [argument for argument in mine if argument.name in by_place]
    behind = [argument for argument in mine if argument.name not in by_place]
    arguments = sorted([*first, *ahead, *rest, *behind], key=lambda argument: argument.kind)
    return inspect.Signature(arguments, return_annotation=made.__name__)


def _node_type(argument: Parameter) -> str:
    """The type of a node, or of several, instead of an argument that is an image or a state."""
    node = "StateNode | FilterNode" if argument.name == "state" else "ImageNode | FilterNode"
    if argument.annotation.startswith("Sequence["):
        return f"Sequence[{node}]"
    return f"{node} | None" if argument.default is None else node


_DOC = """{first}

Source: {mps}.

Args:
    {arguments}

Returns:
    A `{made}`.

Raises:
    TypeError: An argument is unknown, or is not a node where one is expected.

Example:
    >>> from mpsfunc import graph
    >>> x = graph.ImageNode("x")
    >>> node = graph.{example}
"""


def _doc(
    like: Callable[..., Any], mps: str, example: str, own: Own, defaults: dict[str, Any], made: type[FilterNode]
) -> str:
    """A docstring: what the function's does not say."""
    first = str(like.__doc__)
    if getattr(mf, like.__name__, None) is like:
        same = "Formula, shapes, errors and all other arguments are the function's; images are nodes."
        first = f"Makes a node of `mpsfunc.{like.__name__}`.\n\n{same}"
    otherwise = ", but for ``antialias=True``" if "antialias" in inspect.signature(like).parameters else ""
    told = [f"{name}: Default ``{value!r}``, as in MPS's nodes{otherwise}." for name, value in defaults.items()]
    told += [f"{name}: {meaning}" for name, (*_, meaning) in own.items()]
    source = re.sub(r"\bMPS\w+", r"``\g<0>``", mps)
    return _DOC.format(first=first, mps=source, arguments="\n    ".join(told), example=example, made=made.__name__)


def _images(op: str, argument: str, given: Any, optional: bool) -> list[ImageNode]:
    if given is None and optional:
        return []
    images = entries(given)
    if images is not None:
        if not images:
            raise ValueError(f"{op}: there is no image; got {argument}=(), expected one or more")
        return [as_image(f"{op}: {argument}[{i}]", each) for i, each in enumerate(images)]
    return [as_image(f"{op}: {argument}", given)]


def _state(op: str, given: Any) -> StateNode:
    if is_a(given, FilterNode):
        return given.result_state
    if not is_a(given, StateNode):
        raise TypeError(f"{op}: state is not a node; got state={shown(given)}, expected a StateNode or a FilterNode")
    return given


def _called(op: str, argument: str, value: Any) -> str:
    if value is None:
        return ""
    name = text(value)
    if not name:
        raise TypeError(f"{op}: {argument} is not a name; got {argument}={shown(value)}, expected a string")
    return name
