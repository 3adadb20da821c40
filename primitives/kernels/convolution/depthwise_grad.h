// The weight gradient of convolution with one channel a group: channels are the vector axis, and nothing is packed.
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

// Lines from `line` on, up to `end`, whose windows are three by three, move by one and have all of their lines of x: at
// most so many as are added up in the accumulator's precision.
template <typename T>
int lines_of_nine(const DepthwiseGrad<T>& g, int64_t line, int64_t end) {
  const Axis &rows = g.rows, &cols = g.cols;
  const auto moves_by_one = [](const Axis& a) { return a.size == 3 && a.stride == 1 && a.dilation == 1; };
  if (kRegisters < 32 || g.planes > 1 || !moves_by_one(rows) || !moves_by_one(cols)) return 0;
  const int selected = rows.end - rows.begin, row = rows.begin + static_cast<int>(line % selected);
  if (row < rows.pad) return 0;
  const int last = min_int(rows.end, rows.n_in + rows.pad - 2), most = max_int(1, kPiece / (cols.end - cols.begin));
  return max_int(0, static_cast<int>(smaller(end - line, min_int(most, last - row))));
}

// Adds columns [begin, end) of so many lines, from dy on, to the sums of all nine taps for a vector of channels. Three
// lines of x from x on belong to the first one; lines behind these are read soon.
template <typename T>
MPSF_INLINE void add_nine_taps(const DepthwiseGrad<T>& g, const T* dy, const T* x, int lines, int begin, int end,
                               double* sums) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const int64_t pitch = g.channels, dy_pitch = g.cols.n_out * pitch, x_pitch = g.cols.n_in * pitch;
  const int pad = g.cols.pad, width = g.cols.n_in;
  Vec<A> acc[3][3] = {};
  for (int line = 0; line < lines; ++line, dy += dy_pitch, x += x_pitch) {
    const auto pixel = [&](int q, int at) {
      return static_cast<unsigned>(at) < static_cast<unsigned>(width) ? load(x + q * x_pitch + at * pitch) : Vec<A>{};
    };
    Vec<A> near[3][3];
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) {
      near[q][0] = pixel(q, begin - pad);
      near[q][1] = pixel(q, begin - pad + 1);
    }
    for (int col = begin; col < end; col += 3) {
#pragma GCC unroll 3
      for (int k = 0; k < 3; ++k) {  // the pixel of tap t is in place (k + t) % 3
        if (col + k == end) break;
        const T* const at = dy + (col + k) * pitch;
        const Vec<A> d = load(at);
        __builtin_prefetch(at + lines * dy_pitch, 0, 2);
        __builtin_prefetch(x + (lines + 2) * x_pitch + (col + k) * pitch, 0, 2);
#pragma GCC unroll 3
        for (int q = 0; q < 3; ++q) {
          near[q][(k + 2) % 3] = pixel(q, col + k - pad + 2);
#pragma GCC unroll 3
          for (int t = 0; t < 3; ++t) acc[q][t] += d * near[q][(k + t) % 3];
        }
      }
    }
  }
#pragma GCC unroll 3
  for (int q = 0; q < 3; ++q) {
#pragma GCC unroll 3
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < L; ++i) sums[(3 * q + t) * pitch + i] += static_cast<double>(acc[q][t][i]);
    }
  }
}

// All whole vectors of channels of so many lines_of_nine, which begin with `line`. Returns the channels that are done.
template <typename T>
int add_lines_of_nine(const DepthwiseGrad<T>& g, int64_t line, int lines, double* sums) {
  constexpr int L = lanes<Acc<T>>;
  const int selected = g.rows.end - g.rows.begin, row = g.rows.begin + static_cast<int>(line % selected);
  const int64_t image = line / selected;
  const T* dy = g.dy + (image * g.rows.n_out + row) * g.cols.n_out * g.channels;
  const T* x = g.x + (image * g.rows.n_in + row - g.rows.pad) * g.cols.n_in * g.channels;
  const int whole = g.channels / L * L;
  for (int col = g.cols.begin; col < g.cols.end; col += kPiece) {
    for (int c = 0; c < whole; c += L) {
      add_nine_taps<T>(g, dy + c, x + c, lines, col, min_int(g.cols.end, col + kPiece), sums + c);
    }
  }
  return whole;
}

// Adds columns [col_begin, col_end) of a line of outputs to sums, [plane][tap][channel], from a channel on.
template <typename T>
void depthwise_grad_line(const DepthwiseGrad<T>& g, int64_t line, int col_begin, int col_end, int first_channel,
                         double* sums) {
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
  for (int channel = first_channel; channel < g.channels; channel += block) {
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
      int done = channel;
      if (g.planes == 1 && g.cols.size == 3) {
        constexpr int V = kRegisters == 32 ? 4 : 2;
        const int from = max_int(begin(0), max_int(begin(1), begin(2))), to = min_int(end(0), min_int(end(1), end(2)));
        for (; from < to && done + V * L <= channel_end; done += V * L) {
          add_three_taps<T, V>(dy_line + from * out_channels + done,
                               x_line + (int64_t{from} * g.cols.stride + shift(0)) * g.channels + done, to - from,
                               out_channels, x_step, int64_t{g.cols.dilation} * g.channels, sum + done, g.channels);
          for (int p = 0; p < 3; ++p) {
            add_tap(p, begin(p), min_int(end(p), from), done, done + V * L);
            add_tap(p, max_int(begin(p), to), end(p), done, done + V * L);
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
    for (int64_t line = g.lines() * part / parts; line < end;) {
      const int band = lines_of_nine(g, line, end), done = band > 0 ? add_lines_of_nine(g, line, band, sum) : 0;
      for (const int64_t next = line + max_int(1, band); line < next; ++line) {
        for (int col = g.cols.begin; col < g.cols.end; col += kPiece) {
          depthwise_grad_line(g, line, col, min_int(g.cols.end, col + kPiece), done, sum);
        }
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
