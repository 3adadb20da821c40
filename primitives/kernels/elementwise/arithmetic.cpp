// Arithmetic on two operands, (p * x) op (q * y) + bias between limits, the gradient of either, and comparison.
#include "kernels/elementwise/broadcast_rows.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kAdd = 0, kSubtract = 1, kMultiply = 2, kDivide = 3;

// The numbers behind `from` parameters, in an image's accumulator.
template <typename A>
struct Numbers {
  A p, q, bias, least, most;
  explicit Numbers(const int* from) {
    double values[5];
    memcpy(values, from, sizeof(values));
    p = static_cast<A>(values[0]), q = static_cast<A>(values[1]), bias = static_cast<A>(values[2]);
    least = static_cast<A>(values[3]), most = static_cast<A>(values[4]);
  }
};

template <int K, typename A>
MPSF_INLINE Vec<A> unclamped(Vec<A> x, Vec<A> y, const Numbers<A>& s) {
  return combined<K>(x * s.p, y * s.q) + s.bias;
}

template <typename F>
void by_operation(int operation, F f) {
  switch (operation) {
    case kAdd:
      return f.template operator()<kAdd>();
    case kSubtract:
      return f.template operator()<kSubtract>();
    case kMultiply:
      return f.template operator()<kMultiply>();
    case kDivide:
      return f.template operator()<kDivide>();
  }
}

template <typename T, int K>
void values(const Call& call) {
  using A = Acc<T>;
  const int* rest = call.params + 14;
  const Numbers<A> s(rest + 2);
  // A limit that is not there is infinite, and then changes nothing.
  const A least = rest[1] & 1 ? s.least : -static_cast<A>(__builtin_inf());
  const A most = rest[1] & 2 ? s.most : static_cast<A>(__builtin_inf());
  const auto f = [=](Vec<A> x, Vec<A> y) {
    const Vec<A> r = unclamped<K, A>(x, y, s), low = splat(least), high = splat(most);
    const Vec<A> raised = r < low ? low : r;
    return raised > high ? high : raised;
  };
  elementwise<T, A>(call.out[0], call.params, f, Stored<T>(call.in[0], call.params, 0),
                    Stored<T>(call.in[1], call.params, 1));
}

// The gradient of operand S. It reads x and y where it depends on them.
template <typename T, typename O, int K, int S>
void grads(const Call& call) {
  using A = Acc<T>;
  const int *params = call.params, *rest = params + 19;
  const int limits = rest[2];
  const bool reads_x = rest[3], reads_y = rest[4];
  const Numbers<A> s(rest + 5);
  const Stored<T> dy(call.in[0], params, 0), x(call.in[reads_x], params, 1), y(call.in[reads_x + reads_y], params, 2);
  const Tensor& out = call.out[0];
  if (limits != 0) {
    const auto f = [=](Vec<A> g, Vec<A> x, Vec<A> y) {
      const Vec<A> r = unclamped<K, A>(x, y, s), made = g * slope<K, S>(x, y, splat(s.p), splat(s.q)), none{};
      const Vec<A> above = limits & 1 ? (r > s.least ? made : none) : made;
      return limits & 2 ? (r < s.most ? above : none) : above;
    };
    return elementwise<O, A>(out, params, f, dy, x, y);
  }
  if constexpr (K == kDivide && S == 1) {
    const auto f = [=](Vec<A> g, Vec<A> x, Vec<A> y) { return g * slope<K, S>(x, y, splat(s.p), splat(s.q)); };
    return elementwise<O, A>(out, params, f, dy, x, y);
  } else if constexpr (K == kMultiply || K == kDivide) {
    const auto f = [=](Vec<A> g, Vec<A> other) { return g * slope<K, S>(other, other, splat(s.p), splat(s.q)); };
    return elementwise<O, A>(out, params, f, dy, K == kMultiply && S == 1 ? x : y);
  } else {
    const A factor = S == 0 ? s.p : K == kAdd ? s.q : -s.q;
    return elementwise<O, A>(
        out, params, [=](Vec<A> g) { return g * factor; }, dy);
  }
}

template <typename T, typename F>
void comparing(const Call& call, const F& f) {
  using A = Acc<T>;
  const auto chosen = [=](Vec<A> x, Vec<A> y) {
    const Vec<A> one = splat(A(1)), none{};
    return f(x, y) ? one : none;
  };
  elementwise<T, A>(call.out[0], call.params, chosen, Stored<T>(call.in[0], call.params, 0),
                    Stored<T>(call.in[1], call.params, 1));
}

template <typename T>
void comparisons(const Call& call) {
  using A = Acc<T>;
  double threshold;
  memcpy(&threshold, call.params + 15, sizeof(threshold));
  using V = const Vec<A>&;
  const auto equal = [=](V x, V y) {
    if constexpr (sizeof(A) == 8 && A(1) / A(2) == A(0)) {  // an integer
      typedef uint64_t Unsigned __attribute__((vector_size(kVectorBytes)));
      const Unsigned a = bit_cast<Unsigned>(x), b = bit_cast<Unsigned>(y);
      const Unsigned apart = bit_cast<Unsigned>(x > y ? bit_cast<Vec<A>>(a - b) : bit_cast<Vec<A>>(b - a));
      const uint64_t most = threshold < 0x1p64 ? static_cast<uint64_t>(threshold) : ~uint64_t{0};
      return apart <= most;
    } else {
      const Vec<A> apart = x > y ? x - y : y - x;
      return (x == y) | (apart <= static_cast<A>(threshold));
    }
  };
  switch (call.params[14]) {
    case 0:
      return comparing<T>(call, equal);
    case 1:
      return comparing<T>(call, [=](V x, V y) { return ~equal(x, y); });
    case 2:
      return comparing<T>(call, [](V x, V y) { return x < y; });
    case 3:
      return comparing<T>(call, [](V x, V y) { return x <= y; });
    case 4:
      return comparing<T>(call, [](V x, V y) { return x > y; });
    case 5:
      return comparing<T>(call, [](V x, V y) { return x >= y; });
  }
}

}  // namespace

void arithmetic(const Call& call) {
  by_type(call.in[0].type,
          [&](auto zero) { by_operation(call.params[14], [&]<int K>() { values<decltype(zero), K>(call); }); });
}

void arithmetic_grad(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    by_operation(call.params[19], [&]<int K>() {
      const bool wide = call.in[0].type != call.out[0].type, second = call.params[20] != 0;
      if (wide) {
        second ? grads<T, Acc<T>, K, 1>(call) : grads<T, Acc<T>, K, 0>(call);
      } else {
        second ? grads<T, T, K, 1>(call) : grads<T, T, K, 0>(call);
      }
    });
  });
}

void compare(const Call& call) {
  switch (call.in[0].type) {
    case Type::i64:
      return comparisons<int64_t>(call);
    case Type::u64:
      return comparisons<uint64_t>(call);
    default:
      return by_type(call.in[0].type, [&](auto zero) { comparisons<decltype(zero)>(call); });
  }
}

}  // namespace mpsf::MPSF_ISA
