//! The page: one response that needs no other file and no other host.

use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use super::csrf;
use super::settings::Settings;

/// The page without what differs from response to response.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page.html")
        .replace("/* style */", include_str!("page.css"))
        .replace("/* script */", include_str!("page.js"))
});

/// The page for the browser that sent these headers.
pub(super) fn page(settings: Settings, headers: &HeaderMap) -> Result<Response, getrandom::Error> {
    let (nonce, token) = (csrf::random()?, csrf::token(headers)?);
    let force = if settings.force { "yes" } else { "no" };
    let page = PAGE.replace("{nonce}", &nonce).replace("{token}", &token).replace("{force}", force);
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let mut response = axum::response::Html(page).into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    if let Some(cookie) = csrf::set_cookie(&token) {
        headers.append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// What every response of the console says: it is for this viewer, now, and for no frame.
pub(super) const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];
