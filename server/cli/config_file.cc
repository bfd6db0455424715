#include "server/cli/config_file.h"

#include <yaml-cpp/yaml.h>  // only here, because it throws

#include "runtime/base/json.h"
#include "runtime/base/text_values.h"

namespace shoal {

namespace {

std::string place(const std::string& file, const YAML::Mark& mark) {
  return mark.is_null() ? file : cat(file, ":", mark.line + 1);
}

Status wrong(const std::string& where, std::string_view what) {
  return Status::error(Code::kInvalidArgument, cat(where, ": ", what));
}

/// The library's message without what follows a colon, which may be a part of the file.
std::string without_text(const std::string& message) {
  return message.substr(0, message.find(':'));
}

Result<ConfigEntry> read_entry(const YAML::Node& key, const YAML::Node& value,
                               const std::string& file) {
  ConfigEntry entry{.where = place(file, key.Mark())};
  if (!key.IsScalar()) return wrong(entry.where, "a key must be the name of a flag");
  entry.key = key.Scalar();
  // After a colon without a blank comes what was meant as a value, which may be a secret.
  const std::string name = shown(entry.key.substr(0, entry.key.find(':')));
  if (value.IsScalar()) {
    entry.values.push_back(value.Scalar());
    return entry;
  }
  if (value.IsNull())
    return wrong(entry.where, cat(name,
                                  " has no value; write a blank after the colon and then the "
                                  "value, or remove the line"));
  if (!value.IsSequence())
    return wrong(entry.where, cat(name, " is a map, but must be a word, a number or a list"));
  entry.is_list = true;
  for (const YAML::Node& one : value) {
    if (!one.IsScalar())
      return wrong(entry.where, cat("the list ", name, " may only have words and numbers in it"));
    entry.values.push_back(one.Scalar());
  }
  return entry;
}

/// Throws what the library throws.
Result<std::vector<ConfigEntry>> read_document(const std::string& text, const std::string& file) {
  const std::vector<YAML::Node> documents = YAML::LoadAll(text);
  std::vector<ConfigEntry> entries;
  if (documents.size() > 1)
    return wrong(file, "has more than one YAML document; keep one, and remove ---");
  if (documents.empty() || documents[0].IsNull()) return entries;  // only comments
  const YAML::Node& root = documents[0];
  if (!root.IsMap())
    return wrong(place(file, root.Mark()),
                 "must be a map with one flag a line, such as max-num-seqs: 16");
  for (const auto& pair : root) {
    SHOAL_ASSIGN_OR_RETURN(ConfigEntry entry, read_entry(pair.first, pair.second, file));
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

Result<std::vector<ConfigEntry>> parse_config(const std::string& text, const std::string& file) {
  if (text.find('\0') != std::string::npos)
    return wrong(file, "is no text file; it has a zero byte");
  try {
    return read_document(text, file);
  } catch (const YAML::Exception& error) {
    return wrong(place(file, error.mark), cat("is not YAML: ", without_text(error.msg)));
  } catch (const std::exception& error) {
    return wrong(file, cat("cannot be read as YAML: ", error.what()));
  }
}

Result<std::vector<ConfigEntry>> read_config(const std::string& file, std::string_view flag) {
  const Result<std::string> text = read_file(file, kMaxConfigBytes);
  if (!text.ok())
    return text.status().because_of(
        Code::kInvalidArgument,
        cat(flag, " ", file, " cannot be used; name a YAML file of at most ", kMaxConfigBytes >> 10,
            " KiB"));
  return parse_config(*text, file);
}

}  // namespace shoal
