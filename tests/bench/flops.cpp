// Multiplications and additions a second that so many threads reach in registers: "fma", and where the compiler's
// machine has them "avx512_bf16" and "amx", a line each in GFLOP/s. Built by tests/bench/flops.py for the machine it
// runs on.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kSums = 12;  // independent ones: latency times pipes, and all within 16 registers
constexpr long kRounds = 1 << 14;
typedef float Vector __attribute__((vector_size(4 * kWidth)));

volatile float sink;

#if defined(__x86_64__)
#define KEPT(s) ({ asm volatile("" : "+x"(s)); })
#else
#define KEPT(s) ({ asm volatile("" : "+w"(s)); })
#endif

// Twelve sums with names of their own, since an array would lie in memory; each step keeps its sum apart from others.
#define FOR_ALL(step) \
  step(s0) step(s1) step(s2) step(s3) step(s4) step(s5) step(s6) step(s7) step(s8) step(s9) step(s10) step(s11)

// Each returns the operations of a call.
double fma_call() {
  Vector zero = {}, a = zero + (0.999f + sink), b = zero + 1e-3f;
  Vector s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero, s6 = zero, s7 = zero, s8 = zero, s9 = zero,
         s10 = zero, s11 = zero;
  for (long round = 0; round < kRounds; ++round) {
#define STEP(s) s = s * a + b, KEPT(s);
    FOR_ALL(STEP)
#undef STEP
  }
  sink = 0 * (s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11)[0];
  return 2.0 * kWidth * kSums * kRounds;
}

#if defined(__AVX512BF16__)
double avx512_bf16_call() {
  __m512i bits = _mm512_set1_epi32(0x3c003c00);
  __m512bh a, b;
  std::memcpy(&a, &bits, sizeof a);
  std::memcpy(&b, &bits, sizeof b);
  __m512 zero = _mm512_set1_ps(sink), s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero, s6 = zero,
         s7 = zero, s8 = zero, s9 = zero, s10 = zero, s11 = zero;
  for (long round = 0; round < kRounds; ++round) {
#define STEP(s) s = _mm512_dpbf16_ps(s, a, b), KEPT(s);
    FOR_ALL(STEP)
#undef STEP
  }
  sink = 0 * _mm512_cvtss_f32(s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11);
  return 4.0 * 16 * kSums * kRounds;  // two products and two sums in each of 16 places
}
#endif

#if defined(__AMX_BF16__)
bool amx_allowed() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }  // ARCH_REQ_XCOMP_PERM, XTILEDATA

double amx_call() {
  struct alignas(64) Shape {
    unsigned char palette = 1, start = 0, unused[14] = {};
    unsigned short bytes[16] = {};
    unsigned char rows[16] = {};
  } shape;
  for (int i = 0; i < 8; ++i) shape.bytes[i] = 64, shape.rows[i] = 16;
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (long round = 0; round < kRounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4.0 * 2 * 16 * 16 * 32 * kRounds;
}
#endif

// The best of several tenths of a second: others may work on the machine.
double best(double (*call)(), int threads) {
  double most = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::vector<double> operations(threads);
    std::vector<std::thread> workers;
    auto start = std::chrono::steady_clock::now();
    auto until = start + std::chrono::milliseconds(100);
    for (int i = 0; i < threads; ++i)
      workers.emplace_back([&, i] {
        while (std::chrono::steady_clock::now() < until) operations[i] += call();
      });
    double all = 0;
    for (int i = 0; i < threads; ++i) workers[i].join(), all += operations[i];
    std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (all / taken.count() > most) most = all / taken.count();
  }
  return most / 1e9;
}

}  // namespace

int main(int count, char** arguments) {
  int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  std::printf("fma %.1f\n", best(fma_call, threads));
  std::fflush(stdout);
#if defined(__AVX512BF16__)
  std::printf("avx512_bf16 %.1f\n", best(avx512_bf16_call, threads));
  std::fflush(stdout);
#endif
#if defined(__AMX_BF16__)
  if (amx_allowed()) std::printf("amx %.1f\n", best(amx_call, threads));
#endif
}
