#include "runtime/io/unpacked_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

constexpr size_t kTrailerBytes = 8;  // checksum and length, at the end of each member

std::string compressed(const std::string& bytes, int level = 6) {
  z_stream zlib{};
  EXPECT_EQ(deflateInit2(&zlib, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&zlib, bytes.size()) + 64, '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  zlib.avail_in = static_cast<unsigned>(bytes.size());
  zlib.next_out = reinterpret_cast<Bytef*>(packed.data());
  zlib.avail_out = static_cast<unsigned>(packed.size());
  EXPECT_EQ(deflate(&zlib, Z_FINISH), Z_STREAM_END);
  packed.resize(zlib.total_out);
  deflateEnd(&zlib);
  return packed;
}

/// Returns bytes that hardly become fewer.
std::string noise(size_t count) {
  std::string bytes(count, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

class UnpackedFileTest : public ScratchFolder {
 protected:
  struct Contents {
    std::string bytes;
    bool cut_short = false;
  };
  /// Reads a file that holds `bytes`, `each` bytes at a time, to its end.
  Contents read_all(const std::string& bytes, int64_t each) const {
    write_file(dir_ / "file", bytes);
    UnpackedFile file(dir_ / "file");
    Contents contents;
    std::string part(static_cast<size_t>(each), '\0');
    for (int64_t got = each; got == each;) {
      got = file.read(part.data(), each);
      contents.bytes.append(part, 0, static_cast<size_t>(got));
    }
    contents.cut_short = file.cut_short();
    return contents;
  }
  void expect_whole(const std::string& file, const std::string& bytes) const {
    for (const int64_t each : {int64_t{1000}, int64_t{1} << 20}) {
      const Contents contents = read_all(file, each);
      EXPECT_EQ(contents.bytes == bytes, true) << contents.bytes.size() << " of " << bytes.size() << " bytes";
      EXPECT_FALSE(contents.cut_short);
    }
  }
};

}  // namespace

TEST_F(UnpackedFileTest, GivesTheBytesOfPlainAndCompressedFiles) {
  for (const size_t count : {0, 1, 2, 1000, 300000}) {
    const std::string bytes = noise(count);
    expect_whole(bytes, bytes);
    for (const int level : {0, 1, 9}) expect_whole(compressed(bytes, level), bytes);
  }
}

TEST_F(UnpackedFileTest, JoinsMembersAndIgnoresWhatIsBehindTheLast) {
  const std::string one = noise(70000), other = noise(30);
  const std::string file = compressed("") + compressed(one) + compressed(other);
  for (const std::string& behind : {std::string(), std::string(512, '\0'), std::string(200000, '\0'),
                                    std::string("the end\n"), std::string("\0\0\x1f", 3)})
    expect_whole(file + behind, one + other);
  expect_whole(compressed(one) + std::string(100000, '\0') + compressed(other), one + other);
}

TEST_F(UnpackedFileTest, NoticesEveryEndWithinAMember) {
  const std::string bytes = noise(70000), first = compressed(bytes), second = compressed("tail");
  const std::string file = first + second;
  // At every byte near the members' ends, and at some between.
  for (size_t kept = 2; kept < file.size(); kept += kept + 40 < first.size() ? 7919 : 1) {
    if (kept == first.size() || kept == first.size() + 1) continue;  // whole, and a byte behind
    for (const int64_t each : {int64_t{1000}, static_cast<int64_t>(bytes.size()), int64_t{1} << 20}) {
      const Contents contents = read_all(file.substr(0, kept), each);
      EXPECT_TRUE(contents.cut_short) << kept << " of " << first.size() << " + " << second.size() << " bytes";
    }
  }
}

TEST_F(UnpackedFileTest, RefusesDamageAndAWrongChecksum) {
  const std::string bytes = noise(5000), whole = compressed(bytes) + compressed(bytes);
  const size_t member = whole.size() / 2;
  for (const size_t at :
       {member - kTrailerBytes, member - 1, member + 2, whole.size() - kTrailerBytes, whole.size() - 4}) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    expect_refusal([&] { (void)read_all(damaged, 1 << 20); }, {"/file'", "damaged"});
  }
}

TEST_F(UnpackedFileTest, TellsTheSizeOnTheDiskAndWhetherItIsCompressed) {
  const std::string packed = compressed(noise(50000));
  write_file(dir_ / "file", packed);
  EXPECT_TRUE(UnpackedFile(dir_ / "file").compressed());
  EXPECT_EQ(UnpackedFile(dir_ / "file").bytes_on_disk(), std::ssize(packed));
  write_file(dir_ / "file", "abc");
  EXPECT_FALSE(UnpackedFile(dir_ / "file").compressed());
  EXPECT_EQ(UnpackedFile(dir_ / "file").bytes_on_disk(), 3);
}

TEST_F(UnpackedFileTest, SkipsForwardAlone) {
  write_file(dir_ / "file", compressed(noise(50000)));
  UnpackedFile file(dir_ / "file");
  char byte = 0;
  ASSERT_TRUE(file.skip_to(40000));
  ASSERT_EQ(file.read(&byte, 1), 1);
  EXPECT_EQ(byte, noise(50000)[40000]);
  EXPECT_FALSE(file.skip_to(10));
  EXPECT_FALSE(file.skip_to(50001));
}

}  // namespace spillway
