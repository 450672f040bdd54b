#include "lathe/mesh/thread_world.h"

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "lathe/core/error.h"
#include "lathe/mesh/ranked_communicator.h"
#include "lathe/mesh/transport.h"

namespace lathe {

// Messages that wait for their other half. One lock for all; copies happen under it, so that a rank that closes knows that
// nobody touches its memory any more.
struct ThreadWorld::Mailboxes {
  struct Message {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int64_t bytes = 0;
    int* left = nullptr;
  };
  struct Rank {
    std::function<void()> wake;
    std::vector<int*> over;  // one message each, for progress()
    bool gone = false;
  };
  using Key = std::tuple<int, int, int>;  // from, to, tag

  std::mutex mutex;
  std::vector<Rank> ranks;
  std::map<Key, std::deque<Message>> sends;
  std::map<Key, std::deque<Message>> receives;
  std::optional<std::pair<int, std::string>> failure;  // the first rank that failed, and why

  // Takes the first message of the other side, if there is one.
  static bool take(std::map<Key, std::deque<Message>>* waiting, const Key& key, Message* message) {
    const auto found = waiting->find(key);
    if (found == waiting->end()) return false;
    *message = found->second.front();
    found->second.pop_front();
    if (found->second.empty()) waiting->erase(found);
    return true;
  }

  void meet(const Key& key, const Message& send, const Message& receive) {
    const auto [from, to, tag] = key;
    LATHE_CHECK(send.bytes == receive.bytes, "rank {} sends {} bytes, rank {} expects {}", from, send.bytes,
                to, receive.bytes);
    std::memcpy(receive.to, send.from, static_cast<size_t>(send.bytes));
    for (const auto& [rank, message] : {std::pair(from, &send), std::pair(to, &receive)}) {
      Rank& owner = ranks[static_cast<size_t>(rank)];
      owner.over.push_back(message->left);
      owner.wake();
    }
  }

  void wake_all() {
    for (Rank& rank : ranks) {
      if (rank.wake) rank.wake();
    }
  }

  void fail_locked(int rank, const std::string& reason) {
    if (!failure.has_value()) failure.emplace(rank, reason);
    wake_all();
  }

  void check_alive(int rank) {
    if (failure.has_value()) throw PeerFailure(failure->first, failure->second);
    for (const auto* waiting : {&sends, &receives}) {
      for (const auto& [key, messages] : *waiting) {
        const auto [from, to, tag] = key;
        const int peer = from == rank ? to : from;
        if ((from == rank || to == rank) && ranks[static_cast<size_t>(peer)].gone)
          retryable_error("mesh", fmt::format("rank {} has ended, and rank {} waits for it", peer, rank));
      }
    }
  }
};

namespace {

class ThreadTransport final : public Transport {
 public:
  using Mailboxes = ThreadWorld::Mailboxes;

  ThreadTransport(std::shared_ptr<Mailboxes> mailboxes, int rank, std::function<void()> wake)
      : mailboxes_(std::move(mailboxes)), rank_(rank) {
    const std::lock_guard lock(mailboxes_->mutex);
    Mailboxes::Rank& own = mailboxes_->ranks[static_cast<size_t>(rank)];
    LATHE_CHECK(!own.wake && !own.gone, "rank {} has a communicator", rank);
    own.wake = std::move(wake);
  }

  void post_send(int peer, int tag, const std::byte* data, int64_t bytes, int* left) override {
    const std::lock_guard lock(mailboxes_->mutex);
    const Mailboxes::Key key{rank_, peer, tag};
    const Mailboxes::Message send{.from = data, .to = nullptr, .bytes = bytes, .left = left};
    Mailboxes::Message receive;
    if (Mailboxes::take(&mailboxes_->receives, key, &receive)) return mailboxes_->meet(key, send, receive);
    mailboxes_->sends[key].push_back(send);
  }

  void post_receive(int peer, int tag, std::byte* data, int64_t bytes, int* left) override {
    const std::lock_guard lock(mailboxes_->mutex);
    const Mailboxes::Key key{peer, rank_, tag};
    const Mailboxes::Message receive{.from = nullptr, .to = data, .bytes = bytes, .left = left};
    Mailboxes::Message send;
    if (Mailboxes::take(&mailboxes_->sends, key, &send)) return mailboxes_->meet(key, send, receive);
    mailboxes_->receives[key].push_back(receive);
  }

  bool progress() override {
    const std::lock_guard lock(mailboxes_->mutex);
    std::vector<int*>& over = mailboxes_->ranks[static_cast<size_t>(rank_)].over;
    const bool moved = !over.empty();
    for (int* left : over) --*left;
    over.clear();
    mailboxes_->check_alive(rank_);
    return moved;
  }

  [[nodiscard]] bool wakes() const override { return true; }

  void fail(const std::string& reason) override {
    const std::lock_guard lock(mailboxes_->mutex);
    mailboxes_->fail_locked(rank_, reason);
  }

  void close(bool clean) override {
    const std::lock_guard lock(mailboxes_->mutex);
    Mailboxes::Rank& own = mailboxes_->ranks[static_cast<size_t>(rank_)];
    own.wake = nullptr;
    own.gone = clean;
    own.over.clear();
    std::erase_if(mailboxes_->sends, [this](const auto& item) { return std::get<0>(item.first) == rank_; });
    std::erase_if(mailboxes_->receives,
                  [this](const auto& item) { return std::get<1>(item.first) == rank_; });
    mailboxes_->wake_all();
  }

 private:
  std::shared_ptr<Mailboxes> mailboxes_;
  int rank_;
};

}  // namespace

ThreadWorld::ThreadWorld(const MeshShape& mesh) : mesh_(mesh), mailboxes_(std::make_shared<Mailboxes>()) {
  mailboxes_->ranks.resize(static_cast<size_t>(mesh.size()));
}

ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<Communicator> ThreadWorld::communicator(int rank, DeviceMemory& memory) {
  return make_ranked_communicator(mesh_, rank, memory, [this, rank](std::function<void()> wake) {
    return std::make_unique<ThreadTransport>(mailboxes_, rank, std::move(wake));
  });
}

void ThreadWorld::fail(int rank, const std::string& reason) {
  const std::lock_guard lock(mailboxes_->mutex);
  mailboxes_->fail_locked(rank, reason);
}

}  // namespace lathe
