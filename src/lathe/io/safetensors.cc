#include "lathe/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lathe/core/dtype.h"
#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");
using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;
constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kIncompleteHint = "incomplete download or copy?";
constexpr const char* kDamagedHint = "the file is damaged or was not made to the format: get it again";
constexpr const char* kReadableHint = "check the path, and that you may read it";

bool multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// What a file that is no safetensors file looks like, as the action it calls for; "" if nothing known.
std::string guess_of_kind(std::string_view start) {
  if (start.starts_with("version https://git-lfs")) {
    return "this is a git-lfs pointer, not the file itself: fetch it with `git lfs pull`";
  }
  if (start.starts_with("<!DOCTYPE") || start.starts_with("<!doctype") || start.starts_with("<html")) {
    return "this is a web page, not the file itself: download it again";
  }
  if (start.starts_with("\x1f\x8b")) return "this is a gzip file: unpack it first";
  if (start.starts_with("PK\x03\x04")) return "this is a PyTorch (zip) file: convert it to safetensors first";
  return "";
}

// An offset, extent or the like: a whole number that is not negative.
int64_t whole_number(const json& value, const std::string& where, const std::string& what) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits || value.get<int64_t>() < 0) {
    model_error(where, fmt::format("{} must be whole numbers of at least 0, not {}", what, value.dump()),
                kDamagedHint);
  }
  return value.get<int64_t>();
}

TensorInfo read_entry(const std::string& path, const std::string& name, const json& entry) {
  const auto fail = [&](const std::string& what) {
    model_error(path, fmt::format("tensor {}: {}", name, what), kDamagedHint);
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    fail("needs dtype, shape and data_offsets");
  }
  const json& dtype = entry["dtype"];
  const json& shape = entry["shape"];
  const json& offsets = entry["data_offsets"];
  if (!dtype.is_string()) fail("dtype must be a string, not " + dtype.dump());
  if (!shape.is_array()) fail("shape must be a list, not " + shape.dump());
  if (!offsets.is_array() || offsets.size() != 2)
    fail("data_offsets must be two numbers, not " + offsets.dump());

  TensorInfo info;
  info.dtype = dtype.get<std::string>();
  const std::string where = fmt::format("{}: tensor {}", path, name);
  int64_t elements = 1;
  for (const json& extent : shape) {
    info.shape.push_back(whole_number(extent, where, "extents"));
    if (!multiply(elements, info.shape.back(), &elements))
      fail("shape " + shape.dump() + " overflows 64 bits");
  }
  info.begin = static_cast<uint64_t>(whole_number(offsets[0], where, "data_offsets"));
  info.end = static_cast<uint64_t>(whole_number(offsets[1], where, "data_offsets"));
  if (info.begin > info.end) fail(fmt::format("data begin at {} after they end at {}", info.begin, info.end));

  const int64_t size = safetensors_dtype_size(info.dtype);
  int64_t bytes = 0;
  if (size != 0 && !multiply(elements, size, &bytes)) fail("shape " + shape.dump() + " overflows 64 bits");
  if (size != 0 && info.bytes() != static_cast<uint64_t>(bytes)) {
    fail(fmt::format("{} {} takes {} bytes, but data_offsets {} give {}", info.dtype, shape_text(info.shape),
                     bytes, offsets.dump(), info.bytes()));
  }
  return info;
}

std::map<std::string, std::string> read_metadata(const std::string& path, const json& entry) {
  std::map<std::string, std::string> metadata;
  if (!entry.is_object()) model_error(path, "__metadata__ must be an object of strings", kDamagedHint);
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      model_error(path, fmt::format("__metadata__ {} must be a string, not {}", key, value.dump()),
                  kDamagedHint);
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Maps a file; nothing is read yet. An empty file gives a null pointer.
const std::byte* map_file(const std::string& path, size_t* bytes) {
  const auto words = [] { return std::error_code(errno, std::generic_category()).message(); };
  const std::string kind = other_than_file(path);
  if (!kind.empty())
    model_error(path, fmt::format("is {}, expected a file", kind), "copy it to a file first");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) model_error(path, "no such file", kReadableHint);
  if (descriptor < 0) model_error(path, "cannot be opened: " + words(), kReadableHint);
  struct stat status {};
  const bool examined = ::fstat(descriptor, &status) == 0;
  void* mapping = MAP_FAILED;
  if (examined && status.st_size > 0) {
    mapping = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  const std::string reason = words();
  ::close(descriptor);
  if (!examined) model_error(path, "cannot be examined: " + reason, kReadableHint);
  *bytes = static_cast<size_t>(status.st_size);
  if (*bytes == 0) return nullptr;
  if (mapping == MAP_FAILED) model_error(path, "cannot be mapped: " + reason, kReadableHint);
  return static_cast<const std::byte*>(mapping);
}

std::string_view as_text(const std::byte* data, size_t bytes) {
  return {static_cast<const char*>(static_cast<const void*>(data)), bytes};
}

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  mapping_ = map_file(path, &mapping_bytes_);
  try {
    uint64_t header_bytes = 0;
    if (mapping_bytes_ >= kLengthBytes) std::memcpy(&header_bytes, mapping_, kLengthBytes);
    check_header_length(header_bytes);
    read_header(header_bytes);
    check_coverage(kLengthBytes + header_bytes);
    for (auto& [name, info] : tensors_) {  // from within the data to within the file
      info.begin += kLengthBytes + header_bytes;
      info.end += kLengthBytes + header_bytes;
    }
  } catch (...) {
    if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), mapping_bytes_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), mapping_bytes_);
}

void SafetensorsFile::release(const std::byte* from, uint64_t bytes) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = static_cast<size_t>(from - mapping_) / page * page;
  const size_t end = std::min(mapping_bytes_, static_cast<size_t>(from - mapping_) + bytes);
  // Whole pages, neighbours included: the mapping is never written, so dropping one costs a read at most.
  if (end > begin)
    static_cast<void>(::madvise(const_cast<std::byte*>(mapping_) + begin, end - begin, MADV_DONTNEED));
}

void SafetensorsFile::check_header_length(uint64_t header_bytes) const {
  const std::string guess = guess_of_kind(as_text(mapping_, std::min<size_t>(mapping_bytes_, 64)));
  const std::string hint = guess.empty() ? kIncompleteHint : guess;
  if (mapping_bytes_ < kLengthBytes) {
    model_error(path_, fmt::format("{} bytes are too few for a safetensors file", mapping_bytes_), hint);
  }
  if (!guess.empty())
    model_error(path_, fmt::format("not a safetensors file ({} bytes)", mapping_bytes_), guess);
  if (header_bytes > mapping_bytes_ - kLengthBytes) {
    model_error(path_,
                fmt::format("the header should be {} bytes long but {} bytes follow its length", header_bytes,
                            mapping_bytes_ - kLengthBytes),
                hint);
  }
  if (header_bytes > kMaxHeaderBytes) {
    model_error(path_,
                fmt::format("a header of {} bytes is above the limit of {}", header_bytes, kMaxHeaderBytes),
                kDamagedHint);
  }
  if (header_bytes < 2 || mapping_[kLengthBytes] != std::byte{'{'}) {
    model_error(path_, "the header is not a JSON object", "is this a safetensors file?");
  }
}

void SafetensorsFile::read_header(uint64_t header_bytes) {
  const std::string_view text = as_text(mapping_ + kLengthBytes, header_bytes);
  check_json(path_ + ": header", text, 8);
  const json header = json::parse(text.begin(), text.end());
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = read_metadata(path_, entry);
    } else {
      tensors_[name] = read_entry(path_, name, entry);
    }
  }
}

// The tensors must tile the data: no overlap, no hole, nothing missing or left over at the end.
void SafetensorsFile::check_coverage(uint64_t data_begin) const {
  uint64_t needed = 0;
  for (const auto& [name, info] : tensors_) needed = std::max(needed, info.end);
  if (const uint64_t found = mapping_bytes_ - data_begin; needed != found) {
    model_error(path_, fmt::format("header says {} bytes of data but the file has {}", needed, found),
                needed > found ? kIncompleteHint : "bytes follow the last tensor: a damaged copy?");
  }
  uint64_t covered = 0;
  std::string before;
  for (const std::string& name : names_in_file_order()) {
    const TensorInfo& info = tensors_.at(name);
    if (info.begin < covered)
      model_error(path_, fmt::format("tensors {} and {} overlap", before, name), kDamagedHint);
    if (info.begin > covered) {
      model_error(path_,
                  fmt::format("{} bytes before tensor {} belong to no tensor", info.begin - covered, name),
                  kDamagedHint);
    }
    covered = info.end;
    before = name;
  }
}

std::vector<std::string> SafetensorsFile::names_in_file_order() const {
  std::vector<const std::pair<const std::string, TensorInfo>*> entries;
  for (const auto& entry : tensors_) entries.push_back(&entry);
  std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
    return a->second.begin != b->second.begin ? a->second.begin < b->second.begin
                                              : a->second.end < b->second.end;
  });
  std::vector<std::string> names;
  for (const auto* entry : entries) names.push_back(entry->first);
  return names;
}

}  // namespace lathe
