// Activations and their derivatives, element by element.
#include "activation/params.h"
#include "kernels/activation/apply.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

enum Order { kValue, kSlope, kCurve, kTold };

// Besides the kinds of the table, a relu with nothing left of negative numbers.
constexpr int kPlainRelu = -1;

// The inputs of an order, its x or y last.
template <int O>
constexpr int kInputs = O == kValue   ? 1
                        : O == kCurve ? 3
                                      : 2;

template <int O, int K, typename A>
MPSF_INLINE Vec<A> made(const Vec<A> (&in)[kInputs<O>], const Neuron<A>& neuron) {
  if constexpr (K == kPlainRelu) {
    if constexpr (O == kValue) return in[0] < 0 ? Vec<A>{} : in[0];
    if constexpr (O == kSlope) return in[1] < 0 ? Vec<A>{} : in[0];
    if constexpr (O == kTold) return in[1] > 0 ? in[0] : Vec<A>{};
    return Vec<A>{};
  }
  if constexpr (O == kValue) return activated<K>(in[0], neuron);
  if constexpr (O == kSlope) return passed<K>(in[0], in[1], neuron);
  if constexpr (O == kCurve) return curved<K>(in[0] * in[1], in[2], neuron);
  if constexpr (O == kTold) return told(in[0], in[1], neuron);
}

template <typename T, int O>
struct Span {
  const T* in[kInputs<O>];
  T* out;
  int64_t size;
  bool streamed;
};

// A function of its own for each kind, which alone has the registers.
template <typename T, int O, int K>
__attribute__((noinline)) void over(const Span<T, O> span, const Neuron<Acc<T>> neuron) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const auto at = [&](int64_t i, int n, bool streamed) __attribute__((always_inline)) {
    Vec<A> in[kInputs<O>];
    for (int k = 0; k < kInputs<O>; ++k) in[k] = load_some(span.in[k] + i, n);
    store_result(span.out + i, made<O, K>(in, neuron), n, streamed);
  };
  int64_t i = 0;
  for (; i + L <= span.size; i += L) at(i, L, span.streamed);
  if (i < span.size) at(i, static_cast<int>(span.size - i), false);
}

template <typename T, int O>
using Over = void (*)(const Span<T, O>, const Neuron<Acc<T>>);

// Only a few kinds have more than the plain form of some orders.
template <typename A, int O>
Over<A, O> over_kind(int kind) {
  return by_kind_of(kind, []<int K>() -> Over<A, O> {
    constexpr bool kFlat = K == kNone || K == kRelu || K == kLinear || K == kHardSigmoid || K == kAbsolute ||
                           K == kRelun || K == kHardTanh || K == kHardShrink || K == kSoftShrink || K == kStep;
    return over < A, O, (O == kTold && K != kRelu) ? kNone : O == kCurve && kFlat ? kPlainRelu : K > ;
  });
}

// Elements of sixteen bits that are widened at a time, and stay in the first cache.
constexpr int64_t kRoom = 1024;

template <typename T, int O>
void over_wide(const Span<T, O>& span, const Neuron<Acc<T>>& neuron, Over<Acc<T>, O> f) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  alignas(64) A room[kInputs<O> + 1][kRoom];
  for (int64_t i = 0; i < span.size; i += kRoom) {
    const int64_t size = smaller(kRoom, span.size - i);
    Span<A, O> wide = {{}, room[kInputs<O>], size, false};
    for (int k = 0; k < kInputs<O>; ++k) {
      wide.in[k] = room[k];
      for (int64_t j = 0; j < size; j += L) {
        store(room[k] + j, load_some(span.in[k] + i + j, static_cast<int>(smaller(L, size - j))));
      }
    }
    f(wide, neuron);
    for (int64_t j = 0; j < size; j += L) {
      const int n = static_cast<int>(smaller(L, size - j));
      store_result(span.out + i + j, load(room[kInputs<O>] + j), n, span.streamed && n == L);
    }
  }
}

Activation<double> activation_of(const Call& call) { return params_as<Activation<double>>(call.params); }

template <int O>
void pointwise(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Neuron<A> neuron(activation_of(call));
    const Tensor& out = call.out[0];
    parallel_for((out.size + kChunkElements - 1) / kChunkElements, [&](int64_t chunk) {
      const int64_t begin = chunk * kChunkElements;
      Span<T, O> span = {{}, data<T>(out) + begin, smaller(kChunkElements, out.size - begin), out.streamed};
      for (int k = 0; k < kInputs<O>; ++k) span.in[k] = data<T>(call.in[k]) + begin;
      if (neuron.form == kRectified) {
        over<T, O, kPlainRelu>(span, neuron);
      } else if constexpr (sizeof(T) == sizeof(A)) {
        over_kind<A, O>(neuron.kind)(span, neuron);
      } else {
        over_wide<T, O>(span, neuron, over_kind<A, O>(neuron.kind));
      }
      stream_end();
    });
  });
}

// With a slope for each channel, the last input. Rows of several pixels, so that few channels fill vectors; the last
// row may be shorter.
template <int O>
void by_channel(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    constexpr int L = lanes<A>;
    const Tensor &slopes = call.in[O == kValue ? 1 : 2], &out = call.out[0];
    if (out.size == 0) return;
    const int64_t channels = slopes.size, even = L / gcd(channels, L) * channels;
    const int64_t width = even * (1 + 512 / even), together = 1 + kChunkElements / width;
    const Scratch<A> repeated(width);
    for (int64_t i = 0; i < width; i += channels) {
      memcpy(&repeated[i], slopes.data, static_cast<size_t>(channels) * sizeof(A));
    }
    const T *first = data<T>(call.in[0]), *second = data<T>(call.in[O == kValue ? 0 : 1]);
    T* result = data<T>(out);
    const A* a = repeated.get();
    const int64_t rows = (out.size + width - 1) / width;
    parallel_for((rows + together - 1) / together, [&](int64_t chunk) {
      for (int64_t row = chunk * together; row < smaller(rows, (chunk + 1) * together); ++row) {
        const int64_t begin = row * width, size = smaller(width, out.size - begin);
        for (int64_t i = 0; i < size; i += L) {
          const int n = static_cast<int>(smaller(L, size - i));
          const Vec<A> slope = load(a + i), g = load_some(first + begin + i, n), x = load_some(second + begin + i, n);
          const Vec<A> bent = slope == 0 ? Vec<A>{} : slope * g;
          store_result(result + begin + i, x < 0 ? bent : g, n, out.streamed && n == L);
        }
      }
      stream_end();
    });
  });
}

}  // namespace

void neuron(const Call& call) {
  if (activation_of(call).kind == kPrelu) return by_channel<kValue>(call);
  pointwise<kValue>(call);
}

void neuron_grad(const Call& call) {
  if (activation_of(call).kind == kPrelu) return by_channel<kSlope>(call);
  pointwise<kSlope>(call);
}

void neuron_grad_grad(const Call& call) { pointwise<kCurve>(call); }

void neuron_grad_from_output(const Call& call) { pointwise<kTold>(call); }

}  // namespace mpsf::MPSF_ISA
