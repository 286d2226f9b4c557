// How ranks find each other: again and again on one rendezvous, and where some of them end meanwhile.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/sockets/greeting.h"
#include "ddl/sockets/socket_transport.h"
#include "tests/ddl/sockets/file_texts.h"
#include "tests/support/ddl/socket_world.h"

namespace spillway::ddl::testing {
namespace {

using std::chrono::milliseconds;

/// A time that no wait but one for the deadline takes, however busy the machine is.
constexpr double kLong = 30;
constexpr std::chrono::seconds kDeadline{60};

SocketOptions options_of(int host) {
  return {.deadline = kDeadline, .host = str("host", host)};
}

/// Makes one rank's communicator, all on one host or each on its own.
std::unique_ptr<Communicator> make(int rank, int size, Rendezvous& texts, bool one_host) {
  return std::make_unique<Communicator>(socket_transport(rank, size, texts, options_of(one_host ? 0 : rank)),
                                        CommOptions{.deadline = kDeadline});
}

/// Plays ranks on threads, and returns the text of the error of each.
std::vector<std::string> errors_of(int size, const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

void sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

/// Plays `body` in a child process, which ends with the number that it returns.
pid_t in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    _exit(body());
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    _exit(99);
  }
}

int end_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// A folder that goes with its owner.
struct Folder {
  std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / str("meeting", getpid());
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST(MeetingTest, GroupsMayFollowEachOtherOnOneRendezvousThoughARankIsLate) {
  for (const bool one_host : {true, false}) {
    SharedTexts texts;
    expect_none(errors_of(3, [&](int rank) {
      for (int group = 0; group < 4; ++group) {
        if (rank == group % 3) sleep(150);
        barrier(*make(rank, 3, texts, one_host));
      }
    }));
  }
}

TEST(MeetingTest, ARankThatStillHasItsLastGroupIsWaitedFor) {
  for (const bool one_host : {true, false}) {
    SharedTexts texts;
    expect_none(errors_of(2, [&](int rank) {
      auto first = make(rank, 2, texts, one_host);
      barrier(*first);
      if (rank == 0) first.reset();
      if (rank == 1) sleep(300);
      first.reset();
      barrier(*make(rank, 2, texts, one_host));
    }));
  }
}

TEST(MeetingTest, GroupsOfOneRendezvousLiveSideBySide) {
  SharedTexts texts;
  expect_none(errors_of(3, [&](int rank) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int i = 0; i < 3; ++i) {
      if (rank == i) sleep(100);
      groups.push_back(make(rank, 3, texts, rank != 2));
      for (const auto& group : groups) barrier(*group);
    }
  }));
}

TEST(MeetingTest, AddressesOfProcessesThatWereKilledAreReadAgain) {
  const Folder folder;
  for (int life = 0; life < 3; ++life) {
    // In the first two lives one rank is killed, before or after it met the other.
    const auto play = [&](int rank) {
      return in_process([&folder, rank, life] {
        FileTexts texts(folder.path);
        if (life == 0 && rank == 1) sleep(300);
        if (life == 1 && rank == 0) sleep(300);
        auto comm = make(rank, 2, texts, life % 2 == 0);
        barrier(*comm);
        // A rank that is still in the barrier when the other one ends may fail there.
        texts.set(str("spillway/passed", life, "-", rank), "yes");
        texts.await(str("spillway/passed", life, "-", 1 - rank));
        if (life < 2) raise(SIGKILL);
        return 0;
      });
    };
    std::vector<pid_t> ranks{play(0)};
    if (life == 0) {
      FileTexts(folder.path).await("spillway/0");
      kill(ranks[0], SIGKILL);  // its address stays
    } else {
      ranks.push_back(play(1));
    }
    for (const pid_t rank : ranks) EXPECT_EQ(end_of(rank), life < 2 ? -SIGKILL : 0) << "life " << life;
  }
}

TEST(MeetingTest, ARankThatRefusesItsOptionsIsNamedByAllOthersAtOnce) {
  for (int victim = 0; victim < 5; ++victim) {
    SharedTexts texts;
    const auto start = Clock::now();
    const auto errors = errors_of(5, [&](int rank) {
      auto wire = socket_transport(rank, 5, texts, options_of(rank / 2));
      CommOptions options{.deadline = kDeadline};
      if (rank == victim) options.levels = {{0, 1}};
      Communicator comm(std::move(wire), options);
    });
    EXPECT_LT(seconds_since(start), kLong);
    for (int rank = 0; rank < 5; ++rank)
      EXPECT_NE(errors[rank].find(rank == victim ? "levels" : str("rank ", victim, " has ended")), std::string::npos)
          << rank << ": " << errors[rank];
  }
}

TEST(MeetingTest, ARankThatEndsInTheMidstOfTheMeetingIsNamedByAllOthersAtOnce) {
  /// A rendezvous that fails after a while, for one rank.
  class Failing final : public Rendezvous {
   public:
    explicit Failing(Rendezvous& inner) : inner_(inner) {}
    void set(const std::string& key, const std::string& value) override { inner_.set(key, value); }
    std::optional<std::string> find(const std::string& key) override {
      if (Clock::now() > end_) throw std::runtime_error("the store is gone");
      return inner_.find(key);
    }

   private:
    Rendezvous& inner_;
    const Clock::time_point end_ = Clock::now() + milliseconds(500);
  };
  SharedTexts texts;
  const auto start = Clock::now();
  const auto errors = errors_of(5, [&](int rank) {
    Failing failing(texts);
    if (rank == 4) return;  // it never comes
    socket_transport(rank, 5, rank == 1 ? static_cast<Rendezvous&>(failing) : texts, options_of(rank % 2));
  });
  EXPECT_LT(seconds_since(start), kLong);
  EXPECT_EQ(errors[1], "the store is gone");
  for (const int rank : {0, 2, 3})
    EXPECT_NE(errors[rank].find("rank 1 has ended"), std::string::npos) << rank << ": " << errors[rank];
}

TEST(MeetingTest, AKilledRankIsNoticedThoughAChildOfItLives) {
  const Folder folder;
  const auto play = [&](int rank) {
    return in_process([&folder, rank] {
      FileTexts texts(folder.path);
      auto comm = make(rank, 2, texts, true);
      barrier(*comm);
      if (rank == 1) {
        const pid_t child = fork();
        if (child == 0) {
          for (int i = 0; i < 1200; ++i) sleep(100);
          _exit(0);
        }
        texts.set("spillway/child", str(child));
        raise(SIGKILL);
      }
      const auto start = Clock::now();
      try {
        barrier(*comm);
      } catch (const CommError& error) {
        return std::string(error.what()).find("rank 1") != std::string::npos && seconds_since(start) < kLong ? 0 : 3;
      }
      return 4;
    });
  };
  const std::vector<pid_t> ranks{play(0), play(1)};
  EXPECT_EQ(end_of(ranks[0]), 0);
  EXPECT_EQ(end_of(ranks[1]), -SIGKILL);
  kill(std::stoi(FileTexts(folder.path).await("spillway/child")), SIGKILL);
}

TEST(MeetingTest, AChildThatEndsLeavesItsParentsGroupAlive) {
  const Folder folder;
  const auto play = [&](int rank) {
    return in_process([&folder, rank] {
      FileTexts texts(folder.path);
      auto comm = make(rank, 2, texts, rank == 0);
      const auto copy = comm->duplicate();
      barrier(*copy);
      const pid_t child = in_process([&] {
        try {
          barrier(*copy);
        } catch (const CommError& error) {
          const bool says_why = std::string(error.what()).find("child of fork()") != std::string::npos;
          comm.reset();
          return says_why ? 0 : 3;
        }
        return 4;
      });
      if (end_of(child) != 0) return 5;
      for (int i = 0; i < 10; ++i) barrier(*copy);
      barrier(*comm->duplicate());
      barrier(*comm);
      return 0;
    });
  };
  const std::vector<pid_t> ranks{play(0), play(1)};
  for (const pid_t rank : ranks) EXPECT_EQ(end_of(rank), 0);
}

TEST(MeetingTest, HostsThatOnlySeemToBeOneAreReachedByTcp) {
  /// A rendezvous at which a rank's Unix socket has another name.
  class Renaming final : public Rendezvous {
   public:
    explicit Renaming(Rendezvous& inner) : inner_(inner) {}
    void set(const std::string& key, const std::string& value) override {
      RankAddress address = parse_address(0, value, "");
      address.unix_name += "-elsewhere";
      inner_.set(key, format_address(0, address, ""));
    }
    std::optional<std::string> find(const std::string& key) override { return inner_.find(key); }

   private:
    Rendezvous& inner_;
  };
  SharedTexts texts;
  expect_none(errors_of(3, [&](int rank) {
    Renaming renaming(texts);
    const auto comm = make(rank, 3, rank == 1 ? static_cast<Rendezvous&>(renaming) : texts, true);
    for (int i = 0; i < 5; ++i) barrier(*comm);
    EXPECT_EQ(comm->hosts(), (std::vector<int>{0, 0, 0}));
  }));
}

TEST(MeetingTest, AnotherVersionAndAnotherTextAreNamed) {
  for (const auto& [text, wanted] : {std::pair("spillway 9 some words of the future", "protocol 9, this rank 2"),
                                     std::pair("host 123 127.0.0.1 4000 name", "something else than its addresses")}) {
    SharedTexts texts;
    texts.set("spillway/1", text);
    const auto errors = errors_of(1, [&](int) { socket_transport(0, 2, texts, options_of(0)); });
    EXPECT_NE(errors[0].find(wanted), std::string::npos) << errors[0];
  }
}

}  // namespace spillway::ddl::testing
