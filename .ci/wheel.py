"""The installed wheel computes on the CPU and holds the kernel texts."""

import mlx.core as mx

import mpsfunc as mf
from mpsfunc import _launch

assert "site-packages" in mf.__file__, mf.__file__
assert "avg_pool" in dir(_launch._primitives)
assert "struct Axis" in _launch.text("geometry.h")
with mx.stream(mx.cpu):
    dx = mx.grad(lambda x: mf.avg_pool(x, 2).sum())(mx.ones((1, 4, 4, 3)))
    assert mx.all(dx == 0.25).item()
print(f"wheel of mpsfunc {mf.__version__}: fine")
