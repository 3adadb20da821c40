"""The installed wheel computes everything on the CPU, and holds the kernel texts."""

import importlib.metadata

import mlx.core as mx
import mlx.nn

import mpsfunc as mf
from mpsfunc.core import native, texts
from mpsfunc.core.mlx_table import TABLE
from mpsfunc.selftest import calls

assert "site-packages" in mf.__file__, mf.__file__
assert list(native.built_for()) == [row.mlx for row in TABLE], native.built_for()
assert f"mlx-{importlib.metadata.version('mlx')}/" in mf._primitives.__file__, mf._primitives.__file__
assert "struct Axis" in texts.text("shared/geometry.h")
with mx.stream(mx.cpu):
    dx = mx.grad(lambda x: mf.avg_pool(x, 2).sum())(mx.ones((1, 4, 4, 3)))
    assert mx.all(dx == 0.25).item()
for family in calls.test(mx.Device(mx.cpu)):
    assert family.calls and not family.wrong and not family.error, family
assert mf.nn.convert(mlx.nn.Linear(2, 2)).replaced
assert mf.graph.ImageNode("x").name == "x"
print(f"wheel of mpsfunc {mf.__version__}: fine")
