//! Where a request's key comes from.

mod extension;
mod extract;
mod header;
#[cfg(feature = "axum")]
mod path;
mod rejection;

pub use self::extension::ExtensionKey;
pub use self::extract::ExtractKey;
pub use self::header::HeaderKey;
#[cfg(feature = "axum")]
pub use self::path::{PartsKey, PathKey};
pub use self::rejection::KeyRejection;
pub(crate) use self::rejection::Reply;
