// The processors of this machine.
#pragma once
#include <vector>

namespace edgedec::lib {

int available_cores();              // that this process may use
const std::vector<int>& big_cores();  // the fastest ones of them; all where they are equal or nobody says
void stay_on(const std::vector<int>& cores);  // the calling thread, and those it makes
void set_priority(int nice);                  // the same
}  // namespace edgedec::lib
