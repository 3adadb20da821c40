// Kernels in machine code, launched on NVIDIA GPUs without MLX's own primitive for them, which at each launch takes a
// digest of the whole code and looks the kernel up by two names.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

struct CUfunc_st;  // of CUDA, by which libmlx's functions are named
struct CUmod_st;
struct CUctx_st;

namespace mpsf {

namespace mx = mlx::core;

struct CommandEncoder;  // of MLX

struct Dim3 {  // CUDA's dim3
  unsigned x, y, z;
};

// What a launch asks of libmlx and libcuda. Members of MLX take the object first, as C++ on Linux calls them.
struct CudaFunctions {
  CommandEncoder& (*encoder_of)(mx::Stream) = nullptr;
  void (*reads)(CommandEncoder*, const mx::array&) = nullptr;
  void (*writes)(CommandEncoder*, const mx::array&) = nullptr;
  void (*add_kernel)(CommandEncoder*, CUfunc_st*, Dim3 blocks, Dim3 threads, Dim3 cluster, unsigned shared,
                     void** arguments) = nullptr;
  void (*make_room)(mx::Stream, std::vector<mx::array>&) = nullptr;
  int (*context)(CUctx_st**) = nullptr;                            // cuCtxGetCurrent
  int (*load)(CUmod_st**, const void*) = nullptr;                  // cuModuleLoadData
  int (*function)(CUfunc_st**, CUmod_st*, const char*) = nullptr;  // cuModuleGetFunction
  int (*attribute)(void*, int, unsigned long long) = nullptr;      // cuPointerGetAttribute

  bool complete() const {
    return encoder_of && reads && writes && add_kernel && make_room && context && load && function && attribute;
  }
};

// Those of the libraries of this process, incomplete where MLX has no CUDA backend.
const CudaFunctions& cuda_functions();

// One launch: which kernel, the numbers that it takes behind its arrays, and threads.
struct CudaLaunch {
  int kernel = -1;  // what keep_cuda_kernel() gave; none if negative
  std::vector<int> numbers;
  std::array<int, 3> grid{};  // threads
  std::array<int, 3> threadgroup{};
};

// Keeps machine code under a number. It is loaded when a GPU first runs it, and stays.
int keep_cuda_kernel(std::string name, std::string code);

// Makes room for the outputs and launches the kernel on the stream, behind what MLX has launched there. False, and
// nothing is launched, where an input has gaps or libmlx and libcuda are not what this was written for.
bool launch_directly(const CudaLaunch& launch, mx::Stream stream, const std::vector<mx::array>& in,
                     std::vector<mx::array>& out, const CudaFunctions& functions = cuda_functions());

}  // namespace mpsf
