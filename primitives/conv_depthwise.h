// Convolution with one channel a group: channels are the vector axis, and nothing is packed.
#pragma once
#include "conv_side.h"
#include "conv_tile.h"
#include "parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// With more outputs than this for a channel, products are the better way.
constexpr int kMaxMultiplier = 4;

inline bool is_depthwise(int groups, int channels, int outs) {
  return groups > 1 && channels == 1 && outs <= kMaxMultiplier;
}

// result[pixel][channel * result_step] = bias + the sum over planes and taps of
// source[tap of pixel][channel * source_step + plane] * weights[plane][tap][channel].
template <typename T>
struct Depthwise {
  using A = Acc<T>;
  const T* source;
  T* result;
  int images;
  int source_rows, source_cols, result_rows, result_cols;
  int channels, planes, source_step, result_step;
  const A* weights;
  const A* bias;          // of the channels, result_step apart
  bool neuron, streamed;  // streamed: whole vectors are aligned, and better stored past the caches
  Side rows, cols;

  int taps() const { return rows.taps * cols.taps; }
  int64_t source_pitch() const { return int64_t{channels} * source_step; }
  int64_t result_pitch() const { return int64_t{channels} * result_step; }
};

template <typename T>
MPSF_INLINE Vec<Acc<T>> load_step(const T* p, int step, int n) {
  if (step == 1) return load_some(p, n);
  T some[lanes<Acc<T>>] = {};
  for (int i = 0; i < n; ++i) some[i] = p[i * step];
  return load(some);
}

template <typename T>
MPSF_INLINE void store_step(T* p, Vec<Acc<T>> v, int step, int n, bool streamed) {
  if (step == 1) return store_result(p, v, n, streamed);
  T some[lanes<Acc<T>>];
  store(some, v);
  for (int i = 0; i < n; ++i) p[i * step] = some[i];
}

// `Pixels` outputs side by side that have the same taps [tap_begin, tap_end), `Vectors` vectors of n channels.
// Whole says that these are whole vectors in one plane without steps, so that the compiler knows it too.
template <typename T, int Pixels, int Vectors, bool Whole>
MPSF_INLINE void sum_taps(const Depthwise<T>& given, int image, int row, int col, int tap_begin, int tap_end,
                          int channel, int n) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  Depthwise<T> d = given;
  if (Whole) {
    d.planes = d.source_step = d.result_step = 1;
    n = L;
  }
  const Side &rows = d.rows, &cols = d.cols;
  Vec<A> acc[Pixels][Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    const Vec<A> start = load_step(d.bias + (channel + v * L) * d.result_step, d.result_step, n);
#pragma GCC unroll 8
    for (int i = 0; i < Pixels; ++i) acc[i][v] = start;
  }
  for (int q = 0; q < rows.taps; ++q) {
    const int from_row = rows.src_first + row * rows.src_out + q * rows.src_tap;
    if (from_row < rows.src_begin || from_row >= rows.src_end) continue;
    const int64_t line =
        (int64_t{image} * d.source_rows + from_row) * d.source_cols + cols.src_first + col * cols.src_out;
    for (int p = tap_begin; p < tap_end; ++p) {
      for (int plane = 0; plane < d.planes; ++plane) {
        const T* x = d.source + (line + p * cols.src_tap) * d.source_pitch() + channel * d.source_step + plane;
        const A* w = d.weights + (int64_t{plane} * d.taps() + q * cols.taps + p) * d.channels + channel;
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) {
          const Vec<A> weight = load_some(w + v * L, n);
#pragma GCC unroll 8
          for (int i = 0; i < Pixels; ++i) {
            acc[i][v] +=
                load_step(x + i * cols.src_out * d.source_pitch() + v * L * d.source_step, d.source_step, n) * weight;
          }
        }
      }
    }
  }
  const int64_t to =
      (int64_t{image} * d.result_rows + rows.out_first + row * rows.out_step) * d.result_cols + cols.out_first;
#pragma GCC unroll 8
  for (int i = 0; i < Pixels; ++i) {
    T* y = d.result + (to + (col + i) * cols.out_step) * d.result_pitch() + channel * d.result_step;
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      store_step(y + v * L * d.result_step, d.neuron ? rectified(acc[i][v]) : acc[i][v], d.result_step, n, d.streamed);
    }
  }
}

template <typename T>
void depthwise(const Depthwise<T>& d) {
  constexpr int L = lanes<Acc<T>>, kPixels = kRegisters == 32 ? 4 : 2;
  const bool dense = d.planes == 1 && d.source_step == 1 && d.result_step == 1;
  parallel_for(int64_t{d.images} * d.rows.outs, [&](int64_t line) {
    const int image = static_cast<int>(line / d.rows.outs), row = static_cast<int>(line % d.rows.outs);
    for_pixels<kPixels>(d.cols, [&]<int Pixels>(int col, int tap_begin, int tap_end) {
      int c = 0;
      for (; dense && c + 2 * L <= d.channels; c += 2 * L) {
        sum_taps<T, Pixels, 2, true>(d, image, row, col, tap_begin, tap_end, c, L);
      }
      for (; c < d.channels; c += L) {
        sum_taps<T, Pixels, 1, false>(d, image, row, col, tap_begin, tap_end, c, lesser(L, d.channels - c));
      }
    });
    stream_end();
  });
}

// Weight gradient --------------------------------------------------------------------------------------------

template <typename T>
struct DepthwiseGrad {
  using A = Acc<T>;
  const T *dy, *x;
  A *dw, *db;  // db, the sums of dy, or null
  int images;
  Axis rows, cols;
  int channels, planes;

  int64_t lines() const { return int64_t{images} * (rows.end - rows.begin); }
  int64_t size() const { return int64_t{channels} * planes * rows.size * cols.size; }
  int64_t outs() const { return int64_t{channels} * planes; }
};

// Adds a line's products of `Vectors` vectors of n channels to sums, [channel]. The outputs are [begin, end).
template <typename T, int Vectors, bool Whole>
MPSF_INLINE void add_line(const T* dy, const T* x, int count, int64_t dy_pitch, int64_t x_pitch, int step, int n,
                          double* sums) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  if (Whole) step = 1, n = L;
  Vec<A> acc[Vectors] = {};
  for (int i = 0; i < count; ++i, dy += dy_pitch, x += x_pitch) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) acc[v] += load_step(dy + v * L * step, step, n) * load_some(x + v * L, n);
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    for (int i = 0; i < n; ++i) sums[v * L + i] += static_cast<double>(acc[v][i]);
  }
}

// The same for three taps `tap_pitch` apart in x, whose sums are sum_pitch apart: a cotangent is loaded once for them.
template <typename T, int Vectors>
MPSF_INLINE void add_three_taps(const T* dy, const T* x, int count, int64_t dy_pitch, int64_t x_pitch,
                                int64_t tap_pitch, double* sums, int64_t sum_pitch) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  Vec<A> acc[3][Vectors] = {};
  for (int i = 0; i < count; ++i, dy += dy_pitch, x += x_pitch) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const Vec<A> d = load(dy + v * L);
#pragma GCC unroll 3
      for (int t = 0; t < 3; ++t) acc[t][v] += d * load(x + t * tap_pitch + v * L);
    }
  }
#pragma GCC unroll 3
  for (int t = 0; t < 3; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      for (int i = 0; i < L; ++i) sums[t * sum_pitch + v * L + i] += static_cast<double>(acc[t][v][i]);
    }
  }
}

// Adds columns [col_begin, col_end) of a line of outputs to sums, [plane][tap][channel].
template <typename T>
void depthwise_grad_line(const DepthwiseGrad<T>& g, int64_t line, int col_begin, int col_end, double* sums) {
  constexpr int L = lanes<Acc<T>>;
  const int selected = g.rows.end - g.rows.begin, row = g.rows.begin + static_cast<int>(line % selected);
  const int64_t image = line / selected, outs = g.outs();
  if (g.db) {
    const T* dy = g.dy + ((image * g.rows.n_out + row) * g.cols.n_out + col_begin) * outs;
    double* sum = sums + g.size();
    for (int64_t c = 0; c < outs; c += L) {
      const int n = static_cast<int>(smaller(L, outs - c));
      Vec<Acc<T>> acc = {};
      for (int i = 0; i < col_end - col_begin; ++i) acc += load_some(dy + i * outs + c, n);
      for (int i = 0; i < n; ++i) sum[c + i] += static_cast<double>(acc[i]);
    }
  }
  // The next lines are read soon.
  const int64_t dy_pitch = g.cols.n_out * outs, x_pitch = int64_t{g.cols.n_in} * g.channels;
  const T* dy_next = g.dy + (image * g.rows.n_out + row + 1) * dy_pitch;
  const int next_row = greater(0, first(g.rows, lesser(row + 1, g.rows.n_out - 1)));
  const T* x_next = g.x + (image * g.rows.n_in + next_row + g.rows.size - 1) * x_pitch;
  // So many channels that both lines stay in the first cache for all taps.
  const bool long_lines = (dy_pitch + x_pitch) * static_cast<int64_t>(sizeof(T)) > 32 << 10;
  const int block = g.planes == 1 && long_lines ? 4 * L : greater(1, g.channels);
  const int64_t steps = int64_t{g.rows.size} * g.cols.size * ceil_div(g.channels, block);
  Ahead ahead_dy(dy_next, dy_next + dy_pitch, steps), ahead_x(x_next, x_next + x_pitch, steps);
  for (int channel = 0; channel < g.channels; channel += block) {
    const int channel_end = lesser(g.channels, channel + block);
    for (int q = 0; q < g.rows.size; ++q) {
      const int from_row = source(g.rows, row, q);
      if (from_row < 0) continue;
      const T* const x_line = g.x + (image * g.rows.n_in + from_row) * g.cols.n_in * g.channels;
      const T* const dy_line = g.dy + (image * g.rows.n_out + row) * g.cols.n_out * outs;
      double* const sum = sums + int64_t{q} * g.cols.size * g.channels;
      const auto shift = [&](int p) { return p * g.cols.dilation - g.cols.pad; };
      const auto begin = [&](int p) { return greater(col_begin, ceil_div(-shift(p), g.cols.stride)); };
      const auto end = [&](int p) { return lesser(col_end, floor_div(g.cols.n_in - 1 - shift(p), g.cols.stride) + 1); };
      const int64_t x_step = int64_t{g.cols.stride} * g.channels;
      // Columns [from, to) of tap p, channels [c, c_end).
      const auto add_tap = [&](int p, int from, int to, int c, int c_end) {
        if (from >= to) return;
        const T* x = x_line + (int64_t{from} * g.cols.stride + shift(p)) * g.channels;
        const T* dy = dy_line + from * outs;
        double* at = sum + int64_t{p} * g.channels;
        for (; g.planes == 1 && c + 4 * L <= c_end; c += 4 * L) {
          add_line<T, 4, true>(dy + c, x + c, to - from, outs, x_step, 1, L, at + c);
        }
        for (; c < c_end; c += L) {
          for (int plane = 0; plane < g.planes; ++plane) {
            add_line<T, 1, false>(dy + int64_t{c} * g.planes + plane, x + c, to - from, outs, x_step, g.planes,
                                  lesser(L, c_end - c), at + plane * g.rows.size * g.cols.size * g.channels + c);
          }
        }
      };
      int done = channel;
      if (g.planes == 1 && g.cols.size == 3) {
        constexpr int V = kRegisters == 32 ? 4 : 2;
        const int from = greater(begin(0), greater(begin(1), begin(2))), to = lesser(end(0), lesser(end(1), end(2)));
        for (; from < to && done + V * L <= channel_end; done += V * L) {
          add_three_taps<T, V>(dy_line + from * outs + done,
                               x_line + (int64_t{from} * g.cols.stride + shift(0)) * g.channels + done, to - from, outs,
                               x_step, int64_t{g.cols.dilation} * g.channels, sum + done, g.channels);
          for (int p = 0; p < 3; ++p) {
            add_tap(p, begin(p), lesser(end(p), from), done, done + V * L);
            add_tap(p, greater(begin(p), to), end(p), done, done + V * L);
          }
        }
      }
      for (int p = 0; p < g.cols.size; ++p) {
        ahead_dy.step();
        ahead_x.step();
        add_tap(p, begin(p), end(p), done, channel_end);
      }
    }
  }
}

template <typename T>
void depthwise_grad(const DepthwiseGrad<T>& g) {
  using A = Acc<T>;
  constexpr int64_t kParts = 16;
  constexpr int kPiece = 256;  // of a line, added up in the accumulator's precision; longer sums go on in double
  const int64_t taps = int64_t{g.rows.size} * g.cols.size, parts = smaller(kParts, g.lines());
  const int64_t each = g.size() + (g.db ? g.outs() : 0);
  if (g.size() == 0) return;
  if (parts == 0) {
    if (g.db) clear(g.db, g.outs());
    return clear(g.dw, g.size());
  }
  Scratch<double> sums(parts * each);
  parallel_for(parts, [&](int64_t part) {
    double* sum = sums.get() + part * each;
    clear(sum, each);
    for (int64_t line = g.lines() * part / parts; line < g.lines() * (part + 1) / parts; ++line) {
      for (int col = g.cols.begin; col < g.cols.end; col += kPiece) {
        depthwise_grad_line(g, line, col, lesser(g.cols.end, col + kPiece), sum);
      }
    }
  });
  for (int64_t i = 0; i < each; ++i) {
    double total = sums[i];
    for (int64_t part = 1; part < parts; ++part) total += sums[part * each + i];
    if (i >= g.size()) {
      g.db[i - g.size()] = static_cast<A>(total);
      continue;
    }
    const int64_t plane = i / (taps * g.channels), tap = i / g.channels % taps, channel = i % g.channels;
    g.dw[(channel * g.planes + plane) * taps + tap] = static_cast<A>(total);
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
