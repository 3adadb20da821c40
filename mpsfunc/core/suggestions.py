"""One of a few names as an argument, and what a wrong one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

from mpsfunc.core.printing import told
from mpsfunc.core.scalars import text

# What other libraries call the same thing, by the field that the name stands in. A note follows where it takes more
# than the name.
_ELSEWHERE: dict[str, dict[str, tuple[str, str]]] = {
    "mode": {
        "reflect": ("mirror", ""),
        "symmetric": ("mirror_with_edge", ""),
        "replicate": ("clamp", ""),
        "edge": ("clamp", ""),
        "zeros": ("zero", ""),
    },
    "edge_mode": {"zeros": ("zero", ""), "constant": ("zero", ""), "replicate": ("clamp", ""), "border": ("clamp", "")},
    "padding": {"same_upper": ("same", "")},
    "neuron": {
        "leaky_relu": ("relu", " with its slope as a"),
        "leakyrelu": ("relu", " with its slope as a"),
        "relu6": ("relun", " with a=0, b=6"),
        "identity": ("none", ""),
        "abs": ("absolute", ""),
        "exp": ("exponential", ""),
        "log": ("logarithm", ""),
    },
    "type": {
        "mse": ("mean_squared_error", ""),
        "mse_loss": ("mean_squared_error", ""),
        "mae": ("mean_absolute_error", ""),
        "l1": ("mean_absolute_error", ""),
        "l1_loss": ("mean_absolute_error", ""),
        "cross_entropy": ("softmax_cross_entropy", ""),
        "binary_cross_entropy_with_logits": ("sigmoid_cross_entropy", ""),
        "kl_div": ("kullback_leibler", ""),
        "kld": ("kullback_leibler", ""),
    },
    "reduction": {"average": ("mean", ""), "avg": ("mean", ""), "add": ("sum", "")},
    "operation": {"sub": ("subtract", ""), "mul": ("multiply", ""), "div": ("divide", "")},
    "comparison": {
        **{"eq": ("equal", ""), "ne": ("not_equal", ""), "lt": ("less", ""), "gt": ("greater", "")},
        **{"le": ("less_equal", ""), "ge": ("greater_equal", "")},
    },
}
# Functions of their own that are spelled much like one of ours.
_OTHERS = frozenset(("selu", "celu", "silu", "swish", "mish", "log_sigmoid", "logsigmoid", "binary_cross_entropy"))
_LONGEST = 40


def choice(op: str, name: str, value: Any, names: Collection[str], rule: str = "") -> str:
    """One of a few names; ``rule`` says what is expected where there is more."""
    rule = rule or " or ".join(map(repr, names))
    given = text(value)
    if given is None:
        raise TypeError(f"{op}: {name} is not a name; got {name}={told(value)}, expected {rule}")
    if given not in names:
        meant = near(name.rpartition(".")[2], given, names)
        raise ValueError(f"{op}: unknown {name}; got {name}={told(value)}, expected {rule}{meant}")
    return given


def near(field: str, value: str, names: Iterable[str]) -> str:
    """``; did you mean 'clamp'?``, or nothing where no name is near.

    Names that differ in capitals come first, then what other libraries call them, then what is spelled alike.

    Example:
        >>> near("mode", "Mirror", ("mirror", "clamp")), near("mode", "reflect", ("mirror", "clamp"))
        ("; did you mean 'mirror'?", "; did you mean 'mirror'?")
        >>> near("neuron", "leaky_relu", ("relu", "elu")), near("neuron", "swish", ("relu", "elu"))
        ("; did you mean 'relu' with its slope as a?", '')
    """
    start = str.__getitem__(value, slice(_LONGEST + 1))
    if len(start) > _LONGEST:
        return ""
    known = list(names)
    plain = start.strip().lower().replace("-", "_").replace(" ", "_")
    meant, note = next((name for name in known if name == plain), ""), ""
    if not meant:
        meant, note = _ELSEWHERE.get(field, {}).get(plain, ("", ""))
    if meant not in known and plain not in _OTHERS:
        meant, note = next(iter(difflib.get_close_matches(plain, known, 1, 0.75)), ""), ""
    return f"; did you mean {meant!r}{note}?" if meant in known else ""
