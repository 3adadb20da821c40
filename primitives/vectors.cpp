// Arithmetic on vectors with one entry a channel, between two passes over images.
#include "channels.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

// Number i of an operation on vectors, as Python packed it.
template <typename A>
A number(const Call& call, int i) {
  double value;
  memcpy(&value, call.params + 2 * i, sizeof(value));
  return static_cast<A>(value);
}

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

template <typename A>
A inverse_root(A var, A eps) {
  if constexpr (sizeof(A) == 4) return 1 / __builtin_sqrtf(var + eps);
  return 1 / __builtin_sqrt(var + eps);
}

// Calls f(begin, end) for every group of channels of every row of vectors.
template <typename F>
void for_groups(const Call& call, const F& f) {
  const int64_t size = call.in[0].shape[1] / number<int64_t>(call, 0);
  for (int64_t at = 0; at < call.in[0].size; at += size) f(at, at + size);
}

}  // namespace

void bn_slope(const Call& call) {
  for_channels<2, 1>(call, [&]<typename A>(const A(&in)[2], A(&out)[1]) {
    const auto& [scale, var] = in;
    out[0] = scale * inverse_root(var, number<A>(call, 0));
  });
}

void bn_grown(const Call& call) {
  for_channels<5, 2>(call, [&]<typename A>(const A(&in)[5], A(&out)[2]) {
    const auto& [dgamma, dbeta, total, dot, var] = in;
    out[0] = dgamma + dot * inverse_root(var, number<A>(call, 0));
    out[1] = dbeta + total;
  });
}

void bn_factors(const Call& call) {
  const int64_t count = *data<int64_t>(call.in[4]);
  for_channels<4, 3>(call, [&]<typename A>(const A(&in)[4], A(&out)[3]) {
    const auto& [scale, var, dgamma, dbeta] = in;
    const A root = inverse_root(var, number<A>(call, 0)), share = scale * root / static_cast<A>(count);
    out[0] = scale * root;
    out[1] = -share * root * dgamma;
    out[2] = -share * dbeta;
  });
}

void bn_composed_factors(const Call& call) {
  for_channels<6, 4>(call, [&]<typename A>(const A(&in)[6], A(&out)[4]) {
    const auto& [gamma, var, dmean, dvar, dbeta, dot] = in;
    const A count = number<A>(call, 0), root = inverse_root(var, number<A>(call, 1));
    out[0] = dot * root;
    out[1] = gamma * root;
    out[2] = (2 * dvar - out[1] * root * out[0]) / count;
    out[3] = (dmean - out[1] * dbeta) / count;
  });
}

void bn_running(const Call& call) {
  const int64_t count = *data<int64_t>(call.in[4]);
  for_channels<4, 2>(call, [&]<typename A>(const A(&in)[4], A(&out)[2]) {
    const auto& [running_mean, running_var, mean, var] = in;
    const A share = number<A>(call, 0), elements = static_cast<A>(count > 2 ? count : 2);
    const A found = number<A>(call, 1) != 0 ? var * (elements / (elements - 1)) : var;
    out[0] = count == 0 ? running_mean : running_mean + share * (mean - running_mean);
    out[1] = count == 0 ? running_var : running_var + share * (found - running_var);
  });
}

void bn_by_group(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using A = Acc<decltype(zero)>;
    const A *means = data<A>(call.in[0]), *variances = data<A>(call.in[1]);
    for_groups(call, [&](int64_t begin, int64_t end) {
      double sum = 0, spread = 0;
      for (int64_t c = begin; c < end; ++c) sum += static_cast<double>(means[c]);
      const double mean = sum / static_cast<double>(end - begin);
      for (int64_t c = begin; c < end; ++c) {
        const double apart = static_cast<double>(means[c]) - mean;
        spread += static_cast<double>(variances[c]) + apart * apart;
      }
      for (int64_t c = begin; c < end; ++c) {
        data<A>(call.out[0])[c] = static_cast<A>(mean);
        data<A>(call.out[1])[c] = static_cast<A>(spread / static_cast<double>(end - begin));
      }
    });
  });
}

void bn_group_sums(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using A = Acc<decltype(zero)>;
    for_groups(call, [&](int64_t begin, int64_t end) {
      for (int i = 0; i < 2; ++i) {
        double sum = 0;
        for (int64_t c = begin; c < end; ++c) sum += static_cast<double>(data<A>(call.in[i])[c]);
        for (int64_t c = begin; c < end; ++c) data<A>(call.out[i])[c] = static_cast<A>(sum);
      }
    });
  });
}

}  // namespace mpsf::MPSF_ISA
