// Which of the compiled instruction sets runs: the widest one of this machine, or the one asked for.
#pragma once
#include <string>
#include <vector>

#include "runtime/call.h"
#include "runtime/operations.h"

namespace mpsf {

#define MPSF_ENUMERATE(op) op,
enum class Op : int { MPSF_KERNELS(MPSF_ENUMERATE) };
#undef MPSF_ENUMERATE

const char* op_name(Op op);

// Runs the kernel on the calling thread and the pool.
void run_kernel(Op op, const Call& call);

// Names of the instruction sets that were compiled and that this machine has, widest first.
std::vector<std::string> isas();
std::string active_isa();
void set_isa(const std::string& name);

}  // namespace mpsf
