// Who made a bundle: its signed statement, an in-toto Statement in a DSSE envelope beside the manifest
// (`collage.runtime.signature` describes it). Ed25519 is that of OpenSSL's libcrypto, which is opened when
// a key is given.
#ifndef SERVE_BUNDLE_SIGNATURE_H_
#define SERVE_BUNDLE_SIGNATURE_H_

#include <string>
#include <vector>

#include "folder.h"

// The 32 bytes of a public Ed25519 key in a PEM file, as `openssl pkey -pubout` writes it.
std::string ReadPublicKey(const std::string& file);

// Returns the bytes of manifest.json, which one of the keys signed. Throws std::runtime_error unless it did.
std::string VerifiedManifest(const Folder& folder, const std::vector<std::string>& keys);

#endif  // SERVE_BUNDLE_SIGNATURE_H_
