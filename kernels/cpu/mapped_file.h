// Mapped files: memory of an unnamed one, which the system can drop from memory and which is deleted with the process, and
// parts of any that are about to be read.
#pragma once
#include <cstddef>
#include <cstdint>

namespace edgedec {

// `bytes` of a new file in a folder. Null: there is no room, no such folder, or the system has no such files.
uint8_t* map_file(const char* folder, size_t bytes);
void unmap_file(uint8_t* memory, size_t bytes);
// Lets the system drop this part from memory; it is read again on use.
void rest_file(uint8_t* memory, size_t bytes);

// As much as Linux reads at a page fault by default. Of one request to read ahead it does no more than this or than the
// device takes at once, and leaves out the rest, so requests are of this size.
constexpr size_t READ_AT_ONCE = 128 << 10;

// Begins to read a part of a mapped file, and returns; of other memory, and on Windows, it does nothing.
void read_ahead(const void* memory, size_t bytes);
// Whether the page of this address is in memory, or the system does not say: Linux says so of all pages of a file that the
// process may not write.
bool in_memory(const void* memory);

}  // namespace edgedec
