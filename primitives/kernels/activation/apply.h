// The table of activations for vectors, and how other operations apply one themselves: the plain ones inline, any other
// through a function of its own, so that it neither grows their loops nor takes their registers.
#pragma once
#include "activation/params.h"
#include "kernels/activation/pieces.h"
#include "kernels/vector/power.h"
#include "kernels/vector/vector_math.h"

namespace mpsf::MPSF_ISA {
namespace {

// What an activation is told, from its number and three doubles that Python packed; and how to apply it.
enum Form { kUnchanged, kRectified, kClipped, kHardSwished, kOther, kSwished };

// Those that are worth keeping the result of.
constexpr bool is_costly(int form) { return form >= kOther; }

template <typename A>
struct Neuron {
  int kind;
  Form form;
  A a, b, c, log_c;
  Power<A> powers[3];  // c and one and two less

  __attribute__((noinline)) explicit Neuron(const Activation<double>& known)
      : kind(known.kind),
        a(static_cast<A>(known.a)),
        b(static_cast<A>(known.b)),
        c(static_cast<A>(known.c)),
        log_c(static_cast<A>(c == -1 ? 1 : __builtin_log(known.c))),
        powers{Power<A>(known.c), Power<A>(known.c - 1), Power<A>(known.c - 2)} {
    form = kind == 0              ? kUnchanged
           : kind == 1 && a == 0  ? kRectified
           : kind == 11 && a == 0 ? kClipped
           : kind == 17           ? kHardSwished
           : kind == 16 && a == 1 ? kSwished
                                  : kOther;
  }
};

// z ** (c - less)
template <typename A>
MPSF_INLINE Vec<A> power(Vec<A> z, const Neuron<A>& neuron, int less) {
  const Power<A>& power = neuron.powers[less];
  if (power.exponent == 1) return z;
  if (power.exponent == 2) return z * z;
  if (power.exponent == 3) return z * z * z;
  switch (power.kind()) {
    case Raise::zero:
      return splat(A(1));
    case Raise::reciprocal:
      return 1 / z;
    case Raise::root:
      return power.template of<Raise::root>(z);
    case Raise::root_root:
      return power.template of<Raise::root_root>(z);
    case Raise::other:
      break;
  }
  return power.template of<Raise::other>(z);
}

#include "activation/activations.h"

#if defined(__AVX512F__)
Vec<float> far_gelu(Vec<float> x) { return gelu_by_density(x); }
Vec<float> far_gelu_slope(Vec<float> x) { return gelu_slope_by_density(x); }
Vec<float> far_sigmoid_slope(Vec<float> x) { return sigmoid_slope_by_decay(x); }
#endif

// Calls f with a kind as a constant.
template <typename F>
MPSF_INLINE auto by_kind_of(int kind, const F& f) {
  switch (kind) {
    case kRelu:
      return f.template operator()<kRelu>();
    case kLinear:
      return f.template operator()<kLinear>();
    case kSigmoid:
      return f.template operator()<kSigmoid>();
    case kHardSigmoid:
      return f.template operator()<kHardSigmoid>();
    case kTanh:
      return f.template operator()<kTanh>();
    case kAbsolute:
      return f.template operator()<kAbsolute>();
    case kSoftplus:
      return f.template operator()<kSoftplus>();
    case kSoftsign:
      return f.template operator()<kSoftsign>();
    case kElu:
      return f.template operator()<kElu>();
    case kRelun:
      return f.template operator()<kRelun>();
    case kPower:
      return f.template operator()<kPower>();
    case kExponential:
      return f.template operator()<kExponential>();
    case kLogarithm:
      return f.template operator()<kLogarithm>();
    case kGelu:
      return f.template operator()<kGelu>();
    case kSilu:
      return f.template operator()<kSilu>();
    case kHardSwish:
      return f.template operator()<kHardSwish>();
    case kMish:
      return f.template operator()<kMish>();
    case kGeluTanh:
      return f.template operator()<kGeluTanh>();
    case kCelu:
      return f.template operator()<kCelu>();
    case kSelu:
      return f.template operator()<kSelu>();
    case kHardTanh:
      return f.template operator()<kHardTanh>();
    case kHardShrink:
      return f.template operator()<kHardShrink>();
    case kSoftShrink:
      return f.template operator()<kSoftShrink>();
    case kRelu2:
      return f.template operator()<kRelu2>();
    case kStep:
      return f.template operator()<kStep>();
    default:
      return f.template operator()<kNone>();
  }
}

template <typename A>
__attribute__((noinline)) Vec<A> any_activated(Vec<A> z, const Neuron<A>& neuron) {
  return by_kind_of(neuron.kind, [&]<int K>() { return activated<K>(z, neuron); });
}
template <typename A>
__attribute__((noinline)) Vec<A> any_passed(Vec<A> g, Vec<A> z, const Neuron<A>& neuron) {
  return by_kind_of(neuron.kind, [&]<int K>() { return passed<K>(g, z, neuron); });
}

// All others, which convolutions apply to many vectors at a time.
template <typename A>
__attribute__((noinline)) void finish_others(Vec<A>* z, int count, const Neuron<A>& neuron) {
  by_kind_of(neuron.kind, [&]<int K>() {
    for (int i = 0; i < count; ++i) z[i] = activated<K>(z[i], neuron);
  });
}

// Calls f with every vector of a tile in registers.
template <int Rows, int Columns, typename V, typename F>
MPSF_INLINE void for_tile(V (&tile)[Rows][Columns], const F& f) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) tile[i][j] = f(tile[i][j]);
  }
}

// Applies a neuron to all that a tile holds in registers; one that is not plain by way of memory, where `others` does
// it, so that the plain ones have no call to save registers from.
template <int Rows, int Columns, typename V, typename A>
MPSF_INLINE void apply(V (&tile)[Rows][Columns], const Neuron<A>* neuron,
                       void (*others)(Vec<A>*, int, const Neuron<A>&) = finish_others<A>) {
  if (neuron->form == kUnchanged) return;
  if (neuron->form == kRectified) return for_tile(tile, [](V z) { return rectified(z); });
  if (neuron->form == kClipped) {
    const A most = neuron->b;
    return for_tile(tile, [most](V z) { return V(at_most(V(z < 0 ? V{} : z), most)); });
  }
  if (neuron->form == kHardSwished) {
    return for_tile(tile, [neuron](V z) { return V(activated<kHardSwish>(z, *neuron)); });
  }
  V room[Rows][Columns];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) room[i][j] = tile[i][j];
  }
  others(&room[0][0], Rows * Columns, *neuron);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) tile[i][j] = room[i][j];
  }
}

// f(z), and g * f'(z), where a loop knows the form.
template <int F, typename A>
MPSF_INLINE Vec<A> activated_by(Vec<A> z, const Neuron<A>& neuron) {
  if constexpr (F == kUnchanged) return z;
  if constexpr (F == kRectified) return z < 0 ? Vec<A>{} : z;
  if constexpr (F == kSwished) {
    const Vec<A> share = sigmoid(z);
    return share == 0 ? Vec<A>{} : z * share;
  }
  return any_activated(z, neuron);
}
template <int F, typename A>
MPSF_INLINE Vec<A> passed_by(Vec<A> g, [[maybe_unused]] Vec<A> z, const Neuron<A>& neuron) {
  if constexpr (F == kUnchanged) return g;
  if constexpr (F == kRectified) return z < 0 ? Vec<A>{} : g;
  if constexpr (F == kSwished) return passed<kSilu>(g, z, neuron);
  return any_passed(g, z, neuron);
}

// Calls f with the form of a neuron as a constant.
template <typename F>
MPSF_INLINE void by_form(Form form, const F& f) {
  if (form == kUnchanged) return f.template operator()<kUnchanged>();
  if (form == kRectified) return f.template operator()<kRectified>();
  if (form == kSwished) return f.template operator()<kSwished>();
  f.template operator()<kOther>();
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
