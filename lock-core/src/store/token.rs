//! The token of one acquisition: the value that the store keeps, and that permits a release.

use std::fmt;

use uuid::Uuid;

use crate::{Error, random};

/// Identifies one acquisition. A client that knows it can renew and release the lock, so it is
/// never printed.
///
/// A version-4 UUID made from 16 bytes of the operating system's randomness: a user-space generator
/// may be cloned with its state (fork, snapshot of a virtual machine), and two acquisitions with
/// one token would both pass every comparison.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Token(Uuid);

impl Token {
    /// The length of a token as text.
    pub const TEXT_LEN: usize = 36;

    /// Draws a new token.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the operating system gives no randomness.
    pub fn fresh() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        random::fill(&mut bytes).map_err(|e| {
            Error::unavailable("the operating system gave no randomness for a token", e)
        })?;
        Ok(Self(uuid::Builder::from_random_bytes(bytes).into_uuid()))
    }

    /// Reads a token from its text.
    #[cfg(feature = "redis")]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }

    /// Writes the token as text, the form in which stores keep it.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; Self::TEXT_LEN]) -> &'b str {
        self.0.hyphenated().encode_lower(buffer)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_stay_out_of_debug() {
        let (one, two) = (Token::fresh().unwrap(), Token::fresh().unwrap());
        assert_ne!(one, two);
        let mut buffer = [0; Token::TEXT_LEN];
        let text = one.encode(&mut buffer).to_owned();
        assert_eq!(text.as_bytes()[14], b'4');
        assert!(!format!("{one:?}").contains(&text[..4]));
    }
}
