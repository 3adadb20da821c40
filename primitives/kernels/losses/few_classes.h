// Softmax cross-entropy of pixels with few classes, whose labels stand for themselves.
#pragma once
#include "kernels/losses/job.h"
#include "kernels/losses/line_reduce.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/vector_math.h"

namespace mpsf::MPSF_ISA {
namespace {

// Numbers that hot_block has room for.
template <typename A>
int64_t room_of_few(int64_t classes) {
  return (kBlockLines * classes + lanes<A>)*3 + 4 * (kBlockLines + lanes<A>);
}

// The losses of so many pixels, at most kBlockLines, and their gradient. The losses are at the beginning of `room`.
template <bool Lost, bool Slopes, bool Exact, typename T>
void hot_block(const Job<T> &job, int64_t first, int64_t count, Acc<T> *room) {
  using A = Acc<T>;
  constexpr int64_t L = lanes<A>, kEach = kBlockLines + L;
  const int64_t length = job.classes, entries = count * length, size = kBlockLines * length + L;
  A *const value = room, *const most = value + kEach, *const sum = most + kEach, *const own = sum + kEach;
  A *const y = own + kEach, *const of_pixel = y + size, *const e = of_pixel + size;
  const uint32_t *const labels = job.labels + first;
  along<A>(
      entries, [&](int64_t i, int n)
                   __attribute__((always_inline)) { store(y + i, load_some(job.y + first * length + i, n)); });
  largest_of_each(y, count, length, most);
  spread(most, count, length, of_pixel);
  along<A>(
      entries, [&](int64_t i, int)
                   __attribute__((always_inline)) { store(e + i, exp(load(y + i) - load(of_pixel + i))); });
  sum_of_each(e, count, length, sum);
  for (int64_t k = 0; k < count; ++k) own[k] = job.pixel_weights ? job.pixel_weights[first + k] : job.weight;
  if constexpr (Lost) {
    for (int64_t k = 0; k < count; ++k) value[k] = labels[k] < length ? y[k * length + labels[k]] : A(0);
    along<A>(
        count, [&](int64_t k, int) __attribute__((always_inline)) {
          store(value + k, -(load(value + k) - load(most + k) - log(load(sum + k))) * load(own + k));
        });
    for (int64_t k = 0; k < count; ++k) {
      if (labels[k] >= length) value[k] = 0;
    }
  }
  if constexpr (Slopes) {
    for (int64_t k = 0; k < count; ++k) sum[k] = (!Exact ? A(1) : labels[k] < length ? own[k] : A(0)) / sum[k];
    spread(sum, count, length, of_pixel);
    along<A>(
        entries, [&](int64_t i, int)
                     __attribute__((always_inline)) { store(e + i, load(e + i) * load(of_pixel + i)); });
    for (int64_t k = 0; k < count; ++k) {
      if (labels[k] < length) e[k * length + labels[k]] -= Exact ? own[k] : A(1);
      if (Exact) own[k] = (job.scales ? job.scales[(first + k) / job.pixels] : A(1)) * job.factor;
    }
    spread(own, count, length, of_pixel);
    T *const gradient = job.gradient + first * length;
    along_made(
        gradient, entries, job.gradient_streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
          store_result(gradient + i, load_some(e + i, n) * load_some(of_pixel + i, n), n, past);
        });
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
