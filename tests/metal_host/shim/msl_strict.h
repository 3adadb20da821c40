// MSL's rules for clang's C++ for OpenCL, whose address spaces are Metal's. Nothing here runs: declarations suffice.
// The names of pointers without an address space are left to conformance.py.
#ifndef MSL_STRICT_H
#define MSL_STRICT_H

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private

typedef unsigned char uchar, uint8_t;
typedef signed char int8_t;
typedef unsigned short ushort, uint16_t;
typedef short int16_t;
typedef unsigned int uint, uint32_t;
typedef unsigned long ulong, uint64_t, size_t;
typedef int int32_t;
typedef long int64_t;
typedef uint uint3 __attribute__((ext_vector_type(3)));
struct ulong2 {
  ulong2(ulong both);
  ulong2(ulong x, ulong y);
};
typedef half float16_t;
struct bfloat {
  ushort bits;
  bfloat() = default;
  explicit bfloat(float value);
  bfloat(const __constant bfloat& other);
  bfloat(const __generic bfloat& other);
  operator float() const;
  operator float() const __constant;
};
typedef bfloat bfloat16_t;

// What Apple's compiler declares by itself for every struct: OpenCL copies from all address spaces but `constant`.
#define MSL_COPIES_FROM_CONSTANT(Struct)     \
  Struct() = default;                        \
  Struct(const __generic Struct&) = default; \
  Struct(const __constant Struct&);

threadgroup void* gpu_threadgroup_memory(int declaration, unsigned long bytes);

namespace metal {
template <typename To, typename From>
To as_type(From from);
float sqrt(float x);
float rsqrt(float x);
float exp(float x);
float log(float x);
float tanh(float x);
float pow(float x, float y);
float floor(float x);
float ceil(float x);
float fabs(float x);
float fma(float x, float y, float z);
float max(float x, float y);
float min(float x, float y);
int max(int x, int y);
int min(int x, int y);
uint ctz(uint x);
uint popcount(uint x);
bool isnan(float x);
bool isinf(float x);
bool isfinite(float x);

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags a, mem_flags b);
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);

template <typename V>
V simd_sum(V value);
template <typename V>
V simd_max(V value);
template <typename V>
V simd_min(V value);
template <typename V>
V simd_shuffle(V value, ushort lane);
template <typename V>
V simd_broadcast(V value, ushort lane);
template <typename V>
V simd_shuffle_xor(V value, ushort mask);
template <typename V>
V simd_shuffle_down(V value, ushort delta);
template <typename V>
V simd_shuffle_up(V value, ushort delta);

// What a lane holds is not said, so nothing here asks for it.
template <typename V, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  V held[2];
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(V diagonal);
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <typename V, int Cols, int Rows = Cols>
simdgroup_matrix<V, Cols, Rows> make_filled_simdgroup_matrix(V value);
template <typename V>
void simdgroup_load(thread simdgroup_matrix<V, 8, 8>& m, const device V* from, ulong stride = 8, ulong2 origin = 0,
                    bool transposed = false);
template <typename V>
void simdgroup_load(thread simdgroup_matrix<V, 8, 8>& m, const threadgroup V* from, ulong stride = 8, ulong2 origin = 0,
                    bool transposed = false);
template <typename V>
void simdgroup_store(simdgroup_matrix<V, 8, 8> m, device V* to, ulong stride = 8, ulong2 origin = 0,
                     bool transposed = false);
template <typename V>
void simdgroup_store(simdgroup_matrix<V, 8, 8> m, threadgroup V* to, ulong stride = 8, ulong2 origin = 0,
                     bool transposed = false);
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, thread simdgroup_matrix<A, 8, 8>& a,
                                   thread simdgroup_matrix<B, 8, 8>& b, thread simdgroup_matrix<C, 8, 8>& c);
}  // namespace metal
using namespace metal;

#endif
