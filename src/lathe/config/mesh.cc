#include "lathe/config/mesh.h"

#include <array>

namespace lathe {
namespace {

struct Axis {
  const char* name;
  int64_t* size;
};

std::string ranks_text(int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

}  // namespace

void resolve_mesh(LoadedConfig* loaded, int ranks, ProblemList* problems) {
  MeshSection& mesh = loaded->config.mesh;
  const std::array<Axis, 4> axes{Axis{"data", &mesh.data}, Axis{"fsdp", &mesh.fsdp},
                                 Axis{"context", &mesh.context}, Axis{"expert", &mesh.expert}};
  std::string sizes;
  std::string where = "mesh";
  int64_t known = 1;
  int64_t* open = nullptr;
  bool refused = false;
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    problems->add(where, what, hint);
    refused = true;
  };
  for (const Axis& axis : axes) {
    sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", axis.name, *axis.size);
    const auto origin = loaded->origins.find(std::string("mesh.") + axis.name);
    if (origin != loaded->origins.end() && where == "mesh") where = origin->second;
  }
  for (const Axis& axis : axes) {
    if (*axis.size == 0)
      refuse(fmt::format("mesh ({}): {} is 0", sizes, axis.name),
             "an axis has at least 1 rank; -1: all that are left");
    if (*axis.size == -1 && open != nullptr)
      refuse(fmt::format("mesh ({}): two axes are -1", sizes),
             "leave one of them at -1 and give the other its size");
    if (*axis.size == -1) open = axis.size;
    if (*axis.size > 0) known *= *axis.size;
  }
  if (refused) return;
  if (open != nullptr && ranks % known == 0) {
    *open = ranks / known;
  } else if (open != nullptr) {
    refuse(fmt::format("mesh ({}): {} cannot be divided by {}", sizes, ranks_text(ranks), known),
           "start a multiple of it, or change the mesh");
  } else if (known != ranks) {
    refuse(fmt::format("mesh ({}) is of {}, this run has {}", sizes, ranks_text(known), ranks_text(ranks)),
           fmt::format(
               "start it with mpirun -np {}, or change the mesh: an axis of -1 takes all ranks that are left",
               known));
  }
}

}  // namespace lathe
