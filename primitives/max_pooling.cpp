// Maximum pooling. Forward says which tap of each window won; with the winners fixed the rest is linear: the gradient
// gathers what came from the windows that a pixel won, and `max_pool_take` reads the winners' pixels of another image.
#include "channels.h"
#include "geometry.h"
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Tap {
  int at, tap;  // along one axis: the input or output it leads to, and its number in the window
};

// Lists of taps, one after the other: list number i is [begin(i), begin(i + 1)).
class Lists {
 public:
  Lists(int count, int64_t most) : starts_(count + 1), taps_(most) { starts_[0] = 0; }
  void add(Tap tap) { taps_[end_++] = tap; }
  void close(int i) { starts_[i + 1] = end_; }
  const Tap* begin(int64_t i) const { return taps_.get() + starts_[i]; }

 private:
  Scratch<int64_t> starts_;
  Scratch<Tap> taps_;
  int64_t end_ = 0;
};

// Input that tap k of output o can win with, or -1: a state that a user wrote may name others.
inline int winnable(const Axis& a, int o, int k) {
  const int at = max_source(a, o, k);
  return at >= 0 && max_tap(a, o, at) == k ? at : -1;
}

// For each output the taps that can win, in order: where two read one pixel, the first.
void list_reads(const Axis& a, Lists& lists) {
  for (int o = 0; o < a.n_out; ++o) {
    for (int k = 0; k < a.size; ++k) {
      const int at = winnable(a, o, k);
      if (at >= 0) lists.add({at, k});
    }
    lists.close(o);
  }
}

// For each input the outputs that it can win, with its tap there.
void list_readers(const Axis& a, Lists& lists) {
  for (int i = 0; i < a.n_in; ++i) {
    for (int o = max_reader_begin(a, i); o < max_reader_end(a, i); ++o) {
      const int k = max_tap(a, o, i);
      if (k >= 0) lists.add({o, k});
    }
    lists.close(i);
  }
}

int64_t pairs(const Axis& a) { return int64_t{a.n_out} * lesser(a.size, a.n_in) + 1; }

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
  memcpy(&narrow, winners, static_cast<size_t>(n) * sizeof(W));
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

template <typename T, typename W>
void forward(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Tensor &in = call.in[0], &out = call.out[0];
  const Axis rows = axis_at(call.params, 0), cols = axis_at(call.params, 1);
  const int64_t channels = out.shape[3], lines = int64_t{out.shape[0]} * rows.n_out;
  const int64_t row_pitch = int64_t{cols.n_in} * channels;
  Lists row_lists(rows.n_out, pairs(rows)), col_lists(cols.n_out, pairs(cols));
  list_reads(rows, row_lists);
  list_reads(cols, col_lists);

  parallel_lines(lines, cols.n_out * channels, [&](int64_t line) {
    const int64_t image = line / rows.n_out;
    const int y = static_cast<int>(line % rows.n_out);
    const T* source = data<T>(in) + image * rows.n_in * row_pitch;
    const Tap *row_begin = row_lists.begin(y), *row_end = row_lists.begin(y + 1);
    const bool row_over = max_hangs_over(rows, y);
    for (int x = 0; x < cols.n_out; ++x) {
      const Tap *col_begin = col_lists.begin(x), *col_end = col_lists.begin(x + 1);
      const bool over = row_over || max_hangs_over(cols, x);
      const bool some = row_begin < row_end && col_begin < col_end;
      const int64_t pixel = (line * cols.n_out + x) * channels;
      for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
        Vec<A> best[N];
        Indices<A> winner[N];
        // The first tap stands until another is larger; a NaN is larger than all, and the first stays.
        const int64_t at = some ? row_begin->at * row_pitch + col_begin->at * channels + channel : 0;
        const Index<A> code = some ? row_begin->tap * cols.size + col_begin->tap : 0;
        for (int v = 0; v < N; ++v) {
          best[v] = some ? load_some(source + at + v * L, n) : Vec<A>{};
          winner[v] = Indices<A>{} + (some ? code : Index<A>(static_cast<W>(-1)));
        }
        for (const Tap* row = row_begin; row < row_end; ++row) {
          const T* read = source + row->at * row_pitch + channel;
          for (const Tap* col = col_begin; col < col_end; ++col) {
            const Index<A> tap = row->tap * cols.size + col->tap;
            for (int v = 0; v < N; ++v) {
              const Vec<A> value = load_some(read + col->at * channels + v * L, n);
              const auto wins = ~(value <= best[v]) & (best[v] == best[v]);
              best[v] = wins ? value : best[v];
              winner[v] = wins ? Indices<A>{} + tap : winner[v];
            }
          }
        }
        for (int v = 0; v < N; ++v) {
          if (over && some) {  // a zero of the padding wins where nothing reaches it
            const auto lost = best[v] < Vec<A>{};
            best[v] = lost ? Vec<A>{} : best[v];
            winner[v] = lost ? Indices<A>{} + Index<A>(static_cast<W>(-1)) : winner[v];
          }
          store_some(data<T>(out) + pixel + channel + v * L, best[v], n);
          store_winners<A>(data<W>(call.out[1]) + pixel + channel + v * L, winner[v], n);
        }
      });
    }
  });
}

template <typename T, typename W>
void gradient(const Call& call) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Tensor& out = call.out[0];
  const Axis rows = axis_at(call.params, 0), cols = axis_at(call.params, 1);
  const int64_t channels = out.shape[3], lines = int64_t{out.shape[0]} * rows.n_in;
  const int64_t row_pitch = int64_t{cols.n_out} * channels;
  Lists row_lists(rows.n_in, pairs(rows)), col_lists(cols.n_in, pairs(cols));
  list_readers(rows, row_lists);
  list_readers(cols, col_lists);
  const bool streamed = out.streamed && channels % L == 0;

  parallel_lines(lines, cols.n_in * channels, [&](int64_t line) {
    const int64_t image = line / rows.n_in, h = line % rows.n_in;
    const int64_t from = image * rows.n_out * row_pitch;
    const T* dy = data<T>(call.in[0]) + from;
    const W* winners = data<W>(call.in[1]) + from;
    T* pixel = data<T>(out) + line * cols.n_in * channels;
    for (int64_t w = 0; w < cols.n_in; ++w, pixel += channels) {
      for_columns<A>(channels, [&]<int N>(int64_t channel, int n) {
        Vec<A> acc[N] = {};
        for (const Tap* row = row_lists.begin(h); row < row_lists.begin(h + 1); ++row) {
          for (const Tap* col = col_lists.begin(w); col < col_lists.begin(w + 1); ++col) {
            const int64_t at = row->at * row_pitch + col->at * channels + channel;
            const Index<A> tap = row->tap * cols.size + col->tap;
            for (int v = 0; v < N; ++v) {
              acc[v] += where_won<A>(winners + at + v * L, n, tap, load_some(dy + at + v * L, n));
            }
          }
        }
        for (int v = 0; v < N; ++v) store_result(pixel + channel + v * L, acc[v], n, streamed);
      });
    }
    stream_end();
  });
}

// The same for fewer channels than a vector has lanes, where it is cheaper to go over the windows: each thread adds to
// a band of rows of its own what their windows bring, in the order of the gradient above.
template <typename T, typename W>
void scatter(const Call& call) {
  const Tensor& out = call.out[0];
  const Axis rows = axis_at(call.params, 0), cols = axis_at(call.params, 1);
  const int64_t channels = out.shape[3], pitch = cols.n_in * channels;
  const int taps = rows.size * cols.size;
  Scratch<Tap> split(taps);  // of a tap's number into its row and column
  for (int tap = 0; tap < taps; ++tap) split[tap] = {tap / cols.size, tap % cols.size};
  Scratch<int> reads(int64_t{cols.n_out} * cols.size);
  for (int x = 0; x < cols.n_out; ++x) {
    for (int k = 0; k < cols.size; ++k) reads[int64_t{x} * cols.size + k] = winnable(cols, x, k);
  }

  const int64_t height = smaller(rows.n_in, 1 + kChunkElements / pitch), bands = (rows.n_in + height - 1) / height;
  parallel_for(out.shape[0] * bands, [&](int64_t chunk) {
    const int64_t image = chunk / bands, low = chunk % bands * height, high = smaller(rows.n_in, low + height);
    T* dx = data<T>(out) + image * rows.n_in * pitch;
    memset(static_cast<void*>(dx + low * pitch), 0, static_cast<size_t>((high - low) * pitch) * sizeof(T));
    Scratch<int64_t> lines(rows.size);  // of the band that the taps of a row read, or -1
    const int last = max_reader_end(rows, static_cast<int>(high - 1));
    for (int y = max_reader_begin(rows, static_cast<int>(low)); y < last; ++y) {
      for (int q = 0; q < rows.size; ++q) {
        const int row = winnable(rows, y, q);
        lines[q] = row >= low && row < high ? row * pitch : -1;
      }
      for (int x = cols.begin; x < cols.end; ++x) {
        const int64_t from = ((image * rows.n_out + y) * cols.n_out + x) * channels;
        const T* dy = data<T>(call.in[0]) + from;
        const W* winners = data<W>(call.in[1]) + from;
        const int* positions = &reads[int64_t{x} * cols.size];
        for (int64_t c = 0; c < channels; ++c) {
          if (winners[c] >= taps) continue;
          const Tap tap = split[winners[c]];
          if (lines[tap.at] >= 0 && positions[tap.tap] >= 0) {
            dx[lines[tap.at] + positions[tap.tap] * channels + c] += dy[c];
          }
        }
      }
    }
  });
}

template <typename T, typename W>
void take(const Call& call) {
  const Tensor &in = call.in[0], &out = call.out[0];
  const Axis rows = axis_at(call.params, 0), cols = axis_at(call.params, 1);
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
  by_types(call, call.in[1].type, [&](auto t, auto w) {
    using T = decltype(t);
    using W = decltype(w);
    if constexpr (sizeof(T) == sizeof(Acc<T>) && sizeof(W) < sizeof(int)) {
      if (call.out[0].shape[3] < lanes<Acc<T>>) return scatter<T, W>(call);
    }
    gradient<T, W>(call);
  });
}

void max_pool_take(const Call& call) {
  if (call.out[0].size == 0) return;
  by_types(call, call.in[1].type, [&](auto t, auto w) { take<decltype(t), decltype(w)>(call); });
}

}  // namespace mpsf::MPSF_ISA
