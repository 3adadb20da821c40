#include "runtime/dispatch.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "convolution/params.h"
#include "runtime/parallel.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mpsf {

const char* interface() { return MPSF_DIGEST; }

using Kernel = void (*)(const Call&);

#define MPSF_DECLARE(op) void op(const Call&);
#define MPSF_ADDRESS(op) &op,
#define MPSF_TABLE(isa)                                             \
  namespace isa {                                                   \
  MPSF_KERNELS(MPSF_DECLARE)                                        \
  int64_t layout_words(Type weights, const int* shape, int groups); \
  static constexpr Kernel kernels[] = {MPSF_KERNELS(MPSF_ADDRESS)}; \
  }

// Sets that multiply bfloat16 as it is do so in convolutions; all else is AVX-512's.
#define MPSF_TABLE_ON_AVX512(isa)                                          \
  namespace isa {                                                          \
  void conv(const Call&);                                                  \
  void conv_layout(const Call&);                                           \
  void conv_laid_out(const Call&);                                         \
  int64_t layout_words(Type weights, const int* shape, int groups);        \
  void conv_grad_input(const Call&);                                       \
  void conv_grad_weights(const Call&);                                     \
  static constexpr auto table = [] {                                       \
    std::array<Kernel, std::size(avx512::kernels)> made{};                 \
    for (size_t i = 0; i < made.size(); ++i) made[i] = avx512::kernels[i]; \
    made[static_cast<size_t>(Op::conv)] = &conv;                           \
    made[static_cast<size_t>(Op::conv_layout)] = &conv_layout;             \
    made[static_cast<size_t>(Op::conv_laid_out)] = &conv_laid_out;         \
    made[static_cast<size_t>(Op::conv_grad_input)] = &conv_grad_input;     \
    made[static_cast<size_t>(Op::conv_grad_weights)] = &conv_grad_weights; \
    return made;                                                           \
  }();                                                                     \
  static constexpr const Kernel* kernels = table.data();                   \
  }

// CMake says which were built.
#ifdef MPSF_HAS_avx512
MPSF_TABLE(avx512)
#endif
#ifdef MPSF_HAS_avx512_bf16
MPSF_TABLE_ON_AVX512(avx512_bf16)
#endif
#ifdef MPSF_HAS_amx
MPSF_TABLE_ON_AVX512(amx)
#endif
#ifdef MPSF_HAS_avx2
MPSF_TABLE(avx2)
#endif
#ifdef MPSF_HAS_neon
MPSF_TABLE(neon)
#endif
#ifdef MPSF_HAS_baseline
MPSF_TABLE(baseline)
#endif

namespace {

struct Isa {
  const char* name;
  const Kernel* kernels;
  int64_t (*layout_words)(Type weights, const int* shape, int groups);
  bool (*available)();
};

#if defined(__x86_64__)
// Every processor with AVX2 has F16C, and not every compiler can ask for that one.
[[maybe_unused]] bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
[[maybe_unused]] bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
// What a leaf of cpuid says of features, of which compilers do not know all by name.
struct Features {
  unsigned eax, ebx, ecx, edx;
};
Features features(unsigned leaf, unsigned subleaf) {
  Features found = {};
  __get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx);
  return found;
}
[[maybe_unused]] bool has_avx512_bf16() { return has_avx512() && (features(7, 1).eax >> 5 & 1); }
// The kernel keeps the tiles of a thread only for processes that have asked for it.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}
[[maybe_unused]] bool has_amx() {
  const unsigned tiles = features(7, 0).edx;
  return has_avx512_bf16() && (tiles >> 22 & 1) && (tiles >> 24 & 1) && may_use_tiles();
}
#endif
[[maybe_unused]] bool always() { return true; }

constexpr Isa kIsas[] = {
#ifdef MPSF_HAS_amx
    {"amx", amx::kernels, amx::layout_words, has_amx},
#endif
#ifdef MPSF_HAS_avx512_bf16
    {"avx512_bf16", avx512_bf16::kernels, avx512_bf16::layout_words, has_avx512_bf16},
#endif
#ifdef MPSF_HAS_avx512
    {"avx512", avx512::kernels, avx512::layout_words, has_avx512},
#endif
#ifdef MPSF_HAS_avx2
    {"avx2", avx2::kernels, avx2::layout_words, has_avx2},
#endif
#ifdef MPSF_HAS_neon
    {"neon", neon::kernels, neon::layout_words, always},
#endif
#ifdef MPSF_HAS_baseline
    {"baseline", baseline::kernels, baseline::layout_words, always},
#endif
};

const Isa* find_isa(const std::string& name, const std::string& asked_by) {
  for (const Isa& isa : kIsas) {  // a set that is not asked for does not ask the kernel for its registers
    if (name == isa.name && isa.available()) return &isa;
  }
  std::string expected;
  for (const Isa& isa : kIsas) {
    if (!isa.available()) continue;
    expected += (expected.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw std::invalid_argument(asked_by + ": not an instruction set of this machine and build; got '" + name +
                              "', expected one of: " + expected);
}

// Whether a set is used only where it is asked for: an Intel Xeon was slower by pairs of bfloat16 in vectors than by
// float32.
bool waits_to_be_asked([[maybe_unused]] const Isa& isa) {
#if defined(__x86_64__)
  return std::strcmp(isa.name, "avx512_bf16") == 0 && __builtin_cpu_is("intel");
#else
  return false;
#endif
}

const Isa* default_isa() {
  if (const char* name = std::getenv("MPSFUNC_ISA")) return find_isa(name, "MPSFUNC_ISA");
  for (const Isa& isa : kIsas) {
    if (isa.available() && !waits_to_be_asked(isa)) return &isa;
  }
  throw std::runtime_error("mpsfunc's C++ module was built without an instruction set of this machine (MPSF_ISAS)");
}

std::atomic<const Isa*>& active() {
  static std::atomic<const Isa*> isa{default_isa()};
  return isa;
}

}  // namespace

const char* op_name(Op op) {
#define MPSF_NAME(op) #op,
  static constexpr const char* names[] = {MPSF_KERNELS(MPSF_NAME)};
#undef MPSF_NAME
  return names[static_cast<int>(op)];
}

void run_kernel(Op op, const Call& call) {
  // Laid out weights are of one set, whichever is in use by the time that they are read.
  const Isa* isa = active().load();
  if (op == Op::conv_layout) isa = kIsas + params_as<ConvLayoutParams>(call.params).isa;
  if (op == Op::conv_laid_out) isa = kIsas + static_cast<const Layout*>(call.in[1].data)->isa;
  isa->kernels[static_cast<int>(op)](call);
}

void run_on_pool(void* context, void (*task)(void*, int64_t), int64_t chunks) { run_chunks(context, task, chunks); }

int isa_number() { return static_cast<int>(active().load() - kIsas); }

int64_t conv_layout_words(int isa, Type weights, const int* shape, int groups) {
  const bool known = isa >= 0 && isa < static_cast<int>(std::size(kIsas)) && kIsas[isa].available();
  int64_t size = 1;
  for (int i = 0; i < 4; ++i) size = shape[i] >= 1 && size < (int64_t{1} << 31) ? size * shape[i] : 0;
  const bool some = size > 0 && size < (int64_t{1} << 31) && groups >= 1 && shape[0] % groups == 0;
  const int64_t words = known && some ? kIsas[isa].layout_words(weights, shape, groups) : 0;
  return words < (int64_t{1} << 30) ? words : 0;
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) {
    if (isa.available()) names.push_back(isa.name);
  }
  return names;
}

std::string active_isa() { return active().load()->name; }

void set_isa(const std::string& name) { active().store(find_isa(name, "set_isa")); }

}  // namespace mpsf
