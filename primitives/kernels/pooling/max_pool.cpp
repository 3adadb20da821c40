// Maximum pooling. Forward says which tap of each window won; with the winners fixed the rest is linear: the gradient
// gathers what came from the windows that a pixel won, and `max_pool_gather` reads the winners' pixels of another
// image.
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/tap_lists.h"
#include "pooling/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Input that tap k of output o can win with, or -1: a state that a user wrote may name others.
inline int winnable(const Axis& a, int o, int k) {
  const int at = edge_source(a, o, k);
  return at >= 0 && edge_tap(a, o, at) == k ? at : -1;
}

// For an output the taps that can win, in order: where two read one pixel, the first.
constexpr auto each_tap = [](const Axis& a, int o, const auto& add) {
  for (int k = edge_tap_begin(a, o); k < edge_tap_end(a, o); ++k) {
    const int at = winnable(a, o, k);
    if (at >= 0) add(at, k);
  }
};

// For an input the outputs that it can win, with its tap there.
constexpr auto each_reader = [](const Axis& a, int i, const auto& add) {
  for (int o = edge_reader_begin(a, i); o < edge_reader_end(a, i); ++o) {
    const int k = edge_tap(a, o, i);
    if (k >= 0) add(o, k);
  }
};

typedef Entry<int> Tap;  // with its number along the axis

// Calls f(zero of the winners' type).
template <typename F>
void by_winner(Type type, const F& f) {
  if (type == Type::u8) return f(uint8_t());
  if (type == Type::u16) return f(uint16_t());
  f(uint32_t());
}

// Integers as wide as the accumulators: numbers of taps beside values.
template <typename A>
struct IndexOf {
  typedef int32_t type;
};
template <>
struct IndexOf<double> {
  typedef int64_t type;
};
template <>
struct IndexOf<int64_t> {
  typedef int64_t type;
};
template <>
struct IndexOf<uint64_t> {
  typedef int64_t type;
};
template <typename A>
using Index = typename IndexOf<A>::type;
template <typename A>
using Indices = Vec<Index<A>>;

// The values whose winner is `tap`, among the first n; zeros for the others. By hand for a byte beside a float, which
// GCC would widen in four steps.
template <typename A, typename W>
MPSF_INLINE Vec<A> where_won(const W* winners, int n, Index<A> tap, Vec<A> values) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(W) == 1 && sizeof(A) == 4) {
    const auto there = static_cast<__mmask16>((1u << n) - 1);
    const __m128i found = _mm_maskz_loadu_epi8(there, winners);
    const __mmask16 won = _mm_mask_cmpeq_epi8_mask(there, found, _mm_set1_epi8(static_cast<char>(tap)));
    return _mm512_maskz_mov_ps(won, values);
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(W) == 1 && sizeof(A) == 4) {
    __m128i found = _mm_setzero_si128();
    if (n == lanes<A>) {
      found = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(winners));
    } else {
      memcpy(&found, winners, static_cast<size_t>(n));
    }
    const __m256i won = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(found), _mm256_set1_epi32(tap));
    return _mm256_and_ps(_mm256_castsi256_ps(won), values);
  }
#endif
  typedef W Narrow __attribute__((vector_size(lanes<A> * sizeof(W))));
  Narrow narrow = {};
  if (n == lanes<A>) {
    memcpy(&narrow, winners, sizeof(narrow));
  } else {
    for (int i = 0; i < lanes<A> && i < n; ++i) narrow[i] = winners[i];
  }
  return __builtin_convertvector(narrow, Indices<A>) == tap ? values : Vec<A>{};
}

template <typename A, typename W>
MPSF_INLINE void store_winners(W* p, Indices<A> winners, int n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(W) == 1 && sizeof(A) == 4) {
    return _mm512_mask_cvtepi32_storeu_epi8(p, static_cast<__mmask16>((1u << n) - 1), bit_cast<__m512i>(winners));
  }
#endif
  typedef W Narrow __attribute__((vector_size(lanes<A> * sizeof(W))));
  const Narrow narrow = __builtin_convertvector(winners, Narrow);
  memcpy(p, &narrow, static_cast<size_t>(n) * sizeof(W));
}

// The maxima of windows that read these lines at these taps, and which of them won.
template <typename T, typename W, typename Rows, typename Cols>
MPSF_INLINE void maxima(const Line<T, int>* lines, Rows rows, const Tap* taps, Cols cols, int64_t shift, int width,
                        bool over, int64_t length, T* out, W* winners) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  constexpr Index<A> kNone = static_cast<W>(-1);
  for_vectors<A>(length, [&]<int N>(int64_t at, int n) {
    Vec<A> best[N] = {};
    Indices<A> winner[N];
    for (int v = 0; v < N; ++v) winner[v] = Indices<A>{} + kNone;
    // The first tap stands until another is larger; a NaN is larger than all, and the first stays. Taps are vectors
    // already where they are added up: GCC would fetch the sum from a general register for each vector that it wins.
    for (int i = 0; i < rows; ++i) {
      const Indices<A> row = Indices<A>{} + Index<A>(lines[i].weight * width);
      for (int j = 0; j < cols; ++j) {
        const Indices<A> tap = row + Index<A>(taps[j].weight);
        for (int v = 0; v < N; ++v) {
          const Vec<A> value = load_some(lines[i].data + shift + taps[j].at + at + v * L, n);
          if (i == 0 && j == 0) {
            best[v] = value;
            winner[v] = tap;
          } else {
            const auto stays = (value <= best[v]) | (best[v] != best[v]);
            best[v] = stays ? best[v] : value;
            winner[v] = stays ? winner[v] : tap;
          }
        }
      }
    }
    for (int v = 0; v < N; ++v) {
      if (over) {  // a zero of the padding wins where nothing reaches it
        const auto lost = best[v] < Vec<A>{};
        best[v] = lost ? Vec<A>{} : best[v];
        winner[v] = lost ? Indices<A>{} + kNone : winner[v];
      }
      store_some(out + at + v * L, best[v], n);
      store_winners<A>(winners + at + v * L, winner[v], n);
    }
  });
}

// Where a byte does not tell the winner, windows are too large for their loops to unroll.
template <typename T, typename W>
constexpr bool kUnrolled = sizeof(Acc<T>) == 4 && sizeof(W) == 1;

template <typename T, typename W>
void forward(const Call& call) {
  const PoolParams windows = params_as<PoolParams>(call.params);
  const Axis &rows = windows.rows, &cols = windows.cols;
  over_windows<T, int, kUnrolled<T, W>>(call, windows.rows, windows.cols, each_tap,
                                        [&](auto lines, auto row_count, auto taps, auto col_count, int y, int x,
                                            int64_t shift, int64_t at, int64_t length) {
                                          // One answer for a run: windows that lead to the same taps hang over alike.
                                          const bool over = row_count > 0 && col_count > 0 &&
                                                            (hangs_over(rows, y) || hangs_over(cols, x));
                                          maxima(lines, row_count, taps, col_count, shift, cols.size, over, length,
                                                 data<T>(call.out[0]) + at, data<W>(call.out[1]) + at);
                                        });
}

// The sums of what came from the outputs at `rows` and `cols` that these pixels won.
template <typename T, typename W, typename Rows, typename Cols>
MPSF_INLINE void won(const T* dy, const W* winners, const Tap* rows, Rows row_count, const Tap* cols, Cols col_count,
                     int width, int64_t length, T* dx, bool streamed) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  for_vectors<A>(length, [=]<int N>(int64_t at, int n) {
    Vec<A> acc[N] = {};
    for (int i = 0; i < row_count; ++i) {
      for (int j = 0; j < col_count; ++j) {
        const int64_t from = rows[i].at + cols[j].at + at;
        const Index<A> tap = rows[i].weight * width + cols[j].weight;
        for (int v = 0; v < N; ++v) {
          acc[v] += where_won<A>(winners + from + v * L, n, tap, load_some(dy + from + v * L, n));
        }
      }
    }
    for (int v = 0; v < N; ++v) store_result(dx + at + v * L, acc[v], n, streamed);
  });
}

template <typename T, typename W>
void gradient(const Call& call) {
  const PoolParams windows = params_as<PoolParams>(call.params);
  const int width = windows.cols.size;
  over_pixels<T, int, kUnrolled<T, W>>(call, windows.rows, windows.cols, nullptr, each_reader,
                                       [&](int64_t from, auto rows, auto row_count, auto cols, auto col_count, auto,
                                           T* made, int64_t length, bool streamed) {
                                         won(data<T>(call.in[0]) + from, data<W>(call.in[1]) + from, rows, row_count,
                                             cols, col_count, width, length, made, streamed);
                                       });
}

template <typename T, typename W>
void gather(const Call& call) {
  const Tensor &in = call.in[0], &out = call.out[0];
  const PoolParams windows = params_as<PoolParams>(call.params);
  const Axis &rows = windows.rows, &cols = windows.cols;
  const int64_t channels = out.shape[3], lines = int64_t{out.shape[0]} * rows.n_out;
  parallel_lines(lines, cols.n_out * channels, [&](int64_t line) {
    const int64_t image = line / rows.n_out;
    const int y = static_cast<int>(line % rows.n_out);
    const T* source = data<T>(in) + image * rows.n_in * cols.n_in * channels;
    for (int x = 0; x < cols.n_out; ++x) {
      const int64_t pixel = (line * cols.n_out + x) * channels;
      const bool live = selected(rows, y) && selected(cols, x);
      for (int64_t c = 0; c < channels; ++c) {
        const W winner = data<W>(call.in[1])[pixel + c];
        // Winners come from a user's state: one that is no tap reads nothing.
        const int64_t tap = live && winner < int64_t{rows.size} * cols.size ? winner : -1;
        const int row = tap < 0 ? -1 : winnable(rows, y, static_cast<int>(tap / cols.size));
        const int col = tap < 0 ? -1 : winnable(cols, x, static_cast<int>(tap % cols.size));
        data<T>(out)[pixel + c] = row < 0 || col < 0 ? T{} : source[(int64_t{row} * cols.n_in + col) * channels + c];
      }
    }
  });
}

template <typename F>
void by_types(const Call& call, Type winners, const F& f) {
  by_winner(winners, [&](auto winner) { by_type(call.in[0].type, [&](auto value) { f(value, winner); }); });
}

}  // namespace

void max_pool(const Call& call) {
  if (call.out[0].size == 0) return;
  by_winner(call.out[1].type, [&](auto w) {
    const Type image = call.in[0].type;
    if (image == Type::i64) return forward<int64_t, decltype(w)>(call);
    if (image == Type::u64) return forward<uint64_t, decltype(w)>(call);
    by_type(image, [&](auto t) { forward<decltype(t), decltype(w)>(call); });
  });
}

void max_pool_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_types(call, call.in[1].type, [&](auto t, auto w) { gradient<decltype(t), decltype(w)>(call); });
}

void max_pool_gather(const Call& call) {
  if (call.out[0].size == 0) return;
  by_types(call, call.in[1].type, [&](auto t, auto w) { gather<decltype(t), decltype(w)>(call); });
}

}  // namespace mpsf::MPSF_ISA
