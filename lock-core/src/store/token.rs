//! The token of one acquisition: the value that the store keeps, and that permits a release. Its
//! first part names the client.

use std::fmt;

use uuid::Uuid;

use crate::{Error, random};

/// Identifies one acquisition. A client that knows it can renew and release the lock, so it is
/// never printed.
///
/// It has the form of a version-4 UUID. The first 8 digits are the [`ClientId`] of the client that
/// drew it, so that a person who reads the value of a lock finds the holder. The other 90 bits come
/// from the operating system's randomness: a user-space generator may be cloned with its state
/// (fork, snapshot of a virtual machine), and two acquisitions with one token would both pass every
/// comparison.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Token(Uuid);

/// Names one client, in logs and at the beginning of its tokens: 8 hexadecimal digits, drawn when
/// the client is built. It is no secret.
///
/// Two clients may draw the same: among a thousand of them the chance is 1 in 10,000. Nothing but
/// what a person reads depends on it.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct ClientId([u8; 4]);

impl ClientId {
    /// Draws a name.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the operating system gives no randomness.
    pub(crate) fn fresh() -> Result<Self, Error> {
        let mut bytes = [0; 4];
        fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({self})")
    }
}

impl Token {
    /// The length of a token as text.
    pub const TEXT_LEN: usize = 36;

    /// Draws a token of no particular client, for tests of stores.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the operating system gives no randomness.
    pub fn fresh() -> Result<Self, Error> {
        Self::draw(None)
    }

    /// Draws a token of `client`.
    pub(crate) fn of(client: ClientId) -> Result<Self, Error> {
        Self::draw(Some(client))
    }

    fn draw(client: Option<ClientId>) -> Result<Self, Error> {
        let mut bytes = [0; 16];
        match client {
            Some(ClientId(id)) => {
                bytes[..4].copy_from_slice(&id);
                fill(&mut bytes[4..])?;
            }
            None => fill(&mut bytes)?,
        }
        Ok(Self(uuid::Builder::from_random_bytes(bytes).into_uuid()))
    }

    /// The client that drew it.
    #[must_use]
    pub fn client(&self) -> ClientId {
        let bytes = self.0.as_bytes();
        ClientId([bytes[0], bytes[1], bytes[2], bytes[3]])
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

fn fill(bytes: &mut [u8]) -> Result<(), Error> {
    random::fill(bytes).map_err(|error| {
        Error::unavailable("the operating system gave no randomness for a token", error)
    })
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

    #[test]
    fn first_part_of_a_token_names_its_client() {
        let client = ClientId([0x0b, 0xad, 0xca, 0xfe]);
        let (one, two) = (Token::of(client).unwrap(), Token::of(client).unwrap());
        assert_ne!(one, two);
        assert_eq!((one.client(), client.to_string()), (client, "0badcafe".to_owned()));
        let mut buffer = [0; Token::TEXT_LEN];
        let text = one.encode(&mut buffer);
        assert!(text.starts_with("0badcafe-") && text.as_bytes()[14] == b'4', "{text}");
    }
}
