#include "failure.h"

#include <cstring>

namespace edgedec::lib {

namespace {

constexpr size_t LONGEST = 1024;
// No std::string: a thread's first error may be that there is no memory.
thread_local char last_error[LONGEST];

}  // namespace

int failed(int status, const char* message) noexcept {
  const size_t n = std::strlen(message);
  const size_t kept = n < LONGEST ? n : LONGEST - 1;
  std::memcpy(last_error, message, kept);
  for (size_t i = 0; i < kept; i++)
    if (last_error[i] == '\n' || last_error[i] == '\r') last_error[i] = ' ';
  last_error[kept] = '\0';
  return status;
}

}  // namespace edgedec::lib

const char* edgedec_last_error(void) { return edgedec::lib::last_error; }
