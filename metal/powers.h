// Powers that normalizations divide by.
#ifndef MPSF_POWERS_H
#define MPSF_POWERS_H

// t ** -beta and 1 / t.
struct Inverse {
  float power, once;
};

// Multiples of a quarter up to eight are made of products and square roots, which cost far less than a power does; beta
// is the same in all threads, so all of them go the same way.
MPSF_FN Inverse inverse_power(float t, float beta) {
  const float quarters = 4 * beta;
  Inverse r;
  if (!(quarters >= 0 && quarters <= 32 && quarters == floor(quarters))) {
    r.power = pow(t, -beta);
    r.once = 1 / t;
    return r;
  }
  const int n = int(quarters);
  r.power = 1;
  if (n % 4 == 0) {
    r.once = 1 / t;
  } else {
    const float root = rsqrt(t);
    r.once = root * root;
    if (n & 2) r.power = root;
    if (n & 1) r.power *= sqrt(root);
  }
  const float twice = r.once * r.once, fourth = twice * twice;
  if (n & 4) r.power *= r.once;
  if (n & 8) r.power *= twice;
  if (n & 16) r.power *= fourth;
  if (n & 32) r.power *= fourth * fourth;
  return r;
}

#endif
