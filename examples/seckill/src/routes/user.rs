//! Who asks.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};

/// Carries the user's number in place of a session: a real service verifies something here.
pub const USER_HEADER: HeaderName = HeaderName::from_static("x-user-id");

/// The user who sent the request, or 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User(pub u32);

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let mut values = parts.headers.get_all(USER_HEADER).iter();
        match (values.next().and_then(|value| value.to_str().ok()?.parse().ok()), values.next()) {
            (Some(user), None) => Ok(Self(user)),
            _ => Err((StatusCode::UNAUTHORIZED, "say who you are: x-user-id: <number>")),
        }
    }
}
