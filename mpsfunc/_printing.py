"""How states and bad arguments look: arrays by dtype and shape, since numbers fill pages and may not exist yet."""

from __future__ import annotations

import html
from typing import Any, TypeVar

import mlx.core as mx

_State = TypeVar("_State", bound=type)

_LONGEST = 200  # characters of an argument in an error


def printed(state: _State) -> _State:
    """Gives a class of states its printed forms."""
    state.__repr__ = line  # type: ignore[assignment]  # of any state, where the type says of a type
    state._repr_html_ = table  # type: ignore[attr-defined]  # which notebooks look for
    return state


def line(state: Any) -> str:
    """A state on one line."""
    return f"{type(state).__name__}({', '.join(f'{name}={value}' for name, value in _fields(state))})"


def table(state: Any) -> str:
    """A state as a table of HTML."""
    rows = (f"<tr><td>{name}</td><td><code>{html.escape(value)}</code></td></tr>" for name, value in _fields(state))
    return f"<table><caption>{type(state).__name__}</caption>{''.join(rows)}</table>"


def told(value: Any) -> str:
    """A bad argument for an error: on one line, arrays of MLX as in states, and no longer than one can read."""
    text = " ".join(_told(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _fields(state: Any) -> list[tuple[str, str]]:
    return [(name, _told(value)) for name, value in zip(state._fields, state, strict=True)]


def _told(value: Any) -> str:
    if isinstance(value, mx.array):
        return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"
    return repr(value)
