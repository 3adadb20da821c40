#include "binding/cuda_kernel.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "binding/libmlx.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/version.h"

namespace mpsf {
namespace {

constexpr int kSuccess = 0;     // CUDA_SUCCESS
constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE

struct Code {
  std::string name, code;
  std::unordered_map<CUctx_st*, CUfunc_st*> loaded;  // null where MLX launches it
};

std::mutex codes_mutex;
std::vector<Code>& codes() {
  static auto* const kept = new std::vector<Code>;  // never deleted: the GPU may be gone before
  return *kept;
}

struct Loaded {
  CUfunc_st* function;
  bool is_new;
};

// The kernel on a GPU, null where it does not load.
Loaded loaded(int kernel, CUctx_st* context, const CudaFunctions& functions) {
  const std::lock_guard lock(codes_mutex);
  Code& code = codes().at(size_t(kernel));
  const auto [found, is_new] = code.loaded.try_emplace(context, nullptr);
  CUmod_st* module = nullptr;
  CUfunc_st* function = nullptr;
  if (is_new && functions.load(&module, code.code.data()) == kSuccess &&
      functions.function(&function, module, code.name.c_str()) == kSuccess) {
    found->second = function;
  }
  return {found->second, is_new};
}

void leave_to_mlx(int kernel, CUctx_st* context) {
  const std::lock_guard lock(codes_mutex);
  codes().at(size_t(kernel)).loaded[context] = nullptr;
}

// Where an array's elements are: MLX's buffer begins with the address of its memory.
void* address(const mx::array& a) {
  const mx::allocator::Buffer buffer = a.buffer();
  return static_cast<char*>(*static_cast<void* const*>(buffer.ptr())) + a.offset();
}

// Versions of MLX with which `pytest -m gpu` has run: others may concatenate nothing otherwise.
constexpr bool kTried = MLX_VERSION_NUMERIC == 32004;

// MLX does not export how it makes room on a GPU. A concatenation of no arrays makes room for its result and is done,
// as which a profiler shows it.
void make_room(mx::Stream stream, std::vector<mx::array>& out) {
  static thread_local std::unordered_map<int, std::shared_ptr<mx::Primitive>> concatenations;
  std::shared_ptr<mx::Primitive>& concatenation = concatenations[stream.index];
  if (!concatenation) {
    const mx::array one = mx::zeros({1}, mx::float32, stream);
    concatenation = mx::concatenate({one, one}, 0, stream).primitive_ptr();
  }
  for (mx::array& each : out) {
    std::vector<mx::array> result{each};
    concatenation->eval_gpu({}, result);
  }
}

}  // namespace

const CudaFunctions& cuda_functions() {
  static const CudaFunctions found = [] {
    CudaFunctions f;
    const Library libmlx(path_of_libmlx()), libcuda("libcuda.so.1");
    libmlx.find(f.encoder_of, kEncoderOf);
    libmlx.find(f.reads, "_ZN3mlx4core2cu14CommandEncoder15set_input_arrayERKNS0_5arrayE");
    libmlx.find(f.writes, "_ZN3mlx4core2cu14CommandEncoder16set_output_arrayERKNS0_5arrayE");
    libmlx.find(f.add_kernel, "_ZN3mlx4core2cu14CommandEncoder19add_kernel_node_rawEP9CUfunc_st4dim3S5_S5_jPPv");
    f.make_room = kTried ? make_room : nullptr;
    libcuda.find(f.context, "cuCtxGetCurrent");
    libcuda.find(f.load, "cuModuleLoadData");
    libcuda.find(f.function, "cuModuleGetFunction");
    libcuda.find(f.attribute, "cuPointerGetAttribute");
    return f;
  }();
  return found;
}

int keep_cuda_kernel(std::string name, std::string code) {
  const std::lock_guard lock(codes_mutex);
  codes().push_back({std::move(name), std::move(code), {}});
  return int(codes().size()) - 1;
}

bool launch_directly(const CudaLaunch& launch, mx::Stream stream, const std::vector<mx::array>& in,
                     std::vector<mx::array>& out, const CudaFunctions& functions) {
  if (launch.kernel < 0 || !functions.complete()) return false;
  if (!std::all_of(in.begin(), in.end(), [](const mx::array& a) { return a.flags().row_contiguous; })) return false;
  CUctx_st* context = nullptr;
  if (functions.context(&context) != kSuccess || !context) return false;
  const Loaded kernel = loaded(launch.kernel, context, functions);
  if (!kernel.function) return false;
  functions.make_room(stream, out);

  std::vector<void*> addresses, arguments;
  addresses.reserve(in.size() + out.size());
  arguments.reserve(in.size() + out.size() + launch.numbers.size());
  for (const mx::array& a : in) addresses.push_back(address(a));
  for (const mx::array& a : out) addresses.push_back(address(a));
  const auto is_known = [&](void* each) {
    int type = 0;
    return functions.attribute(&type, kMemoryType, reinterpret_cast<unsigned long long>(each)) == kSuccess;
  };
  if (kernel.is_new && !std::all_of(addresses.begin(), addresses.end(), is_known)) {
    leave_to_mlx(launch.kernel, context);  // buffers are not what they were when this was written
    return false;
  }
  for (void*& each : addresses) arguments.push_back(&each);
  for (const int& each : launch.numbers) arguments.push_back(const_cast<int*>(&each));

  CommandEncoder& encoder = functions.encoder_of(stream);
  for (const mx::array& a : in) functions.reads(&encoder, a);
  for (const mx::array& a : out) functions.writes(&encoder, a);
  unsigned blocks[3], threads[3];
  for (size_t i = 0; i < 3; i++) {
    threads[i] = unsigned(std::min(launch.threadgroup[i], launch.grid[i]));
    blocks[i] = unsigned((launch.grid[i] + launch.threadgroup[i] - 1) / launch.threadgroup[i]);
  }
  functions.add_kernel(&encoder, kernel.function, {blocks[0], blocks[1], blocks[2]},
                       {threads[0], threads[1], threads[2]}, {0, 0, 0}, 0, arguments.data());
  return true;
}

}  // namespace mpsf
