"""The host and the conformance check themselves, on toy kernels: they find what they promise, and only that."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from support import numbers

from metal_host import conformance
from metal_host.host import job, needs_clang
from metal_host.job import Job, KernelFault
from metal_host.msl_text import Kernel, as_cpp, capture

pytestmark = [needs_clang, pytest.mark.kernels]

THREADS = 96


def toy(source: str, inputs: dict[str, mx.array] | None = None, header: str = "", **outputs: Any) -> Job:
    """A kernel of 96 threads in threadgroups of 64; ``y`` holds a float for each unless given."""
    given = inputs or {"x": numbers((THREADS,))}
    made = outputs or {"y": ((THREADS,), mx.float32)}
    kernel = mx.fast.metal_kernel(
        name="toy", input_names=list(given), output_names=list(made), source=source, header=header
    )

    def call() -> Any:
        return kernel(
            inputs=list(given.values()),
            template=[("N", 64)],
            output_shapes=[shape for shape, _ in made.values()],
            output_dtypes=[dtype for _, dtype in made.values()],
            grid=(THREADS, 1, 1),
            threadgroup=(64, 1, 1),
            stream=mx.gpu,
            verbose=True,
        )

    return job(capture(call), given, made, (THREADS, 1, 1), (64, 1, 1))


def result(work: Job, name: str = "y", dtype: str = "float32") -> np.ndarray:
    return np.frombuffer(work.run().results[name], dtype)


PLACE = "uint i = thread_position_in_grid.x, t = thread_position_in_threadgroup.x;\n"
NEIGHBOUR = (
    "threadgroup float s[N];\ns[t] = x[i];\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n"
    "y[i] = s[(t + 1) % threads_per_threadgroup.x];\n"
)


def test_threads_see_each_other_after_a_barrier() -> None:
    x = np.array(numbers((THREADS,)))
    expected = np.concatenate([np.roll(x[:64], -1), np.roll(x[64:], -1)])  # the last threadgroup is half as large
    assert (result(toy(PLACE + NEIGHBOUR)) == expected).all()


MATRIX = "simdgroup_float8x8 m;\nsimdgroup_load(m, {});\nif (i < 32) simdgroup_store(m, y);\n"
FAULTS = {
    "a missing barrier": ("thread", PLACE + NEIGHBOUR.replace("threadgroup_barrier(mem_flags::mem_threadgroup);", "")),
    "a barrier that orders nothing": ("thread", PLACE + NEIGHBOUR.replace("mem_threadgroup", "mem_none")),
    "one result by two threads": ("lanes", PLACE + "y[i] = 1; y[0] = i;"),
    "one equal result by two threads": ("thread", PLACE + "y[i] = 1; y[0] = 1;"),
    "one slot by two threads on their way to a barrier": (
        "thread",
        PLACE + NEIGHBOUR.replace("s[t] = x[i];", "threadgroup_barrier(mem_flags::mem_threadgroup);\ns[t / 2] = 1;"),
    ),
    "a load behind an input": ("address", PLACE + "y[i] = x[i + 1];"),
    "a load before an input": ("address", PLACE + "y[i] = x[int(i) - 1];"),
    "a store behind an output": ("address", PLACE + "y[i + 1] = 0;"),
    "a load behind threadgroup memory": ("address", PLACE + "threadgroup float s[N]; s[t] = 0; y[i] = s[t + 1];"),
    "a load behind a local array": ("address", PLACE + "float own[4] = {0, 1, 2, 3}; y[i] = own[i % 5];"),
    "a wide load from anywhere": ("address", PLACE + "y[i] = *(const device long*)(x + i / 2);"),
    "an integer overflow": ("address", PLACE + "y[i] = int(i + 2147483600) + 90;"),
    "a barrier for some": ("host", PLACE + "if (i > 70) return;\n" + NEIGHBOUR),
    "two barriers at once": (
        "host",
        PLACE + "if (t < 32) {\nthreadgroup_barrier(mem_flags::mem_none);\n} else {\n"
        "threadgroup_barrier(mem_flags::mem_none);\n}\ny[i] = 0;",
    ),
    "too much threadgroup memory": ("host", PLACE + "threadgroup float s[N * 129]; s[t] = 0; y[i] = s[t];"),
    "no end": ("host", PLACE + "for (volatile int k = 0; k >= 0; k = 1) {}"),
    "matrices of two kinds in one simdgroup": ("host", PLACE + MATRIX.format("x + t / 40")),
    "a matrix for some lanes": ("host", PLACE + "if (t < 40) {\n" + MATRIX.format("x") + "}\n"),
    "an unsaid origin": ("host", PLACE + MATRIX.format("x, 8, ulong2(1, 0), true")),
    "a matrix behind an input": ("address", PLACE + MATRIX.format("x + 33")),
    "a matrix before its barrier": (
        "thread",
        PLACE + "threadgroup float s[N];\ns[t] = x[t];\n" + MATRIX.format("s"),
    ),
    "no declaration": ("compiler", PLACE + "y[i] = z[i];"),
    "C++17": ("compiler", PLACE + "if constexpr (N > 1) y[i] = 1;"),
}


@pytest.mark.parametrize("by, source", FAULTS.values(), ids=FAULTS)
def test_finds(by: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metal_host.job._TIMEOUT", 2)
    with pytest.raises(KernelFault) as fault:
        toy(source).once("thread") if by == "thread" else toy(source).run()
    assert fault.value.by == by


def test_poisons_what_nobody_stored() -> None:
    y = result(toy(PLACE + "threadgroup float s[N]; if (i % 3 == 0) y[i] = s[t]; else if (i % 3 == 1) y[i] = x[i];"))
    assert (np.isnan(y).reshape(-1, 3) == [True, False, True]).all()


def test_poisons_what_nobody_set() -> None:
    y = result(toy(PLACE + "float own[4]; for (uint k = 0; k < N / 32; ++k) own[k] = x[i]; y[i] = own[i % 4];"))
    assert (np.isnan(y).reshape(-1, 4) == [False, False, True, True]).all()


def test_one_equal_result_by_two_threadgroups_is_counted() -> None:
    """The thread sanitizer knows threads of one threadgroup from each other, but not those of two."""
    twice = toy(PLACE + "y[i] = 1; if (t == 0) y[0] = 1;")
    assert twice.once("address").traffic["y"] == (0, 4 * (THREADS + 2))
    with pytest.raises(KernelFault, match="^stores: results that are not stored once"):
        twice.run()


def test_a_grid_rounded_up_has_more_threads() -> None:
    with pytest.raises(KernelFault, match="address"):
        toy(PLACE + "y[i] = x[i];").run(rounded=True)
    toy(PLACE + "if (i < 96) y[i] = x[i];").run(rounded=True)


def test_simdgroups() -> None:
    x = np.array(numbers((THREADS,))).reshape(3, 32)
    lane = np.arange(32)
    expected = {
        "simd_max(x[i])": x.max(1, keepdims=True) + 0 * x,
        "simd_min(x[i])": x.min(1, keepdims=True) + 0 * x,
        "simd_sum(float(i))": (lane.sum() + 1024 * np.arange(3))[:, None] + 0 * x,
        "simd_shuffle_xor(x[i], 5)": x[:, lane ^ 5],
        "simd_shuffle_down(x[i], 1)": np.c_[x[:, 1:], [np.nan] * 3],
        "simd_shuffle_up(x[i], 1)": np.c_[[np.nan] * 3, x[:, :-1]],
        "simd_shuffle(x[i], (i * 7) % 32)": x[:, lane * 7 % 32],
        "simd_broadcast(x[i], 3)": x[:, [3] * 32],
        "float(thread_index_in_simdgroup)": np.array([lane] * 3),
    }
    source = PLACE + "".join(f"y[{96 * n} + i] = {expression};\n" for n, expression in enumerate(expected))
    seen = result(toy(source, y=((len(expected), 3, 32), mx.float32))).reshape(-1, 3, 32)
    for (expression, right), values in zip(expected.items(), seen, strict=True):
        np.testing.assert_array_equal(values, right, expression)


MATRICES = {
    "from threadgroup memory": """
        for (uint i = t; i < 64; i += 32) shared[i / 8 * 17 + i % 8] = a[i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(p, shared, 17);
    """,
    "transposed": """
        for (uint i = t; i < 64; i += 32) shared[i % 8 * 17 + i / 8] = a[i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(p, shared, 17, 0, true);
    """,
    "at an origin": "simdgroup_load(p, a - 19, 8, ulong2(3, 2));",
    "a result": """
        simdgroup_multiply_accumulate(q, zero, zero, q);
        simdgroup_load(p, a);
        simdgroup_multiply_accumulate(p, zero, zero, p);
    """,
}


def multiplied(made: str) -> tuple[str, Job, np.ndarray]:
    """A body that makes a matrix p of ``a``, stores p b + c as y and transposed as z; and what y should be."""
    a, b, c = (numbers((8, 8), seed=seed) for seed in range(3))
    source = f"""
        uint t = thread_position_in_threadgroup.x;
        threadgroup float shared[64 * 8], out[64];
        simdgroup_float8x8 p, q, r, zero = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_load(q, b, 8);
        simdgroup_load(r, c, 8);
        if (threadgroup_position_in_grid.x == 0 && simdgroup_index_in_threadgroup == 0) {{
          {made}
          simdgroup_multiply_accumulate(r, p, q, r);
          simdgroup_store(r, y, 8);
          simdgroup_store(r, out, 8, 0, true);
          simdgroup_barrier(mem_flags::mem_threadgroup);
          for (uint i = t; i < 64; i += 32) z[i] = out[i];
        }}
    """
    work = toy(source, {"a": a, "b": b, "c": c}, y=((8, 8), mx.float32), z=((8, 8), mx.float32))
    return source, work, np.array(a, float) @ np.array(b, float) + np.array(c, float)


@pytest.mark.parametrize("made", MATRICES.values(), ids=MATRICES)
def test_simdgroup_matrices(made: str) -> None:
    _, work, right = multiplied(made)
    outcome = work.run()
    y, z = (np.frombuffer(outcome.results[name], "float32").reshape(8, 8) for name in "yz")
    np.testing.assert_allclose(y, right, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(z.T, y)
    assert outcome.traffic["y"] == (0, 256) and outcome.traffic["b"].loaded % 256 == 0
    assert conformance.faults(work.kernel) == ()


@pytest.mark.parametrize("dtype, name", [(mx.float16, "half"), (mx.bfloat16, "bfloat")], ids=["half", "bfloat"])
def test_narrow_floats_round_as_mlx_does(dtype: mx.Dtype, name: str) -> None:
    spread = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32).view(np.float32)
    small = np.random.default_rng(1).integers(0, 2**16, 2000).astype(np.float32) * np.float32(2.0**-27)
    edges = np.array([0, -0.0, 65519.99, 65520, 2.0**-25, 1.5 * 2.0**-25, np.inf, -np.inf, np.nan], np.float32)
    x = mx.array(np.concatenate([spread, small, edges, 1 + np.arange(4096, dtype=np.float32) / 2**13]))
    source = f"""
        for (uint i = thread_position_in_grid.x; i < x_shape[0]; i += threads_per_grid.x) {{
          y[i] = {name}(x[i]);
          z[i] = float(y[i]);
        }}
    """
    outcome = toy(source, {"x": x}, y=((x.size,), dtype), z=((x.size,), mx.float32)).run()
    right, seen = np.array(x.astype(dtype).view(mx.uint16)), np.frombuffer(outcome.results["y"], np.uint16)
    number = ~np.isnan(np.array(x))
    np.testing.assert_array_equal(seen[number], right[number])
    widened = np.frombuffer(outcome.results["z"], np.float32)
    np.testing.assert_array_equal(widened, np.array(x.astype(dtype).astype(mx.float32)))


def test_parameters_of_every_kind() -> None:
    inputs = {"x": mx.ones((4, 24)), "few": mx.array([2.0, 3.0]), "one": mx.array(4.0)}
    work = toy(PLACE + "y[i] = x[i] + few[1] + one + x_ndim + x_shape[1] + x_strides[0];", inputs)
    assert {p.name: p.type for p in work.kernel.parameters}["one"] == "const constant float&"
    assert (result(work) == 1 + 3 + 4 + 2 + 24 + 24).all()


def test_counts_bytes() -> None:
    traffic = toy(PLACE + "y[i] = x[i] + x[0];").run().traffic
    assert traffic["x"] == (8 * THREADS, 0) and traffic["y"] == (0, 4 * THREADS)


def test_declarations_in_threadgroup_memory() -> None:
    text = "// a threadgroup folds rows;\n  threadgroup float a[N * 2], b[4][5];\nthreadgroup float* p = a;\n"
    for written in (text, text.replace(", ", ",")):
        comment, arrays, pointer = as_cpp(written).splitlines()
        assert (comment, pointer) == tuple(text.splitlines()[::2])
        assert "typedef float a_memory[N * 2];" in arrays and "typedef float b_memory[4][5];" in arrays


HELPER = "inline float first(const device float* p) { return p[0]; }\n"
ILLEGAL = {
    "no address space": (HELPER.replace("device ", ""), "y[i] = first(x);"),
    "a reference without one": ("inline void set(float& r) { r = 1; }", "float own; set(own); y[i] = own;"),
    "a cast that drops it": ("", "y[i] = *(const float*)x;"),
    "another address space": ("", "threadgroup float s[N]; s[t] = 0; y[i] = *(device float*)s;"),
    "constant as device": (HELPER, "y[i] = first(few);"),
    "a matrix from constant memory": ("", "simdgroup_float8x8 m; simdgroup_load(m, few); simdgroup_store(m, y);"),
    "a matrix from registers": ("", "float own[64]; simdgroup_float8x8 m; simdgroup_load(m, own);"),
    "a matrix without a space": ("", "simdgroup_float8x8 m; simdgroup_load(m, (const float*)x);"),
    "a matrix to an input": ("", "simdgroup_float8x8 m; simdgroup_store(m, x);"),
    "the elements of a lane": ("", "simdgroup_float8x8 m; y[i] = m.thread_elements()[0];"),
    "double": ("", "double z = 1; y[i] = float(z);"),
    "a double literal": ("", "y[i] = 0.5 * x[i];"),
    "an exception": ("", "if (i > 3) throw 1; y[i] = 0;"),
    "a lambda": ("", "auto f = [=](float v) { return v + 1; }; y[i] = f(x[i]);"),
    "a pointer to a function": (HELPER, "float (*f)(const device float*) = first; y[i] = f(x);"),
    "recursion": ("inline int f(int n) { return n > 0 ? f(n - 2) + 1 : 0; }", "y[i] = f(i);"),
    "recursion by two": (
        "int g(int n); inline int f(int n) { return n > 0 ? g(n - 1) : 0; } inline int g(int n) { return f(n); }",
        "y[i] = f(i);",
    ),
    "new": ("", "y[i] = *new float(1);"),
    "a virtual function": ("struct S { virtual int f() { return 1; } };", "S s; y[i] = s.f();"),
    "run-time types": ("struct S { int v; };", "S s; y[i] = &typeid(s) != 0;"),
}


@pytest.mark.parametrize("header, source", ILLEGAL.values(), ids=ILLEGAL)
def test_conformance_refuses(header: str, source: str) -> None:
    inputs = {"x": numbers((THREADS,)), "few": mx.array([2.0, 3.0])}
    assert conformance.faults(toy(PLACE + source, inputs, header + "\n").kernel)


def test_conformance_accepts() -> None:
    header = HELPER + "template <typename T>\nstruct Pair {\n  T a, b;\n};\n"
    source = """
        threadgroup float s[N];
        threadgroup float* p = s + t;
        *p = first(x) + simd_sum(x[i]) + sqrt(2.0f);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const Pair<float> pair = *(const constant Pair<float>*)few, other = *(const device Pair<float>*)x;
        thread float own[2] = {pair.a, other.b};
        thread const float& r = own[1];
        y[i] = half(r) * half(2.0f) + (own[0] > 0 ? s[t] : 0.0f);
    """
    inputs = {"x": numbers((THREADS,)), "few": mx.array([2.0, 3.0])}
    assert conformance.faults(toy(PLACE + source, inputs, header).kernel) == ()


def test_capture_refuses_anything_but_one_kernel() -> None:
    with pytest.raises(ValueError, match="something else than one kernel"):
        capture(lambda: mx.zeros(3))


def test_replaced_wants_one_place() -> None:
    kernel = Kernel("a b a", "k", ())
    assert kernel.replaced("b", "c").text == "a c a"
    with pytest.raises(ValueError, match="occurs 2 times"):
        kernel.replaced("a", "c")
