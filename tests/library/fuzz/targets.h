#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace fuzz {

// Runs the target on an input; whether the library accepted it.
bool accepted(const uint8_t* data, size_t size);
// A seed for each target that reads files, under its name.
void write_seeds(const std::string& folder);

}  // namespace fuzz
