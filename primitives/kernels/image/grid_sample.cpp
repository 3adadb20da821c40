// Samples of images at places that a grid tells. An image's gradient is added up by threads that own a band of its rows
// each, in the order of the samples, so that how it is cut into bands does not matter.
#include "kernels/image/samples.h"

namespace mpsf::MPSF_ISA {
namespace {

// Samples of which the taps are found together, in vectors.
constexpr int kSamples = 64;

// The taps of a block along one axis, K of each sample.
template <int K, typename A>
struct AxisTaps {
  int index[K][kSamples];
  A weight[K][kSamples];
};

// The places of samples: image after image, row after row.
template <int K, typename A>
struct Sampler {
  GridSampleParams p;
  const A* grid;
  int height, width;

  Sampler(const Call& call, const Tensor& places)
      : p(params_as<GridSampleParams>(call.params)),
        grid(data<A>(places)),
        height(places.shape[1]),
        width(places.shape[2]) {
    p.mode = K / 2;
  }

  int samples(int col) const { return min_int(kSamples, width - col); }
  // What the samples of a line from number `col` on read, for a derivative of some order more.
  void rows(int64_t line, int col, AxisTaps<K, A>& taps, int more = 0) const {
    find(grid + 2 * (line * width + col) + 1, samples(col), p.height, static_cast<int>(line % height), 0,
         p.order_y + more, taps);
  }
  void cols(int64_t line, int col, AxisTaps<K, A>& taps, int more = 0) const {
    find(grid + 2 * (line * width + col), samples(col), p.width, col, 1, p.order_x + more, taps);
  }

 private:
  // A loop of its own, whose bounds nothing that it stores could be taken for.
  template <typename Order>
  MPSF_INLINE static void tabulate(GridSampleParams q, const A* given, int count, int length, int own, int step,
                                   Order order, AxisTaps<K, A>& taps) {
    for (int i = 0; i < count; ++i) {
      const Place<A> place = place_of(q, length, given[2 * i], own + i * step);
      const SampleTaps<K, A> found = sample_taps<K>(q, length, place, order);
      for (int k = 0; k < K; ++k) {
        taps.index[k][i] = found.index[k];
        taps.weight[k][i] = found.weight[k];
      }
    }
  }

  // Samples are number own, own + step and so on along the axis.
  void find(const A* given, int count, int length, int own, int step, int order, AxisTaps<K, A>& taps) const {
    for_number<2>(p.edge, [&](auto edge) {
      for_number<3>(p.coordinates, [&](auto coordinates) {
        for_number<4>(order, [&](auto known) {
          GridSampleParams q = p;
          q.edge = edge;
          q.coordinates = coordinates;
          q.mode = K / 2;
          tabulate(q, given, count, length, own, step, known, taps);
        });
      });
    });
  }
};

// Calls f<K>() for the pixels along an axis that a mode mixes.
template <typename F>
void by_mode(int mode, const F& f) {
  if (mode == 0) return f.template operator()<1>();
  if (mode == 1) return f.template operator()<2>();
  f.template operator()<4>();
}

// Lists the pixels of sample i that have weight, of rows from `top` on and before `bottom`, less `top` rows; how many.
template <int K, typename A>
MPSF_INLINE int list(const AxisTaps<K, A>& rows, const AxisTaps<K, A>& cols, int i, int top, int bottom, int64_t pitch,
                     int64_t channels, Entry<A>* entries) {
  int count = 0;
  for (int j = 0; j < K; ++j) {
    const int index = rows.index[j][i];
    if (rows.weight[j][i] == 0 || index < top || index >= bottom) continue;
    const int64_t row = (index - top) * pitch;
    for (int k = 0; k < K; ++k) {
      const A weight = rows.weight[j][i] * cols.weight[k][i];
      if (weight == 0) continue;
      entries[count++] = {row + cols.index[k][i] * channels, weight};
    }
  }
  return count;
}

template <int K, typename T>
void forward(const Call& call) {
  using A = Acc<T>;
  const Tensor &x = call.in[0], &y = call.out[0];
  const Sampler<K, A> sampler(call, call.in[1]);
  const int64_t channels = x.shape[3], pitch = x.shape[2] * channels, image = x.shape[1] * pitch;
  const int64_t lines = int64_t{y.shape[0]} * sampler.height, elements = sampler.width * channels;
  const bool streamed = y.streamed && channels % lanes<A> == 0;
  parallel_groups(lines, elements, elements * (1 + K * K), [&](int64_t begin, int64_t end) {
    AxisTaps<K, A> rows, cols;
    for (int64_t line = begin; line < end; ++line) {
      const T* from = data<T>(x) + line / sampler.height * image;
      for (int col = 0; col < sampler.width; col += kSamples) {
        sampler.rows(line, col, rows);
        sampler.cols(line, col, cols);
        for (int i = 0; i < sampler.samples(col); ++i) {
          Entry<A> entries[K * K];
          const int count = list(rows, cols, i, 0, sampler.p.height, pitch, channels, entries);
          T* out = data<T>(y) + (line * sampler.width + col + i) * channels;
          if (count == 0) {
            for (int64_t c = 0; c < channels; ++c) out[c] = T{};
            continue;
          }
          for_count(count, [&](auto known) { mix(from, entries, known, channels, out, streamed); });
        }
      }
    }
    stream_end();
  });
}

// The first row that the samples of each line read, and the one behind the last.
template <int K, typename A>
void find_rows(const Sampler<K, A>& sampler, int64_t lines, int* first, int* behind) {
  parallel_lines(lines, 8 * sampler.width, [&](int64_t line) {
    first[line] = sampler.p.height;
    behind[line] = 0;
    AxisTaps<K, A> rows;
    for (int col = 0; col < sampler.width; col += kSamples) {
      sampler.rows(line, col, rows);
      for (int q = 0; q < K * sampler.samples(col); ++q) {
        const int index = rows.index[q % K][q / K];
        if (rows.weight[q % K][q / K] == 0) continue;
        first[line] = min_int(first[line], index);
        behind[line] = max_int(behind[line], index + 1);
      }
    }
  });
}

template <int K, typename T>
void adjoint(const Call& call) {
  using A = Acc<T>;
  constexpr int64_t kTasks = 16, kBands = 8;  // of an image, each of which looks at all samples of many lines
  const Tensor &dy = call.in[0], &dx = call.out[0];
  const Sampler<K, A> sampler(call, call.in[1]);
  const int64_t images = dx.shape[0], rows = dx.shape[1], channels = dx.shape[3], pitch = dx.shape[2] * channels;
  const int64_t lines = images * sampler.height, samples = int64_t{sampler.height} * sampler.width * channels;
  const int64_t wanted = samples < kChunkElements ? 1 : smaller(kBands, (kTasks + images - 1) / images);
  const int64_t bands = smaller(wanted, (rows + 7) / 8);
  const bool banded = bands > 1;
  const Scratch<int> first(banded ? lines : 0), behind(banded ? lines : 0);
  if (banded) find_rows(sampler, lines, first.get(), behind.get());
  const int64_t each = banded ? 1 : 1 + kChunkElements / (samples + rows * pitch);  // images of a task
  sum_by_bands<T>(dx, bands, each, [&](int64_t image, int top, int bottom, A* sums) {
    AxisTaps<K, A> taps[2];
    for (int64_t line = image * sampler.height; line < (image + 1) * sampler.height; ++line) {
      if (banded && (first[line] >= bottom || behind[line] <= top)) continue;
      for (int col = 0; col < sampler.width; col += kSamples) {
        sampler.rows(line, col, taps[0]);
        sampler.cols(line, col, taps[1]);
        for (int i = 0; i < sampler.samples(col); ++i) {
          Entry<A> entries[K * K];
          const int count = list(taps[0], taps[1], i, top, bottom, pitch, channels, entries);
          if (count == 0) continue;
          const T* values = data<T>(dy) + (line * sampler.width + col + i) * channels;
          for_count(count, [&](auto known) { spread(values, entries, known, channels, sums); });
        }
      }
    }
  });
}

template <int K, typename T>
void grid_gradient(const Call& call) {
  using A = Acc<T>;
  const Tensor &dy = call.in[0], &x = call.in[1], &dgrid = call.out[0];
  const Sampler<K, A> sampler(call, call.in[2]);
  const int64_t channels = x.shape[3], pitch = x.shape[2] * channels, image = x.shape[1] * pitch;
  const int64_t lines = int64_t{dy.shape[0]} * sampler.height, elements = sampler.width * channels;
  parallel_groups(lines, elements, elements * (1 + K * K), [&](int64_t begin, int64_t end) {
    AxisTaps<K, A> rows, cols, steep, sloping;
    for (int64_t line = begin; line < end; ++line) {
      const T* from = data<T>(x) + line / sampler.height * image;
      for (int col = 0; col < sampler.width; col += kSamples) {
        sampler.rows(line, col, rows);
        sampler.rows(line, col, steep, 1);
        sampler.cols(line, col, cols);
        sampler.cols(line, col, sloping, 1);
        for (int i = 0; i < sampler.samples(col); ++i) {
          Steep<A, 2> pixels[K * K];
          int count = 0;
          for (int q = 0; q < K * K; ++q) {
            const int j = q / K, k = q % K;
            const A by_x = rows.weight[j][i] * sloping.weight[k][i], by_y = steep.weight[j][i] * cols.weight[k][i];
            if (by_x == 0 && by_y == 0) continue;
            pixels[count++] = {rows.index[j][i] * pitch + cols.index[k][i] * channels, {by_x, by_y}};
          }
          const int64_t sample = line * sampler.width + col + i;
          Vec<A> sums[2] = {};
          slopes(from, data<T>(dy) + sample * channels, pixels, count, channels, sums);
          for (int by = 0; by < 2; ++by) data<A>(dgrid)[2 * sample + by] = sum_of<A>(sums[by]);
        }
      }
    }
  });
}

int mode_of(const Call& call) { return params_as<GridSampleParams>(call.params).mode; }

}  // namespace

void grid_sample(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type,
          [&](auto zero) { by_mode(mode_of(call), [&]<int K>() { forward<K, decltype(zero)>(call); }); });
}

void grid_sample_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type,
          [&](auto zero) { by_mode(mode_of(call), [&]<int K>() { adjoint<K, decltype(zero)>(call); }); });
}

void grid_sample_grad_grid(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type,
          [&](auto zero) { by_mode(mode_of(call), [&]<int K>() { grid_gradient<K, decltype(zero)>(call); }); });
}

}  // namespace mpsf::MPSF_ISA
