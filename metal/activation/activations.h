// Each activation once: what it makes of x, and its first and second derivative. Metal and CUDA include this file
// behind functions.h, C++ behind vector_math.h; a Real is a float on GPUs and a vector on CPUs. `p` has the parameters
// a, b and c, and log_c, the logarithm of c as a base (of which -1 is e).
//
//   activated<K>(x, p)    f(x)
//   passed<K>(g, x, p)    g * f'(x): at a kink the derivative from the right, of an absolute value 0
//   curved<K>(g, x, p)    g * f''(x)
//   told(g, y, p)         g * f'(x) where y = f(x) of kRelu with a >= 0, whose slope at y = 0 is 0 where a is
//
// NaN stays NaN, but where a slope is constant it passes g. At infinities there is the limit, if there is one and no
// parameter makes the formula 0 times infinity, which is NaN: an a of 0 of kLinear, kHardSigmoid, kPower, kExponential
// and kLogarithm, a b of 0 of kTanh and kSoftplus, a c of 1 of kExponential, and an a of 0 of kSoftplus where its value
// is infinite without it. An a of 0 that is a slope below zero makes 0 of infinity.
#ifndef MPSF_ACTIVATIONS_H
#define MPSF_ACTIVATIONS_H

// As MPS numbers them, and behind its last those of other libraries. What prelu makes is what relu makes with its
// channel's slope for a.
enum Kind {
  kNone = 0,
  kRelu = 1,
  kLinear = 2,
  kSigmoid = 3,
  kHardSigmoid = 4,
  kTanh = 5,
  kAbsolute = 6,
  kSoftplus = 7,
  kSoftsign = 8,
  kElu = 9,
  kPrelu = 10,
  kRelun = 11,
  kPower = 12,
  kExponential = 13,
  kLogarithm = 14,
  kGelu = 15,
  kSilu = 16,
  kHardSwish = 17,
  kMish = 18,
  kGeluTanh = 19,
  kCelu = 20,
  kSelu = 21,
  kHardTanh = 22,
  kHardShrink = 23,
  kSoftShrink = 24,
  kRelu2 = 25,
  kStep = 26
};

// a * x where a is a slope: 0 is one of infinity too.
template <typename Real, typename A>
MPSF_POINTWISE Real leaked(A a, Real x) {
  if (a == 0) return filled(x, 0);
  return a * x;
}

// What the normal distribution has below -x, over bell(x), for x from 0 to 40.
template <typename Real>
MPSF_POINTWISE Real tail(Real x) {
  const Real t = reciprocal(x * 0.375f + 1);
  Real r = t * 0.0515079001f - 0.331300454f;
  r = r * t + 0.854054839f;
  r = r * t - 1.04976294f;
  r = r * t + 0.530096025f;
  r = r * t - 0.135636991f;
  r = r * t + 0.269352812f;
  r = r * t + 0.314358278f;
  r = r * t + 0.375668859f;
  r = r * t + 0.374975789f;
  return r * t;
}

// By e ** -|x|, which is never large.
template <typename Real>
MPSF_POINTWISE Real sigmoid(Real x) {
  const Real small = decay(x);
  return (x < 0 ? small : filled(x, 1)) / (small + 1);
}

template <typename Real>
MPSF_POINTWISE Real sigmoid_slope_by_decay(Real x) {
  const Real small = decay(x), over = 1 / (small + 1);
  return small * over * over;
}

// This, and gelus, CPUs with vectors for it have in another way of floats (primitives/kernels/activation/pieces.h).
template <typename Real>
MPSF_POINTWISE Real sigmoid_slope(Real x) {
  return sigmoid_slope_by_decay(x);
}

// Beyond it a sigmoid has nothing left that an x times its slope would show, and no square of x overflows.
template <typename Real>
MPSF_POINTWISE Real bounded(Real x, float bound) {
  return at_least(at_most(x, bound), -bound);
}

// The derivative of x * sigmoid(w), where that of w is `first`: the sigmoid and its slope by one exponential.
template <typename Real>
MPSF_POINTWISE Real swish_slope(Real x, Real w, Real first) {
  const Real small = decay(w), over = 1 / (small + 1), other = small * over;
  return (w < 0 ? other : over) + x * (other * over) * first;
}

// The hyperbolic tangent of log(1 + e ** x), and its slope.
template <typename Real>
MPSF_POINTWISE Real tanh_of_softplus(Real x) {
  const Real small = decay(x), below = small * (small + 2), above = small * 2 + 1;
  return (x < 0 ? below : above) / (x < 0 ? below + 2 : above + small * small * 2);
}

template <typename Real>
MPSF_POINTWISE Real tanh_of_softplus_slope(Real x) {
  const Real small = decay(x), below = small * (small + 2), above = small * 2 + 1, square = small * small * 2;
  const Real over = 1 / (x < 0 ? below + 2 : above + square), rest = (x < 0 ? filled(x, 2) : square) * over;
  return rest * ((x < 0 ? below : above) * over + 1) * sigmoid(x);
}

// The derivative of x times it, all by one exponential.
template <typename Real>
MPSF_POINTWISE Real mish_slope(Real x) {
  const Real small = decay(x), below = small * (small + 2), above = small * 2 + 1, square = small * small * 2;
  const Real over = 1 / (x < 0 ? below + 2 : above + square), rest = (x < 0 ? filled(x, 2) : square) * over;
  const Real share = (x < 0 ? below : above) * over, sigmoid = (x < 0 ? small : filled(x, 1)) / (small + 1);
  return share + bounded(x, 1000) * (rest * (share + 1) * sigmoid);
}

// A gelu by a hyperbolic tangent is x * sigmoid(w(x)): w and its derivatives, for x from -40 to 40.
template <typename Real>
MPSF_POINTWISE Real gelu_w(Real x) {
  return x * (x * x * filled(x, MPSF_NUMBER(0.044715)) + 1) * filled(x, MPSF_NUMBER(1.5957691216057308));
}

template <typename Real>
MPSF_POINTWISE Real gelu_w_slope(Real x) {
  return (x * x * filled(x, MPSF_NUMBER(0.134145)) + 1) * filled(x, MPSF_NUMBER(1.5957691216057308));
}

template <typename Real>
MPSF_POINTWISE Real gelu_w_curve(Real x) {
  return x * filled(x, MPSF_NUMBER(0.42812889763560147));
}

template <typename Real>
MPSF_POINTWISE Real gelu_by_density(Real x) {
  const Real size = at_most(absolute(x), 40);
  return at_least(x, 0) - size * bell(size) * tail(size);
}

template <typename Real>
MPSF_POINTWISE Real gelu_slope_by_density(Real x) {
  const Real size = at_most(absolute(x), 40), bent = bell(size) * (size - tail(size));
  return x < 0 ? -bent : bent + 1;
}

template <typename Real>
MPSF_POINTWISE Real gelu(Real x) {
  return gelu_by_density(x);
}

template <typename Real>
MPSF_POINTWISE Real gelu_slope(Real x) {
  return gelu_slope_by_density(x);
}

template <int K, typename Real, typename P>
MPSF_POINTWISE Real activated(Real x, P p) {
  if (K == kRelu || K == kPrelu) return x < 0 ? leaked(p.a, x) : x;
  if (K == kLinear) return x * p.a + p.b;
  if (K == kSigmoid) return sigmoid(x);
  if (K == kHardSigmoid) return at_least(at_most(Real(x * p.a + p.b), 1), 0);
  if (K == kTanh) return tanh(Real(x * p.b)) * p.a;
  if (K == kAbsolute) return absolute(x);
  if (K == kSoftplus) {
    const Real z = x * p.b;
    return (at_least(z, 0) + log_1p(decay(z))) * p.a;
  }
  if (K == kSoftsign) {
    const Real z = without_infinity(x);
    return z / (absolute(z) + 1);
  }
  if (K == kElu) return x < 0 ? exp_m1(at_most(x, 0)) * p.a : x;
  if (K == kRelun) return at_most(Real(x < 0 ? leaked(p.a, x) : x), p.b);
  if (K == kPower) return power(Real(x * p.a + p.b), p, 0);
  if (K == kExponential) return exp(Real((x * p.a + p.b) * p.log_c));
  if (K == kLogarithm) return log(Real(x * p.a + p.b)) / p.log_c;
  if (K == kGelu) return gelu(x);
  if (K == kSilu) {
    const Real share = sigmoid(Real(x * p.a));
    return share == 0 ? filled(x, 0) : x * share;
  }
  if (K == kHardSwish)
    return x < -3 ? filled(x, 0) : x >= 3 ? x : x * (x + 3) * filled(x, MPSF_NUMBER(0.16666666666666667));
  if (K == kMish) {
    const Real share = tanh_of_softplus(x);
    return share == 0 ? filled(x, 0) : x * share;
  }
  if (K == kGeluTanh) return at_least(x, -40) * sigmoid(gelu_w(bounded(x, 40)));
  if (K == kCelu) return x < 0 ? exp_m1(at_most(Real(x / p.a), 0)) * p.a : x;
  if (K == kSelu) {
    const Real below = exp_m1(at_most(x, 0)) * filled(x, MPSF_NUMBER(1.7580993408473766));  // 1.67326 * 1.05070
    return x < 0 ? below : x * filled(x, MPSF_NUMBER(1.0507009873554805));
  }
  if (K == kHardTanh) return at_least(at_most(x, p.b), p.a);
  if (K == kHardShrink) return absolute(x) <= p.a ? filled(x, 0) : x;
  if (K == kSoftShrink) return x > p.a ? x - p.a : x < -p.a ? x + p.a : x * 0;
  if (K == kRelu2) return x < 0 ? filled(x, 0) : x * x;
  if (K == kStep) return x >= p.a ? filled(x, 1) : x < p.a ? filled(x, 0) : x;
  return x;
}

template <int K, typename Real, typename P>
MPSF_POINTWISE Real passed(Real g, Real x, P p) {
  if (K == kRelu || K == kPrelu) return x < 0 ? leaked(p.a, g) : g;
  if (K == kLinear) return g * p.a;
  if (K == kSigmoid) return g * sigmoid_slope(x);
  if (K == kHardSigmoid) {
    const Real z = x * p.a + p.b;
    return ((z < 0) | (z > 1)) ? filled(x, 0) : g * p.a;
  }
  if (K == kTanh) return g * (sigmoid_slope(Real(x * (p.b * 2))) * (p.a * p.b * 4));
  if (K == kAbsolute) return x > 0 ? g : x < 0 ? -g : x;
  if (K == kSoftplus) return g * (sigmoid(Real(x * p.b)) * (p.a * p.b));
  if (K == kSoftsign) {
    const Real over = 1 / (absolute(x) + 1);
    return g * (over * over);
  }
  if (K == kElu) return x < 0 ? g * (exp(at_most(x, 0)) * p.a) : g;
  if (K == kRelun) {
    const Real z = x < 0 ? leaked(p.a, x) : x, slope = x < 0 ? leaked(p.a, g) : g;
    return z >= p.b ? filled(x, 0) : slope;
  }
  if (K == kPower) {
    if (p.a * p.c == 0) return filled(x, 0);
    return g * (power(Real(x * p.a + p.b), p, 1) * (p.a * p.c));
  }
  if (K == kExponential) return g * (exp(Real((x * p.a + p.b) * p.log_c)) * (p.a * p.log_c));
  if (K == kLogarithm) return g * (p.a / ((x * p.a + p.b) * p.log_c));
  if (K == kGelu) return g * gelu_slope(x);
  if (K == kSilu) {
    const Real z = bounded(Real(x * p.a), 1000);
    return g * swish_slope(z, z, filled(z, 1));
  }
  if (K == kHardSwish) return x < -3 ? filled(x, 0) : x >= 3 ? g : g * ((x * 2 + 3) / 6);
  if (K == kMish) return g * mish_slope(x);
  if (K == kGeluTanh) {
    const Real z = bounded(x, 40);
    return g * swish_slope(z, gelu_w(z), gelu_w_slope(z));
  }
  if (K == kCelu) return x < 0 ? g * exp(at_most(Real(x / p.a), 0)) : g;
  if (K == kSelu) {
    const Real below = exp(at_most(x, 0)) * filled(x, MPSF_NUMBER(1.7580993408473766));
    return g * (x < 0 ? below : filled(x, MPSF_NUMBER(1.0507009873554805)));
  }
  if (K == kHardTanh) return ((x < p.a) | (x >= p.b)) ? filled(x, 0) : g;
  if (K == kHardShrink) return absolute(x) <= p.a ? filled(x, 0) : g;
  if (K == kSoftShrink) return ((x < -p.a) | (x >= p.a)) ? g : filled(x, 0);
  if (K == kRelu2) return x < 0 ? filled(x, 0) : g * (x * 2);
  if (K == kStep) return filled(x, 0);
  return g;
}

template <int K, typename Real, typename P>
MPSF_POINTWISE Real curved(Real g, Real x, P p) {
  if (K == kSigmoid) return -g * (sigmoid_slope(x) * tanh(Real(x * 0.5f)));
  if (K == kTanh) return g * (sigmoid_slope(Real(x * (p.b * 2))) * tanh(Real(x * p.b)) * (p.a * p.b * p.b * -8));
  if (K == kSoftplus) return g * (sigmoid_slope(Real(x * p.b)) * (p.a * p.b * p.b));
  if (K == kSoftsign) {
    const Real over = 1 / (absolute(x) + 1), size = over * over * over * 2;
    return g * (x > 0 ? -size : x < 0 ? size : x);
  }
  if (K == kElu) return x < 0 ? g * (exp(at_most(x, 0)) * p.a) : filled(x, 0);
  if (K == kPower) {
    if (p.a * p.c * (p.c - 1) == 0) return filled(x, 0);
    return g * (power(Real(x * p.a + p.b), p, 2) * (p.a * p.a * p.c * (p.c - 1)));
  }
  if (K == kExponential) {
    return g * (exp(Real((x * p.a + p.b) * p.log_c)) * (p.a * p.log_c * p.a * p.log_c));
  }
  if (K == kLogarithm) {
    const Real over = p.a / (x * p.a + p.b);
    return g * (over * over / -p.log_c);
  }
  if (K == kGelu) {
    const Real size = at_most(absolute(x), 40);
    return g * (bell(size) * (2 - size * size));
  }
  if (K == kSilu) {
    const Real z = bounded(Real(x * p.a), 1000);
    return g * (sigmoid_slope(z) * (2 - z * tanh(Real(z * 0.5f))) * p.a);
  }
  if (K == kHardSwish) return ((x < -3) | (x >= 3)) ? filled(x, 0) : g / 3;
  if (K == kMish) {
    const Real bent = 1 - sigmoid(x) * (tanh_of_softplus(x) * 2 + 1);
    return g * (tanh_of_softplus_slope(x) * (2 + bounded(x, 1000) * bent));
  }
  if (K == kGeluTanh) {
    const Real z = bounded(x, 40), w = gelu_w(z), first = gelu_w_slope(z);
    const Real bent = gelu_w_curve(z) - first * first * tanh(Real(w * 0.5f));
    return g * (sigmoid_slope(w) * (first * 2 + z * bent));
  }
  if (K == kCelu) return x < 0 ? g * exp(at_most(Real(x / p.a), 0)) / p.a : filled(x, 0);
  if (K == kSelu) return x < 0 ? g * (exp(at_most(x, 0)) * filled(x, MPSF_NUMBER(1.7580993408473766))) : filled(x, 0);
  if (K == kRelu2) return x < 0 ? filled(x, 0) : g * 2;
  return filled(x, 0);
}

template <typename Real, typename P>
MPSF_POINTWISE Real told(Real g, Real y, P p) {
  if (p.a == 0) return y > 0 ? g : filled(g, 0);
  return y < 0 ? g * p.a : g;
}

#endif
