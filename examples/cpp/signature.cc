#include "signature.h"

#include <dlfcn.h>
#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "manifest.h"
#include "sha256.h"

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

namespace {

constexpr std::size_t kMaxStatement = 1 << 20;
constexpr std::size_t kMaxStatements = 64, kMaxSignatures = 16;
constexpr char kPayloadType[] = "application/vnd.in-toto+json";
constexpr char kStatementType[] = "https://in-toto.io/Statement/v1";
constexpr char kPredicateType[] = "https://slsa.dev/provenance/v1";
constexpr char kPemBegin[] = "-----BEGIN PUBLIC KEY-----";
constexpr char kPemEnd[] = "-----END PUBLIC KEY-----";
// What stands before the 32 bytes of every Ed25519 key (RFC 8410).
const std::string kKeyInfo("\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12);

std::string FromBase64(const std::string& text) {
  static const std::string kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) throw std::runtime_error("it is damaged");
  std::string bytes;
  std::uint32_t bits = 0;
  std::size_t padding = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t value = kLetters.find(text[i]);
    if (text[i] == '=' && i + 2 >= text.size()) {
      ++padding;
      value = 0;
    } else if (value == std::string::npos || padding > 0) {
      throw std::runtime_error("it is damaged");
    }
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if (i % 4 == 3) {
      for (int shift = 16; shift >= 0; shift -= 8) bytes += static_cast<char>(bits >> shift & 255);
      bits = 0;
    }
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

// The functions of OpenSSL 1.1.1 and 3 that verify a signature.
class Crypto {
 public:
  Crypto() {
    void* library = nullptr;
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      throw std::runtime_error("signatures need OpenSSL: libcrypto.so.3 cannot be opened");
    }
    auto find = [library](auto* function, const char* name) {
      *function = reinterpret_cast<std::decay_t<decltype(*function)>>(dlsym(library, name));
      if (*function == nullptr) throw std::runtime_error(std::string("libcrypto lacks ") + name);
    };
    find(&new_key_, "EVP_PKEY_new_raw_public_key");
    find(&free_key_, "EVP_PKEY_free");
    find(&new_context_, "EVP_MD_CTX_new");
    find(&free_context_, "EVP_MD_CTX_free");
    find(&begin_, "EVP_DigestVerifyInit");
    find(&verify_, "EVP_DigestVerify");
  }

  bool Verifies(const std::string& key, const std::string& signature,
                const std::string& text) const {
    if (key.size() != 32 || signature.size() != 64) return false;
    std::unique_ptr<void, void (*)(void*)> made(new_key_(kEd25519, nullptr, Bytes(key), key.size()),
                                                free_key_);
    std::unique_ptr<void, void (*)(void*)> context(new_context_(), free_context_);
    if (!made || !context) return false;
    if (begin_(context.get(), nullptr, nullptr, nullptr, made.get()) != 1) return false;
    return verify_(context.get(), Bytes(signature), signature.size(), Bytes(text), text.size()) ==
           1;
  }

 private:
  static constexpr int kEd25519 = 1087;  // NID_ED25519

  static const unsigned char* Bytes(const std::string& text) {
    return reinterpret_cast<const unsigned char*>(text.data());
  }

  void* (*new_key_)(int, void*, const unsigned char*, std::size_t);
  void (*free_key_)(void*);
  void* (*new_context_)();
  void (*free_context_)(void*);
  int (*begin_)(void*, void*, const void*, void*, void*);
  int (*verify_)(void*, const unsigned char*, std::size_t, const unsigned char*, std::size_t);
};

// The payload of an envelope that one of the keys signed.
std::string SignedPayload(const std::string& data, const std::vector<std::string>& keys) {
  static const Crypto crypto;
  json::Object envelope = ParseObject(data, "the envelope");
  std::string kind = GetText(envelope, "payloadType");
  std::string payload = FromBase64(GetText(envelope, "payload"));
  if (kind != kPayloadType) throw std::runtime_error("it is signed as '" + kind + "'");
  std::string text = "DSSEv1 " + std::to_string(kind.size()) + " " + kind + " " +
                     std::to_string(payload.size()) + " " + payload;
  auto signatures = Get<json::Array>(envelope, "signatures");
  if (signatures.size() > kMaxSignatures) throw std::runtime_error("it has too many signatures");
  for (const ffi::Any& one : signatures) {
    auto signature = one.cast<json::Object>();
    std::string name = GetText(signature, "keyid");
    for (const std::string& key : keys) {
      if (Sha256Hex(key) != name) continue;
      if (crypto.Verifies(key, FromBase64(GetText(signature, "sig")), text)) return payload;
    }
  }
  throw std::runtime_error("no key that was given signed it");
}

void CheckStatement(const std::string& payload, const std::string& digest) {
  json::Object statement = ParseObject(payload, "the statement");
  if (GetText(statement, "_type") != kStatementType ||
      GetText(statement, "predicateType") != kPredicateType) {
    throw std::runtime_error("it is a statement of another kind");
  }
  for (const ffi::Any& one : Get<json::Array>(statement, "subject")) {
    auto subject = one.cast<json::Object>();
    if (GetText(subject, "name") == kManifestName) {
      if (GetText(Get<json::Object>(subject, "digest"), "sha256") == digest) return;
      break;
    }
  }
  throw std::runtime_error("it is of another manifest");
}

bool IsStatement(const std::string& name) {
  constexpr char kBegin[] = "statement.", kEnd[] = ".dsse.json";
  std::size_t size = sizeof(kBegin) + sizeof(kEnd) - 2 + 33;
  return name.size() == size && name.rfind(kBegin, 0) == 0 &&
         name.compare(name.size() - sizeof(kEnd) + 1, std::string::npos, kEnd) == 0;
}

}  // namespace

std::string ReadPublicKey(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read the key " + file);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  std::size_t begin = text.find(kPemBegin), end = text.find(kPemEnd);
  std::string letters, key;
  if (begin != std::string::npos && end != std::string::npos && begin < end) {
    for (std::size_t i = begin + sizeof(kPemBegin) - 1; i < end; ++i) {
      if (text[i] != '\n' && text[i] != '\r') letters += text[i];
    }
    key = FromBase64(letters);
  }
  if (key.size() != 44 || key.compare(0, kKeyInfo.size(), kKeyInfo) != 0) {
    throw std::runtime_error(file + " is no public Ed25519 key in PEM");
  }
  return key.substr(kKeyInfo.size());
}

std::string VerifiedManifest(const Folder& folder, const std::vector<std::string>& keys) {
  std::string manifest = folder.Read(kManifestName, kMaxManifest), reasons;
  std::string digest = Sha256Hex(manifest);
  std::size_t tried = 0;
  for (const std::string& name : folder.Names()) {
    if (!IsStatement(name) || ++tried > kMaxStatements) continue;
    try {
      CheckStatement(SignedPayload(folder.Read(name, kMaxStatement), keys), digest);
      return manifest;
    } catch (const std::exception& error) {
      reasons += "\n  " + name + ": " + error.what();
    }
  }
  if (tried == 0) throw std::runtime_error("the bundle is not signed: it has no statement");
  throw std::runtime_error("no key that was given signed the bundle as it is; do not use it:" +
                           reasons);
}
