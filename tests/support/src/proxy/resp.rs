//! Just enough of the Redis protocol to cut a stream into whole messages.

use std::io::{self, BufRead, Read};

/// Reads one message of any kind, as its bytes.
pub(super) fn frame(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_frame(from, &mut bytes)?;
    Ok(bytes)
}

fn read_frame(from: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<()> {
    let start = bytes.len();
    if from.read_until(b'\n', bytes)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = &bytes[start..];
    let count = || {
        let number = std::str::from_utf8(&line[1..]).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a length"))
    };
    match line[0] {
        b'$' | b'=' | b'!' => {
            let length: i64 = count()?;
            if let Ok(length) = u64::try_from(length) {
                from.take(length + 2).read_to_end(bytes)?;
            }
            Ok(())
        }
        b'*' | b'~' | b'>' => items(from, bytes, count()?),
        b'%' | b'|' => {
            let pairs: i64 = count()?;
            items(from, bytes, pairs * 2)
        }
        _ => Ok(()),
    }
}

fn items(from: &mut impl BufRead, bytes: &mut Vec<u8>, count: i64) -> io::Result<()> {
    for _ in 0..count {
        read_frame(from, bytes)?;
    }
    Ok(())
}

/// The arguments of a command in the form that clients send, or the parts of a message.
pub(super) fn arguments(command: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = command;
    let mut args = Vec::new();
    let mut header = Vec::new();
    if rest.read_until(b'\n', &mut header).is_err() || !matches!(header.first(), Some(b'*' | b'>'))
    {
        return args;
    }
    while !rest.is_empty() {
        let mut length = Vec::new();
        if rest.read_until(b'\n', &mut length).is_err() {
            break;
        }
        let length = String::from_utf8_lossy(length.get(1..).unwrap_or_default()).trim().parse();
        let Ok(length) = length else { break };
        let mut arg = vec![0; length];
        if rest.read_exact(&mut arg).is_err() {
            break;
        }
        args.push(arg);
        rest = rest.get(2..).unwrap_or_default();
    }
    args
}

/// What a server sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// The reply to a command. To a subscription, that is the first part of a push in RESP3, and of
    /// an array in RESP2.
    Reply,
    /// What was published on a channel.
    Message,
    /// Something else that is not a reply.
    Notice,
}

/// What a message from the server is, in RESP2 and in RESP3.
pub(super) fn kind(frame: &[u8]) -> Kind {
    let push = frame.first() == Some(&b'>');
    if !push && !frame.starts_with(b"*3\r\n$") && !frame.starts_with(b"*4\r\n$") {
        return Kind::Reply;
    }
    let word = arguments(frame).into_iter().next().unwrap_or_default();
    match word.as_slice() {
        b"message" | b"smessage" | b"pmessage" => Kind::Message,
        word if word.ends_with(b"subscribe") => Kind::Reply,
        _ if push => Kind::Notice,
        _ => Kind::Reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_cut_where_messages_end() {
        let wire = b"*3\r\n:1\r\n:17\r\n$3\r\na\r\n\r\n-ERR no\r\n$-1\r\n%1\r\n+k\r\n*0\r\n+OK\r\n";
        let mut stream = wire.as_slice();
        let mut lengths = Vec::new();
        while let Ok(message) = frame(&mut stream) {
            lengths.push(message.len());
        }
        assert_eq!(lengths, [4 + 4 + 5 + 9, 9, 5, 4 + 4 + 4, 5]);
    }

    #[test]
    fn command_is_split_into_arguments() {
        let args = arguments(b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n");
        assert_eq!(args, [b"GET".to_vec(), b"a\r\nb".to_vec()]);
    }

    #[test]
    fn messages_differ_from_replies() {
        for (frame, expected) in [
            (">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", Kind::Message),
            ("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", Kind::Message),
            (">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", Kind::Reply),
            ("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", Kind::Reply),
            (">2\r\n$10\r\ninvalidate\r\n*0\r\n", Kind::Notice),
            ("*3\r\n:1\r\n:2\r\n:3\r\n", Kind::Reply),
        ] {
            assert_eq!(kind(frame.as_bytes()), expected, "{frame}");
        }
    }
}
