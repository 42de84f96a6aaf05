//! Certificates from a private authority, for servers on loopback and their clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const AUTHORITY: &str = "[req]\ndistinguished_name=dn\nprompt=no\nx509_extensions=ca\n\
    [dn]\nCN=watchlock test authority\n[ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n";
const SERVER: &str = "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=localhost\n\
    [server]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";

/// An authority (`ca.crt`) and its certificate (`server.crt`, `server.key`), which clients use, too.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Makes them with `openssl`.
    ///
    /// # Panics
    /// If `openssl` is not installed.
    #[must_use]
    pub fn make() -> Self {
        let folder = tempfile::tempdir().expect("a folder for certificates");
        let at = folder.path();
        std::fs::write(at.join("ca.conf"), AUTHORITY).expect("a file");
        std::fs::write(at.join("server.conf"), SERVER).expect("a file");
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for line in [
            format!("req -x509 -config ca.conf {key} -keyout ca.key -out ca.crt -days 2"),
            format!("req -config server.conf {key} -keyout server.key -out server.csr"),
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 2 -out server.crt \
             -extfile server.conf -extensions server"
                .to_owned(),
        ] {
            openssl(&line, at);
        }
        Self { folder }
    }

    /// The path of one of its files.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// The contents of one of its files.
    ///
    /// # Panics
    /// If there is no such file.
    #[must_use]
    pub fn pem(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).expect("a certificate")
    }

    /// The configuration lines of a server that name them.
    #[must_use]
    pub fn lines(&self) -> [(&'static str, String); 3] {
        let path = |file| self.path(file).display().to_string();
        [
            ("tls-cert-file", path("server.crt")),
            ("tls-key-file", path("server.key")),
            ("tls-ca-cert-file", path("ca.crt")),
        ]
    }
}

fn openssl(line: &str, folder: &Path) {
    let output = Command::new("openssl")
        .args(line.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("openssl is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
