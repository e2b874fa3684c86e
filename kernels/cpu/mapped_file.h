// Memory of a file that has no name: what lies there need not stay in memory, and goes with the process.
#pragma once
#include <cstddef>
#include <cstdint>

namespace edgedec {

// `bytes` of a new file in a folder. Null: there is no room, no such folder, or the system has no such files.
uint8_t* map_file(const char* folder, size_t bytes);
void unmap_file(uint8_t* memory, size_t bytes);
// The system may take this part out of memory; it is read again when it is used.
void rest_file(uint8_t* memory, size_t bytes);

}  // namespace edgedec
