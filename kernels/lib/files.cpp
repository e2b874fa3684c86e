#include "files.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "failure.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#include <io.h>
#else
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace edgedec::lib {

namespace {

class Given : public Bytes {
 public:
  Given(const void* from, uint64_t bytes) { data = (const uint8_t*)from, size = bytes; }
};

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  const size_t slash = path.find_last_of("/\\") + 1;
#if defined(_WIN32)
  const unsigned long process = GetCurrentProcessId();
#else
  const unsigned long process = (unsigned long)getpid();
#endif
  return path.substr(0, slash) + "." + path.substr(slash) + ".partial-" + std::to_string(process) + "-" +
         std::to_string(counter.fetch_add(1));
}

}  // namespace

SharedBytes bytes_of(const void* data, uint64_t size) { return std::make_shared<Given>(data, size); }

#if defined(_WIN32)

namespace {

std::wstring wide(const std::string& text) {
  const int n = MultiByteToWideChar(CP_UTF8, 0, text.data(), (int)text.size(), nullptr, 0);
  std::wstring out((size_t)n, L'\0');
  MultiByteToWideChar(CP_UTF8, 0, text.data(), (int)text.size(), out.data(), n);
  return out;
}

class Mapped : public Bytes {
 public:
  Mapped(HANDLE file, uint64_t offset, uint64_t bytes, const std::string& what) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    const uint64_t begin = offset / system.dwAllocationGranularity * system.dwAllocationGranularity;
    size = bytes;
    if (!bytes) return;
    mapping_ = CreateFileMappingW(file, nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (mapping_)
      view_ = MapViewOfFile(mapping_, FILE_MAP_READ, (DWORD)(begin >> 32), (DWORD)begin, (SIZE_T)(offset - begin + bytes));
    if (!view_) {
      if (mapping_) CloseHandle(mapping_);
      throw Failure(EDGEDEC_IO, what + ": cannot be mapped");
    }
    data = (const uint8_t*)view_ + (offset - begin);
  }
  ~Mapped() override {
    if (view_) UnmapViewOfFile(view_);
    if (view_) CloseHandle(mapping_);
  }

 private:
  HANDLE mapping_ = nullptr;
  void* view_ = nullptr;
};

}  // namespace

FileKind kind_of(const std::string& path) {
  const DWORD found = GetFileAttributesW(wide(path).c_str());
  if (found == INVALID_FILE_ATTRIBUTES) return FileKind::NONE;
  return found & FILE_ATTRIBUTE_DIRECTORY ? FileKind::FOLDER : FileKind::FILE;
}

bool is_link(const std::string& path) {
  const DWORD found = GetFileAttributesW(wide(path).c_str());
  return found != INVALID_FILE_ATTRIBUTES && found & FILE_ATTRIBUTE_REPARSE_POINT;
}

bool stays_inside(const std::string&, const std::string&) { return false; }

uint64_t size_of(const std::string& path) {
  WIN32_FILE_ATTRIBUTE_DATA found;
  if (!GetFileAttributesExW(wide(path).c_str(), GetFileExInfoStandard, &found)) return 0;
  return (uint64_t)found.nFileSizeHigh << 32 | found.nFileSizeLow;
}

SharedBytes map_file(const std::string& path) {
  const HANDLE file = CreateFileW(wide(path).c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                                  OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (file == INVALID_HANDLE_VALUE) throw Failure(EDGEDEC_IO, path + ": cannot be opened");
  LARGE_INTEGER size;
  try {
    if (!GetFileSizeEx(file, &size)) throw Failure(EDGEDEC_IO, path + ": cannot be read");
    SharedBytes made = std::make_shared<Mapped>(file, 0, (uint64_t)size.QuadPart, path);
    CloseHandle(file);
    return made;
  } catch (...) {
    CloseHandle(file);
    throw;
  }
}

SharedBytes map_descriptor(int fd, uint64_t offset, uint64_t size) {
  const HANDLE file = (HANDLE)_get_osfhandle(fd);
  LARGE_INTEGER all;
  if (file == INVALID_HANDLE_VALUE || !GetFileSizeEx(file, &all)) throw Failure(EDGEDEC_IO, "not an open file");
  if (offset > (uint64_t)all.QuadPart || size > (uint64_t)all.QuadPart - offset)
    throw Failure(EDGEDEC_USAGE, "offset and size reach beyond the end of the file");
  return std::make_shared<Mapped>(file, offset, size, "the open file");
}

namespace {

bool put(const std::string& path, std::initializer_list<std::string_view> parts) {
  const HANDLE file = CreateFileW(wide(path).c_str(), GENERIC_WRITE, 0, nullptr, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (file == INVALID_HANDLE_VALUE) return false;
  bool good = true;
  for (std::string_view part : parts)
    while (good && !part.empty()) {
      DWORD done = 0;
      good = WriteFile(file, part.data(), (DWORD)(part.size() < (1u << 30) ? part.size() : 1u << 30), &done, nullptr) && done;
      part.remove_prefix(good ? done : 0);
    }
  good = good && FlushFileBuffers(file);
  return CloseHandle(file) && good;
}

}  // namespace

void write_whole(const std::string& path, std::initializer_list<std::string_view> parts) {
  const std::string partial = temporary_name(path);
  if (!put(partial, parts) || !MoveFileExW(wide(partial).c_str(), wide(path).c_str(), MOVEFILE_REPLACE_EXISTING)) {
    DeleteFileW(wide(partial).c_str());
    throw Failure(EDGEDEC_IO, path + ": cannot be written");
  }
}

#else

namespace {

class Mapped : public Bytes {
 public:
  Mapped(int fd, uint64_t offset, uint64_t bytes, const std::string& what) {
    size = bytes;
    if (!bytes) return;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = offset / page * page;
    length_ = (size_t)(offset - begin + bytes);
    map_ = mmap(nullptr, length_, PROT_READ, MAP_SHARED, fd, (off_t)begin);
    if (map_ == MAP_FAILED) throw Failure(EDGEDEC_IO, what + ": cannot be mapped: " + std::strerror(errno));
    data = (const uint8_t*)map_ + (offset - begin);
  }
  ~Mapped() override {
    if (size) munmap(map_, length_);
  }

 private:
  void* map_ = nullptr;
  size_t length_ = 0;
};

struct Descriptor {
  explicit Descriptor(int fd) : fd(fd) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  const int fd;
};

std::string real_path(const std::string& path) {
  char* found = ::realpath(path.c_str(), nullptr);
  std::string out = found ? found : "";
  free(found);
  return out;
}

bool put(const std::string& path, std::initializer_list<std::string_view> parts) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  bool good = true;
  for (std::string_view part : parts)
    while (good && !part.empty()) {
      const ssize_t done = ::write(fd, part.data(), part.size() < (1u << 30) ? part.size() : 1u << 30);
      if (done < 0 && errno == EINTR) continue;
      good = done > 0;
      part.remove_prefix(good ? (size_t)done : 0);
    }
  good = good && ::fsync(fd) == 0;
  return ::close(fd) == 0 && good;
}

}  // namespace

FileKind kind_of(const std::string& path) {
  struct stat found;
  if (::stat(path.c_str(), &found)) return FileKind::NONE;
  return S_ISREG(found.st_mode) ? FileKind::FILE : S_ISDIR(found.st_mode) ? FileKind::FOLDER : FileKind::OTHER;
}

bool is_link(const std::string& path) {
  struct stat found;
  return !::lstat(path.c_str(), &found) && S_ISLNK(found.st_mode);
}

bool stays_inside(const std::string& folder, const std::string& path) {
  const std::string real = real_path(path), home = real_path(folder);
  const size_t slash = real.find_last_of('/');
  return !home.empty() && slash != std::string::npos && real.substr(0, slash) == home;
}

uint64_t size_of(const std::string& path) {
  struct stat found;
  return ::stat(path.c_str(), &found) ? 0 : (uint64_t)found.st_size;
}

SharedBytes map_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found;
  if (file.fd < 0 || ::fstat(file.fd, &found))
    throw Failure(EDGEDEC_IO, path + ": cannot be read: " + std::strerror(errno));
  return std::make_shared<Mapped>(file.fd, 0, (uint64_t)found.st_size, path);
}

SharedBytes map_descriptor(int fd, uint64_t offset, uint64_t size) {
  struct stat found;
  if (::fstat(fd, &found)) throw Failure(EDGEDEC_IO, std::string("not an open file: ") + std::strerror(errno));
  if (offset > (uint64_t)found.st_size || size > (uint64_t)found.st_size - offset)
    throw Failure(EDGEDEC_USAGE, "offset and size reach beyond the end of the file");
  return std::make_shared<Mapped>(fd, offset, size, "the open file");
}

void write_whole(const std::string& path, std::initializer_list<std::string_view> parts) {
  const std::string partial = temporary_name(path);
  if (!put(partial, parts) || ::rename(partial.c_str(), path.c_str())) {
    const std::string why = std::strerror(errno);
    ::unlink(partial.c_str());
    throw Failure(EDGEDEC_IO, path + ": cannot be written: " + why);
  }
}

#endif

}  // namespace edgedec::lib
