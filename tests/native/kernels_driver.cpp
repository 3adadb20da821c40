// Runs kernels on recorded calls from several threads at once: test_native.py records them, and builds this without MLX
// from the pool and one instruction set's kernels, with the thread sanitizer.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/call.h"
#include "runtime/parallel.h"

#define RECORDED(X)    \
  X(avg_pool)          \
  X(avg_pool_grad)     \
  X(bn_stats)          \
  X(bn_normalize)      \
  X(bn_stats_grad)     \
  X(bn_grad)           \
  X(bn_normalize_by)   \
  X(bn_stats_grad_by)  \
  X(bn_grad_by)        \
  X(batch_norm)        \
  X(batch_norm_grad)   \
  X(conv)              \
  X(conv_grad_input)   \
  X(conv_grad_weights) \
  X(conv_grad_bias)    \
  X(dropout)           \
  X(dropout_by_mask)   \
  X(dropout_mask)

namespace mpsf::MPSF_ISA {
#define DECLARE(op) void op(const Call&);
RECORDED(DECLARE)
}  // namespace mpsf::MPSF_ISA

namespace {

using Bytes = std::vector<char>;

constexpr int kThreads = 4, kRounds = 3;
constexpr int64_t kItemSizes[] = {4, 2, 2, 8, 8, 8, 1, 2, 4};  // of each Type

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  _exit(1);
}

void (*kernel_named(const std::string& name))(const mpsf::Call&) {
#define FIND(op) \
  if (name == #op) return &mpsf::MPSF_ISA::op;
  RECORDED(FIND)
#undef FIND
  require(false, name.c_str());
  return nullptr;
}

struct Recorded {
  std::string name;
  std::vector<int> params;
  std::vector<mpsf::Tensor> in, out;
  std::vector<Bytes> data;  // of the inputs, which all threads read
};

int64_t bytes_of(const mpsf::Tensor& tensor) { return tensor.size * kItemSizes[static_cast<int>(tensor.type)]; }

mpsf::Tensor read_tensor(std::istream& file) {
  mpsf::Tensor tensor{};
  int type;
  file >> type >> tensor.ndim;
  tensor.type = static_cast<mpsf::Type>(type);
  tensor.size = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    file >> tensor.shape[i];
    tensor.size *= tensor.shape[i];
  }
  return tensor;
}

// Words in a line for each call: its name; how many params, inputs and outputs; these, a tensor as its type, its rank
// and its shape. Then the bytes of the inputs.
std::vector<Recorded> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Recorded> calls;
  for (Recorded call; file >> call.name; calls.push_back(std::move(call)), call = Recorded{}) {
    size_t params, inputs, outputs;
    file >> params >> inputs >> outputs;
    call.params.resize(params);
    for (int& param : call.params) file >> param;
    for (size_t i = 0; i < inputs; ++i) call.in.push_back(read_tensor(file));
    for (size_t i = 0; i < outputs; ++i) call.out.push_back(read_tensor(file));
    file.get();  // the line's end
    for (mpsf::Tensor& tensor : call.in) {
      Bytes& data = call.data.emplace_back(static_cast<size_t>(bytes_of(tensor)));
      file.read(data.data(), static_cast<std::streamsize>(data.size()));
      tensor.data = data.data();
    }
    require(file.good(), "the file holds what it announces");
  }
  return calls;
}

// What a call writes into memory that is filled with `poison`.
std::vector<Bytes> run(const Recorded& call, char poison) {
  std::vector<mpsf::Tensor> out = call.out;
  std::vector<Bytes> made;
  for (mpsf::Tensor& tensor : out) {
    made.emplace_back(static_cast<size_t>(bytes_of(tensor)), poison);
    tensor.data = made.back().data();
  }
  kernel_named(call.name)({call.in.data(), out.data(), static_cast<int>(out.size()), call.params.data()});
  return made;
}

}  // namespace

int main(int, char** argv) {
  const std::vector<Recorded> calls = read(argv[1]);
  require(!calls.empty(), "there are calls");
  mpsf::set_num_threads(1);
  std::vector<std::vector<Bytes>> expected;
  for (const Recorded& call : calls) expected.push_back(run(call, 'e'));

  mpsf::set_num_threads(3);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = 0; i < kRounds * calls.size(); ++i) {
        const size_t which = (i + static_cast<size_t>(thread)) % calls.size();
        require(run(calls[which], static_cast<char>('0' + thread)) == expected[which], calls[which].name.c_str());
      }
    });
  }
  for (int count : {2, 4, 1, 3}) {
    mpsf::set_num_threads(count);
    for (size_t i = 0; i < calls.size(); ++i) require(run(calls[i], 'm') == expected[i], calls[i].name.c_str());
  }
  for (auto& thread : threads) thread.join();
  std::printf("%zu calls\n", calls.size());
  return 0;
}
