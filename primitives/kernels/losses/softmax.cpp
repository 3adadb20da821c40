// Softmax, its logarithm and softmin along the middle axis of an array (outer, length, inner), and what their
// derivatives are made of. With inner = 1 a line lies in one piece; else lines go side by side, one a lane.
#include "kernels/losses/softmax_rows.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/vector_math.h"
#include "losses/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Lines {
  int64_t outer, length, inner;
  explicit Lines(const Tensor& x) : outer(x.shape[0]), length(x.shape[1]), inner(x.shape[2]) {}
};

// Calls f(from, count, room) for blocks of lines of few entries, with so many rooms for a block, and one for two
// numbers a line; each has a vector more.
template <typename A, typename F>
void over_few(const Lines& lines, int rooms, const F& f) {
  const int64_t blocks = (lines.outer + kBlockLines - 1) / kBlockLines, size = kBlockLines * lines.length;
  parallel_groups(blocks, size, size, [&](int64_t begin, int64_t end) {
    const Scratch<A> room((size + lanes<A>)*rooms + 2 * kBlockLines);
    for (int64_t block = begin; block < end; ++block) {
      f(block * size, smaller(kBlockLines, lines.outer - block * kBlockLines), room.get());
    }
    stream_end();
  });
}

// The lines of n lanes, or of N vectors.
template <bool Log, int N, typename X, typename T>
MPSF_INLINE void columns(X x, const Lines& lines, int n, Acc<T>* room, T* y, bool streamed) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const bool kept = !Log && lines.length * N * L <= kKept;
  Vec<A> most[N];
  LaneSum<A> sums[N];
  for (int v = 0; v < N; ++v) most[v] = splat(-kInfinity<A>);
  for (int64_t i = 0; i < lines.length; ++i) {
    for (int v = 0; v < N; ++v) {
      const Vec<A> in = load_some(x + i * lines.inner + v * L, n);
      most[v] = in > most[v] ? in : most[v];
    }
  }
  for (int64_t i = 0; i < lines.length; ++i) {
    for (int v = 0; v < N; ++v) {
      const Vec<A> e = exp_below(load_some(x + i * lines.inner + v * L, n) - most[v]);
      if (kept) store(room + (i * N + v) * L, e);
      sums[v].add(e);
    }
  }
  Vec<A> last[N];
  for (int v = 0; v < N; ++v) last[v] = Log ? log(sums[v].each()) : 1 / sums[v].each();
  for (int64_t i = 0; i < lines.length; ++i) {
    for (int v = 0; v < N; ++v) {
      const int64_t at = i * lines.inner + v * L;
      if constexpr (Log) {
        store_result(y + at, load_some(x + at, n) - most[v] - last[v], n, streamed);
      } else {
        const Vec<A> e = kept ? load(room + (i * N + v) * L) : exp_below(load_some(x + at, n) - most[v]);
        store_result(y + at, e * last[v], n, streamed);
      }
    }
  }
}

// Calls in_rows(offset, room) for each line in one piece, or side_by_side<N>(offset, n, room) for lines side by side.
template <typename T, typename Rows, typename Columns>
void over_lines(const Lines& lines, int64_t most_room, const Rows& in_rows, const Columns& side_by_side) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  if (lines.inner == 1) {
    parallel_groups(lines.outer, lines.length, lines.length, [&](int64_t begin, int64_t end) {
      const Scratch<A> room(smaller(most_room, lines.length) + L);
      for (int64_t i = begin; i < end; ++i) in_rows(i * lines.length, room.get());
      stream_end();
    });
    return;
  }
  const int64_t width = kTile * L, strips = (lines.inner + width - 1) / width;
  const int64_t together = smaller(width, lines.inner) * lines.length;
  parallel_groups(lines.outer * strips, together, together, [&](int64_t begin, int64_t end) {
    const Scratch<A> room(most_room + L);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i % strips * width, offset = i / strips * lines.length * lines.inner + column;
      for_columns<A>(smaller(width, lines.inner - column), [&]<int N>(int64_t at, int n) {
        side_by_side.template operator()<N>(offset + at, n, room.get());
      });
    }
    stream_end();
  });
}

template <typename T>
using Plain = const T*;

template <bool Log, template <typename> class From>
void forward(const Call& call) {
  const Lines lines(call.in[0]);
  const Tensor& out = call.out[0];
  if (out.size == 0) return;
  by_type(out.type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const From<T> x{data<T>(call.in[0])};
    T* y = data<T>(out);
    const bool streamed = out.streamed && (lines.inner == 1 || lines.inner % lanes<A> == 0);
    if (lines.inner == 1 && few_entries<A>(lines.length, Log ? 2 : 1)) {
      return over_few<A>(lines, 3, [&](int64_t from, int64_t count, A* room) {
        few<Log>(x + from, count, lines.length, room, y + from, streamed);
      });
    }
    over_lines<T>(
        lines, kKept, [&](int64_t at, A* room) { row<Log>(x + at, lines.length, room, y + at, streamed); },
        [&]<int N>(int64_t at, int n, A* room) { columns<Log, N>(x + at, lines, n, room, y + at, streamed); });
  });
}

// Derivatives: what each adds up along a line of its inputs, and what it makes of those and the sums.
// -------------------

// y * (dy - sum of dy * y) of [dy, y]. Of 16 bits, y adds up to 1 but for its roundings, and those times dy would be
// most of what is left near an entry of 1. There dy is taken from its mean, which changes nothing else.
struct Pull {
  static constexpr int kInputs = 2, kSums = 1;
  template <typename T>
  static constexpr bool kCentred = sizeof(T) == 2;
  template <typename V>
  static MPSF_INLINE void terms(const V* in, V* sums) {
    sums[0] = in[0] * in[1];
  }
  template <typename V, typename S>
  static MPSF_INLINE V made(const V* in, const S* sums) {
    return in[1] * (in[0] - sums[0]);
  }
};

// Of softmin, with the other sign.
struct MinPull : Pull {
  template <typename V, typename S>
  static MPSF_INLINE V made(const V* in, const S* sums) {
    return in[1] * (sums[0] - in[0]);
  }
};

// u * (dy - sum of dy * y) - dy * (sum of u * y) of [u, dy, y]
struct Curve {
  static constexpr int kInputs = 3, kSums = 2;
  template <typename T>
  static constexpr bool kCentred = false;
  template <typename V>
  static MPSF_INLINE void terms(const V* in, V* sums) {
    sums[0] = in[1] * in[2];
    sums[1] = in[0] * in[2];
  }
  template <typename V, typename S>
  static MPSF_INLINE V made(const V* in, const S* sums) {
    return in[0] * (in[1] - sums[0]) - in[1] * sums[1];
  }
};

// dy - exp(y) * (sum of dy) of [dy, y]
struct LogPull {
  static constexpr int kInputs = 2, kSums = 1;
  template <typename T>
  static constexpr bool kCentred = false;
  template <typename V>
  static MPSF_INLINE void terms(const V* in, V* sums) {
    sums[0] = in[0];
  }
  template <typename V, typename S>
  static MPSF_INLINE V made(const V* in, const S* sums) {
    return in[0] - exp(in[1]) * sums[0];
  }
};

// t - (sum of exp(y) * t) of [t, y]
struct LogTangent {
  static constexpr int kInputs = 2, kSums = 1;
  template <typename T>
  static constexpr bool kCentred = false;
  template <typename V>
  static MPSF_INLINE void terms(const V* in, V* sums) {
    sums[0] = exp(in[1]) * in[0];
  }
  template <typename V, typename S>
  static MPSF_INLINE V made(const V* in, const S* sums) {
    return in[0] - sums[0];
  }
};

// -u * exp(y) * (sum of dy) of [u, dy, y]
struct LogCurve {
  static constexpr int kInputs = 3, kSums = 1;
  template <typename T>
  static constexpr bool kCentred = false;
  template <typename V>
  static MPSF_INLINE void terms(const V* in, V* sums) {
    sums[0] = in[1];
  }
  template <typename V, typename S>
  static MPSF_INLINE V made(const V* in, const S* sums) {
    return -in[0] * exp(in[2]) * sums[0];
  }
};

// Of a line of N vectors, which stay in registers. The lanes behind it are zeros in y, and so are their terms.
template <typename F, int N, typename T, int Passes>
MPSF_INLINE void short_line(const T* const (&in)[F::kInputs], int64_t from, int64_t length, T* made, bool streamed) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, I = F::kInputs, S = F::kSums;
  const int rest = static_cast<int>(length - (N - 1) * L);
  Vec<A> v[N][I], totals[S];
  for (int i = 0; i < N; ++i) {
    for (int k = 0; k < I; ++k) v[i][k] = load_some(in[k] + from + i * L, i < N - 1 ? L : rest);
  }
  for (int pass = 0; pass < Passes; ++pass) {
    Vec<A> sums[S] = {};
    for (int i = 0; i < N; ++i) {
      if (pass > 0) v[i][0] = v[i][0] - totals[0];
      Vec<A> terms[S];
      F::terms(v[i], terms);
      for (int s = 0; s < S; ++s) sums[s] += terms[s];
    }
    for (int s = 0; s < S; ++s) totals[s] = splat(sum_of<A>(sums[s]));
  }
  for (int i = 0; i < N; ++i) {
    const int n = i < N - 1 ? L : rest;
    store_result(made + from + i * L, F::made(v[i], totals), n, streamed && length % L == 0);
  }
}

template <typename F>
void backward(const Call& call) {
  const Tensor& out = call.out[0];
  const Lines lines(out);
  if (out.size == 0) return;
  by_type(out.type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    constexpr int L = lanes<A>, I = F::kInputs, S = F::kSums, kPasses = F::template kCentred<T> ? 2 : 1;
    const T* in[I];
    for (int k = 0; k < I; ++k) in[k] = data<T>(call.in[k]);
    T* made = data<T>(out);
    const bool streamed = out.streamed && (lines.inner == 1 || lines.inner % L == 0);
    const auto read = [&](int64_t at, int n, Vec<A> centre, Vec<A>* v) __attribute__((always_inline)) {
      for (int k = 0; k < I; ++k) v[k] = load_some(in[k] + at, n);
      if constexpr (kPasses == 2) v[0] = v[0] - centre;
    };
    if (lines.inner == 1 && few_entries<A>(lines.length)) {
      return over_few<A>(lines, S + 1, [&](int64_t from, int64_t count, A* room) {
        const int64_t entries = count * lines.length, size = kBlockLines * lines.length + L;
        A *const centre = room + S * size, *const each = centre + size;
        for (int pass = 0; pass < kPasses; ++pass) {
          if (pass > 0) memcpy(centre, room, static_cast<size_t>(entries) * sizeof(A));
          along<A>(
              entries, [&](int64_t i, int n) __attribute__((always_inline)) {
                Vec<A> v[I], terms[S];
                read(from + i, n, pass > 0 ? load(centre + i) : Vec<A>{}, v);
                F::terms(v, terms);
                for (int s = 0; s < S; ++s) store(room + s * size + i, terms[s]);
              });
          for (int s = 0; s < S; ++s) {
            sum_of_each(room + s * size, count, lines.length, each);
            spread(each, count, lines.length, room + s * size);
          }
        }
        along_made(
            made + from, entries, streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
              Vec<A> v[I], sums[S];
              read(from + i, n, kPasses == 2 ? load_some(centre + i, n) : Vec<A>{}, v);
              for (int s = 0; s < S; ++s) sums[s] = load_some(room + s * size + i, n);
              store_result(made + from + i, F::made(v, sums), n, past);
            });
      });
    }
    over_lines<T>(
        lines, 0,
        [&](int64_t from, A*) {
          const bool made_in_registers = by_vectors<A>(
              lines.length, [&]<int N>() __attribute__((always_inline)) {
                if constexpr (N > 0) short_line<F, N, T, kPasses>(in, from, lines.length, made, streamed);
                return N > 0;
              });
          if (made_in_registers) return;
          Vec<A> totals[S], centre{};
          for (int pass = 0; pass < kPasses; ++pass) {
            if (pass > 0) centre = totals[0];
            LaneSum<A> sums[S];
            along<A>(
                lines.length, [&](int64_t i, int n) __attribute__((always_inline)) {
                  Vec<A> v[I], terms[S];
                  read(from + i, n, centre, v);
                  F::terms(v, terms);  // the lanes behind a line are zeros in y, and so are their terms
                  for (int s = 0; s < S; ++s) sums[s].add(terms[s]);
                });
            for (int s = 0; s < S; ++s) totals[s] = splat(static_cast<A>(sums[s].total()));
          }
          along_made(
              made + from, lines.length, streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
                Vec<A> v[I];
                read(from + i, n, centre, v);
                store_result(made + from + i, F::made(v, totals), n, past);
              });
        },
        [&]<int N>(int64_t from, int n, A*) {
          Vec<A> totals[N][S], centres[N] = {};
          for (int pass = 0; pass < kPasses; ++pass) {
            for (int v = 0; v < N && pass > 0; ++v) centres[v] = totals[v][0];
            LaneSum<A> sums[N][S];
            for (int64_t i = 0; i < lines.length; ++i) {
              for (int v = 0; v < N; ++v) {
                Vec<A> inputs[I], terms[S];
                read(from + i * lines.inner + v * L, n, centres[v], inputs);
                F::terms(inputs, terms);
                for (int s = 0; s < S; ++s) sums[v][s].add(terms[s]);
              }
            }
            for (int v = 0; v < N; ++v) {
              for (int s = 0; s < S; ++s) totals[v][s] = sums[v][s].each();
            }
          }
          for (int64_t i = 0; i < lines.length; ++i) {
            for (int v = 0; v < N; ++v) {
              Vec<A> inputs[I];
              const int64_t at = from + i * lines.inner + v * L;
              read(at, n, centres[v], inputs);
              store_result(made + at, F::made(inputs, totals[v]), n, streamed);
            }
          }
        });
  });
}

}  // namespace

void softmax(const Call& call) { forward<false, Plain>(call); }
void log_softmax(const Call& call) { forward<true, Plain>(call); }
void softmin(const Call& call) { forward<false, Negative>(call); }

void softmax_grad(const Call& call) {
  const SoftmaxGradParams p = params_as<SoftmaxGradParams>(call.params);
  if (p.derivative == 0) return backward<Pull>(call);
  p.derivative == 1 ? backward<Curve>(call) : backward<MinPull>(call);
}

void log_softmax_grad(const Call& call) {
  const SoftmaxGradParams p = params_as<SoftmaxGradParams>(call.params);
  if (p.derivative == 0) return backward<LogPull>(call);
  p.derivative == 1 ? backward<LogCurve>(call) : backward<LogTangent>(call);
}

}  // namespace mpsf::MPSF_ISA
