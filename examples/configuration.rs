//! How do I read URL and options from a file and the environment?
//!
//! `SHOP_LOCK__OPTIONS__TTL=30s` overrides the file. A field that does not exist, a duration
//! without a unit and a value out of its bounds are errors that say where they stand.

use figment::Figment;
use figment::providers::{Env, Format as _, Toml};
use lock_core::{LockConfig, LockOptions};
use serde::Deserialize;

const FILE: &str = r#"
[lock]
url = "redis://127.0.0.1/"
namespace = "shop"
options = { ttl = "15s", wait = "2s" }

[nightly_report]
wait = "none"
min_hold = "30s"
"#;

#[derive(Deserialize)]
struct Settings {
    lock: LockConfig,
    /// What one kind of work needs.
    nightly_report: LockOptions,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings: Settings = Figment::from(Toml::string(FILE))
        .merge(Env::raw().only(&["REDIS_URL"]).map(|_| "lock.url".into()))
        .merge(Env::prefixed("SHOP_").split("__"))
        .extract()?;
    println!("{:?}", settings.lock);

    let client = settings.lock.connect().await?.build()?;
    let report = client.mutex("nightly-report").with_options(settings.nightly_report);
    println!("locked: {}", report.run(async |lease| lease.is_valid()).await?);
    Ok(())
}
