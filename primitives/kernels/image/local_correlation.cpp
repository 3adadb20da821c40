// Correlations of an image with the neighbours of each of its pixels in another one, and the gradients by both.
#include "image/correlation.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/lines.h"
#include "kernels/vector/mix.h"

namespace mpsf::MPSF_ISA {
namespace {

// Pixels and their neighbours.
struct Neighbourhood {
  LocalCorrelationParams p;
  int height, width, across, features;
  int64_t channels;

  Neighbourhood(const Call& call, const Tensor& images)
      : p(params_as<LocalCorrelationParams>(call.params)),
        height(images.shape[1]),
        width(images.shape[2]),
        across(features_across(p)),
        features((2 * p.window_y + 1) * across),
        channels(images.shape[3]) {}

  // Numbers along each axis of those that a pixel has on the image.
  Offsets rows(int row) const { return offsets_on(p.window_y, p.stride_y, row, height); }
  Offsets cols(int col) const { return offsets_on(p.window_x, p.stride_x, col, width); }
  // Where one of them is, as pixels from the first of its image.
  int64_t at(int row, int down, int col, int number) const {
    const int64_t y = row + int64_t{down - p.window_y} * p.stride_y;
    return y * width + col + int64_t{number - p.window_x} * p.stride_x;
  }

  // Calls f(begin, end) for groups of lines, each of so many elements that are so much work.
  template <typename F>
  void for_lines(int64_t images, int64_t elements, int64_t work, const F& f) const {
    parallel_groups(images * height, elements, elements * work, [&](int64_t begin, int64_t end) {
      f(begin, end);
      stream_end();
    });
  }
};

// out[i] is the product of a pixel with number i of some others, `step` elements apart.
template <int N, typename T, typename A>
MPSF_INLINE void products(const T* pixel, const T* others, int64_t step, int64_t channels, A* out) {
  Vec<A> sums[N] = {};
  along<A>(
      channels, [&](int64_t c, int n) __attribute__((always_inline)) {
        const Vec<A> value = load_some(pixel + c, n);
        for (int i = 0; i < N; ++i) sums[i] += value * load_some(others + i * step + c, n);
      });
  for (int i = 0; i < N; ++i) out[i] = sum_of<A>(sums[i]);
}

template <typename T>
void forward(const Call& call) {
  using A = Acc<T>;
  const Tensor &primary = call.in[0], &secondary = call.in[1], &y = call.out[0];
  const Neighbourhood near(call, primary);
  const int64_t channels = near.channels, pixels = int64_t{near.height} * near.width;
  const int64_t step = near.p.stride_x * channels;
  near.for_lines(primary.shape[0], int64_t{near.width} * near.features, channels, [&](int64_t begin, int64_t end) {
    const Scratch<A> sums(near.features);
    for (int64_t line = begin; line < end; ++line) {
      const int row = static_cast<int>(line % near.height);
      const T* others = data<T>(secondary) + line / near.height * pixels * channels;
      const Offsets rows = near.rows(row);
      for (int col = 0; col < near.width; ++col) {
        const int64_t own = line * near.width + col;
        const T* pixel = data<T>(primary) + own * channels;
        const Offsets cols = near.cols(col);
        const int count = cols.behind - cols.first;
        if (count * (rows.behind - rows.first) < near.features) {
          memset(static_cast<void*>(sums.get()), 0, static_cast<size_t>(near.features) * sizeof(A));
        }
        for (int down = rows.first; down < rows.behind; ++down) {
          const T* from = others + near.at(row, down, col, cols.first) * channels;
          A* to = &sums[int64_t{down} * near.across + cols.first];
          int i = 0;
          for (; i + 8 <= count; i += 8) products<8>(pixel, from + i * step, step, channels, to + i);
          for (; i + 4 <= count; i += 4) products<4>(pixel, from + i * step, step, channels, to + i);
          for (; i < count; ++i) products<1>(pixel, from + i * step, step, channels, to + i);
        }
        T* out = data<T>(y) + own * near.features;
        along<A>(near.features, [&](int64_t f, int n) { store_some(out + f, load_some(sums.get() + f, n), n); });
      }
    }
  });
}

template <typename T>
MPSF_INLINE Acc<T> value_of(const T* p) {
  return load(p, 1)[0];
}

template <typename T>
void gradient(const Call& call) {
  using A = Acc<T>;
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  const Neighbourhood near(call, x);
  const int64_t channels = near.channels, pixels = int64_t{near.height} * near.width;
  const bool streamed = dx.streamed && channels % lanes<A> == 0;
  const int64_t most = smaller(near.features, pixels);
  near.for_lines(x.shape[0], near.width * channels, most, [&](int64_t begin, int64_t end) {
    const Scratch<Entry<A>> entries(most);
    for (int64_t line = begin; line < end; ++line) {
      const int row = static_cast<int>(line % near.height);
      const int64_t image = line / near.height * pixels;
      const Offsets rows = near.rows(row);
      for (int col = 0; col < near.width; ++col) {
        const int64_t own = line * near.width + col;
        const Offsets cols = near.cols(col);
        int count = 0;
        for (int down = rows.first; down < rows.behind; ++down) {
          for (int k = cols.first; k < cols.behind; ++k) {
            const int64_t at = near.at(row, down, col, k), feature = int64_t{down} * near.across + k;
            const T* pull = near.p.secondary ? data<T>(dy) + (image + at + 1) * near.features - 1 - feature
                                             : data<T>(dy) + own * near.features + feature;
            entries[count++] = {at * channels, value_of(pull)};
          }
        }
        mix(data<T>(x) + image * channels, entries.get(), count, channels, data<T>(dx) + own * channels, streamed);
      }
    }
  });
}

}  // namespace

void local_correlation(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { forward<decltype(zero)>(call); });
}

void local_correlation_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { gradient<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
