// What samples of images have in common, whatever says where they lie.
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/lines.h"
#include "kernels/vector/mix.h"

// As sampling.h has it. Its functions are static, and so are these.
static inline float round_down(float x) { return __builtin_floorf(x); }
static inline double round_down(double x) { return __builtin_floor(x); }
#define MPSF_FLOOR(x) round_down(x)
#define MPSF_SAMPLING_FN static inline __attribute__((always_inline))
#include "image/boxes.h"

namespace mpsf::MPSF_ISA {
namespace {

// Calls f with the number as a constant.
template <int Most, typename F>
MPSF_INLINE void for_number(int number, const F& f) {
  if constexpr (Most > 0) {
    if (number < Most) return for_number<Most - 1>(number, f);
  }
  f(Constant<Most>());
}

// Adds a pixel's values to those of others, each times a weight.
template <typename T, typename A, typename Count>
MPSF_INLINE void spread(const T* values, const Entry<A>* entries, Count count, int64_t channels, A* sums) {
  constexpr int L = lanes<A>;
  for_columns<A>(channels, [=]<int N>(int64_t column, int n) {
    Vec<A> value[N];
    for (int v = 0; v < N; ++v) value[v] = load_some(values + column + v * L, n);
    for (int i = 0; i < count; ++i) {
      A* to = sums + entries[i].at + column;
      for (int v = 0; v < N; ++v) store_some(to + v * L, load_some(to + v * L, n) + value[v] * entries[i].weight, n);
    }
  });
}

// Makes the gradient of images, of which each band of rows has sums of its own: add(image, top, bottom, sums) adds what
// belongs to the rows from `top` on and before `bottom`. A task has one band, or so many whole images.
template <typename T, typename F>
void sum_by_bands(const Tensor& dx, int64_t bands, int64_t images, const F& add) {
  using A = Acc<T>;
  constexpr bool kNarrow = sizeof(T) != sizeof(A);
  const int64_t count = dx.shape[0], rows = dx.shape[1], pitch = int64_t{dx.shape[2]} * dx.shape[3];
  parallel_for((count + images - 1) / images * bands, [&](int64_t task) {
    const int top = static_cast<int>(rows * (task % bands) / bands);
    const int bottom = static_cast<int>(rows * (task % bands + 1) / bands);
    const int64_t size = (bottom - top) * pitch, begin = task / bands * images;
    const Scratch<A> room(kNarrow ? size : 0);
    for (int64_t image = begin; image < smaller(count, begin + images); ++image) {
      T* out = data<T>(dx) + (image * rows + top) * pitch;
      A* sums = room.get();
      if constexpr (!kNarrow) sums = out;
      memset(static_cast<void*>(sums), 0, static_cast<size_t>(size) * sizeof(A));
      add(image, top, bottom, sums);
      if constexpr (kNarrow) {
        for_columns<A>(size, [&]<int N>(int64_t at, int n) {
          for (int v = 0; v < N; ++v) {
            store_some(out + at + v * lanes<A>, load_some(sums + at + v * lanes<A>, n), n);
          }
        });
      }
    }
  });
}

// A pixel that a sample reads, and its weights in some derivatives.
template <typename A, int Count>
struct Steep {
  int64_t at;
  A by[Count];
};

// Adds up over pixels and channels, lane by lane, dy times the derivatives of a sample.
template <typename T, typename A, int Count>
MPSF_INLINE void slopes(const T* x, const T* dy, const Steep<A, Count>* pixels, int count, int64_t channels,
                        Vec<A>* sums) {
  constexpr int L = lanes<A>;
  const auto some = [&](auto known, const Steep<A, Count>* of) __attribute__((always_inline)) {
    Vec<A> products[4] = {};
    for (int64_t c = 0; c < channels; c += L) {
      const int n = static_cast<int>(smaller(L, channels - c));
      const Vec<A> pulls = load_some(dy + c, n);
      for (int i = 0; i < known; ++i) products[i] += load_some(x + of[i].at + c, n) * pulls;
    }
    for (int i = 0; i < known; ++i) {
      for (int k = 0; k < Count; ++k) {
        if (of[i].by[k] != 0) sums[k] += products[i] * of[i].by[k];
      }
    }
  };
  int done = 0;
  for (; done + 4 <= count; done += 4) some(Constant<4>(), pixels + done);
  for (; done + 2 <= count; done += 2) some(Constant<2>(), pixels + done);
  if (done < count) some(Constant<1>(), pixels + done);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
