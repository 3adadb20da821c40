// Arithmetic on vectors with one entry a channel, between two passes over images.
#include "kernels/normalization/channel_vectors.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "normalization/params.h"

namespace mpsf::MPSF_ISA {
namespace {

// Calls f(in, out) for every channel of an operation on vectors: entry c of each, as f reads and writes them.
template <int Inputs, int Outputs, typename F>
void for_channels(const Call& call, const F& f) {
  by_type(call.in[0].type, [&](auto zero) {
    using A = Acc<decltype(zero)>;
    for (int64_t c = 0; c < call.in[0].size; ++c) {
      A in[Inputs], out[Outputs];
      for (int i = 0; i < Inputs; ++i) in[i] = data<A>(call.in[i])[c];
      f(in, out);
      for (int i = 0; i < Outputs; ++i) data<A>(call.out[i])[c] = out[i];
    }
  });
}

// Calls f(begin, size) for every group of channels of every row of vectors, with a zero of their type.
template <typename F>
void for_groups(const Call& call, const F& f) {
  const BnGroupParams<double> p = params_as<BnGroupParams<double>>(call.params);
  const int64_t size = call.in[0].shape[1] / static_cast<int64_t>(p.groups);
  by_type(call.in[0].type, [&](auto zero) {
    for (int64_t at = 0; at < call.in[0].size; at += size) f(at, size, Acc<decltype(zero)>());
  });
}

}  // namespace

void bn_slope(const Call& call) {
  const BnSlopeParams<double> p = params_as<BnSlopeParams<double>>(call.params);
  for_channels<2, 1>(call, [&]<typename A>(const A(&in)[2], A(&out)[1]) {
    const auto& [scale, var] = in;
    out[0] = scale * inverse_root(var, static_cast<A>(p.eps));
  });
}

void bn_composed_factors(const Call& call) {
  const BnComposedFactorsParams<double> p = params_as<BnComposedFactorsParams<double>>(call.params);
  for_channels<6, 4>(call, [&]<typename A>(const A(&in)[6], A(&out)[4]) {
    const auto& [gamma, var, dmean, dvar, dbeta, dot] = in;
    const Factors<A> f(gamma, var, dmean, dvar, dbeta, dot, static_cast<A>(p.elements), static_cast<A>(p.eps));
    out[0] = f.dgamma, out[1] = f.a, out[2] = f.b, out[3] = f.d;
  });
}

void bn_running(const Call& call) {
  const BnRunningParams<double> p = params_as<BnRunningParams<double>>(call.params);
  const int64_t count = *data<int64_t>(call.in[4]);
  for_channels<4, 2>(call, [&]<typename A>(const A(&in)[4], A(&out)[2]) {
    const auto& [running_mean, running_var, mean, var] = in;
    const A share = static_cast<A>(p.share), elements = static_cast<A>(count), none = static_cast<A>(__builtin_nan(""));
    const A wider = p.unbiased != 0 ? elements / (elements - 1) : 1;
    const A found = var * (count == 1 ? none : wider);  // one element has no variance
    out[0] = count == 0 ? running_mean : running_mean + share * (mean - running_mean);
    out[1] = count == 0 ? running_var : running_var + share * (found - running_var);
  });
}

void group_moments(const Call& call) {
  for_groups(call, [&]<typename A>(int64_t at, int64_t size, A) {
    join_moments(data<A>(call.in[0]) + at, data<A>(call.in[1]) + at, size, data<A>(call.out[0]) + at,
                 data<A>(call.out[1]) + at);
  });
}

void bn_group_sums(const Call& call) {
  for_groups(call, [&]<typename A>(int64_t at, int64_t size, A) {
    for (int i = 0; i < 2; ++i) join_sum(data<A>(call.in[i]) + at, size, data<A>(call.out[i]) + at);
  });
}

}  // namespace mpsf::MPSF_ISA
