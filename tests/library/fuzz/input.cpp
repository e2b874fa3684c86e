#include "input.h"

#include <algorithm>
#include <cstdlib>

#include "json.h"
#include "sha256.h"

namespace fuzz {

using namespace edgedec::lib;

namespace {

constexpr size_t HEADER = 64, ALIGN = 64, ARRAYS = 48;

void put(std::string& out, size_t at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) out[at + (size_t)i] = (char)(value >> 8 * i);
}

uint64_t get(const std::string& in, size_t at) {
  uint64_t value = 0;
  for (int i = 8; i-- > 0;) value = value << 8 | (unsigned char)in[at + (size_t)i];
  return value;
}

void hash_index(std::string& raw, size_t bytes) {
  Sha256 hash;
  hash.add(raw.data() + HEADER, bytes);
  hash.digest((uint8_t*)raw.data() + 32);
}

std::string index_of(const std::vector<File>& files, size_t room, std::vector<size_t>& places, size_t& total) {
  std::string digest, text;
  total = HEADER + room;
  for (size_t i = 0; i < files.size(); i++) {
    const File& file = files[i];
    if (file.name == "edgedec.json") digest = sha256_hex(file.content.data(), file.content.size());
    places[i] = total = (total + ALIGN - 1) / ALIGN * ALIGN;
    text += (i ? ", \"" : "\"") + file.name + "\": [" + std::to_string(total) + ", " + std::to_string(file.content.size()) + "]";
    total += file.content.size();
  }
  text = "{\"manifest\": \"" + digest + "\", \"files\": {" + text + "}}";
  if (text.size() > room) std::abort();
  text.resize(room, ' ');
  return text;
}

}  // namespace

std::vector<File> unpacked(const std::string& raw) {
  std::vector<File> out;
  const Json index = parse_json(std::string_view(raw).substr(HEADER, get(raw, 16)), 0, "index");
  for (const auto& [name, place] : index.find("files")->members)
    out.push_back({name, raw.substr(std::stoull(place.items[0].text), std::stoull(place.items[1].text))});
  return out;
}

std::string packed(const std::vector<File>& files) {
  const size_t room = 1024;
  std::vector<size_t> places(files.size());
  size_t total = 0;
  const std::string index = index_of(files, room, places, total);
  std::string out(total, '\0');
  std::memcpy(out.data(), "EDGEPACK", 8);
  put(out, 8, 1, 4), put(out, 16, room, 8), put(out, 24, total, 8);
  std::memcpy(out.data() + HEADER, index.data(), room);
  for (size_t i = 0; i < files.size(); i++) std::memcpy(out.data() + places[i], files[i].content.data(), files[i].content.size());
  hash_index(out, room);
  return out;
}

std::string mended_pack(std::string raw) {
  if (raw.size() < HEADER) return raw;
  std::memcpy(raw.data(), "EDGEPACK", 8);
  put(raw, 24, raw.size(), 8);
  const uint64_t bytes = get(raw, 16);
  if (bytes <= raw.size() - HEADER) hash_index(raw, (size_t)bytes);
  return raw;
}

std::string array_file(const char* magic, std::string_view text) {
  const size_t end = std::min(text.find('\0'), text.size());
  std::string out(ARRAYS, '\0');
  std::memcpy(out.data(), magic, 8);
  out += text.substr(0, end);
  put(out, 40, end, 8);
  if (end < text.size()) out += text.substr(end + 1);
  Sha256 hash;
  hash.add(out.data() + 40, out.size() - 40);
  hash.digest((uint8_t*)out.data() + 8);
  return out;
}

std::string array_text(const std::string& file) {
  const size_t header = (size_t)get(file, 40);
  return file.substr(ARRAYS, header) + '\0' + file.substr(ARRAYS + header);
}

}  // namespace fuzz
