#include "cores.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace edgedec::lib {

#if defined(__linux__)

namespace {

std::vector<int> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> out;
  if (sched_getaffinity(0, sizeof set, &set)) return out;
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set)) out.push_back(i);
  return out;
}

// A core's speed from the kernel; 0: unknown.
long speed(int core) {
  for (const char* fact : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(core) + "/" + fact;
    long found = 0;
    if (FILE* file = std::fopen(path.c_str(), "r")) {
      if (std::fscanf(file, "%ld", &found) != 1) found = 0;
      std::fclose(file);
    }
    if (found > 0) return found;
  }
  return 0;
}

std::vector<int> fastest() {
  std::vector<int> cores = own_cores();
  long least = 0, most = 0;
  for (size_t i = 0; i < cores.size(); i++) {
    const long found = speed(cores[i]);
    least = i ? std::min(least, found) : found, most = std::max(most, found);
  }
  // The slowest kind is left out, if there is another that is a fifth faster.
  if (most * 5 <= least * 6) return cores;
  cores.erase(std::remove_if(cores.begin(), cores.end(), [&](int core) { return speed(core) * 5 <= least * 6; }), cores.end());
  return cores;
}

}  // namespace

int available_cores() { return std::max<int>(1, (int)own_cores().size()); }

const std::vector<int>& big_cores() {
  static const std::vector<int> found = fastest();
  return found;
}

void stay_on(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  if (!cores.empty()) sched_setaffinity(0, sizeof set, &set);
}

void set_priority(int nice) { setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice); }

#else

int available_cores() { return std::max(1, (int)std::thread::hardware_concurrency()); }

const std::vector<int>& big_cores() {
  static const std::vector<int> all((size_t)available_cores(), 0);
  return all;
}

void stay_on(const std::vector<int>&) {}
void set_priority(int) {}

#endif

}  // namespace edgedec::lib
