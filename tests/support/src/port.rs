//! Ports for servers.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which the kernel takes ports for outgoing connections, so that a port stays
/// free while its server restarts.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;

/// A free port of 127.0.0.1, which no other call of this process gives soon, and no other test of
/// this machine is likely to take.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test binaries that run at the same time start at different places.
    let start = std::process::id().wrapping_mul(7919) as u16;
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST_PORT + start.wrapping_add(step) % PORTS;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
