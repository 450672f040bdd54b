#include <fstream>
#include <iterator>
#include <string>

#include "lathe/loop/train_state.h"

#include "fuzz/scratch_folder.h"
#include "fuzz/targets.h"

namespace lathe::fuzz {
namespace {

std::string state_text(const ScratchFolder& scratch) {
  std::ifstream file(scratch.path() + "/written/trainer/state.json", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

void fuzz_train_state(std::string_view bytes) {
  static const ScratchFolder scratch;
  scratch.write("trainer/state.json", bytes);
  TrainState state;
  if (!accepts(ErrorKind::kModel, [&] { state = read_train_state(scratch.path()); })) return;
  expect(state.counters.step >= 0 && state.micro_batches >= 0 && state.position.batch.file >= 0,
         "a negative count");
  // What is read is written as it is.
  scratch.write("written/trainer/state.json", "");
  write_train_state(scratch.path() + "/written", state);
  const std::string once = state_text(scratch);
  write_train_state(scratch.path() + "/written", read_train_state(scratch.path() + "/written"));
  expect(state_text(scratch) == once, "a state that is written reads back differently");
}

}  // namespace lathe::fuzz
