//! The names of scripts.

/// SHA-1 in lower-case hexadecimal digits.
pub(in crate::core) fn hex(text: &[u8]) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}
