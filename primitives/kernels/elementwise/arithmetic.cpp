// Arithmetic on two operands, (p * x) op (q * y) + bias between limits, the gradient of either, and comparison.
#include "kernels/elementwise/broadcast_rows.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kAdd = 0, kSubtract = 1, kMultiply = 2, kDivide = 3;

// The factors in an image's accumulator.
template <typename A>
struct Numbers {
  A p, q, bias, least, most;
  explicit Numbers(const ArithmeticFactors<double>& from)
      : p(static_cast<A>(from.primary_scale)),
        q(static_cast<A>(from.secondary_scale)),
        bias(static_cast<A>(from.bias)),
        least(static_cast<A>(from.minimum)),
        most(static_cast<A>(from.maximum)) {}
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
void values(const Call& call, const ArithmeticParams<double>& p) {
  using A = Acc<T>;
  const Numbers<A> s(p.factors);
  // A limit that is not there is infinite, and then changes nothing.
  const A least = p.limits & 1 ? s.least : -static_cast<A>(__builtin_inf());
  const A most = p.limits & 2 ? s.most : static_cast<A>(__builtin_inf());
  const auto f = [=](Vec<A> x, Vec<A> y) {
    const Vec<A> r = unclamped<K, A>(x, y, s), low = splat(least), high = splat(most);
    const Vec<A> raised = r < low ? low : r;
    return raised > high ? high : raised;
  };
  elementwise<T, A>(call.out[0], Result(p), f, Stored<T>(call.in[0], p.x), Stored<T>(call.in[1], p.y));
}

// The gradient of operand S. It reads x and y where it depends on them.
template <typename T, typename O, int K, int S>
void grads(const Call& call, const ArithmeticGradParams<double>& p) {
  using A = Acc<T>;
  const Result result(p);
  const int limits = p.limits;
  const bool reads_x = p.reads_x, reads_y = p.reads_y;
  const Numbers<A> s(p.factors);
  const Stored<T> dy(call.in[0], p.dy), x(call.in[reads_x], p.x), y(call.in[reads_x + reads_y], p.y);
  const Tensor& out = call.out[0];
  if (limits != 0) {
    const auto f = [=](Vec<A> g, Vec<A> x, Vec<A> y) {
      const Vec<A> r = unclamped<K, A>(x, y, s), made = g * slope<K, S>(x, y, splat(s.p), splat(s.q)), none{};
      const Vec<A> above = limits & 1 ? (r > s.least ? made : none) : made;
      return limits & 2 ? (r < s.most ? above : none) : above;
    };
    return elementwise<O, A>(out, result, f, dy, x, y);
  }
  if constexpr (K == kDivide && S == 1) {
    const auto f = [=](Vec<A> g, Vec<A> x, Vec<A> y) { return g * slope<K, S>(x, y, splat(s.p), splat(s.q)); };
    return elementwise<O, A>(out, result, f, dy, x, y);
  } else if constexpr (K == kMultiply || K == kDivide) {
    const auto f = [=](Vec<A> g, Vec<A> other) { return g * slope<K, S>(other, other, splat(s.p), splat(s.q)); };
    return elementwise<O, A>(out, result, f, dy, K == kMultiply && S == 1 ? x : y);
  } else {
    const A factor = S == 0 ? s.p : K == kAdd ? s.q : -s.q;
    return elementwise<O, A>(
        out, result, [=](Vec<A> g) { return g * factor; }, dy);
  }
}

template <typename T, typename F>
void comparing(const Call& call, const CompareParams<double>& p, const F& f) {
  using A = Acc<T>;
  const auto chosen = [=](Vec<A> x, Vec<A> y) {
    const Vec<A> one = splat(A(1)), none{};
    return f(x, y) ? one : none;
  };
  elementwise<T, A>(call.out[0], Result(p), chosen, Stored<T>(call.in[0], p.x), Stored<T>(call.in[1], p.y));
}

template <typename T>
void comparisons(const Call& call) {
  using A = Acc<T>;
  const CompareParams<double> p = params_as<CompareParams<double>>(call.params);
  const double threshold = p.threshold;
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
  switch (p.comparison) {
    case 0:
      return comparing<T>(call, p, equal);
    case 1:
      return comparing<T>(call, p, [=](V x, V y) { return ~equal(x, y); });
    case 2:
      return comparing<T>(call, p, [](V x, V y) { return x < y; });
    case 3:
      return comparing<T>(call, p, [](V x, V y) { return x <= y; });
    case 4:
      return comparing<T>(call, p, [](V x, V y) { return x > y; });
    case 5:
      return comparing<T>(call, p, [](V x, V y) { return x >= y; });
  }
}

}  // namespace

void arithmetic(const Call& call) {
  const ArithmeticParams<double> p = params_as<ArithmeticParams<double>>(call.params);
  by_type(call.in[0].type,
          [&](auto zero) { by_operation(p.operation, [&]<int K>() { values<decltype(zero), K>(call, p); }); });
}

void arithmetic_grad(const Call& call) {
  const ArithmeticGradParams<double> p = params_as<ArithmeticGradParams<double>>(call.params);
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    by_operation(p.operation, [&]<int K>() {
      const bool wide = call.in[0].type != call.out[0].type, second = p.operand != 0;
      if (wide) {
        second ? grads<T, Acc<T>, K, 1>(call, p) : grads<T, Acc<T>, K, 0>(call, p);
      } else {
        second ? grads<T, T, K, 1>(call, p) : grads<T, T, K, 0>(call, p);
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
