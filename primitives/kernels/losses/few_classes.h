// Softmax cross-entropy of pixels with few classes, of labels, smoothed or not.
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
      entries, [&](int64_t i, int) __attribute__((always_inline)) {
        const Vec<A> less = load(y + i) - load(of_pixel + i);
        store(y + i, less);
        store(e + i, exp_below(less));
      });
  sum_of_each(e, count, length, sum);
  for (int64_t k = 0; k < count; ++k) own[k] = job.pixel_weights ? job.pixel_weights[first + k] : job.weight;
  // A target is kept at the label and the share everywhere.
  const A kept = job.kept, share = job.share;
  const bool smooth = share != 0 || kept != 1;
  if constexpr (Lost) {
    for (int64_t k = 0; k < count; ++k) value[k] = labels[k] < length ? y[k * length + labels[k]] : A(0);
    if (smooth) sum_of_each(y, count, length, most);
    along<A>(
        count, [&](int64_t k, int) __attribute__((always_inline)) {
          const Vec<A> logarithm = log(load(sum + k));
          Vec<A> lost = load(value + k) - logarithm;
          if (smooth) {
            const Vec<A> all = (load(most + k) - logarithm * static_cast<A>(length)) * share;
            lost = kept == 0 ? all : lost * kept + all;
          }
          store(value + k, -lost * load(own + k));
        });
    for (int64_t k = 0; k < count; ++k) {
      if (labels[k] >= length) value[k] = 0;
    }
  }
  if constexpr (Slopes) {
    const A whole = kept + share * static_cast<A>(length);
    for (int64_t k = 0; k < count; ++k) {
      const bool some = labels[k] < length;
      sum[k] = (!Exact ? A(1) : some ? own[k] * whole : A(0)) / sum[k];
      most[k] = some ? share * (Exact ? own[k] : A(1)) : A(0);
    }
    spread(sum, count, length, of_pixel);
    const auto at_label = [&](int64_t k) -> int64_t { return labels[k] < length ? k * length + labels[k] : -1; };
    if (smooth) {
      spread(most, count, length, y);
      for (int64_t k = 0; k < count; ++k) {
        if (at_label(k) >= 0) y[at_label(k)] = (kept + share) * (Exact ? own[k] : A(1));
      }
    }
    along<A>(
        entries, [&](int64_t i, int) __attribute__((always_inline)) {
          const Vec<A> p = load(e + i) * load(of_pixel + i);
          store(e + i, smooth ? p - load(y + i) : p);
        });
    for (int64_t k = 0; k < count; ++k) {
      if (!smooth && at_label(k) >= 0) e[at_label(k)] -= Exact ? own[k] : A(1);
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
