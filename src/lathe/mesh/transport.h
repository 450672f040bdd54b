// What moves bytes between ranks: point-to-point messages that do not block, and nothing else. The communication thread
// (exchange_thread.h) is its only caller.
//
// Messages from one rank to another with the same tag meet in the order in which they are posted. Both sides give the same
// number of bytes. When a message is over (sent: the bytes may change; received: they are there), progress() takes one off
// *left. Errors are thrown and end the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lathe {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual void post_send(int peer, int tag, const std::byte* data, int64_t bytes, int* left) = 0;
  virtual void post_receive(int peer, int tag, std::byte* data, int64_t bytes, int* left) = 0;
  // Moves messages on. True when something happened.
  virtual bool progress() = 0;
  // True: calls `wake` when there is something for progress() to find; false: progress() must be asked.
  [[nodiscard]] virtual bool wakes() const = 0;
  // This rank gives up; the others are told the first reason, at the latest by close(). From any thread.
  virtual void fail(const std::string& reason) = 0;
  // The last call. clean: all messages of this rank are over, and the other ranks close before long too. Otherwise what is
  // under way is called off, so that buffers may go.
  virtual void close(bool clean) = 0;
};

// Called on the communication thread. `wake`: from any thread, wakes that one.
using OpenTransport = std::function<std::unique_ptr<Transport>(std::function<void()> wake)>;

}  // namespace lathe
