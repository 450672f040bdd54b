#include "lathe/loop/ledger_file.h"

#include <nlohmann/json.hpp>

#include "lathe/io/files.h"
#include "lathe/mesh/ledger.h"

namespace lathe {

void write_ledger(const std::string& path, Communicator& communicator) {
  using Json = nlohmann::ordered_json;
  const MeshShape& mesh = communicator.mesh();
  Json json;
  json["ranks"] = mesh.size();
  json["mesh"] = {
      {"data", mesh.data}, {"fsdp", mesh.fsdp}, {"context", mesh.context}, {"expert", mesh.expert}};
  json["collectives"] = Json::array();
  const std::vector<LedgerEntry> entries =
      communicator.ledger() == nullptr ? std::vector<LedgerEntry>() : communicator.ledger()->entries();
  for (const LedgerEntry& entry : entries) {
    json["collectives"].push_back({{"phase", phase_name(entry.phase)},
                                   {"tensor", entry.tensor},
                                   {"kind", collective_name(entry.kind)},
                                   {"axes", axes_text(entry.axes)},
                                   {"count", entry.count},
                                   {"result_bytes", entry.result_bytes},
                                   {"wire_bytes", entry.wire_bytes},
                                   {"wait_s", entry.wait_s},
                                   {"exposed_s", entry.exposed_s}});
  }
  write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace lathe
