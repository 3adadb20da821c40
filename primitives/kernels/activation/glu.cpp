// The gated linear unit, v * sigmoid(g), and its gradient: x is (outer, 2, half, inner), with v and g one behind the
// other.
#include "kernels/activation/apply.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Calls f(i, n) for the vectors of so many elements: n lanes from number i on.
template <typename T, typename F>
MPSF_INLINE void for_vectors(int64_t size, const F& f) {
  constexpr int L = lanes<Acc<T>>;
  int64_t i = 0;
  for (; i + L <= size; i += L) f(i, L);
  if (i < size) f(i, static_cast<int>(size - i));
}

// Where neighbours lie in both halves: elements of v, of g and of a result, or of the gradients by each.
template <typename T>
struct Unit {
  const T *v, *g;
  T* y;
  int64_t size;
  bool streamed;

  void run() const {
    for_vectors<T>(
        size, [&](int64_t i, int n) __attribute__((always_inline)) {
          store_result(y + i, load_some(v + i, n) * sigmoid(load_some(g + i, n)), n, streamed && n == lanes<Acc<T>>);
        });
  }
};

template <typename T>
struct Gradient {
  const T *dy, *v, *g;
  T *by_v, *by_g;
  int64_t size;
  bool streamed;

  void run() const {
    using A = Acc<T>;
    for_vectors<T>(
        size, [&](int64_t i, int n) __attribute__((always_inline)) {
          const bool past = streamed && n == lanes<A>;
          const Vec<A> u = load_some(dy + i, n), gate = load_some(g + i, n);
          const Vec<A> small = decay(gate), over = 1 / (small + 1), other = small * over;
          store_result(by_v + i, u * (gate < 0 ? other : over), n, past);
          store_result(by_g + i, u * load_some(v + i, n) * (other * over), n, past);
        });
  }
};

// Elements that are brought side by side where halves are shorter than vectors.
constexpr int64_t kTogether = 512;

// Calls f(at, from, size) for neighbours: from number `at` on of a half's elements, which lie in x from `from` on, and
// their gates half_size further.
template <typename F>
void for_neighbours(int64_t begin, int64_t end, int64_t half_size, const F& f) {
  int64_t before = begin / half_size * half_size;  // elements of gates ahead of those at `at`
  for (int64_t at = begin; at < end; before += half_size) {
    const int64_t size = smaller(end, before + half_size) - at;
    f(at, at + before, size);
    at += size;
  }
}

// Cuts the elements of a half into work.
template <typename F>
void parallel_elements(int64_t size, const F& f) {
  parallel_for((size + kChunkElements - 1) / kChunkElements, [&](int64_t chunk) {
    f(chunk * kChunkElements, smaller(size, (chunk + 1) * kChunkElements));
    stream_end();
  });
}

int64_t half_of(const Tensor& x) { return int64_t{x.shape[2]} * x.shape[3]; }

}  // namespace

void glu(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int L = lanes<Acc<T>>;
    const Tensor& out = call.out[0];
    const T* x = data<T>(call.in[0]);
    T* y = data<T>(out);
    const int64_t half_size = half_of(call.in[0]);
    parallel_elements(out.size, [&](int64_t begin, int64_t end) {
      if (half_size >= L) {
        return for_neighbours(begin, end, half_size, [&](int64_t at, int64_t from, int64_t size) {
          Unit<T>{x + from, x + from + half_size, y + at, size, out.streamed && half_size % L == 0}.run();
        });
      }
      T v[kTogether], g[kTogether];
      for (int64_t some = begin; some < end; some += kTogether) {
        const int64_t count = smaller(kTogether, end - some);
        for_neighbours(some, some + count, half_size, [&](int64_t at, int64_t from, int64_t size) {
          for (int64_t i = 0; i < size; ++i) {
            v[at - some + i] = x[from + i];
            g[at - some + i] = x[from + half_size + i];
          }
        });
        Unit<T>{v, g, y + some, count, out.streamed}.run();
      }
    });
  });
}

void glu_grad(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int L = lanes<Acc<T>>;
    const Tensor& out = call.out[0];
    const T *dy = data<T>(call.in[0]), *x = data<T>(call.in[1]);
    T* dx = data<T>(out);
    const int64_t half_size = half_of(call.in[1]);
    parallel_elements(call.in[0].size, [&](int64_t begin, int64_t end) {
      if (half_size >= L) {
        return for_neighbours(begin, end, half_size, [&](int64_t at, int64_t from, int64_t size) {
          const bool streamed = out.streamed && half_size % L == 0;
          Gradient<T>{dy + at, x + from, x + from + half_size, dx + from, dx + from + half_size, size, streamed}.run();
        });
      }
      T v[kTogether], g[kTogether], by_v[kTogether], by_g[kTogether];
      for (int64_t some = begin; some < end; some += kTogether) {
        const int64_t count = smaller(kTogether, end - some);
        for_neighbours(some, some + count, half_size, [&](int64_t at, int64_t from, int64_t size) {
          for (int64_t i = 0; i < size; ++i) {
            v[at - some + i] = x[from + i];
            g[at - some + i] = x[from + half_size + i];
          }
        });
        Gradient<T>{dy + some, v, g, by_v, by_g, count, false}.run();
        for_neighbours(some, some + count, half_size, [&](int64_t at, int64_t from, int64_t size) {
          for (int64_t i = 0; i < size; ++i) {
            dx[from + i] = by_v[at - some + i];
            dx[from + half_size + i] = by_g[at - some + i];
          }
        });
      }
    });
  });
}

}  // namespace mpsf::MPSF_ISA
