// SHA-256 (FIPS 180-4), so that the example needs no library for it.
#ifndef SERVE_BUNDLE_SHA256_H_
#define SERVE_BUNDLE_SHA256_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

class Sha256 {
 public:
  void Update(std::string_view data);

  // The digest in 64 hexadecimal digits; the object is used up then.
  std::string Hex();

 private:
  void Compress(const unsigned char* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t size_ = 0;
};

std::string Sha256Hex(std::string_view data);

#endif  // SERVE_BUNDLE_SHA256_H_
