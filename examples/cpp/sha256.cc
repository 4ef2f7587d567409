#include "sha256.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t Rotated(std::uint32_t x, int bits) { return (x >> bits) | (x << (32 - bits)); }

}  // namespace

void Sha256::Update(std::string_view data) {
  size_ += data.size();
  while (!data.empty()) {
    std::size_t taken = std::min(data.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, data.data(), taken);
    data.remove_prefix(taken);
    filled_ += taken;
    if (filled_ < block_.size()) return;
    Compress(block_.data());
    filled_ = 0;
  }
}

std::string Sha256::Hex() {
  std::uint64_t bits = size_ * 8;
  Update(std::string_view("\x80", 1));
  while (filled_ != 56) Update(std::string_view("\0", 1));
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(bits >> (56 - 8 * i));
  Update(std::string_view(length, 8));
  std::string hex;
  for (std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[(word >> shift) & 15];
  }
  return hex;
}

void Sha256::Compress(const unsigned char* block) {
  std::uint32_t words[64];
  for (int i = 0; i < 16; ++i) {
    words[i] = static_cast<std::uint32_t>(block[4 * i]) << 24 |
               static_cast<std::uint32_t>(block[4 * i + 1]) << 16 |
               static_cast<std::uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    std::uint32_t early = words[i - 15], late = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] +
               (Rotated(early, 7) ^ Rotated(early, 18) ^ (early >> 3)) +
               (Rotated(late, 17) ^ Rotated(late, 19) ^ (late >> 10));
  }
  std::array<std::uint32_t, 8> s = state_;
  for (int i = 0; i < 64; ++i) {
    std::uint32_t first = s[7] + (Rotated(s[4], 6) ^ Rotated(s[4], 11) ^ Rotated(s[4], 25)) +
                          ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRounds[i] + words[i];
    std::uint32_t second = (Rotated(s[0], 2) ^ Rotated(s[0], 13) ^ Rotated(s[0], 22)) +
                           ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

std::string Sha256Hex(std::string_view data) {
  Sha256 hash;
  hash.Update(data);
  return hash.Hex();
}
