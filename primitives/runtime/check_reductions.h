// Refuses calls of what reduces the middle axis of an array (outer, length, inner).
#pragma once
#include "pooling/params.h"
#include "runtime/check.h"

namespace mpsf {

// An array with an element or more along the axis, and fewer than 2^31 of each outer one.
template <typename Check>
void reduced(const Check& c, const Shape& x) {
  c.require(x.size() == 3 && is_floating(c.image()), "floating arrays of rank 3");
  c.require(x[1] >= 1 && int64_t{x[1]} * x[2] < (int64_t{1} << 31), "1 to 2^31 - 1 elements of each outer one");
}

// Weights of each outer one, or the same for all.
template <typename Check>
void weights(const Check& c, const Shape& x, Dtype dtype) {
  const Shape& w = c.in(1);
  c.require(w.size() == 3 && (w[0] == 1 || w[0] == x[0]), "weights of one or of all outer ones");
  c.input(1, {w[0], x[1], x[2]}, dtype);
}

template <typename Check>
void reduce_sum(const Check& c, const Signature& call) {
  const bool weighted = call.inputs.size() == 2;
  c.counts(weighted ? 2 : 1, 1);
  const Shape& x = c.in(0);
  reduced(c, x);
  c.switches({c.template params<ReduceSumParams>().mean});
  if (weighted) weights(c, x, c.image());
  c.output(0, {x[0], x[2]}, call.dtypes[0] == c.image() ? c.image() : c.accumulator());
}

template <typename Check>
void reduce_weigh(const Check& c) {
  c.no_params();
  c.counts(2, 1);
  const Shape& x = c.out(0);
  reduced(c, x);
  c.require(is_floating(c.dtype(1)), "floating weights");
  c.require(c.image() == (c.dtype(1) == Type::f64 ? Type::f64 : Type::f32), "a gradient of the accumulator's dtype");
  c.input(0, {x[0], x[2]}, c.image());
  weights(c, x, c.dtype(1));
  c.output(0, x, c.dtype(1));
}

template <typename Check>
void reduce_extreme(const Check& c) {
  const auto p = c.template params<ReduceExtremeParams>();
  c.switches({p.largest});
  c.require(p.results >= 0 && p.results <= 2, "results from 0 to 2");
  c.counts(1, p.results == 2 ? 2 : 1);
  const Shape& x = c.in(0);
  reduced(c, x);
  if (p.results != 1) c.output(0, {x[0], x[2]}, c.image());
  if (p.results != 0) c.output(p.results - 1, {x[0], x[2]}, Type::u32);
}

template <typename Check>
void reduce_place(const Check& c) {
  c.no_params();
  c.counts(2, 1);
  const Shape& x = c.out(0);
  reduced(c, x);
  c.input(0, {x[0], x[2]}, c.image());
  c.input(1, c.in(0), Type::u32);
  c.output(0, x, c.image());
}

}  // namespace mpsf
