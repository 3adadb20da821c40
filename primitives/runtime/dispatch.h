// Which of the compiled instruction sets runs: the widest one of this machine, or the one asked for.
// What is marked visible here, in check.h and in parallel.h is all that the binding calls, and all that is seen of the
// library. A binding may be built long after it, by users for their MLX: both know a digest of these headers, and are
// used together only where it is the same.
#pragma once
#include <string>
#include <vector>

#include "runtime/call.h"
#include "runtime/operations.h"

namespace mpsf {

#define MPSF_ENUMERATE(op) op,
enum class Op : int { MPSF_KERNELS(MPSF_ENUMERATE) };
#undef MPSF_ENUMERATE

[[gnu::visibility("default")]] const char* op_name(Op op);

// The digest that the library was built with.
[[gnu::visibility("default")]] const char* interface();

// Runs the kernel on the calling thread and the pool.
[[gnu::visibility("default")]] void run_kernel(Op op, const Call& call);

// Names of the instruction sets that were compiled and that this machine has, widest first.
[[gnu::visibility("default")]] std::vector<std::string> isas();
[[gnu::visibility("default")]] std::string active_isa();
[[gnu::visibility("default")]] void set_isa(const std::string& name);

}  // namespace mpsf
