// How functions of this library fail: by an exception inside, by a number and a message outside.
#pragma once
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "edgedec.h"

namespace edgedec::lib {

class Failure : public std::exception {
 public:
  Failure(int status, std::string message) : status(status), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }
  const int status;
  const std::string message;
};

// Sets edgedec_last_error() of this thread; returns `status`.
int failed(int status, const char* message) noexcept;

// The status of `work` for functions of the interface: EDGEDEC_OK, or that of its exception.
template <class Work>
int guarded(Work work) noexcept {
  try {
    work();
    return failed(EDGEDEC_OK, "");
  } catch (const Failure& failure) {
    return failed(failure.status, failure.what());
  } catch (const std::bad_alloc&) {
    return failed(EDGEDEC_MEMORY, "not enough memory");
  } catch (const std::exception& error) {
    return failed(EDGEDEC_UNAVAILABLE, error.what());
  } catch (...) {
    return failed(EDGEDEC_UNAVAILABLE, "an error without a name");
  }
}

}  // namespace edgedec::lib
