//! The Redis protocol, both versions of it, as far as lock clients speak it.

/// The answer to a command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Status(&'static str),
    Bulk(Vec<u8>),
    Nil,
    Int(i64),
    Array(Vec<Self>),
    /// Code and words.
    Error(String),
    /// Names and values, alternating.
    Map(Vec<Self>),
    /// Not an answer, but a message that the server pushes.
    Push(Vec<Self>),
}

impl Reply {
    pub(crate) const OK: Self = Self::Status("OK");

    pub(crate) fn error(words: impl Into<String>) -> Self {
        Self::Error(words.into())
    }

    pub(crate) fn bulk(text: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(text.into())
    }

    /// Encodes it for the wire.
    pub(crate) fn encode(&self, resp3: bool, wire: &mut Vec<u8>) {
        let mut line = |text: String| wire.extend_from_slice(text.as_bytes());
        let items = match self {
            Self::Status(text) => return line(format!("+{text}\r\n")),
            Self::Error(words) => return line(format!("-{words}\r\n")),
            Self::Int(number) => return line(format!(":{number}\r\n")),
            Self::Nil => return line((if resp3 { "_\r\n" } else { "$-1\r\n" }).to_owned()),
            Self::Bulk(bytes) => {
                line(format!("${}\r\n", bytes.len()));
                wire.extend_from_slice(bytes);
                wire.extend_from_slice(b"\r\n");
                return;
            }
            Self::Map(items) if resp3 => {
                line(format!("%{}\r\n", items.len() / 2));
                items
            }
            Self::Push(items) if resp3 => {
                line(format!(">{}\r\n", items.len()));
                items
            }
            Self::Array(items) | Self::Map(items) | Self::Push(items) => {
                line(format!("*{}\r\n", items.len()));
                items
            }
        };
        for item in items {
            item.encode(resp3, wire);
        }
    }
}

/// Takes the first whole command out of `buffer`.
pub(crate) fn take_command(buffer: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut at = 0;
    let count = number_line(buffer, &mut at, b'*')?;
    let mut args = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number_line(buffer, &mut at, b'$')?;
        if buffer.len() < at + length + 2 {
            return None;
        }
        args.push(buffer[at..at + length].to_vec());
        at += length + 2;
    }
    buffer.drain(..at);
    Some(args)
}

fn number_line(buffer: &[u8], at: &mut usize, sign: u8) -> Option<usize> {
    let rest = &buffer[*at..];
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], sign, "clients send arrays of bulk strings");
    let number = std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap();
    *at += end + 2;
    Some(number)
}
