"""How long a model takes with MLX's layers, converted, and converted for inference."""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as stock
from mlx.utils import tree_flatten

from mpsfunc.core import checks, recomputing
from mpsfunc.core.arguments import entries, is_a
from mpsfunc.core.printing import a_kind, brief, describe
from mpsfunc.nn.checkpointing import Kept
from mpsfunc.nn.comparison import CONVERTED, INFERENCE, STOCK, Comparison, NotMeasured, Runner, bounds_of, measured
from mpsfunc.nn.conversion import convert
from mpsfunc.nn.report import Conversion

LIMIT = 60.0
NAMES = {"forward": "forward pass", "step": "training step"}
_LONG = 1.0  # seconds
ARRAYS = "MLX's arrays at most, without the input"
_LEARNING_RATE, _MOMENTUM = 1e-4, 0.9

Loss = Callable[[Any], mx.array]
Y = TypeVar("Y")  # what the model returns


def compare(
    build: Callable[[], stock.Module],
    x: mx.array | Sequence[int],
    *,
    loss: Callable[[Y], mx.array] | None = None,
    train: bool = True,
    rounds: int = 10,
    limit: float = LIMIT,
) -> Comparison:
    """Times a model as it is, converted with an example, and converted for inference.

    All get the parameters of the first, and their outputs in evaluation are compared before anything is timed; a model
    whose outputs differ by more than rounding (in the narrowest dtype of outputs, parameters and ``x``) is not timed. A
    forward pass is compiled, in evaluation mode; a training step uses SGD with momentum, compiled with the states of
    the model and the optimizer and the random state. The models take turns, after a run of each that is not timed. If a
    training step fails, or nothing can be trained, only the forward pass is timed.

    A pass cannot be stopped once it has started in this process. So MLX's layers first run on the first image only. If
    the whole batch would take longer than ``limit``, MLX's layers are not timed, and outputs are compared for that
    image. If even the first image takes too long, outputs are not compared, and the report says so. ``python -m
    mpsfunc.bench`` can stop a pass, and has a process for each model, so on a CPU memory is the growth of the process;
    here it is the memory of MLX's arrays, without those that existed before.

    Args:
        build: Returns a new model of ``mlx.nn`` in each call, whose outputs are arrays, also in lists and dicts.
        x: The model's input, or its shape, for normal random numbers in float32.
        loss: A function of the model's outputs that returns a number. Default: the mean of their squares, summed over
            the arrays.
        train: Whether to time training steps. Default: True.
        rounds: How often each is timed, at least once. Default: 10.
        limit: Seconds, more than 0, that one pass of MLX's layers may take, and that all rounds of one model may take
            together; after that the model is not measured further. Default: 60.

    Returns:
        A report of what was measured. Print it.

    Raises:
        TypeError: build is not a function without arguments or does not return a module, x is neither an array nor a
            shape, the model returns no arrays, loss is not a function or does not return a number, or train, rounds or
            limit have another type.
        ValueError: build fails, or returns the same module twice or modules that differ; a forward pass or the loss
            fails; or a number is out of range.

    Example:
        >>> import mlx.nn
        >>> def build():
        ...     return mlx.nn.Sequential(
        ...         mlx.nn.Conv2d(3, 4, 3), mlx.nn.BatchNorm(4), mlx.nn.ReLU()
        ...     )
        >>> found = compare(build, (2, 8, 8, 3), rounds=3)
        >>> [each.name for each in found.variants], found.agree, found.report.fused
        (['mlx.nn', 'converted', 'for inference'], True, {'layers.1': 'layers.2'})
    """
    _without_arguments(build)
    if not (loss is None or callable(loss)):
        raise TypeError(f"compare: loss is not a function; got loss={describe(loss)}, expected one of the outputs")
    rounds, train = checks.whole("compare", "rounds", rounds), checks.switch("compare", "train", train)
    limit = checks.number("compare", "limit", limit)
    if not allows(limit):
        raise ValueError(f"compare: limit is out of range; got limit={describe(limit)}, expected more than 0 seconds")
    x = _example(x)
    built: list[stock.Module] = []

    def fresh() -> stock.Module:
        try:
            model = build()
        except Exception as error:
            raise ValueError(
                f"compare: build fails; got {a_kind(error)} of {describe(str(error))}, expected a model"
            ) from error
        if not is_a(model, stock.Module):
            raise TypeError(f"compare: build makes no module; got {a_kind(model)}, expected an mlx.nn.Module")
        if any(model is other for other in built):
            raise ValueError("compare: build makes one module twice; got the same, expected a fresh one in each call")
        built.append(model)
        return model

    probe = fresh()
    weights = arrays_of(probe)
    mx.eval(weights)

    def start(name: str) -> Runner:
        gc.collect()  # what is freed later would count against what the model takes
        before = mx.get_active_memory()
        model = fresh()
        like("compare", model, {path: mx.array(each) for path, each in weights.items()})
        report = converted(model, x, name)
        return _Local(name, model, report, x, loss if train else None, before, limit, probe if name == STOCK else None)

    starts = {name: partial(start, name) for name in (STOCK, CONVERTED, INFERENCE)}
    told = setting(x.shape, x.dtype, mx.default_device(), rounds)
    bounds = bounds_of([x.dtype, *(each.dtype for each in weights.values())], mx.default_device())
    return measured(told, starts, train=train, rounds=rounds, limit=limit, bounds=bounds)


def allows(limit: float) -> bool:
    """Whether seconds are a limit."""
    return 0 < limit <= checks.LARGEST


def _without_arguments(build: Any) -> None:
    if is_a(build, stock.Module):
        raise TypeError(
            f"compare: build is a module; got {a_kind(build)}, expected a function that makes one, such as a lambda"
        )
    if not callable(build):
        raise TypeError(f"compare: build is not a function; got build={describe(build)}, expected what makes a model")
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # Python does not know what it takes
        return
    try:
        signature.bind()
    except TypeError:
        raise TypeError(
            f"compare: build needs arguments; got {describe(str(signature))}, expected a function that takes none"
        ) from None


def setting(shape: Sequence[int], dtype: mx.Dtype, device: mx.Device, rounds: int, memory: str = ARRAYS) -> str:
    """The first lines of a comparison."""
    times = f"{rounds} rounds" if rounds > 1 else "1 round"
    of = f"{'x'.join(map(str, shape))} {str(dtype).rpartition('.')[2]} on the {device.type.name}, {times}"
    return f"{of}\nmedians; x: times faster than mlx.nn; MB: {memory}"


def arrays_of(model: stock.Module) -> dict[str, mx.array]:
    """The parameters of a model by their paths, running statistics among them."""
    parameters: Any = model.parameters()
    return dict(_flat(parameters))


def like(op: str, model: stock.Module, weights: dict[str, mx.array]) -> None:
    """Gives a model the parameters of another that is built alike."""
    own = {path: each.shape for path, each in arrays_of(model).items()}
    if own != {path: each.shape for path, each in weights.items()}:
        raise ValueError(f"{op}: build makes another model each time; got other parameters, expected the same shapes")
    model.load_weights(list(weights.items()))


def converted(model: stock.Module, x: mx.array, name: str) -> Conversion:
    """Converts a model in place to what a variant is, and evaluates its parameters."""
    report = Conversion({}, {}, {}, {})
    if name == INFERENCE:
        model.eval()
    if name != STOCK:
        report = convert(model, example=(x,), inference=name == INFERENCE)
    mx.eval(model.parameters())
    return report


def _example(x: Any) -> mx.array:
    """What the models are called on."""
    if is_a(x, mx.array):
        return x
    shape = checks.shape_of("compare", "x", x, "an array or a shape", "not a shape") if entries(x) is not None else ()
    if not shape or 0 in shape:
        raise TypeError(f"compare: x is no example; got x={describe(x)}, expected an array or a shape")
    return mx.random.normal(shape, key=mx.random.key(0))


# One model --------------------------------------------------------------------------------------------------


class Unfit(Exception):
    """What a model or a loss returns cannot be measured; told as it is."""


def no_step(error: Exception) -> NotMeasured:
    """Says why there is no training step."""
    said = brief(" ".join(str(error).split()))
    how = "train=False, or --no-train in a shell, times the forward pass alone"
    return NotMeasured(f"no training step, which fails with {type(error).__name__}: {said} ({how})")


class Passes:
    """The compiled passes of one model."""

    def __init__(self, model: stock.Module, x: mx.array, loss: Loss | None = None) -> None:
        self.model = model
        self.x = x
        self._loss = loss or mean_of_squares
        self._made: dict[str, Callable[[], None]] = {}
        self.outputs: dict[str, mx.array] = {}  # of the first forward pass
        mx.eval(x)

    def once(self, what: str) -> float:
        """Seconds of a pass; of the first one, which compiles too, where it was dropped before."""
        if what not in self._made:
            return self._first(what)
        random = recomputing.random_state()
        begun = time.perf_counter()
        try:
            self._made[what]()
        except Exception as error:  # of whatever kind: the model is code of a user
            recomputing.draw_from(random)  # without tracers
            said = f"got {a_kind(error)} of {describe(str(error))}, expected a model that stays the same"
            raise Unfit(f"the {NAMES[what]} of the model fails when it is repeated; {said}") from error
        return time.perf_counter() - begun

    def _first(self, what: str) -> float:
        """The same; where it raises, and after a forward pass, the model holds what it held, and no tracers."""
        before, random = Kept(self.model, copied=True), recomputing.random_state()
        try:
            run = self._forward() if what == "forward" else self._step()
            begun = time.perf_counter()
            run()
            taken = time.perf_counter() - begun
        except BaseException:
            before.restore()
            recomputing.draw_from(random)
            raise
        if what == "forward":
            before.restore()
        self._made[what] = run
        return taken

    def seconds(self, what: str) -> float:
        """Of a pass behind one that is not timed, or of that where it is long."""
        if what not in self._made:
            self.once(what)
        first = self.once(what)
        return first if first > _LONG else self.once(what)

    def of_one(self) -> dict[str, mx.array]:
        """The outputs for the first image alone; none where the model takes no single one."""
        alone = Passes(self.model, self.x[:1])
        try:
            alone.once("forward")
        except Exception:  # of whatever kind: not every model takes a single image
            return {}
        alone.drop()
        return alone.outputs

    def drop(self) -> None:
        """Forgets what was compiled, with the parameters that it holds."""
        self._made.clear()
        mx.clear_cache()

    def _forward(self) -> Callable[[], None]:
        if self.model.training:
            self.model.eval()
        # Built and not evaluated: an error that says more than one under mx.compile.
        y = self.model(self.x)
        if not any(isinstance(each, mx.array) for _, each in _flat(y)):
            raise Unfit(f"the model returns no arrays; got {a_kind(y)}, expected arrays")
        self._number(y)
        predict = mx.compile(self.model)

        def run() -> None:
            y = predict(self.x)
            mx.eval(y)
            self.outputs = self.outputs or {at: each for at, each in _flat(y) if isinstance(each, mx.array)}

        return run

    def _step(self) -> Callable[[], None]:
        from mlx.optimizers import SGD

        if not tree_flatten(self.model.trainable_parameters()):
            raise NotMeasured("no training step, since the model has no parameter that is not frozen")
        self.model.train()
        optimizer = SGD(_LEARNING_RATE, momentum=_MOMENTUM)
        optimizer.init(self.model.trainable_parameters())
        gradients = stock.value_and_grad(self.model, lambda x: self._number(self.model(x)))
        before = Kept(self.model, copied=True)
        gradients(self.x)  # as above
        before.restore()
        state = [self.model.state, optimizer.state, mx.random.state]
        mx.eval(state)

        def train(x: mx.array) -> mx.array:
            value, grads = gradients(x)
            optimizer.update(self.model, grads)
            return value

        step = mx.compile(train, inputs=state, outputs=state)

        def run() -> None:
            mx.eval(step(self.x), state)

        return run

    def _number(self, y: Any) -> mx.array:
        """The loss of outputs."""
        try:
            value = self._loss(y)
        except Exception as error:
            raise Unfit(
                f"loss fails; got {a_kind(error)} of {describe(str(error))}, expected an array of one"
            ) from error
        if not is_a(value, mx.array) or value.size != 1:
            raise Unfit(f"loss makes no number; got {describe(value)}, expected an array of one")
        return value.reshape(())


def mean_of_squares(y: Any) -> mx.array:
    """Of each array, summed; in float32, since a float16 could not hold it."""
    squares = [each.astype(mx.float32).square().mean() for _, each in _flat(y) if isinstance(each, mx.array)]
    return sum(squares, start=mx.array(0.0))


def _flat(y: Any) -> list[tuple[str, Any]]:
    found: Any = [("", y)] if isinstance(y, mx.array) else tree_flatten(y)
    return list(found)


class _Local:
    """A model in this process."""

    def __init__(
        self,
        name: str,
        model: stock.Module,
        report: Conversion,
        x: mx.array,
        loss: Loss | None,
        before: int,
        limit: float,
        probe: stock.Module | None,
    ) -> None:
        self.report = report
        self._passes = Passes(model, x, loss)
        self._name, self._before, self._limit, self._loss = name, before, limit, loss
        self._probe, self._of_one = probe, dict[str, mx.array]()

    def first(self, what: str) -> int:
        if self._probe is not None:
            self._try_one_image(self._probe, what)
        mx.reset_peak_memory()
        try:
            self._passes.once(what)
        except NotMeasured:
            raise
        except Unfit as why:
            raise (TypeError if why.__cause__ is None else ValueError)(f"compare: {why}") from why.__cause__
        except Exception as error:
            if what == "step":
                raise no_step(error) from error
            said = f"got {a_kind(error)} of {describe(str(error))}, expected a model of {describe(self._passes.x)}"
            raise ValueError(f"compare: the forward pass of {self._name} fails; {said}") from error
        held = max(0, mx.get_peak_memory() - self._before)
        self._passes.drop()
        return held

    def outputs(self) -> dict[str, mx.array]:
        return self._passes.outputs

    def outputs_of_one(self) -> dict[str, mx.array] | None:
        if self._probe is None:
            self._of_one = self._passes.of_one()
        return self._of_one or None

    def seconds(self, what: str) -> float:
        try:
            return self._passes.seconds(what)
        except Unfit as why:
            raise ValueError(f"compare: {why}") from why.__cause__

    def _try_one_image(self, probe: stock.Module, what: str) -> None:
        """Raises NotMeasured where a pass of the first image alone says that it takes too long."""
        x = self._passes.x
        try:
            passes = Passes(probe, x[:1], self._loss)
            taken = passes.once(what) * x.shape[0]
        except Exception:  # of whatever kind: what takes no single image may take all
            return
        self._of_one = self._of_one or passes.outputs
        if taken > self._limit:
            raise NotMeasured(f"no {NAMES[what]}, which would take {taken:.3g} s, estimated from one image")
