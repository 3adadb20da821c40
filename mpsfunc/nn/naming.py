"""The pairs of a layer and an activation that a user names, by paths or by patterns of paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import mlx.core as mx
import mlx.nn as stock

from mpsfunc.core.arguments import entries, is_a, text
from mpsfunc.core.printing import a_kind, describe

Fits = Callable[[stock.Module], bool]


def pairs(
    given: Iterable[tuple[str, str] | str], paths: dict[str, stock.Module], fuses: Fits, is_fused: Fits
) -> list[tuple[str, str]]:
    """The pairs that the user names, if both are there and of the right kinds."""
    rule = "expected (layer, activation) as paths, or a pattern 'layer -> activation'"
    wrong = f"convert: fuse is not made of pairs; got {describe(given)}, {rule}"
    if is_a(given, str) or is_a(given, mx.array):
        raise TypeError(wrong)
    try:
        given = list(given)
    except Exception:  # whatever asking it for entries does
        raise TypeError(wrong) from None
    found: list[tuple[str, str]] = []
    for each in given:
        pattern = text(each)
        if pattern is not None and "->" in pattern:
            found += _matched(pattern, paths, fuses, is_fused)
            continue
        held = entries(each) or ()
        pair = [path for path in map(text, held) if path is not None]
        if len(held) != 2 or len(pair) != 2:
            raise TypeError(f"convert: fuse is not made of pairs; got {describe(each)}, {rule}")
        wanted = "a layer that fuses", "an activation that can be fused"
        for path, fits, what in zip(pair, (fuses, is_fused), wanted, strict=True):
            if path not in paths:
                raise ValueError(
                    f"convert: there is no such module; got {describe(path)}, expected a path of the model"
                )
            if not fits(paths[path]):
                raise ValueError(f"convert: not {what}; got {describe(path)}, {a_kind(paths[path])}, expected one")
        found.append((pair[0], pair[1]))
    return found


def _matched(pattern: str, paths: dict[str, stock.Module], fuses: Fits, is_fused: Fits) -> list[tuple[str, str]]:
    """Pairs by a pattern, whose wildcards stand for the same text on both sides."""
    sides = [side.strip() for side in pattern.split("->")]
    if len(sides) != 2 or not all(sides):
        raise ValueError(f"convert: fuse has no such pattern; got {describe(pattern)}, expected 'layer -> activation'")
    ahead, behind = (re.findall(_WILDCARD, side) for side in sides)
    if ahead != behind and ahead and behind:
        raise ValueError(
            f"convert: the wildcards of a pattern differ; got {describe(pattern)}, expected the same on both sides, "
            "which stand for the same text"
        )
    left = re.compile(_expression(sides[0], None))
    layers = [path for path, module in paths.items() if fuses(module) and left.fullmatch(path)]
    right = re.compile(_expression(sides[1], None))
    activations = [path for path, module in paths.items() if is_fused(module) and right.fullmatch(path)]
    both = re.compile(_expression(sides[0], "name") + "\0" + _expression(sides[1], "again" if ahead else None))
    found = [(one, other) for one in layers for other in activations if both.fullmatch(f"{one}\0{other}")]
    if not found:
        missing = "layers that fuse" if not layers else "activations" if not activations else "pairs of these"
        raise ValueError(
            f"convert: a pattern matches no {missing}; got {describe(pattern)}, expected paths of the model"
        )
    return found


_WILDCARD = re.compile(r"\*|\?|\[!?\]?[^\]]*\]")


def _expression(side: str, groups: str | None) -> str:
    """As fnmatch has patterns, with the wildcards as groups by their order, or as what such groups have matched."""
    made, at = "", 0
    for i, wildcard in enumerate(_WILDCARD.finditer(side)):
        token = wildcard.group()
        plain = {"*": ".*", "?": "."}.get(token) or token.replace("\\", r"\\").replace("[!", "[^", 1)
        made += re.escape(side[at : wildcard.start()])
        made += f"(?P<w{i}>{plain})" if groups == "name" else f"(?P=w{i})" if groups else f"(?:{plain})"
        at = wildcard.end()
    return made + re.escape(side[at:])
