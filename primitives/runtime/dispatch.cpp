#include "runtime/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace mpsf {

const char* interface() { return MPSF_DIGEST; }

using Kernel = void (*)(const Call&);

#define MPSF_DECLARE(op) void op(const Call&);
#define MPSF_ADDRESS(op) &op,
#define MPSF_TABLE(isa)                                             \
  namespace isa {                                                   \
  MPSF_KERNELS(MPSF_DECLARE)                                        \
  static constexpr Kernel kernels[] = {MPSF_KERNELS(MPSF_ADDRESS)}; \
  }

// CMake says which were built.
#ifdef MPSF_HAS_avx512
MPSF_TABLE(avx512)
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
  bool (*available)();
};

#if defined(__x86_64__)
// Every processor with AVX2 has F16C, and not every compiler can ask for that one.
[[maybe_unused]] bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
[[maybe_unused]] bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif
[[maybe_unused]] bool always() { return true; }

constexpr Isa kIsas[] = {
#ifdef MPSF_HAS_avx512
    {"avx512", avx512::kernels, has_avx512},
#endif
#ifdef MPSF_HAS_avx2
    {"avx2", avx2::kernels, has_avx2},
#endif
#ifdef MPSF_HAS_neon
    {"neon", neon::kernels, always},
#endif
#ifdef MPSF_HAS_baseline
    {"baseline", baseline::kernels, always},
#endif
};

const Isa* find_isa(const std::string& name, const std::string& asked_by) {
  std::string expected;
  for (const Isa& isa : kIsas) {
    if (!isa.available()) continue;
    if (name == isa.name) return &isa;
    expected += (expected.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw std::invalid_argument(asked_by + ": not an instruction set of this machine and build; got '" + name +
                              "', expected one of: " + expected);
}

const Isa* default_isa() {
  if (const char* name = std::getenv("MPSFUNC_ISA")) return find_isa(name, "MPSFUNC_ISA");
  for (const Isa& isa : kIsas) {
    if (isa.available()) return &isa;
  }
  throw std::runtime_error("mpsfunc's CPU module was built without an instruction set of this machine (MPSF_ISAS)");
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

void run_kernel(Op op, const Call& call) { active().load()->kernels[static_cast<int>(op)](call); }

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
