//! Taking a lock from the owner that a viewer saw.

use axum::http::StatusCode;
use lock_core::{Error, ErrorKind, OwnerInfo};
use serde_json::Value;
use tokio::time::timeout;

use super::view::{LIST_LIMIT, Observer, too_slow, with_causes};

/// What the viewer saw and wants to take.
pub(super) struct Wanted {
    /// The fingerprint of the owner.
    owner: u64,
    /// The key, if the page shows keys.
    key: Option<String>,
}

/// Why nothing was done, or it is unknown whether something was.
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) outcome: Outcome,
    pub(super) detail: String,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// The lock was taken.
    Done,
    /// Nothing was done.
    Nothing,
    /// The lock may have been taken.
    Unknown,
}

impl Outcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Nothing => "nothing",
            Self::Unknown => "unknown",
        }
    }
}

const GONE: &str = "that owner no longer has the lock, and nothing was done";

impl Wanted {
    /// Reads the body of a request: `{"owner": "16 hex digits", "key": "..."}`.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let wanted: Value = serde_json::from_slice(body).ok()?;
        let owner = wanted.get("owner")?.as_str()?;
        let is_one = owner.len() == 16 && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
        let owner = Some(owner).filter(|_| is_one)?;
        let owner = u64::from_str_radix(owner, 16).ok()?;
        let key = wanted.get("key").and_then(Value::as_str).map(str::to_owned);
        Some(Self { owner, key })
    }

    /// Takes the lock; the text says from which owner.
    pub(super) async fn take(self, observer: &Observer) -> Result<String, Refusal> {
        let (key, owner) = self.find(observer).await?;
        let label = observer.label_of(&key);
        let fingerprint = format_args!("{:016x}", owner.fingerprint()).to_string();
        let taken = observer.client.force_release_from(key, &owner).await;
        tracing::warn!(
            target: "lock_tower", key = label, owner = fingerprint, taken = ?taken,
            "force release by a viewer of the console"
        );
        match taken {
            Ok(true) => {
                let who = owner.client.map_or_else(
                    || "a foreign owner".to_owned(),
                    |client| format!("client {client}"),
                );
                Ok(format!("the lock was taken from {who}"))
            }
            Ok(false) => Err(gone()),
            Err(error) if error.is_unknown() => Err(Refusal {
                status: StatusCode::SERVICE_UNAVAILABLE,
                outcome: Outcome::Unknown,
                detail: format!(
                    "whether the lock was taken is unknown: see who has it before you try again ({})",
                    with_causes(&error)
                ),
            }),
            Err(error) => Err(nothing_was_done(&error)),
        }
    }

    /// The lock that this owner has. The page may be of another instance than this one, so the
    /// store is asked.
    async fn find(self, observer: &Observer) -> Result<(String, OwnerInfo), Refusal> {
        if let Some(key) = self.key.filter(|_| observer.settings.keys) {
            let info = observer.client.inspect(key.clone()).await;
            let owner = info.map_err(|error| nothing_was_done(&error))?.owner;
            let owner = owner.filter(|owner| owner.fingerprint() == self.owner);
            return Ok((key, owner.ok_or_else(gone)?));
        }
        let most = observer.settings.max_locks;
        // One search at a time, however many ask.
        let _turn = observer.search.lock().await;
        let list = timeout(LIST_LIMIT, observer.client.list(most)).await;
        let list = list
            .map_err(|_| {
                let detail = format!("nothing was done: {}", too_slow());
                nothing(StatusCode::SERVICE_UNAVAILABLE, detail)
            })?
            .map_err(|error| nothing_was_done(&error))?;
        let is_cut = list.is_cut;
        // Without its key only an owner that has no other lock can be meant.
        let found = list.into_iter().find_map(|entry| {
            let owner = entry.info.owner.filter(|owner| owner.client.is_some())?;
            (owner.fingerprint() == self.owner).then_some((entry.key, owner))
        });
        found.ok_or_else(|| match is_cut {
            true => nothing(
                StatusCode::CONFLICT,
                format!("{GONE}, or it is not among the first {most}: use `lockctl release`"),
            ),
            false => gone(),
        })
    }
}

fn gone() -> Refusal {
    nothing(StatusCode::CONFLICT, GONE.to_owned())
}

fn nothing_was_done(error: &Error) -> Refusal {
    let status = match error.kind() {
        ErrorKind::InvalidKey => StatusCode::BAD_REQUEST,
        ErrorKind::WrongType | ErrorKind::Unsupported => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    nothing(status, format!("nothing was done: {}", with_causes(error)))
}

fn nothing(status: StatusCode, detail: String) -> Refusal {
    Refusal { status, outcome: Outcome::Nothing, detail }
}
