// The samples that a deformable convolution multiplies with its weights: four pixels around the place of each tap. An
// image's gradient is added up by threads that own a band of its rows each, in the order of the samples, so that how it
// is cut into bands does not matter.
#include "kernels/vector/lines.h"
#include "kernels/vector/mix.h"

// As deform.h has it. Its functions are static, and so are these.
static inline float deform_round_down(float x) { return __builtin_floorf(x); }
static inline double deform_round_down(double x) { return __builtin_floor(x); }
#define MPSF_DEFORM_FLOOR(x) deform_round_down(x)
#define MPSF_DEFORM_FN static inline __attribute__((always_inline))
#include "convolution/deform.h"

namespace mpsf::MPSF_ISA {
namespace {

// One sample: where it lies, and the mask that it is multiplied by.
template <typename A>
struct Sampled {
  A row, col, mask;
};

// All samples of a batch, (n, oh, ow, k, group), of images with so many channels.
template <typename A>
struct Deformation {
  DeformParams p;
  const A* places;
  int height, width, taps, numbers;
  int64_t channels, in_group, pitch, image;  // elements: of a pixel, of a group's, of a row, of an image

  Deformation(const Call& call, const Tensor& of, int64_t all_channels)
      : p(params_as<DeformParams>(call.params)),
        places(data<A>(of)),
        height(p.rows.n_out),
        width(p.cols.n_out),
        taps(p.rows.size * p.cols.size),
        numbers(deform_numbers(p)),
        channels(all_channels),
        in_group(channels / p.groups),
        pitch(p.cols.n_in * channels),
        image(p.rows.n_in * pitch) {}

  int64_t samples() const { return int64_t{width} * taps * p.groups; }  // of a line

  // Calls f(sample, at) for the samples of a line of outputs; `at` is where its channels lie in the line of columns,
  // and `place` number of its place.
  template <typename F>
  MPSF_INLINE void for_line(int64_t line, const F& f) const {
    const int oh = static_cast<int>(line % height);
    for (int ow = 0; ow < width; ++ow) {
      for (int k = 0; k < taps; ++k) {
        const A down = static_cast<A>(strided(p.rows, oh) + k / p.cols.size * p.rows.dilation);
        const A across = static_cast<A>(strided(p.cols, ow) + k % p.cols.size * p.cols.dilation);
        for (int group = 0; group < p.groups; ++group) {
          const int64_t number = ((line * width + ow) * p.groups + group) * taps + k;
          const A* place = places + number * numbers;
          const A mask = p.masked != 0 && p.order_mask == 0 ? place[numbers - 1] : A(1);
          f(Sampled<A>{down + place[0], across + place[1], mask}, group,
            (int64_t{ow} * taps + k) * channels + group * in_group, number);
        }
      }
    }
  }
  DeformTaps<A> rows(const Sampled<A>& sample, int more = 0) const {
    return deform_taps<A>(p.rows.n_in, sample.row, p.order_y + more);
  }
  DeformTaps<A> cols(const Sampled<A>& sample, int more = 0) const {
    return deform_taps<A>(p.cols.n_in, sample.col, p.order_x + more);
  }

  // Lists the pixels of a sample that have weight, of rows from `top` on and before `bottom`, less `top` rows, and
  // returns how many there are.
  MPSF_INLINE int list(const Sampled<A>& sample, int group, int top, int bottom, Entry<A>* entries) const {
    const DeformTaps<A> down = rows(sample), across = cols(sample);
    int count = 0;
    for (int q = 0; q < 4; ++q) {
      const int row = down.first + q / 2;
      const A weight = down.weight[q / 2] * across.weight[q % 2];
      if (weight == 0 || sample.mask == 0 || row < top || row >= bottom) continue;
      entries[count++] = {(row - top) * pitch + (across.first + q % 2) * channels + group * in_group,
                          sample.mask * weight};
    }
    return count;
  }
};

template <typename A>
void forward(const Call& call) {
  const Tensor &x = call.in[0], &columns = call.out[0];
  const Deformation<A> all(call, call.in[1], x.shape[3]);
  const int64_t lines = int64_t{columns.shape[0]} * all.height, elements = int64_t{all.width} * all.taps * all.channels;
  const bool streamed = columns.streamed && all.in_group % lanes<A> == 0;
  parallel_groups(lines, elements, 5 * elements, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const A* from = data<A>(x) + line / all.height * all.image;
      A* to = data<A>(columns) + line * elements;
      all.for_line(line, [&](const Sampled<A>& sample, int group, int64_t at, int64_t) {
        Entry<A> entries[4];
        const int count = all.list(sample, group, 0, all.p.rows.n_in, entries);
        if (count == 0) {
          // A mask that is no number still makes none of what it masks.
          const A nothing = sample.mask == 0 ? A(0) : sample.mask * 0;
          for (int64_t c = 0; c < all.in_group; c += lanes<A>) {
            store_some(to + at + c, splat(nothing), static_cast<int>(smaller(lanes<A>, all.in_group - c)));
          }
          return;
        }
        for_count(count, [&](auto known) { mix(from, entries, known, all.in_group, to + at, streamed); });
      });
    }
    stream_end();
  });
}

// Adds a sample's values to those of the pixels that it read, each times a weight.
template <typename A, typename Count>
MPSF_INLINE void spread(const A* values, const Entry<A>* entries, Count count, int64_t channels, A* sums) {
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

// The first row that the samples of each line read, and the one behind the last.
template <typename A>
void find_rows(const Deformation<A>& all, int64_t lines, int* first, int* behind) {
  parallel_lines(lines, 4 * all.samples(), [&](int64_t line) {
    first[line] = all.p.rows.n_in;
    behind[line] = 0;
    all.for_line(line, [&](const Sampled<A>& sample, int, int64_t, int64_t) {
      const DeformTaps<A> down = all.rows(sample);
      for (int i = 0; i < 2; ++i) {
        if (down.weight[i] == 0) continue;
        first[line] = min_int(first[line], down.first + i);
        behind[line] = max_int(behind[line], down.first + i + 1);
      }
    });
  });
}

template <typename A>
void adjoint(const Call& call) {
  constexpr int64_t kTasks = 16, kBands = 8;  // of an image, each of which looks at all samples of many lines
  const Tensor &dcolumns = call.in[0], &dx = call.out[0];
  const int64_t images = dx.shape[0], height = dx.shape[1];
  const Deformation<A> all(call, call.in[1], dx.shape[3]);
  const int64_t lines = images * all.height, elements = int64_t{all.width} * all.taps * all.channels;
  const int64_t samples = all.height * elements;
  const int64_t wanted = samples < kChunkElements ? 1 : smaller(kBands, (kTasks + images - 1) / images);
  const int64_t bands = smaller(wanted, (height + 7) / 8);
  const bool banded = bands > 1;
  const Scratch<int> first(banded ? lines : 0), behind(banded ? lines : 0);
  if (banded) find_rows(all, lines, first.get(), behind.get());
  const int64_t each = banded ? 1 : 1 + kChunkElements / (samples + all.image);  // images of a task

  parallel_for((images + each - 1) / each * bands, [&](int64_t task) {
    const int top = static_cast<int>(height * (task % bands) / bands);
    const int bottom = static_cast<int>(height * (task % bands + 1) / bands);
    const int64_t size = (bottom - top) * all.pitch, begin = task / bands * each;
    for (int64_t image = begin; image < smaller(images, begin + each); ++image) {
      A* sums = data<A>(dx) + (image * height + top) * all.pitch;
      memset(static_cast<void*>(sums), 0, static_cast<size_t>(size) * sizeof(A));
      for (int64_t line = image * all.height; line < (image + 1) * all.height; ++line) {
        if (banded && (first[line] >= bottom || behind[line] <= top)) continue;
        const A* pulls = data<A>(dcolumns) + line * elements;
        all.for_line(line, [&](const Sampled<A>& sample, int group, int64_t at, int64_t) {
          Entry<A> entries[4];
          const int count = all.list(sample, group, top, bottom, entries);
          if (count == 0) return;
          for_count(count, [&](auto known) { spread(pulls + at, entries, known, all.in_group, sums); });
        });
      }
    }
  });
}

// A pixel that a sample reads, and its weights in the derivatives by y, x and the mask.
template <typename A>
struct Steep {
  int64_t at;
  A by[3];
};

// The sums over channels of a sample's gradient times its derivatives.
template <typename A>
MPSF_INLINE void slopes(const A* x, const A* pulls, const Steep<A>* pixels, int count, int64_t channels, A* out) {
  Vec<A> sums[3] = {};
  for (int i = 0; i < count; ++i) {
    Vec<A> products = {};
    along<A>(
        channels, [&](int64_t c, int n) __attribute__((always_inline)) {
          products += load_some(x + pixels[i].at + c, n) * load_some(pulls + c, n);
        });
    for (int t = 0; t < 3; ++t) {
      if (pixels[i].by[t] != 0) sums[t] += products * pixels[i].by[t];
    }
  }
  for (int t = 0; t < 3; ++t) out[t] = sum_of<A>(sums[t]);
}

template <typename A>
void places_gradient(const Call& call) {
  const Tensor &dcolumns = call.in[0], &x = call.in[1], &dplaces = call.out[0];
  const Deformation<A> all(call, call.in[2], x.shape[3]);
  const int64_t lines = int64_t{x.shape[0]} * all.height, elements = int64_t{all.width} * all.taps * all.channels;
  const bool masked = all.p.masked != 0, by_mask = masked && all.p.order_mask == 0;
  parallel_groups(lines, elements, 5 * elements, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const A *from = data<A>(x) + line / all.height * all.image, *pulls = data<A>(dcolumns) + line * elements;
      all.for_line(line, [&](const Sampled<A>& sample, int group, int64_t at, int64_t number) {
        const DeformTaps<A> down = all.rows(sample), steep = all.rows(sample, 1);
        const DeformTaps<A> across = all.cols(sample), sloping = all.cols(sample, 1);
        Steep<A> pixels[4];
        int count = 0;
        for (int q = 0; q < 4; ++q) {
          const A by_y = steep.weight[q / 2] * across.weight[q % 2], by_x = down.weight[q / 2] * sloping.weight[q % 2];
          const A by = by_mask ? down.weight[q / 2] * across.weight[q % 2] : A(0);
          if (by_y == 0 && by_x == 0 && by == 0) continue;
          pixels[count++] = {(down.first + q / 2) * all.pitch + (across.first + q % 2) * all.channels,
                             {by_y, by_x, by}};
        }
        A sums[3];
        slopes(from + group * all.in_group, pulls + at, pixels, count, all.in_group, sums);
        A* to = data<A>(dplaces) + number * all.numbers;
        for (int t = 0; t < 2; ++t) to[t] = sample.mask == 0 ? A(0) : sample.mask * sums[t];
        if (masked) to[2] = sums[2];
      });
    }
  });
}

// Calls f(A()) for accumulators, which images are widened to before.
template <typename F>
void by_accumulator(const Call& call, const F& f) {
  if (call.out[0].size == 0) return;
  if (call.in[0].type == Type::f64) return f(double());
  f(float());
}

}  // namespace

void deform_columns(const Call& call) {
  by_accumulator(call, [&](auto zero) { forward<decltype(zero)>(call); });
}

void deform_columns_grad(const Call& call) {
  by_accumulator(call, [&](auto zero) { adjoint<decltype(zero)>(call); });
}

void deform_places_grad(const Call& call) {
  by_accumulator(call, [&](auto zero) { places_gradient<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
