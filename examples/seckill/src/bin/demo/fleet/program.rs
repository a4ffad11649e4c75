//! Programs of the distribution.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where Debian and others put servers; not in the `PATH` of every user.
const SERVERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// A program that is not installed, and what to do about it.
#[derive(Debug)]
pub(super) struct Missing {
    name: &'static str,
    package: &'static str,
    otherwise: &'static str,
}

/// Finds a program by its name.
pub(super) fn find(
    name: &'static str,
    package: &'static str,
    otherwise: &'static str,
) -> Result<PathBuf, Missing> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SERVERS.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|program| Path::is_file(program))
        .ok_or(Missing { name, package, otherwise })
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, package, otherwise } = self;
        write!(f, "{name} is not installed: `apt install {package}` or the like, or {otherwise}")
    }
}

impl std::error::Error for Missing {}
