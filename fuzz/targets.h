// Fuzz targets: each gives one parser a file of any bytes. The parser may take it, or refuse it with the kind of error
// that is documented for such a file; everything else, be it another exception or a result that contradicts itself, is
// thrown on as a Finding. The same functions run under libFuzzer (entry.cc) and on the stored corpus in the test suite.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lathe/core/error.h"

namespace lathe::fuzz {

class Finding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

void fuzz_safetensors(
    std::string_view bytes);  // model.safetensors: header, every byte of every tensor, a model's names
void fuzz_weight_index(std::string_view bytes);  // model.safetensors.index.json beside two shards
void fuzz_model_config(std::string_view bytes);  // config.json and the parameters that follow from it
void fuzz_rollouts(
    std::string_view bytes);  // a rollout file, plain or gzip: read, inspected, scored, advantages
void fuzz_run_file(std::string_view bytes);     // a run file, and its lines as --set
void fuzz_train_state(std::string_view bytes);  // trainer/state.json of a checkpoint

struct NamedTarget {
  const char* name;  // of its folder in fuzz/corpus
  void (*run)(std::string_view bytes);
};
[[nodiscard]] std::span<const NamedTarget> targets();

void expect(bool holds, const std::string& what);  // a Finding if not

// Whether `call` accepts its input. False: it refused it with an error of kind `refusal`. Errors of other kinds are
// Findings; other exceptions go on.
template <typename Call>
bool accepts(ErrorKind refusal, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    expect(error.kind() == refusal,
           "refused with exit code " + std::to_string(error.exit_code()) + ": " + error.what());
    return false;
  }
  return true;
}

}  // namespace lathe::fuzz
