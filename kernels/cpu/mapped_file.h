// Mapped memory of an unnamed file: the system can drop it from memory, and it is deleted with the process.
#pragma once
#include <cstddef>
#include <cstdint>

namespace edgedec {

// `bytes` of a new file in a folder. Null: there is no room, no such folder, or the system has no such files.
uint8_t* map_file(const char* folder, size_t bytes);
void unmap_file(uint8_t* memory, size_t bytes);
// Lets the system drop this part from memory; it is read again on use.
void rest_file(uint8_t* memory, size_t bytes);

}  // namespace edgedec
