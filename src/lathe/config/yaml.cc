#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "lathe/config/value.h"
#include "lathe/core/error.h"
#include "lathe/io/files.h"

namespace lathe {
namespace {

// A run file has about a hundred keys. The limits stop aliases that multiply and files that are something
// else.
constexpr int kMaxNodes = 20000;
constexpr int kMaxDepth = 20;
constexpr std::uintmax_t kMaxBytes = 1U << 20;

std::string at_line(const std::string& place, int line) {
  return line > 0 ? fmt::format("{}:{}", place, line) : place;
}

class Converter {
 public:
  Converter(std::string place, bool with_lines) : place_(std::move(place)), with_lines_(with_lines) {}

  ConfigValue convert(const YAML::Node& node, int depth = 0) {
    ConfigValue value;
    value.line = line_of(node);
    if (++nodes_ > kMaxNodes || depth > kMaxDepth) {
      config_error(at_line(place_, value.line), "too many or too deeply nested values for a run file");
    }
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        value.kind = ConfigValue::Kind::kScalar;
        value.text = node.Scalar();
        value.quoted = is_quoted(node, value.line);
        break;
      case YAML::NodeType::Sequence:
        value.kind = ConfigValue::Kind::kList;
        for (const auto& item : node) value.items.push_back(convert(item, depth + 1));
        break;
      case YAML::NodeType::Map:
        value.kind = ConfigValue::Kind::kMap;
        for (const auto& entry : node)
          value.entries.push_back(convert_entry(entry.first, entry.second, depth));
        break;
    }
    return value;
  }

 private:
  int line_of(const YAML::Node& node) const {
    return with_lines_ && !node.Mark().is_null() ? node.Mark().line + 1 : 0;
  }

  bool is_quoted(const YAML::Node& node, int line) const {
    const std::string& tag = node.Tag();
    if (tag.empty() || tag == "?") return false;
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return true;
    config_error(at_line(place_, line), fmt::format("YAML tag '{}' has no meaning in a run file", tag),
                 "remove the tag");
  }

  ConfigEntry convert_entry(const YAML::Node& key, const YAML::Node& value, int depth) {
    const int line = line_of(key);
    if (!key.IsScalar()) config_error(at_line(place_, line), "a key must be a plain word");
    return {key.Scalar(), line, convert(value, depth + 1)};
  }

  std::string place_;
  bool with_lines_;
  int nodes_ = 0;
};

// Takes a document and forgets it.
class Ignored : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnAlias(const YAML::Mark& /*mark*/, YAML::anchor_t /*anchor*/) override {}
  void OnScalar(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& /*value*/) override {}
  void OnSequenceStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                       YAML::EmitterStyle::value /*style*/) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {}
  void OnMapEnd() override {}
};

// Never more than two documents are asked for: on some texts (a closing bracket too many) the library finds empty documents
// without end, and its own LoadAll collects them.
bool has_second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Ignored ignored;
  return parser.HandleNextDocument(ignored) && parser.HandleNextDocument(ignored);
}

ConfigValue parse(const std::string& text, const std::string& place, bool with_lines) {
  try {
    if (has_second_document(text)) {
      config_error(place, "holds more than one YAML document, expected one",
                   "remove the '---' lines between them, or a closing bracket too many");
    }
    return Converter(place, with_lines).convert(YAML::Load(text));
  } catch (const YAML::Exception& e) {
    const int line = with_lines && !e.mark.is_null() ? e.mark.line + 1 : 0;
    config_error(
        at_line(place, line), fmt::format("not valid YAML: {}", e.msg),
        "check the indentation, and quote values that hold ': ', '#' or start with *, &, !, %, @ or `");
  }
}

}  // namespace

std::string describe(const ConfigValue& value) {
  switch (value.kind) {
    case ConfigValue::Kind::kNull:
      return "null";
    case ConfigValue::Kind::kList:
      return "a list";
    case ConfigValue::Kind::kMap:
      return "a map";
    case ConfigValue::Kind::kScalar:
      break;
  }
  constexpr size_t kLongest = 80;
  const std::string text =
      value.text.size() <= kLongest ? value.text : value.text.substr(0, kLongest) + "...";
  if (value.quoted) return yaml_quoted(text);
  const bool number_like = !text.empty() && text.find_first_not_of("+-.0123456789eE") == std::string::npos;
  return number_like ? text : fmt::format("'{}'", text);
}

std::string yaml_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + '"';
}

ConfigValue read_yaml_file(const std::string& path) {
  std::error_code error;
  const std::string kind = other_than_file(path);
  if (kind == "a folder") {
    const bool run_folder =
        std::filesystem::exists(std::filesystem::path(path) / "config.resolved.yaml", error);
    config_error(path, "is a folder, expected a run file (YAML)",
                 run_folder ? "to repeat this run, give the config.resolved.yaml in it" : "");
  }
  if (!kind.empty()) {
    config_error(path, fmt::format("is {}, expected a run file (YAML)", kind), "write it to a file first");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    config_error(
        path,
        fmt::format("cannot open the run file: {}", std::strerror(errno)),  // NOLINT(concurrency-mt-unsafe)
        "give the path of a YAML run file");
  }
  if (std::filesystem::file_size(path, error) > kMaxBytes) {
    config_error(path, "is larger than 1 MiB, which no run file is", "give the path of a YAML run file");
  }
  std::stringstream text;
  text << file.rdbuf();
  return parse(text.str(), path, true);
}

ConfigValue parse_yaml(const std::string& text, const std::string& place) {
  return parse(text, place, false);
}

}  // namespace lathe
