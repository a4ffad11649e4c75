//! The locks that are measured: one file each, all behind one trait.

mod lock_core;
mod peer;
mod raw;

#[cfg(feature = "peers")]
mod async_redis_lock;
#[cfg(feature = "peers")]
mod distkit;
#[cfg(feature = "peers")]
mod distributed_lock_redis;
#[cfg(feature = "peers")]
mod nadis;
#[cfg(feature = "peers")]
mod redlock;
#[cfg(feature = "peers")]
mod rlock;
#[cfg(feature = "peers")]
mod rslock;

pub(crate) use peer::{Config, FENCED, FENCED_WITH_ACKS, Kind, Peer, RAW, RSLOCK, TTL};

pub(crate) static ALL: &[&Kind] = &[
    &raw::KIND,
    &lock_core::FENCED,
    #[cfg(feature = "peers")]
    &rslock::KIND,
    #[cfg(feature = "peers")]
    &rlock::KIND,
    #[cfg(feature = "peers")]
    &async_redis_lock::KIND,
    #[cfg(feature = "peers")]
    &distkit::KIND,
    #[cfg(feature = "peers")]
    &distributed_lock_redis::KIND,
    #[cfg(feature = "peers")]
    &nadis::KIND,
    #[cfg(feature = "peers")]
    &redlock::KIND,
];

pub(crate) fn named(name: &str) -> Option<&'static Kind> {
    let mut all = ALL.iter().copied().chain([&lock_core::FENCED_WITH_ACKS]);
    all.find(|kind| kind.name == name)
}
