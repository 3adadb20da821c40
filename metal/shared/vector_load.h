// Sixteen bytes at a time where the pointer allows it.
#ifndef MPSF_VECTOR_LOAD_H
#define MPSF_VECTOR_LOAD_H
#include "shared/base.h"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
  T v[V];
};
// A wide access faults on NVIDIA unless the address is a multiple of its width, and a view may start anywhere. Where V
// divides the channels, what holds for the first element holds for all.
template <int V, typename T>
MPSF_FN bool aligned(const T* p) {
  return reinterpret_cast<size_t>(p) % sizeof(Pack<T, V>) == 0;
}
template <int V, typename T>
MPSF_FN Pack<T, V> load(const T* p, bool wide) {
  if (wide) return *reinterpret_cast<const Pack<T, V>*>(p);
  Pack<T, V> r;
  for (int j = 0; j < V; ++j) r.v[j] = p[j];
  return r;
}
// A pack that waits in registers from one turn of a loop to a later one. Numbers of sixteen bits stay in pairs, which
// the compiler would take apart into a register each.
template <typename T, int V, bool Pairs = (sizeof(T) == 2 && V % 2 == 0)>
struct Staged {
  Pack<T, V> pack;
};
template <typename T, int V>
struct alignas(2 * V) Staged<T, V, true> {
  unsigned pairs[V / 2];
};
template <typename T, int V>
MPSF_FN float staged_value(const Staged<T, V, false>& held, int j) {
  return float(held.pack.v[j]);
}
MPSF_FN float upper_or_lower(unsigned pair, bool upper, __half) {
  const unsigned short bits = upper ? pair >> 16 : pair;
  __half half_word;
  memcpy(&half_word, &bits, sizeof bits);
  return float(half_word);
}
MPSF_FN float upper_or_lower(unsigned pair, bool upper, __nv_bfloat16) {
  return as_type<float>(upper ? pair & 0xffff0000u : pair << 16);
}
template <typename T, int V>
MPSF_FN float staged_value(const Staged<T, V, true>& held, int j) {
  return upper_or_lower(held.pairs[j / 2], j % 2, T());
}
template <typename T, int V>
MPSF_FN Staged<T, V> held(Pack<T, V> pack) {
  Staged<T, V> r;
  memcpy(&r, &pack, sizeof r);
  return r;
}
template <int V, typename T>
MPSF_FN Staged<T, V> hold(const T* p, bool wide) {
  if (wide) return *reinterpret_cast<const Staged<T, V>*>(p);
  return held(load<V>(p, false));
}
// Brings into the L2 what will be loaded from so many places a step apart, if that is there.
template <int Places, typename T>
MPSF_FN void prefetch(const T* p, int step, bool there) {
  for (int i = 0; i < Places; ++i) {
    if (there) asm volatile("prefetch.global.L2 [%0];" ::"l"(p + i * step));
  }
}
// How long the L2 keeps what is read. Chosen: what is read early leaves first, so that the rest is still there when it
// is read again; else as the processor does by itself.
template <int Chosen>
struct CachePolicy {};
template <int V, typename T, int Chosen>
MPSF_FN Staged<T, V> hold(const T* p, CachePolicy<Chosen>, bool) {
  return hold<V>(p, true);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <>
struct CachePolicy<1> {
  unsigned long long early, late;
};
MPSF_FN CachePolicy<1> policies(CachePolicy<1> made) {
  // Volatile, or the compiler makes both again for each load.
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(made.early));
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(made.late));
  return made;
}
// A load that is left out takes no branch, which it would around the assembly.
template <int V, typename T>
MPSF_FN Staged<T, V> hold(const T* p, CachePolicy<1> keeping, bool early, bool there, Staged<T, V> r) {
  if constexpr (sizeof(r) == 16) {
    unsigned words[4];
    memcpy(words, &r, sizeof r);
    asm volatile(
        "{.reg .pred there; setp.ne.b32 there, %6, 0;"
        "@there ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;}"
        : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
        : "l"(p), "l"(early ? keeping.early : keeping.late), "r"(int(there)));
    memcpy(&r, words, sizeof r);
  } else if (there) {
    r = hold<V>(p, true);
  }
  return r;
}
template <int V, typename T>
MPSF_FN Staged<T, V> hold(const T* p, CachePolicy<1> keeping, bool early) {
  return hold<V>(p, keeping, early, true, Staged<T, V>{});
}
#endif
#else
// A Pack is aligned as its element, which MSL loads in one instruction from any such address.
template <typename T, int V>
struct Pack {
  T v[V];
};
template <int V, typename P>
MPSF_FN bool aligned(P) {
  return true;
}
template <int V, typename T>
MPSF_FN Pack<T, V> load(const device T* p, bool) {
  return *(const device Pack<T, V>*)p;
}
#if defined(__METAL_VERSION__)
template <int V, typename T>
MPSF_FN Pack<T, V> load(const constant T* p, bool) {  // arrays under eight elements
  return *(const constant Pack<T, V>*)p;
}
#endif
template <typename T, int V>
struct Staged {
  Pack<T, V> pack;
};
template <typename T, int V>
MPSF_FN float staged_value(Staged<T, V> held, int j) {
  return float(held.pack.v[j]);
}
template <typename T, int V>
MPSF_FN Staged<T, V> held(Pack<T, V> pack) {
  Staged<T, V> r;
  r.pack = pack;
  return r;
}
template <int V, typename T>
MPSF_FN Staged<T, V> hold(const device T* p, bool wide) {
  return held(load<V>(p, wide));
}
#if defined(__METAL_VERSION__)
template <int V, typename T>
MPSF_FN Staged<T, V> hold(const constant T* p, bool wide) {
  return held(load<V>(p, wide));
}
#endif
template <int Places, typename P>
MPSF_FN void prefetch(P, int, bool) {}  // Metal has no such instruction
template <int Chosen>
struct CachePolicy {};
template <int V, typename P, int Chosen>
MPSF_FN auto hold(P p, CachePolicy<Chosen>, bool) {
  return hold<V>(p, true);
}
#endif
template <typename CachePolicy>
MPSF_FN CachePolicy policies(CachePolicy none) {
  return none;
}
template <int Chosen>
MPSF_FN CachePolicy<Chosen> keeping() {
  return policies(CachePolicy<Chosen>());
}
// What is there, or another pack.
template <int V, typename P, typename CachePolicy, typename Staged>
MPSF_FN Staged hold(P p, CachePolicy keeping, bool early, bool there, Staged other) {
  if (there) other = hold<V>(p, keeping, early);
  return other;
}

// Entries of a vector from number at * V on, or zeros for one that is not there.
template <int V, int There = 1, typename P>
MPSF_FN Pack<float, V> entries(P vector, long at) {
  Pack<float, V> r;
  for (int j = 0; j < V; ++j) r.v[j] = 0;
  if (There) {
    const auto some = load<V>(vector + at * V, aligned<V>(vector));
    for (int j = 0; j < V; ++j) r.v[j] = float(some.v[j]);
  }
  return r;
}

template <typename T, int V>
MPSF_FN Pack<T, V> nothing() {
  Pack<T, V> r;
  for (int j = 0; j < V; ++j) r.v[j] = T(0);
  return r;
}

template <typename T, int V>
MPSF_FN Pack<T, V> rounded(Pack<float, V> numbers) {
  Pack<T, V> r;
  for (int j = 0; j < V; ++j) r.v[j] = T(numbers.v[j]);
  return r;
}

template <typename T, int V>
MPSF_FN Staged<T, V> none_held() {
  Staged<T, V> r = {};
  return r;
}

// Each sum and the value beside it, squared or not.
template <int Squared, typename T, int V>
MPSF_FN Pack<float, V> plus(Pack<float, V> sum, Pack<T, V> values) {
  for (int j = 0; j < V; ++j) {
    const float value = float(values.v[j]);
    sum.v[j] += Squared ? value * value : value;
  }
  return sum;
}

// Results are whole allocations, so they are aligned.
template <typename T, int V>
MPSF_FN void store(device T* p, Pack<T, V> r) {
  *(device Pack<T, V>*)p = r;
}

#endif
