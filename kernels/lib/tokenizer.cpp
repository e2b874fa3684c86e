#include "tokenizer.h"

#include "failure.h"

namespace edgedec::lib {

std::shared_ptr<const Tokenizer> Tokenizer::load(std::string_view, const std::string& where) {
  throw Failure(EDGEDEC_TEXT, where + ": not written yet");
}

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops, const std::vector<int32_t>&)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {}
bool TextStream::push(int32_t, std::string&) { return false; }
bool TextStream::flush(std::string&) { return false; }

}  // namespace edgedec::lib
