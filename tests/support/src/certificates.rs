//! Certificates of a test's own.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

use crate::{RedisBuilder, RedisServer, temp_dir};

/// A certificate authority, and what it signed: a certificate for a server and one for a client. In
/// files, which are removed on drop.
#[derive(Debug)]
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// A year that no test sees.
    pub const YEAR: i32 = 4_000;

    /// The server's is for `name`, and good until that year.
    #[must_use]
    pub fn make(name: &str, year: i32) -> Self {
        let made = Self { dir: temp_dir("certificates") };
        let write = |file: &str, text: String| std::fs::write(made.path(file), text).unwrap();

        let authority_key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        write("authority.pem", authority.self_signed(&authority_key).unwrap().pem());
        let issuer = Issuer::new(authority, authority_key);
        let sign = |who: &str, name: &str, year: i32| {
            let key = KeyPair::generate().unwrap();
            let mut certificate = CertificateParams::new(vec![name.to_owned()]).unwrap();
            // With the name of the authority it would count as one that signed itself.
            certificate.distinguished_name.push(DnType::CommonName, who);
            certificate.not_after = date_time_ymd(year, 1, 1);
            write(&format!("{who}.pem"), certificate.signed_by(&key, &issuer).unwrap().pem());
            write(&format!("{who}.key"), key.serialize_pem());
        };
        sign("server", name, year);
        sign("client", "client", Self::YEAR);
        made
    }

    /// Where a file is.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// What is in a file.
    #[must_use]
    pub fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).unwrap()
    }

    /// The lines of a server's configuration. `asks`: whether clients need a certificate of the
    /// authority, as `client.pem` is.
    #[must_use]
    pub fn config(&self, asks: &str) -> [String; 4] {
        let line = |name: &str, file: &str| format!("{name} {}", self.path(file).display());
        [
            line("tls-cert-file", "server.pem"),
            line("tls-key-file", "server.key"),
            line("tls-ca-cert-file", "authority.pem"),
            format!("tls-auth-clients {asks}"),
        ]
    }

    /// A server that listens by TLS as well, with these lines.
    #[must_use]
    pub fn server(&self, asks: &str) -> RedisBuilder {
        let builder = RedisServer::builder().by_tls();
        self.config(asks).iter().fold(builder, |builder, line| builder.config(line))
    }
}
