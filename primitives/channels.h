// Going over images by rows of vectors: sums over all pixels, one for each channel, in a layout that makes them fast
// for any number of channels; and lines shared out among threads.
#pragma once
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t gcd(int64_t a, int64_t b) { return b == 0 ? a : gcd(b, a % b); }

// Enough to hide the latency of an addition, few enough for the registers of every instruction set.
constexpr int kTile = 4;
// Elements that one lane adds up in the accumulator's own precision; longer sums go on in double.
constexpr int64_t kBlock = 128;
constexpr int64_t kChunks = 128;

// Channels-last pixels seen as rows: each row is `side` pixels side by side, so that few or odd channels
// still fill whole vectors. Entry i of a row belongs to channel i % channels.
struct Rows {
  int64_t channels;
  int64_t count;  // whole rows
  int64_t width;  // entries of a whole row
  int64_t rest;   // entries behind the last whole row

  // Work is cut by the shape alone: chunks of whole blocks, and one more chunk whose only row is the rest.
  int64_t blocks() const { return (count + kBlock - 1) / kBlock; }
  int64_t chunks() const { return smaller(blocks(), kChunks); }
  int64_t begin(int64_t chunk) const {
    if (chunk > chunks()) return count + 1;
    return chunk == chunks() ? count : blocks() * chunk / chunks() * kBlock;
  }
  int64_t width_of(int64_t chunk) const { return chunk < chunks() ? width : rest; }
};

// The rows of an image.
template <typename A>
Rows rows_of(const Tensor& image) {
  constexpr int64_t L = lanes<A>;
  int64_t channels = image.shape[image.ndim - 1], side = 1;
  if (channels < 16 * L) {
    int64_t even = L / gcd(channels, L);  // fewest pixels that fill whole vectors
    while (channels * side * even < kTile * L) ++side;
    side *= even;
  }
  int64_t width = channels * side, count = image.size / width;
  return {channels, count, width, image.size - count * width};
}

// Calls f(column, n, tile) for the vectors of a row: kTile whole ones at a time, then two, then single ones of n lanes.
template <typename A, typename F>
MPSF_INLINE void for_columns(int64_t width, F f) {
  constexpr int L = lanes<A>;
  int64_t column = 0;
  for (; column + kTile * L <= width; column += kTile * L) f.template operator()<kTile>(column, L);
  for (; column + 2 * L <= width; column += 2 * L) f.template operator()<2>(column, L);
  for (; column < width; column += L) f.template operator()<1>(column, static_cast<int>(smaller(L, width - column)));
}

template <typename T>
MPSF_INLINE Vec<Acc<T>> load_some(const T* p, int n) {
  return n == lanes<Acc<T>> ? load(p) : load(p, n);
}

template <typename T>
MPSF_INLINE void store_some(T* p, Vec<Acc<T>> v, int n) {
  if (n == lanes<Acc<T>>) {
    store(p, v);
  } else {
    store(p, v, n);
  }
}

// Stores past the caches where `streamed`; then p is aligned and n whole.
template <typename T>
MPSF_INLINE void store_result(T* p, Vec<Acc<T>> v, int n, bool streamed) {
  if (streamed) {
    stream(p, v);
  } else {
    store_some(p, v, n);
  }
}

// Repeats a vector with one entry a channel until `length` entries are filled.
template <typename A>
void repeat(const Tensor& vector, int64_t length, A* entries) {
  for (int64_t i = 0; i < length; i += vector.size) {
    memcpy(entries + i, vector.data, static_cast<size_t>(smaller(vector.size, length - i)) * sizeof(A));
  }
}

// Adds the entries of a row, or its rest, to their channels, which start at zero.
inline void fold(const double* row, int64_t width, double* channel, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) channel[c] = 0;
  for (int64_t i = 0; i < width; i += channels) {
    for (int64_t c = 0; c < channels; ++c) channel[c] += row[i + c];
  }
}

// out[t][c] = the sum of term t over the pixels of channel c. term(offset, column, n, terms) makes the terms
// of the n elements from `offset` on, which are the entries of a row from `column` on; zeros behind them.
template <typename A, int Terms, typename F>
void channel_sums(const Rows& rows, const F& term, A* const (&out)[Terms]) {
  constexpr int L = lanes<A>;
  const int64_t channels = rows.channels, chunks = rows.chunks();
  Scratch<double> partial((chunks + 1) * Terms * channels);

  parallel_for(chunks + 1, [&](int64_t chunk) {
    const int64_t width = rows.width_of(chunk), end = rows.begin(chunk + 1), stride = width + L;
    Scratch<double> sums(Terms * stride);
    for (int64_t i = 0; i < Terms * stride; ++i) sums[i] = 0;
    for (int64_t block = rows.begin(chunk); block < end; block += kBlock) {
      const int64_t block_end = smaller(end, block + kBlock);
      for_columns<A>(width, [&]<int N>(int64_t column, int n) {
        Vec<A> acc[Terms][N] = {};
        for (int64_t row = block; row < block_end; ++row) {
          for (int v = 0; v < N; ++v) {
            Vec<A> terms[Terms];
            term(row * rows.width + column + v * L, column + v * L, n, terms);
            for (int t = 0; t < Terms; ++t) acc[t][v] += terms[t];
          }
        }
        for (int t = 0; t < Terms; ++t) {
          for (int i = 0; i < N * L; ++i) sums[t * stride + column + i] += static_cast<double>(acc[t][i / L][i % L]);
        }
      });
    }
    for (int t = 0; t < Terms; ++t) {
      fold(&sums[t * stride], width, &partial[(chunk * Terms + t) * channels], channels);
    }
  });

  for (int64_t chunk = 1; chunk <= chunks; ++chunk) {
    for (int64_t i = 0; i < Terms * channels; ++i) partial[i] += partial[chunk * Terms * channels + i];
  }
  for (int t = 0; t < Terms; ++t) {
    for (int64_t c = 0; c < channels; ++c) out[t][c] = static_cast<A>(partial[t * channels + c]);
  }
}

// Elements of an image in one chunk of work.
constexpr int64_t kChunkElements = 1 << 14;

// Calls f(begin, end) for groups of the lines of an image, each of so many elements; several even where they are few,
// if it is work enough, so that threads share it evenly.
template <typename F>
void parallel_groups(int64_t lines, int64_t elements, int64_t work, const F& f) {
  const int64_t several = lines * work > kChunkElements ? 1 + lines / 16 : lines;
  const int64_t group = smaller(1 + kChunkElements / elements, several);
  parallel_for((lines + group - 1) / group,
               [&](int64_t chunk) { f(chunk * group, smaller(lines, (chunk + 1) * group)); });
}

// Calls f(line) for each of them.
template <typename F>
void parallel_lines(int64_t lines, int64_t elements, const F& f) {
  parallel_groups(lines, elements, elements, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) f(line);
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
