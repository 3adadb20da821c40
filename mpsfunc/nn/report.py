"""The report of `convert`, which prints on one screen: which layers were replaced and fused, which not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from types import MappingProxyType
from typing import NamedTuple

from mpsfunc.nn.drop_in import Fusing

# What `convert` says of an activation that no Sequential holds.
IN_NO_SEQUENTIAL = "in no Sequential"
NOT_FOLDED = "not folded: it follows no convolution or linear layer in a Sequential"  # of a normalization
NOT_FOLDED_HERE = "not folded: its input is not the result of a convolution or linear layer that nothing else reads"

_KINDS, _LINES, _PATHS, _WIDTH = 8, 4, 3, 100  # shown of each: kinds in a row, rows, paths behind one, characters


class _Fields(NamedTuple):
    replaced: dict[str, str]
    fused: dict[str, str]
    unfused: dict[str, str]
    left: dict[str, str]


class Conversion(_Fields):
    """What `convert` did; it prints counts by the classes of layers.

    Fields:
        replaced: For the path of each layer that is now a drop-in, its class. Sequentials are left out.
        fused: For the path of each layer that something is fused with or folded into, what that is: the path or name of
            the activation or normalization, or "a shortcut".
        unfused: For the path of each activation that is not fused, why; with ``inference`` also of each batch
            normalization that is not folded.
        left: For the path of each layer of mlx.nn that was not replaced, why.

    A layer with two paths counts twice. ``classes`` has the class of every module by its path, and the name of every
    function in a Sequential; ``example`` says whether the model was called with an example, ``before`` how many layers
    were drop-ins already, and ``kept_twice`` how many bytes of folded and rearranged weights the model keeps in
    addition to its parameters, if it was converted for inference.

    Example:
        >>> import mlx.nn
        >>> from mpsfunc.nn import convert
        >>> report = convert(
        ...     mlx.nn.Sequential(mlx.nn.Linear(4, 4), mlx.nn.ReLU(), mlx.nn.RMSNorm(4))
        ... )
        >>> print(report)
        3 layers: 2 replaced, 1 fused; left: 1 RMSNorm
          replaced   1 Linear, 1 ReLU
          fused      1 Linear with ReLU
          left       1 RMSNorm (no drop-in): layers.2
        >>> print(report.paths)
        replaced
          layers.0: Linear
          layers.1: ReLU
        fused
          layers.0: with layers.1
        left
          layers.2: no drop-in for RMSNorm
    """

    classes: Mapping[str, str] = MappingProxyType({})
    example: bool = False
    before: int = 0
    kept_twice: int = 0

    def __new__(
        cls,
        replaced: dict[str, str],
        fused: dict[str, str],
        unfused: dict[str, str],
        left: dict[str, str],
        *,
        classes: dict[str, str] | None = None,
        example: bool = False,
        before: int = 0,
        kept_twice: int = 0,
    ) -> Conversion:
        """The four fields, and what they are made from."""
        made = super().__new__(cls, replaced, fused, unfused, left)
        made.classes, made.example, made.before, made.kept_twice = classes or {}, example, before, kept_twice
        return made

    @property
    def paths(self) -> str:
        """Every layer by its path, complete, one per line."""
        return "\n".join(
            line
            for what, each, word in _told(self)
            if each
            for line in (what, *(f"  {path or 'the model'}: {word}{said}" for path, said in each.items()))
        )

    @property
    def hint(self) -> str:
        """Why activations are not fused, and what to do about it; empty if there is nothing to report."""
        alone = sum(why == IN_NO_SEQUENTIAL for why in self.unfused.values())
        if alone and not self.example:
            which = f"{alone} activations are" if alone > 1 else "an activation is"
            what_to_do = "convert(model, example=x) sees which layer each follows; or name pairs by fuse="
            return f"{which} in no Sequential: {what_to_do}"
        if NOT_FOLDED in self.unfused.values():
            return "convert(model, inference=True, example=x) sees which layer each normalization follows"
        kinds = {self._class(path) for path in self.replaced or self.classes if path}  # a layer alone has no path
        if self.fused or not kinds & _fusing():
            return ""
        if self.unfused:
            return "nothing is fused, since no activation follows a layer that can apply it"
        if self.example:
            return "nothing is fused, since no activation was seen on the result of a layer that can apply it"
        what_to_do = "convert(model, example=x) sees functions that blocks call"
        return f"nothing is fused, since no activation is a layer: {what_to_do}"

    def __str__(self) -> str:
        rows = [(what, line) for what, lines in self._rows() for line in lines]
        if self.hint:
            rows += [("hint" if not i else "", line) for i, line in enumerate(_wrapped(self.hint.split(" "), " "))]
        shown, before = [self._head()], ""
        for what, line in rows:
            shown.append(f"  {'' if what == before else what:<10} {line}")
            before = what
        return "\n".join(shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        rows = [(what, "<br/>".join(map(escape, lines))) for what, lines in self._rows()]
        if self.hint:
            rows.append(("hint", escape(self.hint)))
        cells = "".join(
            f'<tr><th style="text-align: left">{what}</th><td style="text-align: left">{said}</td></tr>'
            for what, said in rows
        )
        paths = f"<details><summary>paths</summary><pre>{escape(self.paths)}</pre></details>" if self.paths else ""
        return f"<div><p>{escape(self._head())}</p><table><tbody>{cells}</tbody></table>{paths}</div>"

    def _head(self) -> str:
        """The counts."""
        layers = len(self.replaced) + len(self.left) + self.before
        counts = [f"{len(self.replaced)} replaced", f"{len(self.fused)} fused"]
        if self.before:
            counts.insert(1, f"{self.before} already converted")
        left = _counted((self._class(path) for path in self.left), _LINES)
        told = f"{layers} layer{'' if layers == 1 else 's'}: {', '.join(counts)}"
        return f"{told}; left: {', '.join(left)}" if left else told

    def _rows(self) -> list[tuple[str, list[str]]]:
        """The lines of each field that has something to tell."""
        pairs = [f"{self._class(path)} with {self._behind(behind)}" for path, behind in self.fused.items()]
        found = [
            ("replaced", _wrapped(_counted(self.replaced.values()), ", ")),
            ("fused", _wrapped(_counted(pairs), ", ")),
            ("not fused", self._reasons(self.unfused)),
            ("left", self._reasons(self.left)),
            ("kept twice", [f"{self.kept_twice:,} bytes of folded and rearranged weights"] if self.kept_twice else []),
        ]
        return [(what, lines) for what, lines in found if lines]

    def _reasons(self, field: dict[str, str]) -> list[str]:
        """A line for each class and reason, the most frequent first, with the first few paths."""
        groups: dict[tuple[str, str], list[str]] = {}
        for path, why in field.items():
            path, _, function = path.partition(": ")  # which the code of that module calls
            kind = function or self._class(path)
            why = why.removesuffix(f" for {kind}").removeprefix(f"{kind} is ")
            groups.setdefault((kind, why), []).append(path or "the model")
        ordered = sorted(groups.items(), key=lambda entry: -len(entry[1]))
        lines = []
        for (kind, why), paths in ordered[:_LINES]:
            more = f" and {len(paths) - _PATHS} more" if len(paths) > _PATHS else ""
            lines.append(f"{len(paths)} {kind} ({why}): {', '.join(paths[:_PATHS])}{more}")
        if len(ordered) > _LINES:
            rest = sum(len(paths) for _, paths in ordered[_LINES:])
            lines.append(f"{rest} more, for {len(ordered) - _LINES} other reasons: see paths")
        return lines

    def _class(self, path: str) -> str:
        """The class of a module or the name of a function."""
        told = self.classes.get(path) or self.replaced.get(path)
        return told or self.left.get(path, "").removeprefix("no drop-in for ").partition(" is ")[0] or "function"

    def _behind(self, told: str) -> str:
        """The same of what a layer applies, which may be two or none of the model's paths."""
        return " and ".join(
            self.classes.get(path) or self.replaced.get(path) or path.rpartition(".")[2] for path in told.split(" and ")
        )


def _told(of: Conversion) -> list[tuple[str, dict[str, str], str]]:
    return [
        ("replaced", of.replaced, ""),
        ("fused", of.fused, "with "),
        ("not fused", of.unfused, ""),
        ("left", of.left, ""),
    ]


def _fusing() -> set[str]:
    """The classes of layers that apply activations."""
    found, left = set(), [Fusing]
    while left:
        for kind in left.pop().__subclasses__():
            found.add(kind.__name__)
            left.append(kind)
    return found


def _counted(names: Iterable[str], most: int = _KINDS) -> list[str]:
    """Each name with how often it is there, the most frequent first, and one entry for the rest."""
    counts = Counter(names).most_common()
    shown = [f"{count} {name}" for name, count in counts[:most]]
    rest = sum(count for _, count in counts[most:])
    return [*shown, f"{rest} of other kinds"] if rest else shown


def _wrapped(parts: list[str], between: str) -> list[str]:
    """Parts in lines that are not too wide."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(between) + len(part) <= _WIDTH:
            lines[-1] += between + part
        else:
            if lines:
                lines[-1] += between.rstrip()
            lines.append(part)
    return lines
