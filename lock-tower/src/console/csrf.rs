//! Whether a request that changes something comes from the console's own page.
//!
//! Two independent checks. Browsers say where a request comes from (`Sec-Fetch-Site`, or `Origin`
//! in older ones and without TLS); another site's is refused. Besides, the page was given a token,
//! which its script sends in a header and the browser in a cookie: another site can read neither.
//! The server keeps no token, so a request may be answered by another instance than the page.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

/// The header in which the page's script sends the token.
pub(super) const HEADER: &str = "x-lock-console";
/// The cookie in which the browser sends it.
const COOKIE: &str = "lock-console";
const TOKEN_LEN: usize = 32;

/// The token of a page: the one that the browser has, so that pages in two windows share it, or a
/// new one.
pub(super) fn token(headers: &HeaderMap) -> Result<String, getrandom::Error> {
    match cookie(headers) {
        Some(token) => Ok(token.to_owned()),
        None => random(),
    }
}

/// 128 random bits as text.
pub(super) fn random() -> Result<String, getrandom::Error> {
    let mut bytes = [0; TOKEN_LEN / 2];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Gives the browser the token. Without a path it is for the folder of the page; not for scripts,
/// and not for requests of other sites but a link to the page: a page that is opened by a link
/// would else get another token, and take it from the pages that are open.
pub(super) fn set_cookie(token: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{COOKIE}={token}; SameSite=Lax; HttpOnly")).ok()
}

/// Why the request is not the page's, if it is not.
pub(super) fn check(headers: &HeaderMap, uri: &Uri) -> Result<(), &'static str> {
    let text = |name| headers.get(name).map(HeaderValue::as_bytes);
    if let Some(site) = text("sec-fetch-site") {
        if site != b"same-origin" {
            return Err("the request comes from another site, as its Sec-Fetch-Site header says");
        }
    } else if let Some(origin) = text("origin") {
        // HTTP/2 has the host in the place of the header.
        let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
        let host = text("host").or(authority);
        let of_origin = origin.splitn(2, |byte| *byte == b'/').nth(1);
        if host.is_none() || of_origin.and_then(|rest| rest.strip_prefix(b"/")) != host {
            return Err(
                "the request comes from another site: its Origin header does not match Host. \
                        If there is a proxy, let it pass the Host header on",
            );
        }
    }
    let token = headers.get(HEADER).and_then(|token| token.to_str().ok());
    match (token, cookie(headers)) {
        (Some(token), Some(cookie)) if token == cookie => Ok(()),
        _ => Err("the request lacks the token of its page: reload the page, and allow its cookie"),
    }
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut tokens = cookies.flat_map(|value| value.split(';')).filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == COOKIE).then_some(value)
    });
    tokens.find(|token| token.len() == TOKEN_LEN && token.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn is_accepted(pairs: &[(&'static str, &str)]) -> bool {
        check(&headers(pairs), &Uri::from_static("/release")).is_ok()
    }

    #[test]
    fn only_the_page_itself_passes() {
        let cookie = format!("theme=dark; lock-console={TOKEN}");
        let own = [(HEADER, TOKEN), ("cookie", &*cookie), ("host", "ops.example:8443")];
        let with = |more: &[(&'static str, &str)]| is_accepted(&[&own[..], more].concat());
        assert!(with(&[("sec-fetch-site", "same-origin")]));
        assert!(with(&[("origin", "https://ops.example:8443")]));
        // Not a browser.
        assert!(with(&[]));
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(!with(&[("sec-fetch-site", site), ("origin", "https://ops.example:8443")]));
        }
        for origin in ["https://evil.example", "https://ops.example", "null", "", "//", "https://"]
        {
            assert!(!with(&[("origin", origin)]), "{origin}");
        }
        let of_http_2 = Uri::from_static("https://ops.example:8443/release");
        let same = [own[0], own[1], ("origin", "https://ops.example:8443")];
        check(&headers(&same), &of_http_2).unwrap();
        let other = [own[0], own[1], ("origin", "https://evil.example")];
        check(&headers(&other), &of_http_2).unwrap_err();
        // A forged form has the cookie at most.
        assert!(!is_accepted(&own[1..]));
        assert!(!is_accepted(&own[..1]));
        let other = TOKEN.replace('0', "1");
        assert!(!is_accepted(&[(HEADER, &other), own[1]]));
        assert!(!is_accepted(&[(HEADER, ""), ("cookie", "lock-console=")]));
    }

    #[test]
    fn browser_keeps_its_token_and_a_malformed_one_is_replaced() {
        let kept = headers(&[("cookie", &format!("lock-console={TOKEN}"))]);
        assert_eq!(token(&kept).unwrap(), TOKEN);
        for bad in ["lock-console=", "lock-console=\"><script>", "lock-console", ""] {
            let token = token(&headers(&[("cookie", bad)])).unwrap();
            assert!(token.len() == TOKEN_LEN && token != TOKEN, "{bad}");
            assert!(set_cookie(&token).is_some());
        }
    }
}
