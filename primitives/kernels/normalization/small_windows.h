// Spatial normalization by small windows, whose sums are made where they are used.
#pragma once
#include "kernels/normalization/sliding_sums.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/power.h"
#include "kernels/vector/simd.h"
#include "normalization/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

template <typename A>
struct Settings {
  int64_t size;
  Power<A> power;         // with -beta
  A base, factor, slope;  // delta, alpha / N and 2 alpha beta / N

  // N is the size to the power of so many axes.
  Settings(const SquaresNormParams<double>& p, int axes) : size(p.size), power(-p.beta) {
    const double side = static_cast<double>(size), count = axes == 2 ? side * side : side;
    const double share = p.alpha / count;
    base = static_cast<A>(p.delta);
    factor = static_cast<A>(share);
    slope = static_cast<A>(2 * share * p.beta);
  }
};

// The lines that a window reads, by value: no store can change them.
template <typename T, int Count>
struct Taken {
  const T* at[Count];
};

// Small windows: squares of all rows are read again for every two windows, one above the other, which share all but
// two of them; those sums go no further than the nearest cache. Pairs begin at even rows wherever the part does, so
// that the order of additions depends on the position only.
template <int Size, typename T>
void spatial_near(const Call& call) {
  using A = Acc<T>;
  constexpr int64_t kBefore = Size / 2, kAfter = (Size - 1) / 2, kBlock = 1 << 12;
  const Tensor &x = call.in[0], &y = call.out[0];
  const Images images = images_of(x);
  const Settings<A> s(params_as<SquaresNormParams<double>>(call.params), 2);
  parallel_parts<A>(images, smaller(Size, images.height), [&](const Part& part) {
    const int64_t step = part.channels, room = (images.width + Size - 1) * step + lanes<A>;
    const int64_t block = (kBlock / step + 16) & ~int64_t{15};
    const bool streamed = streams<A>(y, images, part);
    const Scratch<T> blank(images.pitch());
    const Scratch<A> sums(2 * room);
    memset(static_cast<void*>(blank.get()), 0, static_cast<size_t>(images.pitch()) * sizeof(T));
    memset(static_cast<void*>(sums.get()), 0, static_cast<size_t>(2 * room) * sizeof(A));
    const auto line = [&](const Tensor& image, int64_t row) {
      return data<T>(image) + (part.image * images.height + row) * images.pitch();
    };
    for (int64_t row = part.top & ~int64_t{1}; row < part.bottom; row += 2) {
      Taken<T, Size + 1> rows;
      for (int64_t j = 0; j <= Size; ++j) {
        const int64_t at = row - kBefore + j;
        rows.at[j] = at >= 0 && at < images.height ? line(x, at) : blank.get();
      }
      int64_t ready = 0;
      for (int64_t begin = 0; begin < images.width; begin += block) {
        const int64_t end = smaller(images.width, begin + block), next = smaller(images.width, end + kAfter);
        A* to = &sums[kBefore * step];
        for_pixels<A>(
            images, part, ready, next, [=](int64_t offset, int64_t at, int n) __attribute__((always_inline)) {
              const auto square = [=](int j) __attribute__((always_inline)) {
                const Vec<A> v = load_some(rows.at[j] + offset, n);
                return v * v;
              };
              Vec<A> shared = square(1);
              for (int j = 2; j < Size; ++j) shared += square(j);
              store_some(to + at, shared + square(0), n);
              store_some(to + room + at, shared + square(Size), n);
            });
        ready = next;
        for (int64_t own = larger(row, part.top); own < smaller(row + 2, part.bottom); ++own) {
          const A *from = &sums[(own - row) * room], factor = s.factor, base = s.base;
          const T *in = line(x, own), *ahead = line(x, smaller(own + kAfter + 2, images.height - 1));
          T* made = line(y, own);
          for_runs(images, part, begin, end, [&](int64_t offset, int64_t at, int64_t length) {
            const A* run = from + at;
            const auto base_of = [=](int64_t i, int n) __attribute__((always_inline)) {
              Vec<A> sum = load_some(run + i, n);
              for (int j = 1; j < Size; ++j) sum += load_some(run + i + j * step, n);
              return sum * factor + base;
            };
            for_powers(
                s.power, length, base_of, [=](int64_t i, int n, Vec<A> power) __attribute__((always_inline)) {
                  __builtin_prefetch(ahead + offset + i);
                  store_result(made + offset + i, load_some(in + offset + i, n) * power, n, streamed);
                });
          });
        }
      }
    }
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
