// The processors of this machine.
#pragma once
#include <vector>

namespace edgedec::lib {

int available_cores();              // that this process may use
const std::vector<int>& big_cores();  // the fastest ones of them; all if they are equal or unknown
void stay_on(const std::vector<int>& cores);  // pins the calling thread, and threads that it starts
void set_priority(int nice);                  // the same
}  // namespace edgedec::lib
