"""The wheel without C++ imports, holds the kernel texts, and says so at once where MLX has no GPU."""

import warnings

import mlx.core as mx

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import mpsfunc as mf
    from mpsfunc.core import texts

assert ["nothing runs here" in str(each.message) for each in told] == [True] * (not mx.is_available(mx.gpu)), told
assert "site-packages" in mf.__file__, mf.__file__
assert "struct Axis" in texts.text("shared/geometry.h")
try:
    mf.avg_pool(mx.ones((1, 4, 4, 3)), 2, stream=mx.cpu)
except RuntimeError as error:
    assert "without its C++ module" in str(error), error
else:
    raise AssertionError("a wheel without C++ ran on the CPU")
print(f"pure wheel of mpsfunc {mf.__version__}: fine")
