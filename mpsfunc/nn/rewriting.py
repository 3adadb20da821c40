"""Fuses calls of MLX's activation functions in the code of users' modules.

A module with such code gets a subclass of its class, with the same name. The methods of this subclass have the user's
code objects, but other globals. These globals forward to those of the user's module, with one difference: an activation
function of MLX, and MLX's modules, are replaced by objects that check whether an array is the result of a layer, and
otherwise call MLX's function. Only these methods see the objects; neither MLX nor the user's code is modified.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as stock

from mpsfunc.nn import functions
from mpsfunc.nn.copying import Named
from mpsfunc.nn.following import Following

_MODULES = ("mlx", "mlx.core", "mlx.nn", "mlx.nn.layers", "mlx.nn.layers.activations")
_OUTSIDE = ("exec", "eval", "globals")  # which would see the globals themselves
_READ = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")  # instructions; the last is of Python 3.12 on
_OF_GLOBALS = ("__name__", "__package__", "__spec__", "__path__", "__file__", "__loader__", "__builtins__")


class Globals(dict[str, Any]):
    """A module's globals as they are at each look, but for activations.

    Names are looked up here in vain and so come to ``__missing__``; only what an interpreter reads without asking, to
    import or to find builtins, is kept. What Python code does to it is done to the module's.
    """

    def __init__(self, real: dict[str, Any], owner: Owner) -> None:
        super().__init__({name: real[name] for name in _OF_GLOBALS if name in real})
        self._real, self._owner = real, owner

    def __missing__(self, name: str) -> Any:
        if name in self._real:
            return self._owner.seen(self._real[name])
        found = self._real.get("__builtins__", builtins)
        return (found if isinstance(found, dict) else vars(found))[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._real[name] = value

    def __delitem__(self, name: str) -> None:
        del self._real[name]

    def __contains__(self, name: object) -> bool:
        return name in self._real

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)

    def get(self, name: str, default: Any = None) -> Any:
        """As the module's."""
        return self._real.get(name, default)

    def keys(self) -> Any:
        """As the module's."""
        return self._real.keys()

    def values(self) -> Any:
        """As the module's."""
        return self._real.values()

    def items(self) -> Any:
        """As the module's."""
        return self._real.items()

    def copy(self) -> dict[str, Any]:
        """As the module's."""
        return dict(self._real)


class _Function:
    """An activation of MLX, whose call looks first whether its argument is a layer's result."""

    def __init__(self, stock_function: Any, owner: Owner) -> None:
        self._function, self._owner = stock_function, owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = functions.applied(self._function, args, kwargs)
        if given is not None:
            y = self._owner.following.taken(*given, (self._owner, self._function))
            if y is not None:
                return y
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __eq__(self, other: object) -> bool:
        return self._function is (other._function if isinstance(other, _Function) else other)

    def __hash__(self) -> int:
        return hash(self._function)

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> tuple[Any, ...]:
        return Named(self._function).__reduce__()


class _Module(ModuleType):
    """A module of MLX, of which activations come as such."""

    def __init__(self, real: ModuleType, owner: Owner) -> None:
        super().__init__(real.__name__)
        own = object.__getattribute__(self, "__dict__")
        own.update(_real=real, _seen=owner.seen)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__reduce__", "__reduce_ex__"):
            return object.__getattribute__(self, name)
        own = object.__getattribute__(self, "__dict__")
        return own["_seen"](getattr(own["_real"], name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "__dict__")["_real"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "__dict__")["_real"], name)

    def __dir__(self) -> Iterable[str]:
        return dir(object.__getattribute__(self, "__dict__")["_real"])

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, (self.__name__, None, None, ("*",))


class _Cell:
    """What a cell of a closure holds, instead of the cell, as long as it does."""

    def __init__(self, cell: Any, known: Any, seen: Any) -> None:
        self._cell, self._known, self._seen = cell, known, seen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        now = self._cell.cell_contents
        return (self._seen if now is self._known else now)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        now = self._cell.cell_contents
        return getattr(self._seen if now is self._known else now, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._cell.cell_contents == other)

    def __hash__(self) -> int:
        return hash(self._cell.cell_contents)

    def __repr__(self) -> str:
        return repr(self._cell.cell_contents)


_Rewritten = tuple[FunctionType, tuple[Any, ...]]  # a function, and what of the user's it was made of


class Owner:
    """What the code of one rewritten class sees instead of activations."""

    def __init__(self, following: Following, attributes: frozenset[str] = frozenset()) -> None:
        self.following, self.attributes = following, attributes
        self.named = set(attributes)  # also what classes hold
        self.refused: dict[str, str] = {}  # functions that call activations and cannot be rewritten, and why
        self.unseen: dict[str, str] = {}  # where code finds others that it may call, and why those stay MLX's
        self._of_objects: Owner | None = None  # what would see the code of objects that are no modules
        self._functions: dict[Any, _Function] = {}
        self._globals: dict[int, Globals] = {}
        self._modules: dict[int, _Module] = {}
        self._calls_some: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._rewritten: weakref.WeakKeyDictionary[Any, _Rewritten] = weakref.WeakKeyDictionary()
        for name in _MODULES:
            real = sys.modules.get(name)
            if real is not None:
                self._modules[id(real)] = _Module(real, self)

    def seen(self, value: Any) -> Any:
        """What the code sees of a value."""
        kind = type(value)
        if kind not in KINDS:
            return value
        if kind is ModuleType:
            return self._modules.get(id(value), value)
        if kind is functools.partial:
            known = functions.is_known(value.func)
            return functools.partial(self._known(value.func), *value.args, **value.keywords) if known else value
        if kind is MethodType:
            made = self.seen(value.__func__)
            return value if made is value.__func__ else MethodType(made, value.__self__)
        if functions.is_known(value):
            return self._known(value)
        return self.rewritten(value) if kind is FunctionType and self.calls_some(value) else value

    def _known(self, value: Any) -> _Function:
        return self._functions.setdefault(value, _Function(value, self))

    def calls_some(self, f: FunctionType) -> bool:
        """Whether a function is to be rewritten."""
        if f not in self._calls_some:
            self._calls_some[f] = False  # while others are looked at that call this one
            found = self._finds_some(f)
            why = _why_not(f) if found else ""
            if why:
                self.refused[f.__qualname__] = why
            self._calls_some[f] = found and not why
        return self._calls_some[f]

    def _finds_some(self, f: FunctionType) -> bool:
        if f.__module__ and f.__module__.split(".")[0] in ("mpsfunc", "mlx") and not f.__module__.startswith("mlx.nn"):
            return False
        of_globals, others = names_in(*codes(f.__code__))
        self.unseen |= {name: why for name in of_globals if (why := self.why_unseen(f.__globals__.get(name)))}
        if module := _imported(f.__code__, others):
            self.unseen[f.__qualname__] = f"imports {module} as it runs"
        held = [f.__globals__[name] for name in of_globals if name in f.__globals__]
        held += [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
        for cell in f.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # empty
                continue
        if not (of_globals | others) & _NAMES:
            held = [value for value in held if type(value) is not ModuleType]
        return bool(others & self.named) or any(self.is_some(value) for value in held)

    def is_some(self, value: Any) -> bool:
        """Whether a value is an activation, or comes to one when it is used."""
        kind = type(value)
        if kind is functools.partial:
            return functions.is_known(value.func)
        if kind is MethodType:
            return self.is_some(value.__func__)
        if kind is ModuleType:
            return id(value) in self._modules
        return kind in KINDS and (functions.is_known(value) or (kind is FunctionType and self.calls_some(value)))

    def why_unseen(self, value: Any) -> str:
        """Why activations that a value comes to stay MLX's in code that uses it; empty if there are none."""
        held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        if not isinstance(value, stock.Module) and any(
            type(each) in KINDS and functions.is_known(each) for each in held
        ):
            return IN_A_LIST
        kind = type(value)
        call = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
        if type(call) is not FunctionType or issubclass(kind, (stock.Module, type)) or kind in KINDS:
            return ""
        self._of_objects = probe = self._of_objects or Owner(Following())
        probe._of_objects = probe  # of objects that call each other, too
        return "in an object that is no module" if probe.is_some(call) else ""

    def rewritten(self, f: FunctionType) -> FunctionType:
        """The same code over other globals, also after the user has given the function another."""
        parts = f.__code__, f.__defaults__, f.__kwdefaults__
        known = self._rewritten.get(f)
        if known is not None and all(a is b for a, b in zip(known[1], parts, strict=True)):
            return known[0]
        real = f.__globals__
        own = self._globals.setdefault(id(real), Globals(real, self))
        defaults = None if f.__defaults__ is None else tuple(map(self.seen, f.__defaults__))
        closure = None if f.__closure__ is None else tuple(self._cells(f))
        made = FunctionType(f.__code__, own, f.__name__, defaults, closure)
        if f.__kwdefaults__ is not None:
            made.__kwdefaults__ = {name: self.seen(value) for name, value in f.__kwdefaults__.items()}
        made.__qualname__, made.__module__, made.__doc__ = f.__qualname__, f.__module__, f.__doc__
        made.__dict__ = f.__dict__  # the same one
        later = "__annotate__" if hasattr(f, "__annotate__") else "__annotations__"
        for name in (later, "__type_params__"):
            if hasattr(f, name):
                setattr(made, name, getattr(f, name))
        self._rewritten[f] = made, parts
        return made

    def _cells(self, f: FunctionType) -> Iterator[Any]:
        written = set(_written(f.__code__))
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            try:
                known = cell.cell_contents
            except ValueError:  # empty
                yield cell
                continue
            seen = known if name in written else self.seen(known)
            yield cell if seen is known else CellType(_Cell(cell, known, seen))


IN_A_LIST = "a function in a list or dict"
_NAMES = {"getattr", "maximum", *(str(f.__name__) for f in functions.FUNCTIONS)}  # by which modules give some
KINDS = {type(stock.relu), type(mx.maximum), FunctionType, MethodType, ModuleType, functools.partial}


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def names_in(*some: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names by which code reads globals, and those that it uses otherwise: of attributes and of what it imports."""
    found: tuple[set[str], set[str]] = set(), set()
    for each in some:
        for step in dis.get_instructions(each):
            if step.opcode in dis.hasname:
                found[step.opname not in _READ].add(str(step.argval))
    return frozenset(found[0]), frozenset(found[1])


def _written(code: CodeType) -> Iterator[str]:
    """The names of cells that code writes."""
    for each in codes(code):
        for step in dis.get_instructions(each):
            if step.opname in ("STORE_DEREF", "DELETE_DEREF"):
                yield str(step.argval)


def _imported(code: CodeType, names: frozenset[str]) -> str:
    """The module of MLX that code imports, if it may have an activation by one of the names from there."""
    for each in codes(code):
        for step in dis.get_instructions(each):
            if step.opname == "IMPORT_NAME" and step.argval in _MODULES:
                real = stock if step.argval == "mlx" else sys.modules.get(step.argval)
                if any(functions.is_known(getattr(real, name, None)) for name in names):
                    return str(step.argval)
    return ""


def _why_not(f: FunctionType) -> str:
    """Why a function cannot run over other globals; empty if it can."""
    for code in codes(f.__code__):
        if not code.co_flags & 1:  # what is not optimized is the body of a class, which reads globals by itself
            return f"{f.__qualname__} defines a class"
        for step in dis.get_instructions(code):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                return f"{f.__qualname__} writes a global variable"
            if step.opname.startswith("LOAD_GLOBAL") and step.argval in _OUTSIDE:
                return f"{f.__qualname__} calls {step.argval}"
    return ""
