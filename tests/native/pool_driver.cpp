// Exercises the thread pool by itself: test_native.py builds it, with and without the thread sanitizer.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/parallel.h"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  _exit(1);
}

// Every chunk writes its own cells without atomics, so a chunk that runs twice or late is a wrong sum or a race.
void fill_and_check(int64_t chunks, int64_t value) {
  constexpr int64_t kCells = 500;  // work enough for helpers to arrive
  std::vector<int64_t> cells(chunks * kCells, 0);
  mpsf::parallel_for(chunks, [&](int64_t i) {
    for (int64_t j = 0; j < kCells; ++j) cells[i * kCells + j] += value + i;
  });
  int64_t sum = 0;
  for (int64_t cell : cells) sum += cell;
  require(sum == (chunks * value + chunks * (chunks - 1) / 2) * kCells,
          "every chunk ran once before the call returned");
}

void stress() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([caller] {
      for (int round = 0; round < 200; ++round) fill_and_check(1 + round % 37, caller + round);
    });
  }
  for (int threads : {1, 4, 2, 3}) {
    mpsf::set_num_threads(threads);
    fill_and_check(100, threads);
  }
  for (auto& caller : callers) caller.join();
}

void nested() {
  std::vector<int64_t> cells(64, 0);
  mpsf::parallel_for(8, [&](int64_t i) { mpsf::parallel_for(8, [&](int64_t j) { cells[i * 8 + j] = i * 8 + j; }); });
  for (int64_t i = 0; i < 64; ++i) require(cells[i] == i, "a nested call runs in its caller");
}

void exceptions() {
  for (int threads : {1, 3}) {
    mpsf::set_num_threads(threads);
    for (int round = 0; round < 50; ++round) {
      bool thrown = false;
      try {
        mpsf::parallel_for(40, [&](int64_t i) {
          if (i == round % 40) throw std::runtime_error("chunk");
        });
      } catch (const std::runtime_error& error) {
        thrown = std::strcmp(error.what(), "chunk") == 0;
      }
      require(thrown, "the exception of a chunk reached the caller");
      fill_and_check(20, round);
    }
  }
}

// Three threads that each wait for the others in their first chunk begin in runs of their own, the caller in the first.
void shares() {
  for (int round = 0; round < 20; ++round) {
    std::mutex mutex;
    std::map<std::thread::id, int64_t> first;
    std::atomic<int> runs{0}, begun{0};
    mpsf::parallel_for(9, [&](int64_t i) {
      ++runs;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (!first.emplace(std::this_thread::get_id(), i).second) return;
      }
      ++begun;
      const auto start = std::chrono::steady_clock::now();
      while (begun < 3 && std::chrono::steady_clock::now() - start < std::chrono::seconds(10))
        std::this_thread::yield();
    });
    require(runs == 9, "all chunks ran");
    require(first[std::this_thread::get_id()] == 0, "the caller begins with the first chunk");
    std::vector<int64_t> begins;
    for (const auto& [thread, chunk] : first) begins.push_back(chunk);
    std::sort(begins.begin(), begins.end());
    require(begins == std::vector<int64_t>({0, 3, 6}), "each thread begins in a run of its own");
  }
}

void forks() {
  fill_and_check(64, 1);
  for (int child = 0; child < 3; ++child) {
    pid_t pid = fork();
    if (pid == 0) {
      alarm(10);  // a hang is a failure
      fill_and_check(64, 2);
      fill_and_check(64, 3);
      _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    require(status == 0, "a forked child has a pool of its own");
  }
  fill_and_check(64, 4);
}

// Returns from main while another thread is still at work.
void leaves() {
  std::thread([] {
    for (int64_t round = 0;; ++round) fill_and_check(16, round);
  }).detach();
  fill_and_check(64, 1);
}

}  // namespace

int main(int, char** argv) {
  mpsf::set_num_threads(3);
  const char* names[] = {"stress", "nested", "exceptions", "shares", "forks", "leaves"};
  void (*const modes[])() = {stress, nested, exceptions, shares, forks, leaves};
  for (int i = 0; i < 6; ++i) {
    if (std::strcmp(argv[1], names[i]) == 0) {
      modes[i]();
      return 0;
    }
  }
  return 2;
}
