// The convolutions of the AMX level over a model of its instructions, as a library that test_tiles.py calls. Chunks run
// backwards on the calling thread. Scratch memory is of NaN, and what lies behind it ends the program.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <new>

#include "runtime/call.h"
#include "runtime/parallel.h"

namespace mpsf {

namespace below {  // what the level leaves to AVX-512 is not tested here
void conv(const Call&) { abort(); }
void conv_layout(const Call&) { abort(); }
void conv_laid_out(const Call&) { abort(); }
int64_t layout_words(Type, const int*, int) { abort(); }
void conv_grad_input(const Call&) { abort(); }
void conv_grad_weights(const Call&) { abort(); }
}  // namespace below
namespace tested {
void conv(const Call&);
void conv_layout(const Call&);
void conv_laid_out(const Call&);
int64_t layout_words(Type weights, const int* shape, int groups);
void conv_grad_input(const Call&);
void conv_grad_weights(const Call&);
}  // namespace tested

void run_chunks(void* context, Task task, int64_t chunks) {
  for (int64_t i = chunks - 1; i >= 0; --i) task(context, i);
}
bool works_alone() { return true; }
int get_num_threads() { return 1; }

namespace {
struct Pages {
  void* begin;
  size_t size;
};
std::map<void*, Pages>& pages() {
  static std::map<void*, Pages> known;
  return known;
}
}  // namespace

void* scratch_alloc(int64_t bytes) {
  constexpr size_t kPage = 1 << 16, kAlign = 64;  // of any machine
  const size_t wanted = (static_cast<size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
  const size_t readable = (wanted + kPage - 1) / kPage * kPage;
  void* begin = mmap(nullptr, readable + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED || mprotect(static_cast<char*>(begin) + readable, kPage, PROT_NONE) != 0) {
    throw std::bad_alloc();
  }
  void* memory = static_cast<char*>(begin) + (readable - wanted);
  memset(memory, 0xff, wanted);
  pages()[memory] = {begin, readable + kPage};
  return memory;
}
void scratch_free(void* memory) noexcept {
  const Pages of = pages()[memory];
  pages().erase(memory);
  munmap(of.begin, of.size);
}

}  // namespace mpsf

extern "C" [[gnu::visibility("default")]] void run(const char* op, const mpsf::Tensor* in, const mpsf::Tensor* out,
                                                   int out_count, const int* params) {
  const mpsf::Call call = {in, out, out_count, params};
  if (strcmp(op, "conv") == 0) {
    mpsf::tested::conv(call);
  } else if (strcmp(op, "conv_grad_input") == 0) {
    mpsf::tested::conv_grad_input(call);
  } else {
    mpsf::tested::conv_grad_weights(call);
  }
}

// "conv" with weights that are laid out first, and a fourth input that is added; false where weights are not laid out.
extern "C" [[gnu::visibility("default")]] bool run_laid_out(const mpsf::Tensor* in, int in_count,
                                                            const mpsf::Tensor* out, const int* params, int groups) {
  const int64_t words = mpsf::tested::layout_words(in[1].type, in[1].shape, groups);
  if (words == 0) return false;
  const mpsf::Scratch<int> room(words);
  const mpsf::Tensor laid = {room.get(), words, {static_cast<int>(words)}, 1, mpsf::Type::u32, false};
  const int layout[] = {0, groups};
  mpsf::tested::conv_layout({in + 1, &laid, 1, layout});
  mpsf::Tensor given[4] = {in[0], laid, in[2]};
  if (in_count > 3) given[3] = in[3];
  mpsf::tested::conv_laid_out({given, out, 1, params, in_count});
  return true;
}
