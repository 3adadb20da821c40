// The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).
#ifndef MPSF_PHILOX_H
#define MPSF_PHILOX_H
#include "shared/base.h"
#include "shared/vector_load.h"

// The keys of its rounds, made once for all words of a thread.
struct Keys {
  uint low[10], high[10];
};
MPSF_FN Keys keys_of(uint low, uint high) {
  Keys keys;
  for (int round = 0; round < 10; ++round) {
    keys.low[round] = low + round * 0x9E3779B9u;
    keys.high[round] = high + round * 0xBB67AE85u;
  }
  return keys;
}

MPSF_FN Pack<uint, 4> philox(unsigned long counter, Keys keys) {
  Pack<uint, 4> c = nothing<uint, 4>();
  c.v[0] = uint(counter);
  c.v[1] = uint(counter >> 32);
  for (int round = 0; round < 10; ++round) {
    const unsigned long a = 0xD2511F53ul * c.v[0], b = 0xCD9E8D57ul * c.v[2];
    c.v[0] = uint(b >> 32) ^ c.v[1] ^ keys.low[round];
    c.v[2] = uint(a >> 32) ^ c.v[3] ^ keys.high[round];
    c.v[1] = uint(b);
    c.v[3] = uint(a);
  }
  return c;
}

// Words for a pack: V of them from number `first` on, a multiple of four, if they go Along, and else that one V times.
template <int Along, int V>
MPSF_FN Pack<uint, V> words_at(long first, Keys keys) {
  Pack<uint, V> r;
  if (Along && V > 1) {
    for (int j = 0; j < V; j += 4) {
      const Pack<uint, 4> four = philox((unsigned long)(first + j) >> 2, keys);
      for (int k = 0; k < 4; ++k) r.v[j + k] = four.v[k];
    }
    return r;
  }
  const Pack<uint, 4> four = philox((unsigned long)(first) >> 2, keys);
  const int which = first & 3;
  for (int j = 0; j < V; ++j)
    r.v[j] = which == 0 ? four.v[0] : which == 1 ? four.v[1] : which == 2 ? four.v[2] : four.v[3];
  return r;
}

#endif
