// The weight gradient of convolution with one channel a group, of any kind: channels are the vector axis, and nothing
// is packed.
#pragma once
#include "kernels/convolution/depthwise.h"

namespace mpsf::MPSF_ISA {
namespace {

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
  int64_t out_channels() const { return int64_t{channels} * planes; }
};

// Outputs that are added up in the accumulator's precision; longer sums go on in double.
constexpr int kPiece = 256;

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

// Adds columns [col_begin, col_end) of a line of outputs to sums, [plane][tap][channel].
template <typename T>
void depthwise_grad_line(const DepthwiseGrad<T>& g, int64_t line, int col_begin, int col_end, double* sums) {
  constexpr int L = lanes<Acc<T>>;
  const int selected = g.rows.end - g.rows.begin, row = g.rows.begin + static_cast<int>(line % selected);
  const int64_t image = line / selected, out_channels = g.out_channels();
  if (g.db) {
    const T* dy = g.dy + ((image * g.rows.n_out + row) * g.cols.n_out + col_begin) * out_channels;
    double* sum = sums + g.size();
    for (int64_t c = 0; c < out_channels; c += L) {
      const int n = static_cast<int>(smaller(L, out_channels - c));
      Vec<Acc<T>> acc = {};
      for (int i = 0; i < col_end - col_begin; ++i) acc += load_some(dy + i * out_channels + c, n);
      for (int i = 0; i < n; ++i) sum[c + i] += static_cast<double>(acc[i]);
    }
  }
  // The next lines are read soon.
  const int64_t dy_pitch = g.cols.n_out * out_channels, x_pitch = int64_t{g.cols.n_in} * g.channels;
  const T* dy_next = g.dy + (image * g.rows.n_out + row + 1) * dy_pitch;
  const int next_row = max_int(0, first(g.rows, min_int(row + 1, g.rows.n_out - 1)));
  const T* x_next = g.x + (image * g.rows.n_in + next_row + g.rows.size - 1) * x_pitch;
  // So many channels that both lines stay in the first cache for all taps.
  const bool long_lines = (dy_pitch + x_pitch) * static_cast<int64_t>(sizeof(T)) > 32 << 10;
  const int block = g.planes == 1 && long_lines ? 4 * L : max_int(1, g.channels);
  const int64_t steps = int64_t{g.rows.size} * g.cols.size * ceil_div(g.channels, block);
  Ahead ahead_dy(dy_next, dy_next + dy_pitch, steps), ahead_x(x_next, x_next + x_pitch, steps);
  for (int channel = 0; channel < g.channels; channel += block) {
    const int channel_end = min_int(g.channels, channel + block);
    for (int q = 0; q < g.rows.size; ++q) {
      const int from_row = source(g.rows, row, q);
      if (from_row < 0) continue;
      const T* const x_line = g.x + (image * g.rows.n_in + from_row) * g.cols.n_in * g.channels;
      const T* const dy_line = g.dy + (image * g.rows.n_out + row) * g.cols.n_out * out_channels;
      double* const sum = sums + int64_t{q} * g.cols.size * g.channels;
      const auto shift = [&](int p) { return p * g.cols.dilation - g.cols.pad; };
      const auto begin = [&](int p) { return max_int(col_begin, ceil_div(-shift(p), g.cols.stride)); };
      const auto end = [&](int p) {
        return min_int(col_end, floor_div(g.cols.n_in - 1 - shift(p), g.cols.stride) + 1);
      };
      const int64_t x_step = int64_t{g.cols.stride} * g.channels;
      // Columns [from, to) of tap p, channels [c, c_end).
      const auto add_tap = [&](int p, int from, int to, int c, int c_end) {
        if (from >= to) return;
        const T* x = x_line + (int64_t{from} * g.cols.stride + shift(p)) * g.channels;
        const T* dy = dy_line + from * out_channels;
        double* at = sum + int64_t{p} * g.channels;
        for (; g.planes == 1 && c + 4 * L <= c_end; c += 4 * L) {
          add_line<T, 4, true>(dy + c, x + c, to - from, out_channels, x_step, 1, L, at + c);
        }
        for (; c < c_end; c += L) {
          for (int plane = 0; plane < g.planes; ++plane) {
            add_line<T, 1, false>(dy + int64_t{c} * g.planes + plane, x + c, to - from, out_channels, x_step, g.planes,
                                  min_int(L, c_end - c), at + plane * g.rows.size * g.cols.size * g.channels + c);
          }
        }
      };
      for (int p = 0; p < g.cols.size; ++p) {
        ahead_dy.step();
        ahead_x.step();
        add_tap(p, begin(p), end(p), channel, channel_end);
      }
    }
  }
}

// Any windows, and any number of outputs for a channel.
template <typename T>
void depthwise_grad_of_any(const DepthwiseGrad<T>& g) {
  using A = Acc<T>;
  constexpr int64_t kParts = 16;
  const int64_t taps = int64_t{g.rows.size} * g.cols.size, parts = smaller(kParts, g.lines());
  const int64_t each = g.size() + (g.db ? g.out_channels() : 0);
  if (g.size() == 0) return;
  if (parts == 0) {
    if (g.db) clear(g.db, g.out_channels());
    return clear(g.dw, g.size());
  }
  Scratch<double> sums(parts * each);
  parallel_for(parts, [&](int64_t part) {
    double* sum = sums.get() + part * each;
    clear(sum, each);
    const int64_t end = g.lines() * (part + 1) / parts;
    for (int64_t line = g.lines() * part / parts; line < end; ++line) {
      for (int col = g.cols.begin; col < g.cols.end; col += kPiece) {
        depthwise_grad_line(g, line, col, min_int(g.cols.end, col + kPiece), sum);
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
